//! What a container writes, kept in files with a time before each line, and read again by `kubectl logs`.
//!
//! A run's log is a row of segments, `N.0.log`, `N.1.log` and so on, of which the last two are kept: a container cannot
//! fill the disk, and a client that follows does not notice that a file ended.

use crate::instance::Instance;
use crate::runtime::LogRequest;
use jiff::{SignedDuration, Timestamp};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, watch};

/// A segment that is longer is followed by a new one.
const SEGMENT_BYTES: u64 = 10 << 20;
/// How many segments are kept.
const SEGMENTS_KEPT: u64 = 2;
/// A line that is longer is kept in pieces.
const PIECE_BYTES: usize = 16 << 10;

/// The log of one run of a container.
#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    run: u32,
    clock: Arc<Instance>,
    writer: Mutex<Writer>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    segment: u64,
    length: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    segment: u64,
    written: u64,
    ended: bool,
}

/// Up to where it was read.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    segment: u64,
    offset: u64,
}

/// A line, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// In RFC 3339, to the nanosecond: texts that sort as the times do.
    time: String,
    content: Vec<u8>,
}

impl Log {
    /// Begins the log of a run.
    pub fn create(directory: &Path, run: u32, clock: Arc<Instance>) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let file = File::create(path(directory, run, 0))?;
        let writer = Mutex::new(Writer { file, segment: 0, length: 0 });
        Ok(Self { directory: directory.to_owned(), run, clock, writer, progress: watch::Sender::default() })
    }

    /// Nothing will be written any more.
    pub fn end(&self) {
        self.progress.send_modify(|progress| progress.ended = true);
    }

    /// Whether the run continues.
    pub fn is_open(&self) -> bool {
        !self.progress.borrow().ended
    }

    /// The end of what is written, as a kubelet takes it for a termination message: so many lines and bytes at most.
    pub fn end_of(&self, lines: usize, bytes: usize) -> io::Result<String> {
        let progress = *self.progress.borrow();
        let mut position = Position { segment: progress.segment, offset: 0 };
        let all = self.read(&mut position, progress.segment)?;
        let text: Vec<u8> = all[all.len().saturating_sub(lines)..].iter().flat_map(|line| line.shown(false)).collect();
        Ok(String::from_utf8_lossy(&text[text.len().saturating_sub(bytes)..]).into_owned())
    }

    /// Forgets what is written.
    pub fn remove(&self) {
        for segment in 0..=self.progress.borrow().segment {
            // Most are gone already.
            drop(std::fs::remove_file(path(&self.directory, self.run, segment)));
        }
    }

    /// Keeps what comes out of a stream until it ends.
    pub async fn keep(&self, stream: &str, mut from: impl AsyncRead + Unpin) -> io::Result<()> {
        let (mut buffer, mut pending) = (vec![0; 64 << 10], Vec::new());
        loop {
            let count = from.read(&mut buffer).await?;
            pending.extend_from_slice(&buffer[..count]);
            let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let mut text = Vec::new();
            for line in pending[..whole].split_inclusive(|byte| *byte == b'\n') {
                self.format(stream, &line[..line.len() - 1], "F", &mut text);
            }
            pending.drain(..whole);
            if pending.len() > PIECE_BYTES || (count == 0 && !pending.is_empty()) {
                self.format(stream, &pending, "P", &mut text);
                pending.clear();
            }
            if !text.is_empty() {
                self.write(&text)?;
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn format(&self, stream: &str, line: &[u8], tag: &str, text: &mut Vec<u8>) {
        let time = time(self.clock.now());
        text.extend_from_slice(format!("{time} {stream} {tag} ").as_bytes());
        text.extend_from_slice(line);
        text.push(b'\n');
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.length > SEGMENT_BYTES {
            let segment = writer.segment + 1;
            *writer = Writer { file: File::create(path(&self.directory, self.run, segment))?, segment, length: 0 };
            if let Some(old) = segment.checked_sub(SEGMENTS_KEPT) {
                std::fs::remove_file(path(&self.directory, self.run, old))?;
            }
        }
        writer.file.write_all(text)?;
        writer.length += text.len() as u64;
        let segment = writer.segment;
        self.progress.send_modify(|progress| {
            progress.segment = segment;
            progress.written += text.len() as u64;
        });
        Ok(())
    }

    /// Reads whole lines from a position on, which moves behind them.
    fn read(&self, position: &mut Position, newest: u64) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        position.segment = position.segment.max((newest + 1).saturating_sub(SEGMENTS_KEPT));
        loop {
            match File::open(path(&self.directory, self.run, position.segment)) {
                Ok(mut file) => {
                    let mut text = Vec::new();
                    file.seek(SeekFrom::Start(position.offset))?;
                    file.read_to_end(&mut text)?;
                    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                    lines.extend(text[..whole].split_inclusive(|byte| *byte == b'\n').filter_map(parse));
                    position.offset += whole as u64;
                }
                // It was dropped for a newer one meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && position.segment < newest => {}
                Err(error) => return Err(error),
            }
            if position.segment >= newest {
                return Ok(lines);
            }
            *position = Position { segment: position.segment + 1, offset: 0 };
        }
    }

    /// Sends what a request asks for.
    pub async fn send(&self, request: &LogRequest, to: mpsc::Sender<Vec<u8>>) -> io::Result<()> {
        let mut seen = self.progress.subscribe();
        let mut position = Position::default();
        let mut budget = request.limit_bytes.unwrap_or(u64::MAX);
        let mut tail = request.tail_lines;
        let since = request.since_seconds.and_then(|seconds| {
            self.clock.now().checked_sub(SignedDuration::from_secs(i64::try_from(seconds).ok()?)).ok().map(time)
        });
        loop {
            let progress = *seen.borrow_and_update();
            let mut lines = self.read(&mut position, progress.segment)?;
            lines.retain(|line| since.as_ref().is_none_or(|since| line.time >= *since));
            if let Some(tail) = tail.take().and_then(|tail| usize::try_from(tail).ok()) {
                lines.drain(..lines.len().saturating_sub(tail));
            }
            let mut text: Vec<u8> = lines.iter().flat_map(|line| line.shown(request.timestamps)).collect();
            text.truncate(usize::try_from(budget).unwrap_or(usize::MAX));
            budget -= text.len() as u64;
            if !text.is_empty() && to.send(text).await.is_err() {
                return Ok(());
            }
            if !request.follow || progress.ended || budget == 0 {
                return Ok(());
            }
            tokio::select! {
                changed = seen.changed() => if changed.is_err() { return Ok(()) },
                () = to.closed() => return Ok(()),
            }
        }
    }
}

impl Line {
    fn shown(&self, timestamps: bool) -> Vec<u8> {
        let time = if timestamps { format!("{} ", self.time) } else { String::new() };
        [time.as_bytes(), &self.content].concat()
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string()
}

fn path(directory: &Path, run: u32, segment: u64) -> PathBuf {
    directory.join(format!("{run}.{segment}.log"))
}

/// Takes a stored line apart: time, stream, `F` for a whole line or `P` for a piece, content.
fn parse(stored: &[u8]) -> Option<Line> {
    let mut parts = stored.splitn(4, |byte| *byte == b' ');
    let time = String::from_utf8(parts.next()?.to_vec()).ok()?;
    let (_stream, tag, content) = (parts.next()?, parts.next()?, parts.next()?);
    let content = if tag == b"P" { content.strip_suffix(b"\n")? } else { content };
    Some(Line { time, content: content.to_vec() })
}

#[cfg(test)]
#[path = "tests/logs.rs"]
mod tests;
