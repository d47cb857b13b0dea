//! What is in a data directory, read without a server.

use super::error::Error;
use super::{Data, Position, Server, Settings, configuration, files};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `pg_control` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlFile {
    /// The system identifier.
    pub system: u64,
    /// `in production`, `shut down` and so on.
    pub state: String,
    /// Where the last checkpoint's record begins.
    pub checkpoint: Position,
    /// Its timeline.
    pub timeline: u32,
    /// A standby is consistent from there on; 0 for a primary.
    pub minimum: Position,
    /// The timeline of that position; 0 for a primary.
    pub minimum_timeline: u32,
    /// Where a start begins to replay the log.
    pub redo: Position,
    /// Bytes of a file of the log.
    pub segment: u64,
    /// What a standby needs of each of [`LIMITS`] at least.
    pub limits: [u64; 5],
}

/// The parameters of which a standby refuses to start with less than the primary had that wrote its log, as the file
/// names them and as the configuration does.
pub(super) const LIMITS: [(&str, &str); 5] = [
    ("max_connections setting", "max_connections"),
    ("max_worker_processes setting", "max_worker_processes"),
    ("max_wal_senders setting", "max_wal_senders"),
    ("max_prepared_xacts setting", "max_prepared_transactions"),
    ("max_locks_per_xact setting", "max_locks_per_transaction"),
];

/// What precedes a checkpoint in a label.
const CHECKPOINT: &str = "CHECKPOINT LOCATION: ";

impl ControlFile {
    /// Runs `pg_controldata`, whose output is the same for all versions where the file is not.
    pub fn read(settings: &Settings) -> Result<Self, Error> {
        let pgdata = settings.pgdata();
        let (text, warnings) = said(settings, "pg_controldata", &[pgdata.as_os_str()])?;
        // It prints what is in a damaged file all the same. It warns on its standard output, and from 17 on on the other one.
        let warned = warnings.lines().next().map_or(Ok(()), |first| Err(first.to_owned()));
        warned.and_then(|()| Self::parse(&text)).map_err(|why| {
            Error::Unusable(format!("pg_control of {} is damaged: {why}. {COPY_AGAIN}", pgdata.display()))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        if let Some(warning) = text.lines().find(|line| line.starts_with("WARNING")) {
            return Err(warning.to_owned());
        }
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields: BTreeMap<&str, &str> = fields.map(|(name, value)| (name.trim(), value.trim())).collect();
        let field = |name: &str| fields.get(name).copied().ok_or_else(|| format!("{name:?} is missing"));
        let number = |name: &str| field(name)?.parse::<u64>().map_err(|error| format!("{name}: {error}"));
        let timeline = |name: &str| number(name).and_then(|it| u32::try_from(it).map_err(|error| error.to_string()));
        let position = |name: &str| field(name)?.parse::<Position>();
        let mut limits = [0; 5];
        for (limit, (name, _)) in limits.iter_mut().zip(LIMITS) {
            *limit = number(name)?;
        }
        Ok(Self {
            limits,
            system: number("Database system identifier")?,
            state: field("Database cluster state")?.to_owned(),
            checkpoint: position("Latest checkpoint location")?,
            redo: position("Latest checkpoint's REDO location")?,
            timeline: timeline("Latest checkpoint's TimeLineID")?,
            minimum: position("Minimum recovery ending location")?,
            minimum_timeline: timeline("Min recovery ending loc's timeline")?,
            segment: number("Bytes per WAL segment")?.max(PAGE),
        })
    }
}

impl Server {
    /// What is in the directory, and on the disk: what is noted of it is not newer. The server need not run.
    ///
    /// # Errors
    /// Data that the programs do not understand or that Kaa does not support, with a sentence for the operator.
    pub fn inspect(&self) -> Result<Data, Error> {
        let path = self.settings.pgdata().join("global/pg_control");
        match files::sync(&path) {
            // What reads it says that it is missing.
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::File { path, source }),
            _ => inspect(&self.settings),
        }
    }

    /// `pg_control`, in time.
    pub(super) async fn control(&mut self) -> Result<ControlFile, Error> {
        let settings = self.settings.clone();
        self.in_time(move || ControlFile::read(&settings)).await
    }

    /// What is in the directory now, in time: a disk that hangs is an error.
    ///
    /// # Errors
    /// The same, or if the disk does not answer.
    pub async fn inspect_in_time(&mut self) -> Result<Data, Error> {
        let settings = self.settings.clone();
        self.in_time(move || inspect(&settings)).await
    }
}

/// What is in the directory.
pub(super) fn inspect(settings: &Settings) -> Result<Data, Error> {
    let pgdata = settings.pgdata();
    let text = match std::fs::read_to_string(pgdata.join("PG_VERSION")) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return if is_empty(&pgdata)? { empty(settings) } else { Err(not_a_cluster(&pgdata)) };
        }
        Err(source) => return Err(Error::File { path: pgdata.join("PG_VERSION"), source }),
    };
    let major = text.trim().parse().map_err(|_| not_a_cluster(&pgdata))?;
    let programs = settings.major;
    if major != programs {
        return Err(Error::Unusable(format!(
            "the data in {} is PostgreSQL {major}'s, and the programs in {} are PostgreSQL {programs}'s. Use an image with PostgreSQL {major}; \
             to change the major version, dump this database and restore it into a second one",
            pgdata.display(),
            settings.bin.display()
        )));
    }
    refuse_other_volumes(settings)?;
    let control = ControlFile::read(settings)?;
    let highest = highest(&pgdata)?.max(control.timeline).max(control.minimum_timeline);
    let ControlFile { system, timeline, .. } = control;
    // Data that was rewound or copied goes back to that of its label with its first start.
    let label = files::read(&pgdata.join("backup_label"))?.and_then(|text| label_of(&text, CHECKPOINT));
    let checkpoint = label.map_or(control.checkpoint, |label| label.min(control.checkpoint));
    Ok(Data::Initialized { system, timeline, highest, major, checkpoint })
}

