//! Commits of the wrapper's own at a primary: signs that all members of its rule take its log, that its standbys hear it, and that it
//! answers.

use super::error::Error;
use super::rule::{NUDGE, commit};
use super::session::Session;
use super::{Server, Settings};
use crate::clock::monotonic_ms;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Commits at a primary while something else is done with it. It is made once for each generation.
#[derive(Debug)]
pub struct Committer {
    settings: Settings,
    session: Option<Session>,
    nudger: Option<Session>,
    answered: Arc<AtomicU64>,
}

/// Notes when the server answered. An error of the server's own is an answer; a timeout or a lost connection is not.
fn note<T>(answered: &AtomicU64, done: &Result<T, Error>) {
    if done.as_ref().err().is_none_or(Error::is_from_server) {
        answered.store(monotonic_ms(), Ordering::SeqCst);
    }
}

impl Server {
    /// What commits at this primary.
    ///
    /// # Errors
    /// If the server is no primary, or does not run.
    pub fn committer(&self) -> Result<Committer, Error> {
        self.primary()?;
        let answered = Arc::new(AtomicU64::new(monotonic_ms()));
        Ok(Committer { settings: self.settings.clone(), session: None, nudger: None, answered })
    }
}

impl Committer {
    /// When the server last answered, in milliseconds of the clock that never goes back: it made a commit that only its own disk has
    /// to take, or refused one. It has to make one in every period of [`Self::commit`].
    pub fn answered(&self) -> Arc<AtomicU64> {
        self.answered.clone()
    }

    /// Commits once, however long it takes: true if the commit was released by the rule, false if the wait for it was cancelled.
    /// While it waits, something is written in every `period` that waits for no member, so that those that are there hear the primary.
    ///
    /// # Errors
    /// If the server refuses, or has ended.
    pub async fn commit(&mut self, period: Duration) -> Result<bool, Error> {
        let done = self.try_commit(period).await;
        note(&self.answered, &done);
        done
    }

    async fn try_commit(&mut self, period: Duration) -> Result<bool, Error> {
        let session = match self.session.take() {
            Some(session) => session,
            None => Session::connect(&self.settings).await?,
        };
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let released = {
            let committed = commit(&session);
            tokio::pin!(committed);
            loop {
                tokio::select! {
                    done = &mut committed => break done?,
                    // The commit stays: one that is given up would leave a backend that waits.
                    _ = ticks.tick() => tokio::select! {
                        biased;
                        done = &mut committed => break done?,
                        done = timeout(period, Self::nudge(&self.settings, &mut self.nudger)) => {
                            let late = || Error::Stuck(format!("it takes longer than {period:?}"));
                            let done = done.unwrap_or_else(|_| Err(late()));
                            note(&self.answered, &done);
                            if let Err(error) = done {
                                tracing::debug!(%error, "nothing was written for the standbys to hear");
                            }
                        }
                    }
                }
            }
        };
        // One in which a wait was cancelled would seem so after each later commit.
        self.session = Some(session).filter(|_| released);
        Ok(released)
    }

    async fn nudge(settings: &Settings, kept: &mut Option<Session>) -> Result<(), Error> {
        let session = match kept.take() {
            Some(session) => session,
            None => Session::connect(settings).await?,
        };
        session.run("write to the log", NUDGE).await?;
        *kept = Some(session);
        Ok(())
    }
}
