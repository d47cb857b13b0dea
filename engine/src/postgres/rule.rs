//! Changes the rule of a primary: which members must have flushed a commit before it is released.
//!
//! A reload proves nothing. Whether a commit waits at all is a flag that only the checkpointer sets, and each sender
//! releases by its own copy of the rule over the positions and flags of all. While some have read the new rule and
//! others have not, a third rule holds. So every change passes through a rule under which nothing is released, and goes
//! further only once every sender obeys that one.

use super::configuration::{self, NONE};
use super::error::Error;
use super::grant::flushed;
use super::session::{OWN, PROOF, Session};
use super::{Position, Server, Settings};
use kaa_core::domain::ids::ArchiveId;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How often the state of the senders is read.
const LOOK_PERIOD: Duration = Duration::from_millis(4);
/// How long a sender may take to obey, before it is ended. Its standby connects again within 60 ms.
const SENDER_LIMIT: Duration = Duration::from_secs(1);
/// How long all of them may take. Until its process is gone, an ended one counts.
const BARRIER_LIMIT: Duration = Duration::from_secs(3);
/// How long the checkpointer may take to look at the rule before that is said. It looks at none during a checkpoint that is to be done at once.
const FLAG_PATIENCE: Duration = Duration::from_secs(30);
/// How often more is written while a commit waits, so that every member answers once more.
const NUDGE_PERIOD: Duration = Duration::from_millis(100);
/// How many own commits may wait at a time.
const COMMITS: usize = 3;

/// A commit of the wrapper's own: a message in the log that no one reads, in a transaction.
const COMMIT: &str = "SELECT pg_logical_emit_message(true, 'kaa', '')";
/// The same, which waits for the own disk only: it makes members answer.
pub(super) const NUDGE: &str = "SET synchronous_commit = local; SELECT pg_logical_emit_message(true, 'kaa', '')";

/// Commits once: true if the server has released the commit by its rule, false if the wait for it was cancelled.
pub(super) async fn commit(session: &Session) -> Result<bool, Error> {
    session.run("commit", COMMIT).await?;
    Ok(!session.was_cancelled())
}

/// Commits once, as a proof; one that was ended is none. An earlier change that was dropped may still end it: its last statement runs on at
/// the server. A server that has ended admits no next one.
async fn prove(settings: Settings) -> Result<bool, Error> {
    let done = async { commit(&Session::connect_as(&settings, PROOF).await?).await }.await;
    done.or_else(not_if_ended)
}

fn not_if_ended(error: Error) -> Result<bool, Error> {
    if error.is_of_ended_session() { Ok(false) } else { Err(error) }
}

