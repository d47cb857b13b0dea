//! A session of this wrapper at its server, over the Unix socket.

use super::Settings;
use super::configuration::SUPERUSER;
use super::error::{Error, told};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Statement};

/// The database that they are in.
const DATABASE: &str = "postgres";
/// What sessions of this wrapper call themselves.
const NAME: &str = "kaa_engine";
/// What those call themselves whose commit proves a rule: they may be left waiting, and are ended before the next
/// change.
pub(super) const PROOF: &str = "kaa_proof";
/// A condition that finds the sessions of this wrapper. No client is the superuser over the socket, but for an operator
/// in the pod.
pub(super) const OWN: &str =
    "(usename = 'kaa' AND client_port = -1 AND application_name IN ('kaa_engine', 'kaa_proof'))";
/// How long a server may take to accept a session, or to answer what it answers at once.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A session that commits waits for the rule whatever the database's own settings are, and waits as long as it takes. A standby answers
/// nothing to one that is serializable. A library that sessions cannot load keeps clients out, and must not keep the wrapper out.
const OPTIONS: &str = "-c synchronous_commit=on -c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0 \
    -c idle_in_transaction_session_timeout=0 -c default_transaction_read_only=off -c search_path=pg_catalog \
    -c default_transaction_isolation=read\\ committed -c default_transaction_deferrable=off \
    -c standard_conforming_strings=on -c client_min_messages=warning -c log_statement=none \
    -c log_min_duration_statement=-1 -c log_min_error_statement=panic -c password_encryption=scram-sha-256 \
    -c lc_messages=C -c session_preload_libraries= -c local_preload_libraries=";
/// The first major version that knows [`LATER_OPTIONS`].
const LATER: u32 = 17;
/// A long checkpoint is no reason to end the session, and a user's event trigger decides nothing here.
const LATER_OPTIONS: &str = " -c transaction_timeout=0 -c event_triggers=off";

/// Whether a message of the server says that a commit was not confirmed by the members of the rule. That commit succeeds all the same. All
/// other warnings say nothing of it: of a collation's version at each login, of transaction ids, by a user's trigger.
fn cancels(message: &str) -> bool {
    // In `syncrep.c`: `canceling wait for ...` and `canceling the wait for ...`.
    message.starts_with("canceling ") && message.contains("wait for synchronous replication")
}

/// What a session sets for itself.
fn options(settings: &Settings) -> String {
    format!("{OPTIONS}{}", if settings.major >= LATER { LATER_OPTIONS } else { "" })
}

/// A value in the options of a session: a backslash keeps a blank from ending it.
fn escaped(value: &str) -> String {
    let escape = |it: char| it.is_ascii_whitespace() || it == '\\';
    value.chars().flat_map(|it| escape(it).then_some('\\').into_iter().chain([it])).collect()
}

/// A session. It ends when this is dropped; what it has begun may not.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    /// Whether a wait for the rule was cancelled in it.
    cancelled: Arc<AtomicBool>,
    connection: JoinHandle<()>,
    /// Statements that are run again and again, prepared at their second time.
    repeated: Mutex<BTreeMap<String, Option<Statement>>>,
}

impl Session {
    /// Connects.
    pub async fn connect(settings: &Settings) -> Result<Self, Error> {
        Self::connect_as(settings, NAME).await
    }

    /// Connects under one of the wrapper's names.
    pub async fn connect_as(settings: &Settings, name: &str) -> Result<Self, Error> {
        Self::connect_with(settings, name, options(settings)).await
    }

    /// Connects with other values of some parameters.
    pub async fn loading(settings: &Settings, values: &[(&str, String)]) -> Result<Self, Error> {
        let more: String = values.iter().map(|(name, value)| format!(" -c {name}={}", escaped(value))).collect();
        Self::connect_with(settings, NAME, format!("{}{more}", options(settings))).await
    }

