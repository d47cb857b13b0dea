//! Libraries that the user's parameters have each session load. One that cannot be loaded keeps every client out. The wrapper's own
//! sessions load none of them, so nothing else would notice.

use super::configuration::{self, SESSION_LIBRARIES};
use super::error::Error;
use super::session::Session;
use super::start::is_ill;
use super::{Server, Stop, files};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a try may take. It may come before a change of the role.
const LIMIT: Duration = Duration::from_secs(2);
/// After so long a refusal counts no more: it may have had another reason, or the library is there now.
const AGAIN: Duration = Duration::from_secs(10);

/// Mounted parameters whose libraries were tried at a server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub text: String,
    /// Why a session that loads them is refused.
    pub refused: Option<String>,
    at: Instant,
}

impl Server {
    /// Whether the libraries of the mounted parameters were refused: they are to be tried again in a while.
    pub fn retries_libraries(&self) -> bool {
        self.libraries.as_ref().is_some_and(|tried| tried.refused.is_some())
    }

    /// Tries the libraries of mounted parameters that the server does not use yet, in a session of its own. Whatever fails here holds up
    /// nothing else.
    pub(super) async fn try_libraries(&mut self) {
        let settings = self.settings.clone();
        let text = match self.in_time(move || Ok(configuration::loading(&settings))).await {
            Ok(Some(text)) => text,
            Ok(None) => {
                self.libraries = None;
                return;
            }
            Err(error) => return tracing::warn!(%error, "the libraries of sessions are not tried"),
        };
        let is_known = |tried: &Tried| tried.text == text && (tried.refused.is_none() || tried.at.elapsed() < AGAIN);
        if self.libraries.as_ref().is_some_and(is_known) {
            return;
        }
        let refused = match timeout(LIMIT, self.refusal(&text)).await {
            Ok(Ok(Some(refused))) => refused,
            // It accepts no session now: nothing is known of them.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => return tracing::warn!(%error, "the libraries of sessions are not tried"),
            Err(_) => {
                tracing::warn!("a session takes long to load its libraries");
                None
            }
        };
        self.libraries = Some(Tried { text, refused, at: Instant::now() });
    }

    /// Why a session that loads the libraries of these parameters is refused, if it is; `None` if that is not known.
    async fn refusal(&mut self, text: &str) -> Result<Option<Option<String>>, Error> {
        if Session::connect(&self.settings).await.is_err() {
            return Ok(None);
        }
        let (settings, text) = (self.settings.clone(), text.to_owned());
        let values = self.in_time(move || configuration::values(&settings, &text, &SESSION_LIBRARIES)).await?;
        // The server's program refuses them for another reason, which is said elsewhere.
        let Some(values) = values else { return Ok(None) };
        Ok(match Session::loading(&self.settings, &values).await {
            Ok(_) => Some(None),
            Err(error @ Error::NoSql { .. }) if is_ill(&error) => {
                Some(Some(format!("no session can load their libraries: {error}")))
            }
            Err(_) => None,
        })
    }

    /// Has a server that was started with new parameters start with those before, if no session can load the new ones' libraries. If there
    /// are no others, it does not run: an update of all servers ends with the first one.
    pub(super) async fn check_libraries(&mut self, before: Option<String>) -> Result<(), Error> {
        self.try_libraries().await;
        let Some(Tried { text, refused: Some(why), .. }) = self.libraries.clone() else { return Ok(()) };
        let path = configuration::parameters(&self.settings);
        let used = path.clone();
        if self.in_time(move || files::read(&used)).await?.as_ref() != Some(&text) {
            return Ok(());
        }
        self.stop(Stop::Immediate).await?;
        if before.as_ref() == Some(&text) {
            return Err(Error::Unusable(format!("no client could connect with the mounted parameters: {why}")));
        }
        let user = self.settings.user;
        let restore = move || match before {
            Some(before) => files::replace(&path, before.as_bytes(), user),
            None => files::remove(&path),
        };
        self.in_time(restore).await?;
        self.start(true).await
    }
}