/// The position that a label of data which was rewound or copied names after these words.
pub(super) fn label_of(text: &str, words: &str) -> Option<Position> {
    text.lines().find_map(|line| line.strip_prefix(words)?.split(' ').next()?.parse().ok())
}

/// The way out where data is of no use, and another server has it.
pub const COPY_AGAIN: &str = "Delete the claim and the pod, so that the data is copied, only if `kaa show database` lists another pod as `primary` and `open`, and this \
    one as `spare` or `overwriting`; after an accepted loss, not before `kaa database discard` was run for its archive. Otherwise this may be \
    the only copy: take a snapshot of the volume first, and keep it";

/// A volume without data. Data of another image's layout is refused: a second database cluster on the volume would hide it.
fn empty(settings: &Settings) -> Result<Data, Error> {
    let pgdata = settings.pgdata();
    // Below a volume that Kaa has used before there may be anything, such as a backup.
    let depth = if configuration::was_written(settings) { 0 } else { LAYOUT_DEPTH };
    let Some(found) = cluster_below(&settings.directory, &pgdata, depth) else { return Ok(Data::Empty) };
    Err(Error::Unusable(format!(
        "{} is a database cluster, and Kaa has its data in {pgdata}. If it is the database's data, move its files to {pgdata}, and adopt it; if it \
         is a backup, move it to another volume; to begin with none, delete the claim and the pod",
        found.display(),
        pgdata = pgdata.display()
    )))
}

/// How deep other images have their data in the volume, as in `18/docker`.
const LAYOUT_DEPTH: u32 = 2;

/// A database cluster in a directory, or so many levels below it, that is neither Kaa's own data nor what an unfinished step has left of it.
fn cluster_below(directory: &Path, pgdata: &Path, depth: u32) -> Option<PathBuf> {
    if directory.join("PG_VERSION").exists() {
        return Some(directory.to_owned());
    }
    // What this user cannot read, as `lost+found`, is not the data of its server.
    let entries = std::fs::read_dir(directory).ok().filter(|_| depth > 0)?.flatten();
    let own = |path: &Path| path.with_extension("") == *pgdata;
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir())).map(|entry| entry.path());
    directories.filter(|path| !own(path)).find_map(|path| cluster_below(&path, pgdata, depth - 1))
}

fn not_a_cluster(pgdata: &Path) -> Error {
    Error::Unusable(format!("{} is neither empty nor a database cluster. {COPY_AGAIN}", pgdata.display()))
}

fn is_empty(directory: &Path) -> Result<bool, Error> {
    match std::fs::read_dir(directory) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(Error::File { path: directory.to_owned(), source }),
    }
}