impl Server {
    /// Changes the rule of a primary, and gives the end of the log at a moment after the rule came into force: nothing
    /// behind it was released by an older rule, and all members hold what an older one released. Waits as long as a
    /// member is away, and until the checkpointer has looked. Dropped, it leaves a rule under which nothing, or nothing less
    /// than the new rule asks for, is released; the next call starts from the beginning.
    ///
    /// # Errors
    /// [`Error::Stuck`] if a sender does not obey: the caller stops the server at once and starts it fenced. No older
    /// rule is written back.
    pub async fn require(&mut self, rule: &[ArchiveId], generation: u32) -> Result<Position, Error> {
        let own = self.primary()?;
        if own != generation {
            return Err(Error::State(format!(
                "the server is the primary of generation {own}, and not of {generation}"
            )));
        }
        let text = configuration::rule(rule, generation);
        if rule.is_empty() {
            // The own disk is enough from now on: nothing can be released that is not there. Until the checkpointer has looked, commits wait
            // for members all the same.
            let session = self.reload(|changeable| changeable.rule = text).await?;
            while !prove(self.settings.clone()).await? {
                self.living()?;
                sleep(LOOK_PERIOD).await;
            }
            return flushed(&session).await;
        }
        // Before commits have to wait: it may fail, where slots are used up.
        let members = rule.iter().copied().collect();
        self.provide_slots_by(&Session::connect(&self.settings).await?, &members, false).await?;
        let mut session = self.reload(|changeable| NONE.clone_into(&mut changeable.rule)).await?;
        // What an earlier change has left waiting has no effect and shows nothing.
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{PROOF}' AND {OWN}"
        );
        session.rows("end own commits", &end).await?;
        self.await_senders(&session).await?;
        // Given up when this returns: a commit that waits stays until a rule releases it.
        let _waits = self.commit_until_waiting(&session).await?;
        session = self.reload(|changeable| changeable.rule = text).await?;
        self.commit_under_rule(&session).await?;
        flushed(&session).await
    }

    /// Has all commits wait at a primary whose rule requires no other member, until [`Server::require`].
    ///
    /// # Errors
    /// If the server is no primary, or commits do not wait in time.
    pub async fn release_nothing(&mut self) -> Result<(), Error> {
        self.primary()?;
        let session = self.reload(|changeable| NONE.clone_into(&mut changeable.rule)).await?;
        // A standby may join meanwhile, and a rule with it is made then.
        let waits = timeout(FLAG_PATIENCE, self.commit_until_waiting(&session)).await;
        let late =
            || Error::State(format!("commits do not wait {FLAG_PATIENCE:?} after the rule was set: tried again"));
        waits.map_err(|_| late())?.map(drop)
    }

    /// Waits until every sender of a member's name obeys the rule that releases nothing. It sets its priority itself
    /// when it has looked, and one that starts shows 0 as well but has no position yet.
    async fn await_senders(&self, session: &Session) -> Result<(), Error> {
        let began = Instant::now();
        let mut ended = BTreeSet::new();
        loop {
            self.living()?;
            let senders = "SELECT pid, application_name, sync_priority = 0 AND flush_lsn IS NOT NULL \
                FROM pg_stat_replication WHERE application_name LIKE 'kaa\\_%'";
            let mut late = Vec::new();
            let mut names = BTreeSet::new();
            for row in session.rows("look at the senders", senders).await? {
                let (pid, name, obeys): (i32, String, bool) = (row.get(0), row.get(1), row.get(2));
                if !obeys || !names.insert(name) {
                    late.push(pid);
                }
            }
            if late.is_empty() {
                return Ok(());
            }
            if began.elapsed() > BARRIER_LIMIT {
                let limit = BARRIER_LIMIT.as_secs();
                return Err(Error::Stuck(format!("senders {late:?} have not looked at the rule within {limit} s")));
            }
            if began.elapsed() > SENDER_LIMIT {
                for pid in late.into_iter().filter(|pid| ended.insert(*pid)) {
                    session.rows("end a sender", &format!("SELECT pg_terminate_backend({pid})")).await?;
                }
            }
            sleep(LOOK_PERIOD).await;
        }
    }

    /// Commits until one is seen waiting: from then on every commit waits. Before that the checkpointer may not have
    /// looked; no client waits for it.
    async fn commit_until_waiting(&self, session: &Session) -> Result<JoinSet<Result<bool, Error>>, Error> {
        let mut said_at = Instant::now() + FLAG_PATIENCE;
        loop {
            self.living()?;
            let begun = async {
                let own = Session::connect_as(&self.settings, PROOF).await?;
                own.pid().await.map(|pid| (own, pid))
            };
            let (own, pid) = match begun.await {
                Err(error) if error.is_of_ended_session() => {
                    sleep(LOOK_PERIOD).await;
                    continue;
                }
                begun => begun?,
            };
            let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'");
            let mut commits = JoinSet::new();
            commits.spawn(async move { commit(&own).await });
            loop {
                if session.row("look at a commit", &waits).await?.get::<_, i64>(0) == 1 {
                    return Ok(commits);
                }
                if let Some(done) = commits.try_join_next() {
                    done.unwrap_or(Ok(false)).or_else(not_if_ended)?;
                    break;
                }
                sleep(LOOK_PERIOD).await;
            }
            if Instant::now() >= said_at {
                tracing::warn!(
                    "the checkpointer has not looked at the rule for long: no standby counts until its checkpoint has ended"
                );
                said_at += FLAG_PATIENCE;
            }
            sleep(LOOK_PERIOD).await;
        }
    }

    /// Commits until one that was begun under the new rule has been released by it. It is the proof: the first one, which
    /// waited before, may be released while a row that was acknowledged at the same moment is on no member.
    async fn commit_under_rule(&self, session: &Session) -> Result<(), Error> {
        let mut commits = JoinSet::new();
        loop {
            self.living()?;
            if commits.len() < COMMITS {
                commits.spawn(prove(self.settings.clone()));
            } else {
                session.run("write to the log", NUDGE).await?;
            }
            let next = Instant::now() + NUDGE_PERIOD;
            tokio::select! {
                Some(done) = commits.join_next() => match done {
                    Ok(Ok(true)) => {
                        let rule = session.row("show the rule", "SHOW synchronous_standby_names").await?;
                        return self.check_rule(rule.get(0));
                    }
                    Ok(Ok(false)) => tracing::warn!("an own commit was ended, or its wait cancelled: it proves nothing"),
                    Ok(Err(error)) => return Err(error),
                    Err(error) => return Err(Error::Stuck(format!("an own commit was given up: {error}"))),
                },
                () = sleep_until(next) => {}
            }
        }
    }
}
