//! A disk that remembers every step, so that the power can be cut after any of them.
//!
//! It writes through to a real directory, which is where the program reads. Beside that it keeps what has happened to
//! names and bytes and which of it was synced; [`Recorder::cut`] makes, in another directory, what a machine could find
//! after a loss of power: all that was synced, and of the rest nothing, all, or whichever sectors chance lets through.

use crate::raft::disk::{Disk, Output};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use testkit::Chance;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A name in a directory: a file or directory by its number.
type Node = usize;

/// One step.
#[derive(Clone, Debug)]
enum Step {
    Write(Node, u64, Vec<u8>),
    SetLen(Node, u64),
    Sync(Node),
    /// A name comes into a directory.
    Link(Node, String, Node),
    Rename(Node, String, String),
    Unlink(Node, String),
    SyncDir(Node),
}

/// What becomes of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsynced {
    Lost,
    Kept,
    /// Each sector and each name by chance.
    Torn,
}

/// Which syncs a disk only says that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    None,
    Files,
    Directories,
}

#[derive(Clone, Debug)]
enum Content {
    File(Vec<u8>),
    Dir(BTreeMap<String, Node>),
}

#[derive(Debug, Default)]
struct Journal {
    /// What was there at the beginning, all of it durable. Node 0 is the root.
    before: Vec<Content>,
    /// What is there now; of files only that they are files.
    now: Vec<Content>,
    steps: Vec<Step>,
}

/// The disk.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    root: PathBuf,
    journal: Arc<Mutex<Journal>>,
    /// Which syncs are none.
    pub(super) lie: Lie,
    /// How many bytes are free.
    pub(super) free: Arc<AtomicU64>,
    /// Whether every write fails.
    pub(super) broken: Arc<AtomicU64>,
    /// Whether every write waits.
    pub(super) hung: Arc<AtomicBool>,
}

impl Recorder {
    /// Records what happens below a directory, whose content is durable.
    pub(super) fn new(root: &Path) -> Self {
        let mut journal = Journal::default();
        journal.read(root);
        journal.now = journal.before.clone();
        let (journal, free) = (Arc::new(Mutex::new(journal)), Arc::new(AtomicU64::new(u64::MAX)));
        Self { root: root.to_owned(), journal, lie: Lie::None, free, broken: Arc::default(), hung: Arc::default() }
    }

    /// How many steps there were.
    pub(super) fn steps(&self) -> usize {
        self.journal.lock().unwrap().steps.len()
    }

    /// Makes what can be found if the power goes after so many steps.
    pub(super) fn cut(&self, steps: usize, unsynced: Unsynced, chance: &mut Chance, into: &Path) {
        let journal = self.journal.lock().unwrap();
        let mut found = journal.before.clone();
        found.resize_with(journal.now.len(), || Content::File(Vec::new()));
        for (node, content) in journal.now.iter().enumerate().skip(journal.before.len()) {
            if let Content::Dir(_) = content {
                found[node] = Content::Dir(BTreeMap::new());
            }
        }
        let mut pending: Vec<&Step> = Vec::new();
        for step in &journal.steps[..steps] {
            match step {
                Step::Sync(_) if self.lie == Lie::Files => {}
                Step::SyncDir(_) if self.lie == Lie::Directories => {}
                Step::Sync(node) | Step::SyncDir(node) => {
                    let (durable, rest) = pending.into_iter().partition(|step: &&Step| step.node() == *node);
                    pending = rest;
                    durable.into_iter().for_each(|step| step.apply(&mut found, |_| true));
                }
                step => pending.push(step),
            }
        }
        for step in pending {
            match unsynced {
                Unsynced::Lost => {}
                Unsynced::Kept => step.apply(&mut found, |_| true),
                Unsynced::Torn => step.apply(&mut found, |_| chance.coin()),
            }
        }
        write_out(&found, 0, into);
    }

    fn record(&self, step: Step) {
        self.journal.lock().unwrap().steps.push(step);
    }

    /// The directory that a path is in, and its last name.
    fn place(&self, path: &Path) -> (Node, String) {
        let parent = self.find(path.parent().unwrap());
        (parent, path.file_name().unwrap().to_str().unwrap().to_owned())
    }

    fn find(&self, path: &Path) -> Node {
        let journal = self.journal.lock().unwrap();
        let names = path.strip_prefix(&self.root).unwrap().iter();
        names.fold(0, |dir, name| journal.names(dir)[name.to_str().unwrap()])
    }

    fn exists(&self, (dir, name): &(Node, String)) -> Option<Node> {
        self.journal.lock().unwrap().names(*dir).get(name).copied()
    }

    fn add(&self, (dir, name): (Node, String), content: Content) -> Node {
        let mut journal = self.journal.lock().unwrap();
        journal.now.push(content);
        let node = journal.now.len() - 1;
        journal.change(Step::Link(dir, name, node));
        node
    }

