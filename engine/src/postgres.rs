//! Drives one PostgreSQL server: starts it fenced, promotes it, lets it follow another one, replaces its data, stops
//! it.
//!
//! Nothing here decides. The caller says what the server has to be, and has written to its volume what it must not
//! forget; a method says what came of it. A future that is dropped leaves the server in a state from which the same
//! method, or a stop and a fenced start, leads on.

mod certificates;
mod configuration;
mod control_file;
mod credentials;
mod death_pipe;
pub mod error;
mod fallback;
mod fence;
mod files;
mod follow;
mod grant;
mod hba;
mod histories;
mod libraries;
mod limits;
mod messages;
mod mounted;
mod overwrite;
mod own;
mod proc;
mod processes;
mod reading;
mod reload;
mod roles;
mod rule;
mod session;
pub mod shim;
mod sizes;
mod slots;
mod start;
mod versions;
mod worker;

pub use certificates::{Expiry, expiry};
pub use control_file::COPY_AGAIN;
pub use error::Error;
#[doc(hidden)]
pub use follow::{Place, differs};
pub use kaa_core::domain::replicated::{Begins, Position};
pub use kaa_core::replication::Source;
pub use mounted::Mounted;
pub use overwrite::Overwritten;
pub use own::Committer;
pub use reading::{Knock, Reader, Space, space};
pub use roles::application_of;
pub use shim::shim;
pub use slots::Slots;
pub use versions::check_programs;

use configuration::Changeable;
use fallback::Unstartable;
use grant::Establishing;
use kaa_core::domain::ids::ArchiveId;
use libraries::Tried;
use processes::{Process, Starter};
use reading::Monitor;
use roles::Roles;
use std::path::PathBuf;
use worker::Worker;

/// Where a server is, and how it runs. It does not change while the server runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The volume. `pgdata`, `conf` and `run` are below it. The path is short: a socket's may have 107 bytes.
    pub directory: PathBuf,
    /// The directory of `postgres`, `initdb`, `pg_controldata`, `pg_basebackup`, `pg_rewind` and `pg_waldump`.
    pub bin: PathBuf,
    /// Their major version, by [`check_programs`].
    pub major: u32,
    /// User and group id of the server, if the wrapper is root; the wrapper's own otherwise.
    pub user: Option<(u32, u32)>,
    /// `listen_addresses`: `*` in a pod, one loopback address in the demo and in tests.
    pub listen: String,
    /// The TCP port, which names the Unix socket as well.
    pub port: u16,
    /// The user's own settings: a part of a `postgresql.conf`.
    pub parameters: Option<PathBuf>,
    /// The user's own lines of `pg_hba.conf`.
    pub hba: Option<PathBuf>,
    /// The directory with the files `username` and `password` of the replication role. They are read when they are
    /// used; the last good ones are kept.
    pub replication: PathBuf,
    /// The directory with the files `username`, `password` and `dbname` of the application.
    pub application: Option<PathBuf>,
    /// The directory with the files `tls.crt`, `tls.key` and `ca.crt`. Without it, nothing is encrypted.
    pub tls: Option<PathBuf>,
    /// Whether clients and servers may also do without TLS, although it is there.
    pub tls_optional: bool,
    /// The domain below which certificates name the servers: `HOST.DOMAIN`; `None` if they name the hosts alone.
    pub domain: Option<String>,
    /// The executable that runs [`shim()`] if its first argument is [`shim::FLAG`].
    pub shim: PathBuf,
}

/// What is in the directory of a server that need not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// No database cluster.
    Empty,
    /// A database cluster.
    Initialized {
        /// The system identifier: the same in all copies.
        system: u64,
        /// The timeline of the last checkpoint. A standby may have replayed log of later ones.
        timeline: u32,
        /// The greatest number of a timeline that `pg_control` or a file in `pg_wal` names.
        highest: u32,
        /// The major version.
        major: u32,
        /// The checkpoint from which the server recovers, or did last. Whatever it does, that of the same data only grows.
        checkpoint: Position,
    },
}

impl Data {
    /// The checkpoint, if there is data.
    pub fn checkpoint(&self) -> Option<Position> {
        match self {
            Self::Empty => None,
            Self::Initialized { checkpoint, .. } => Some(*checkpoint),
        }
    }
}

/// What came of an order to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follows {
    /// It has been told where to stream from, under the name of the generation. It may not have connected yet.
    Streams,
    /// Its log is not a prefix of the primary's, or is not known to be one. It is fenced and connected to no server.
    NeedsOverwrite {
        /// A sentence.
        why: String,
    },
    /// Its log has the timeline of a generation, and was not written in that one: only a copy replaces it. It is fenced as well.
    Outside {
        /// A sentence.
        why: String,
    },
}

/// A standby, as its primary sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standby {
    /// Its archive.
    pub archive: ArchiveId,
    /// How far it has flushed the log.
    pub flushed: Position,
    /// How far it has replayed the log.
    pub replayed: Position,
    /// Whether it has caught up, and streams.
    pub streaming: bool,
    /// When it sent its last answer, by its own clock: microseconds. It answers at least once a second.
    pub replied: i64,
}

