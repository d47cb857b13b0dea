//! Parameters of the user with which a server does not start, such as a library that its image lacks: those of its last start take their
//! place. The server's program accepts them, so nothing else notices before a start.

use super::configuration;
use super::error::Error;
use super::libraries::LIMIT;
use super::{Server, Stop, files};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// After so long the parameters that were refused are tried again: they may have failed for another reason.
const AGAIN: Duration = Duration::from_secs(600);

/// Mounted parameters with which the server has ended while it started, and why.
#[derive(Clone, Debug)]
pub(super) struct Unstartable {
    pub text: String,
    pub why: String,
    since: Instant,
}

impl Server {
    /// Starts the server. If it ends meanwhile twice, and a server here was started with other parameters of the user before, with these.
    ///
    /// # Errors
    /// That of the start, if the other parameters help as little, or if no client could connect with them.
    pub(super) async fn start_in_any_case(&mut self) -> Result<(), Error> {
        if self.unstartable.as_ref().is_some_and(|it| it.since.elapsed() >= AGAIN) {
            self.unstartable = None;
        }
        let mut failure = self.start(true).await;
        if failure.is_ok() {
            return failure;
        }
        let (used, last) = (self.used_parameters().await, self.started_parameters().await);
        let (Ok(used), Ok(Some(last))) = (used, last) else { return failure };
        let is_of_parameters = |failure: &Result<(), Error>| matches!(failure, Err(Error::Ended(_))) && last != used;
        if is_of_parameters(&failure) {
            // The reason may have passed.
            failure = self.start(true).await;
        }
        let Some(error) = failure.as_ref().err().filter(|_| is_of_parameters(&failure)) else { return failure };
        let complaints = self.complaints.clone();
        tracing::error!(%error, "the server does not start: it is started with the parameters of its last start");
        let (text, why) = (used.clone(), format!("the server does not start: {error}"));
        self.unstartable = Some(Unstartable { text, why, since: Instant::now() });
        self.use_parameters(last.clone()).await?;
        let Err(again) = self.start_for_clients(&last).await else { return Ok(()) };
        tracing::warn!(%again, "nor does it start with these");
        (self.unstartable, self.complaints) = (None, complaints);
        self.use_parameters(used).await?;
        failure
    }

    /// Starts it if sessions of clients can load the libraries that these parameters name: the image may have them no more.
    async fn start_for_clients(&mut self, text: &str) -> Result<(), Error> {
        self.start(true).await?;
        match timeout(LIMIT, self.load(text)).await {
            Ok(Ok(Some(Err(why)))) => {
                self.stop(Stop::Immediate).await?;
                Err(Error::Unusable(why))
            }
            _ => Ok(()),
        }
    }

    /// Takes note of the parameters with which the server was started, or would be. It runs whether or not the volume takes the note.
    pub(super) async fn keep_started_parameters(&mut self) {
        let (used, before) = (self.used_parameters().await, self.started_parameters().await);
        let (Ok(used), Ok(before)) = (used, before) else { return };
        if before.as_ref() == Some(&used) {
            return;
        }
        let (path, user) = (configuration::started_parameters(&self.settings), self.settings.user);
        if let Err(error) = self.in_time(move || files::replace(&path, used.as_bytes(), user)).await {
            tracing::warn!(%error, "the parameters of this start are not noted");
        }
    }

    async fn used_parameters(&mut self) -> Result<String, Error> {
        let path = configuration::parameters(&self.settings);
        self.in_time(move || Ok(files::read(&path)?.unwrap_or_default())).await
    }

    async fn started_parameters(&mut self) -> Result<Option<String>, Error> {
        let path = configuration::started_parameters(&self.settings);
        self.in_time(move || files::read(&path)).await
    }

    /// Has the next start use these, unless other ones are mounted by then.
    pub(super) async fn use_parameters(&mut self, text: String) -> Result<(), Error> {
        let (path, user) = (configuration::parameters(&self.settings), self.settings.user);
        self.in_time(move || files::replace(&path, text.as_bytes(), user)).await
    }
}