    fn file(&self, path: &Path) -> Node {
        let place = self.place(path);
        self.exists(&place).unwrap_or_else(|| self.add(place, Content::File(Vec::new())))
    }

    fn fault(&self) -> io::Result<()> {
        while self.hung.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if self.broken.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }
}

impl Journal {
    fn read(&mut self, path: &Path) -> Node {
        let node = self.before.len();
        if path.is_dir() {
            self.before.push(Content::Dir(BTreeMap::new()));
            let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
            let names = entries.map(|entry| (entry.file_name().into_string().unwrap(), self.read(&entry.path())));
            let names = names.collect();
            self.before[node] = Content::Dir(names);
        } else {
            self.before.push(Content::File(std::fs::read(path).unwrap()));
        }
        node
    }

    fn names(&self, dir: Node) -> &BTreeMap<String, Node> {
        match &self.now[dir] {
            Content::Dir(names) => names,
            Content::File(_) => panic!("node {dir} is a file"),
        }
    }

    /// Records what happens to a name, and does it.
    fn change(&mut self, step: Step) {
        step.apply(&mut self.now, |_| true);
        self.steps.push(step);
    }
}

impl Step {
    /// The file or directory that it happens to.
    fn node(&self) -> Node {
        match self {
            Self::Write(node, ..) | Self::SetLen(node, _) | Self::Sync(node) | Self::SyncDir(node) => *node,
            Self::Link(dir, ..) | Self::Rename(dir, ..) | Self::Unlink(dir, _) => *dir,
        }
    }

    /// Does those parts of it that `comes_through` lets.
    fn apply(&self, contents: &mut [Content], mut comes_through: impl FnMut(usize) -> bool) {
        match (self, &mut contents[self.node()]) {
            (Self::Write(_, offset, bytes), Content::File(file)) => {
                let mut at = 0;
                while at < bytes.len() {
                    let begin = *offset as usize + at;
                    let length = (SECTOR - begin % SECTOR).min(bytes.len() - at);
                    if comes_through(at) {
                        file.resize(file.len().max(begin + length), 0);
                        file[begin..begin + length].copy_from_slice(&bytes[at..at + length]);
                    }
                    at += length;
                }
            }
            (Self::SetLen(_, length), Content::File(file)) if comes_through(0) => file.resize(*length as usize, 0),
            (Self::Link(_, name, node), Content::Dir(names)) if comes_through(0) => {
                names.insert(name.clone(), *node);
            }
            (Self::Rename(_, from, to), Content::Dir(names)) if comes_through(0) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            (Self::Unlink(_, name), Content::Dir(names)) if comes_through(0) => drop(names.remove(name)),
            _ => {}
        }
    }
}

fn write_out(contents: &[Content], node: Node, path: &Path) {
    match &contents[node] {
        Content::File(bytes) => std::fs::write(path, bytes).unwrap(),
        Content::Dir(names) => {
            std::fs::create_dir_all(path).unwrap();
            for (name, node) in names {
                write_out(contents, *node, &path.join(name));
            }
        }
    }
}

impl Disk for Recorder {
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        if dir == self.root {
            return Ok(());
        }
        self.create_dirs(dir.parent().unwrap())?;
        let place = self.place(dir);
        if self.exists(&place).is_none() {
            self.add(place, Content::Dir(BTreeMap::new()));
        }
        std::fs::create_dir_all(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.fault()?;
        let node = self.file(path);
        self.record(Step::SetLen(node, 0));
        Ok(Box::new(Open { disk: self.clone(), node, file: File::create(path)?, at: 0 }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((dir, from_name), (same, to_name)) = (self.place(from), self.place(to));
        assert_eq!(dir, same, "a rename from one directory to another is not modelled");
        self.journal.lock().unwrap().change(Step::Rename(dir, from_name, to_name));
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.place(path);
        self.journal.lock().unwrap().change(Step::Unlink(dir, name));
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.record(Step::SyncDir(self.find(dir)));
        Ok(())
    }

    fn database(&self, redb: &redb::Builder, path: &Path) -> Result<redb::Database, redb::DatabaseError> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        redb.create_with_backend(Open { disk: self.clone(), node: self.file(path), file, at: 0 })
    }

    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(self.free.load(Ordering::Relaxed))
    }
}

/// An open file.
#[derive(Debug)]
struct Open {
    disk: Recorder,
    node: Node,
    file: File,
    at: u64,
}

impl Open {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.fault()?;
        self.disk.record(Step::Write(self.node, offset, bytes.to_vec()));
        self.file.write_all_at(bytes, offset)
    }
}

impl Write for Open {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Open {
    fn sync(&mut self) -> io::Result<()> {
        self.disk.record(Step::Sync(self.node));
        Ok(())
    }
}

impl redb::StorageBackend for Open {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.fault()?;
        self.disk.record(Step::SetLen(self.node, len));
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.record(Step::Sync(self.node));
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }
}