/// Whether data has tablespaces: they are outside its directory.
pub(super) fn has_tablespaces(pgdata: &Path) -> Result<bool, Error> {
    is_empty(&pgdata.join("pg_tblspc")).map(|is_empty| !is_empty)
}

/// A tablespace of data that is not there: what it leads to.
fn lost_tablespace(pgdata: &Path) -> Option<PathBuf> {
    let links = std::fs::read_dir(pgdata.join("pg_tblspc")).into_iter().flatten().flatten();
    links.map(|link| link.path()).find(|link| !link.exists()).map(|link| std::fs::read_link(&link).unwrap_or(link))
}

/// Data outside the directory would be neither copied nor replaced with it. A tablespace that was made while Kaa ran the server can be dropped
/// only by that server.
fn refuse_other_volumes(settings: &Settings) -> Result<(), Error> {
    let pgdata = settings.pgdata();
    if let (true, Some(lost)) = (configuration::was_written(settings), lost_tablespace(&pgdata)) {
        return Err(Error::Unusable(format!(
            "the tablespace {} is not there, and what was in it is not on this server. {COPY_AGAIN}. If this is the only copy, mount a volume \
             with that directory, and drop the tablespace once the server runs",
            lost.display()
        )));
    }
    if has_tablespaces(&pgdata)? && !configuration::was_written(settings) {
        return Err(Error::Unusable(format!(
            "{} has tablespaces, which Kaa does not support. In the system that the data is from, move all tables to pg_default and drop the \
             tablespaces, and bring the data over again",
            pgdata.display()
        )));
    }
    if pgdata.join("pg_wal").is_symlink() {
        return Err(Error::Unusable(format!(
            "{}/pg_wal is on another volume, which Kaa does not support. While no server runs with it, move the directory that it leads to \
             in its place",
            pgdata.display()
        )));
    }
    Ok(())
}

/// Runs a program of the server's that ends at once, and gives what it printed.
pub(super) fn printed(settings: &Settings, program: &str, arguments: &[&std::ffi::OsStr]) -> Result<String, Error> {
    said(settings, program, arguments).map(|(printed, _)| printed)
}

/// The same, and its warnings.
fn said(settings: &Settings, program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(String, String), Error> {
    let path = settings.bin.join(program);
    let mut command = Command::new(&path);
    command.args(arguments).env("LC_ALL", "C").current_dir("/");
    if let Some((user, group)) = settings.user {
        command.uid(user).gid(group);
    }
    let output = command.output().map_err(|source| Error::Execute { program: path, source })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        Ok((printed, said))
    } else {
        Err(Error::Program { program: program.to_owned(), how: output.status.to_string(), said })
    }
}

/// The greatest number of a timeline in the names of the log's files.
fn highest(pgdata: &Path) -> Result<u32, Error> {
    let path = pgdata.join("pg_wal");
    let failed = |source| Error::File { path: path.clone(), source };
    let mut highest = 0;
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        highest = name.to_str().and_then(timeline_of).map_or(highest, |timeline| highest.max(timeline));
    }
    Ok(highest)
}

/// The timeline in the name of a file of the log, or of a history.
pub(super) fn timeline_of(name: &str) -> Option<u32> {
    let (digits, rest) = name.split_at_checked(8)?;
    let is_upper_hex = |text: &str| text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'A'..=b'F'));
    let is_segment = |rest: &str| rest.split_at_checked(16).is_some_and(|(segment, _)| is_upper_hex(segment));
    let is_one = is_upper_hex(digits) && (rest == ".history" || is_segment(rest));
    is_one.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// The end of the log after a clean stop: that of the record which the last checkpoint wrote. `None` after another end.
pub(super) fn end_after_stop(settings: &Settings) -> Result<Option<Position>, Error> {
    let control = ControlFile::read(settings)?;
    match control.state.as_str() {
        "shut down in recovery" => Ok(Some(control.minimum)),
        "shut down" => {
            let start = control.checkpoint.to_string();
            // By the name of the file: in a directory it may look first at one that is allocated and has no header yet.
            let file = segment_name(control.timeline, control.checkpoint, control.segment);
            let file = settings.pgdata().join("pg_wal").join(file);
            let arguments = ["-n", "1", "-s", &start].map(std::ffi::OsStr::new);
            let text = printed(settings, "pg_waldump", &[&arguments[..], &[file.as_os_str()]].concat())?;
            let length =
                text.split_once("len (rec/tot):").and_then(|(_, rest)| rest.split_once(',')?.0.split_once('/'));
            let length = length.and_then(|(_, total)| total.trim().parse().ok());
            Ok(length.map(|length| end_of_record(control.checkpoint, length, control.segment)))
        }
        _ => Ok(None),
    }
}