/// What a running server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whether it is a standby, fenced or not.
    pub in_recovery: bool,
    /// The timeline of which it holds the first record of its own.
    pub timeline: u32,
    /// At a primary the end of the log that is flushed; at a standby the end of what is replayed.
    pub end: Position,
    /// At a standby that streams, the timeline that it receives.
    pub streams_from: Option<u32>,
    /// At a standby that is connected to its primary, when the last message came, by its own clock: microseconds.
    pub heard: Option<i64>,
    /// At a standby, the end of the log that was received since it started, which may be inside a record.
    pub received: Position,
    /// At a standby that streams, how much of what its primary had flushed at the last message it has not received, in bytes.
    pub behind: Option<u64>,
    /// At a primary, the standbys that are connected under a name of its generation.
    pub standbys: Vec<Standby>,
    /// At a standby, the age of the last commit that was replayed, in milliseconds; 0 if all that was received is
    /// replayed.
    pub replay_lag_ms: Option<u64>,
    /// The parameters whose new values wait for a restart.
    pub restart_pending: Vec<String>,
    /// Connections of clients, without those of this wrapper.
    pub connections: u32,
    /// The greatest age of a database's oldest transaction id, in transactions.
    pub oldest_xid_age: u64,
    /// Bytes of the log that slots retain.
    pub retained_wal_bytes: u64,
    /// At a standby that does not stream, why its last connection to the primary failed.
    pub receiver_failure: Option<String>,
    /// Whether the primary that a standby follows has said more than once in a row that it has removed log which the standby lacks.
    pub lacks_log: bool,
    /// For how many whole minutes the oldest prepared transaction has been prepared; 0 if there is none, and at a standby.
    pub prepared_for_minutes: u64,
    /// How often a client has cancelled the wait of its commit for the rule, since the server started.
    pub cancelled_waits: u64,
    /// The parameters of the rule and of the source that have other values than this wrapper has written: a superuser
    /// has changed them. The rule has to be proven again, by [`Server::require`].
    pub overridden: Vec<String>,
}

/// How to stop a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Sessions end, a primary's log is sent to its standbys, and the data is left as after a checkpoint.
    Fast,
    /// As after a crash: its processes are told to end, and killed if they do not.
    Immediate,
    /// The same, and its processes are killed at once: not one of them answers a client any more.
    Kill,
}

/// What a running server was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It follows no server, and admits no client.
    Fenced,
    /// It was told to follow the primary of a generation.
    Follows {
        /// The generation.
        generation: u32,
    },
    /// It was told to be the primary of a generation.
    Primary {
        /// The generation.
        generation: u32,
    },
}

#[derive(Debug)]
struct Running {
    process: Process,
    role: Role,
    /// What it was last told to read.
    changeable: Changeable,
    /// The limits that it was started with.
    limits: limits::Limits,
    /// As whom it was last told to follow, and which server.
    follows: Option<(ArchiveId, Source)>,
}

/// The server of one directory. It owns at most one running postmaster, which ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    running: Option<Running>,
    /// How often the configuration was written.
    reloads: u64,
    /// Which of what is mounted was not used when the configuration was written last, and why.
    complaints: Vec<String>,
    /// The user's own lines of `pg_hba.conf`.
    own: hba::Own,
    /// The libraries of the user's own parameters.
    libraries: Option<Tried>,
    /// The user's own parameters with which it does not start.
    unstartable: Option<Unstartable>,
    /// Reads and writes files, where no limit of [`Server::in_time`] holds the caller's own does.
    files: Worker,
    /// Why the application's role is not as a Secret asks for.
    unprepared: Option<String>,
    /// The session of the readings.
    monitor: Monitor,
    /// The first own commit of a primary.
    establishing: Option<Establishing>,
    /// What the roles were last made from, and in which generation.
    prepared: Option<(u32, Roles)>,
    /// Dropped last: its end ends the processes.
    starter: Starter,
}

impl Server {
    /// A server that does not run.
    pub fn new(settings: Settings) -> Self {
        let starter = Starter::new(&settings.shim, &settings.bin, settings.user);
        Self {
            settings,
            running: None,
            reloads: 0,
            complaints: Vec::new(),
            own: hba::Own::default(),
            libraries: None,
            unstartable: None,
            files: Worker::default(),
            unprepared: None,
            monitor: Monitor::default(),
            establishing: None,
            prepared: None,
            starter,
        }
    }
}

#[cfg(test)]
impl Reading {
    /// That of a standby that follows no server, and has nothing.
    pub(crate) fn of_test() -> Self {
        Self {
            in_recovery: true,
            timeline: 1,
            end: Position(0),
            streams_from: None,
            heard: None,
            received: Position(0),
            behind: None,
            standbys: Vec::new(),
            replay_lag_ms: None,
            restart_pending: Vec::new(),
            connections: 0,
            oldest_xid_age: 0,
            retained_wal_bytes: 0,
            receiver_failure: None,
            lacks_log: false,
            prepared_for_minutes: 0,
            cancelled_waits: 0,
            overridden: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Settings {
    /// Those of a server that is not started.
    pub(crate) fn of_test(directory: &std::path::Path) -> Self {
        Self {
            directory: directory.to_owned(),
            bin: PathBuf::new(),
            major: 15,
            user: None,
            listen: String::new(),
            port: 5432,
            parameters: None,
            hba: None,
            replication: PathBuf::new(),
            application: None,
            tls: None,
            tls_optional: false,
            domain: None,
            shim: PathBuf::new(),
        }
    }
}