    async fn connect_with(settings: &Settings, name: &str, options: String) -> Result<Self, Error> {
        let mut config = Config::new();
        config.host_path(settings.run()).port(settings.port).user(SUPERUSER).dbname(DATABASE);
        config.application_name(name).options(options);
        let connected = timeout(ANSWER_LIMIT, config.connect(NoTls)).await;
        let late = || Error::NoSql { heard: false, said: format!("no answer for {} s", ANSWER_LIMIT.as_secs()) };
        let (client, mut connection) = connected.map_err(|_| late())?.map_err(|error| refused(&error))?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let seen = cancelled.clone();
        let connection = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message {
                    tracing::debug!(%notice, "the server warns");
                    if cancels(notice.message()) {
                        seen.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        Ok(Self { client, cancelled, connection, repeated: Mutex::default() })
    }

    /// Whether the wait of a commit for the rule was cancelled in this session: the commit succeeds, with a warning.
    pub fn was_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Runs statements that the server answers at once, and gives the rows of one.
    pub async fn rows(&self, what: &'static str, statement: &str) -> Result<Vec<Row>, Error> {
        // In one round trip: a statement that is prepared first takes two.
        let answered = timeout(ANSWER_LIMIT, self.client.query_typed(statement, &[])).await;
        answered.map_err(|_| late(what))?.map_err(|source| Error::Sql { what, source })
    }

    /// The same for a statement that this session runs often: the server plans it once.
    pub async fn rows_again(&self, what: &'static str, statement: &str) -> Result<Vec<Row>, Error> {
        let mut repeated = self.repeated.lock().await;
        let Some(prepared) = repeated.get_mut(statement) else {
            repeated.insert(statement.to_owned(), None);
            return self.rows(what, statement).await;
        };
        let answer = async {
            let known = match prepared {
                Some(known) => known.clone(),
                None => prepared.insert(self.client.prepare(statement).await?).clone(),
            };
            self.client.query(&known, &[]).await
        };
        timeout(ANSWER_LIMIT, answer).await.map_err(|_| late(what))?.map_err(|source| Error::Sql { what, source })
    }

    /// The one row of such a statement.
    pub async fn row(&self, what: &'static str, statement: &str) -> Result<Row, Error> {
        one(what, self.rows(what, statement).await?)
    }

    /// The one row of a statement that this session runs often.
    pub async fn row_again(&self, what: &'static str, statement: &str) -> Result<Row, Error> {
        one(what, self.rows_again(what, statement).await?)
    }

    /// Runs statements, however long it takes.
    pub async fn run(&self, what: &'static str, statements: &str) -> Result<(), Error> {
        self.client.batch_execute(statements).await.map_err(|source| Error::Sql { what, source })
    }

    /// The process id of its backend.
    pub async fn pid(&self) -> Result<i32, Error> {
        Ok(self.row("learn a session's process", "SELECT pg_backend_pid()").await?.get(0))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn one(what: &str, mut rows: Vec<Row>) -> Result<Row, Error> {
    rows.pop().ok_or_else(|| Error::NoSql { heard: true, said: format!("cannot {what}: no row") })
}

fn late(what: &str) -> Error {
    Error::NoSql { heard: false, said: format!("cannot {what}: no answer for {} s", ANSWER_LIMIT.as_secs()) }
}

impl Error {
    /// Whether the session was ended: by SQL, or with the server.
    pub(super) fn is_of_ended_session(&self) -> bool {
        match self {
            Self::Sql { source, .. } => source.is_closed() || source.code() == Some(&SqlState::ADMIN_SHUTDOWN),
            Self::NoSql { said, .. } => said.contains("terminating connection due to administrator command"),
            _ => false,
        }
    }

    /// Whether it is the server's own word, and so a sign that it runs.
    pub(super) fn is_from_server(&self) -> bool {
        match self {
            Self::Sql { source, .. } => source.as_db_error().is_some(),
            Self::NoSql { heard, .. } => *heard,
            Self::NotAdmitted(_) => true,
            _ => false,
        }
    }
}

/// The statement that makes what the data lacks of a server that refuses this wrapper so. Its `pg_hba.conf` is the wrapper's own.
fn missing(code: &SqlState) -> Option<&'static str> {
    if [&SqlState::INVALID_AUTHORIZATION_SPECIFICATION, &SqlState::INVALID_PASSWORD].contains(&code) {
        return Some("CREATE ROLE kaa SUPERUSER LOGIN");
    }
    (*code == SqlState::INVALID_CATALOG_NAME).then_some("CREATE DATABASE postgres")
}

fn unknown(said: &str, made_by: &str) -> String {
    format!(
        "the server refuses its wrapper: {said}. The wrapper connects as the superuser {SUPERUSER} to the database {DATABASE}, and without \
         either one it cannot work with this data. Run {made_by} in the system that the data is from, while it runs as the primary there, and \
         bring the data over again"
    )
}

/// Why a session was not accepted, in a sentence with the server's detail.
fn refused(error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(said) => match missing(said.code()) {
            Some(made_by) => Error::NotAdmitted(unknown(&told(error), made_by)),
            None => Error::NoSql { heard: true, said: told(error) },
        },
        None => Error::NoSql { heard: false, said: told(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_an_option_may_have_blanks_and_backslashes() {
        assert_eq!(escaped(r"$libdir/a, b\c"), r"$libdir/a,\ b\\c");
    }

    #[test]
    fn only_a_wait_that_was_cancelled_leaves_a_commit_unconfirmed() {
        assert!(cancels("canceling wait for synchronous replication due to user request"));
        let ended =
            "canceling the wait for synchronous replication and terminating connection due to administrator command";
        assert!(cancels(ended));
        assert!(!cancels("database \"postgres\" has a collation version mismatch"));
        assert!(!cancels("database \"shop\" must be vacuumed within 39985967 transactions"));
        assert!(!cancels("canceling statement due to lock timeout"));
    }

    #[test]
    fn data_that_does_not_know_the_wrapper_is_told_from_a_server_that_recovers() {
        let [role, database] = [SqlState::INVALID_AUTHORIZATION_SPECIFICATION, SqlState::INVALID_CATALOG_NAME]
            .map(|code| unknown("it does not exist", missing(&code).unwrap()));
        assert!(role.contains("Run CREATE ROLE kaa SUPERUSER LOGIN in the system that the data is from"), "{role}");
        assert!(database.contains("Run CREATE DATABASE postgres in"), "{database}");
        assert_eq!(missing(&SqlState::CANNOT_CONNECT_NOW), None);
        assert_eq!(missing(&SqlState::TOO_MANY_CONNECTIONS), None);
    }
}