/// The name of the file of the log with this position.
pub(super) fn segment_name(timeline: u32, position: Position, segment: u64) -> String {
    let (number, files) = (position.0 / segment, (1 << 32) / segment);
    format!("{timeline:08X}{:08X}{:08X}", number / files, number % files)
}

/// Bytes of a page of the log.
const PAGE: u64 = 8192;
/// Bytes of the header of a page that a record is continued on. The first page of a file has a longer one, on which a
/// record of this length is continued only if the file before is full to the last page.
const PAGE_HEADER: u64 = 24;
/// Bytes of the longer header.
const FILE_HEADER: u64 = 40;

/// Where a record ends that begins there: it may be continued on further pages.
fn end_of_record(start: Position, length: u64, segment: u64) -> Position {
    let (mut position, mut left) = (start.0, length);
    loop {
        let room = PAGE - position % PAGE;
        if left <= room {
            // Records begin at multiples of eight.
            return Position((position + left).next_multiple_of(8));
        }
        left -= room;
        position += room;
        position += if position.is_multiple_of(segment) { FILE_HEADER } else { PAGE_HEADER };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_log_is_named_for_its_timeline_and_place() {
        assert_eq!("0000000F0000000000000005", segment_name(15, Position(0x5BE_C450), 16 << 20));
        assert_eq!("000000020000000700000001", segment_name(2, Position(0x7_0100_0000), 16 << 20));
    }

    const PRINTED: &str = "pg_control version number:            1300
Database system identifier:           7412345678901234567
Database cluster state:               in archive recovery
Latest checkpoint location:           0/3000060
Latest checkpoint's REDO location:    0/3000028
Latest checkpoint's TimeLineID:       2
Time of latest checkpoint:            Wed Nov 25 01:00:00 2026
Minimum recovery ending location:     0/3000110
Min recovery ending loc's timeline:   2
max_connections setting:              100
max_worker_processes setting:         8
max_wal_senders setting:              10
max_prepared_xacts setting:           0
max_locks_per_xact setting:           64
Bytes per WAL segment:                16777216";

    #[test]
    fn what_pg_controldata_prints_is_read() {
        let control = ControlFile::parse(PRINTED).unwrap();
        assert_eq!((7_412_345_678_901_234_567, 2), (control.system, control.timeline));
        assert_eq!(("0/3000060".parse(), "0/3000110".parse()), (Ok(control.checkpoint), Ok(control.minimum)));
        assert_eq!(("0/3000028".parse(), "in archive recovery"), (Ok(control.redo), &*control.state));
        assert_eq!([100, 8, 10, 0, 64], control.limits);
    }

    #[test]
    fn a_damaged_file_is_not_guessed_around() {
        let damaged = format!("WARNING: Calculated CRC checksum does not match value stored in file.\n{PRINTED}");
        assert!(ControlFile::parse(&damaged).is_err());
        assert!(ControlFile::parse("").unwrap_err().contains("is missing"));
    }

    #[test]
    fn names_of_log_files_and_histories_have_a_timeline() {
        let named = ["0000000A.history", "000000020000000000000004", "000000020000000000000004.partial"];
        assert_eq!([Some(10), Some(2), Some(2)], named.map(timeline_of));
        assert_eq!([None; 3], ["archive_status", "0000000a.history", "00000002"].map(timeline_of));
    }

    #[test]
    fn a_record_that_crosses_a_page_ends_behind_the_next_header() {
        const FILE: u64 = 16 << 20;
        let end = |start| end_of_record(Position(start), 114, FILE).0;
        assert_eq!(120, end(0));
        assert_eq!(PAGE, end(PAGE - 120));
        assert_eq!(PAGE + PAGE_HEADER + 16, end(PAGE - 104));
        assert_eq!(FILE + FILE_HEADER + 16, end(FILE - 104));
    }
}
