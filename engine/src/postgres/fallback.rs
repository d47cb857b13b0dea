//! Parameters of the user with which a server does not start, such as a library that its image lacks, or more memory than the pod has: those
//! of its last start take their place. The server's program accepts them, so nothing else notices before a start.

use super::configuration;
use super::error::Error;
use super::{Server, files};

/// Mounted parameters with which the server has ended while it started, and why.
#[derive(Clone, Debug)]
pub(super) struct Unstartable {
    pub text: String,
    pub why: String,
}

impl Server {
    /// Starts the server. If it ends meanwhile, and another server here was started with other parameters of the user before, with these.
    ///
    /// # Errors
    /// That of the first start, if the other parameters help as little.
    pub(super) async fn start_in_any_case(&mut self) -> Result<(), Error> {
        let Err(error) = self.start(true).await else { return Ok(()) };
        let (used, last) = (self.used_parameters().await?, self.started_parameters().await?);
        let Some((Error::Ended(why), last)) = Some(&error).zip(last.filter(|last| *last != used)) else {
            return Err(error);
        };
        let complaints = self.complaints.clone();
        tracing::error!(why, "the server does not start: it is started with the parameters of its last start");
        self.unstartable = Some(Unstartable { text: used.clone(), why: format!("the server does not start: {why}") });
        self.use_parameters(last).await?;
        if let Err(again) = self.start(true).await {
            tracing::warn!(%again, "nor does it start with these");
            (self.unstartable, self.complaints) = (None, complaints);
            self.use_parameters(used).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Takes note of the parameters with which the server was started.
    pub(super) async fn keep_started_parameters(&mut self) -> Result<(), Error> {
        let used = self.used_parameters().await?;
        if self.started_parameters().await?.as_ref() == Some(&used) {
            return Ok(());
        }
        let (path, user) = (configuration::started_parameters(&self.settings), self.settings.user);
        self.in_time(move || files::replace(&path, used.as_bytes(), user)).await
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
