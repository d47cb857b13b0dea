//! Why a step of a server failed.

use std::io;
use std::path::PathBuf;

/// Why a step of a server failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or a directory of the server cannot be used.
    #[error("{} cannot be used: {source}", path.display())]
    File {
        /// The file or the directory.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The data, the settings or the programs are not such that a server could run. Another try gives the same.
    #[error("{0}")]
    Unusable(String),
    /// A program cannot be executed.
    #[error("cannot execute {}: {source}", program.display())]
    Execute {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} {how}: {said}")]
    Program {
        /// Its name.
        program: String,
        /// How it ended.
        how: String,
        /// The end of what it printed.
        said: String,
    },
    /// A copy has found pages at its source whose checksums are wrong.
    #[error(
        "the data of {source_host} has damaged pages, which a copy must not take over. If a standby in the sync set is healthy: `kaa switchover`, \
         and this server copies that one. Otherwise repair what the log of {source_host} names: {said}"
    )]
    DamagedSource {
        /// The host of the source.
        source_host: String,
        /// What `pg_basebackup` printed last.
        said: String,
    },
    /// The step needs a running server, or one in another role.
    #[error("{0}")]
    State(String),
    /// A standby is none any more.
    #[error("the standby was promoted, and not by its wrapper")]
    Promoted,
    /// The server has ended during the step.
    #[error("the server has ended: {0}")]
    Ended(String),
    /// The server refuses SQL. It may do so until it is promoted, after a crash with many open subtransactions.
    #[error("the server refuses SQL: {said}")]
    NoSql {
        /// Whether it was heard to refuse: it runs. Else it does not answer, or was not reached.
        heard: bool,
        /// What was heard of it, or what was not.
        said: String,
    },
    /// The server runs, and refuses this wrapper: its data lacks the role or the database that the wrapper connects to.
    #[error("{0}")]
    NotAdmitted(String),
    /// The server could not do it.
    #[error("cannot {what}: {}", told(source))]
    Sql {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: tokio_postgres::Error,
    },
    /// A process of the server is not gone although it was killed, as when it waits for a disk that hangs. It runs no code of its own any more,
    /// so that the server has ended for all but its own volume.
    #[error("process {0} of the server was killed and is not gone: it waits for its disk, or for another device")]
    Unended(i32),
    /// The server's state is not what it has to be, and waiting longer does not help: the caller stops it and starts it
    /// fenced.
    #[error("{0}")]
    Stuck(String),
}

/// Why a session or a statement failed: in the server's words with its detail, if it has said something.
pub(super) fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => [said.message(), said.detail().unwrap_or_default()].join(" ").trim().to_owned(),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{error}{cause}")
        }
    }
}
