//! Libraries that the user's parameters have each session load. One that cannot be loaded keeps every client out. The wrapper's own
//! sessions load none of them, so nothing else would notice.

use super::configuration;
use super::error::Error;
use super::session::Session;
use super::start::is_ill;
use super::{Server, Stop, files};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a try may take. It may come before a change of the role.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// After so long a refusal counts no more: it may have had another reason, or the library is there now.
const AGAIN: Duration = Duration::from_secs(10);

/// Mounted parameters whose libraries were tried at a server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub text: String,
    /// Why no session can load the libraries.
    pub refused: Option<String>,
    /// When they are tried again; `None` once a session has loaded them.
    again: Option<Instant>,
}

impl Tried {
    /// What is known after a try. `answer`: whether a session has loaded the libraries, or why not; `None` if that took too long, which is no
    /// reason to use what was refused before.
    fn after(before: Option<&Self>, text: String, answer: Option<Result<(), String>>, now: Instant) -> Self {
        let again = (answer != Some(Ok(()))).then(|| now + AGAIN);
        let known = || before.filter(|before| before.text == text).and_then(|before| before.refused.clone());
        let refused = answer.map_or_else(known, Result::err);
        Self { text, refused, again }
    }

    /// Whether parameters with this text need no try now.
    fn holds(&self, text: &str, now: Instant) -> bool {
        self.text == text && self.again.is_none_or(|again| now < again)
    }
}

impl Server {
    /// Whether the libraries of the mounted parameters are to be tried again in a while.
    pub fn retries_libraries(&self) -> bool {
        self.libraries.as_ref().is_some_and(|tried| tried.again.is_some())
    }

    /// Why no session of a client begins by the parameters that the server uses, and their text; `None` if sessions do, as far as is known.
    async fn refused_in_use(&mut self) -> Option<(String, String)> {
        let Tried { text, refused, .. } = self.libraries.clone()?;
        let path = configuration::parameters(&self.settings);
        let why = refused?;
        let used = self.in_time(move || files::read(&path)).await.ok()??;
        (used == text).then_some((why, text))
    }

    /// Whether the server uses parameters by which no session of a client begins.
    pub async fn keeps_clients_out(&mut self) -> bool {
        self.refused_in_use().await.is_some()
    }

    /// Tries the libraries of mounted parameters in a session of its own, before the server uses them. Whatever fails here holds up nothing
    /// else.
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
        if self.libraries.as_ref().is_some_and(|tried| tried.holds(&text, Instant::now())) {
            return;
        }
        let answer = match timeout(LIMIT, self.load(&text)).await {
            Ok(Ok(Some(answer))) => Some(answer),
            // It accepts no session now: nothing new is known of them.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => return tracing::warn!(%error, "the libraries of sessions are not tried"),
            Err(_) => {
                tracing::warn!("a session takes long to load its libraries");
                None
            }
        };
        self.libraries = Some(Tried::after(self.libraries.as_ref(), text, answer, Instant::now()));
    }

    /// Whether a session loads the libraries of these parameters, or why not; `None` if no session begins in any case.
    pub(super) async fn load(&mut self, text: &str) -> Result<Option<Result<(), String>>, Error> {
        if Session::connect(&self.settings).await.is_err() {
            return Ok(None);
        }
        let (settings, text) = (self.settings.clone(), text.to_owned());
        let values = self.in_time(move || configuration::session_libraries(&settings, &text)).await?;
        // The server's program refuses them for another reason, which is said elsewhere.
        let Some(values) = values else { return Ok(None) };
        let Err(error) = Session::loading(&self.settings, &values).await else { return Ok(Some(Ok(()))) };
        let refuses = is_ill(&error);
        Ok(match error {
            Error::NoSql { said, .. } if refuses => Some(Err(format!("no session can load their libraries: {said}"))),
            _ => None,
        })
    }

    /// Has a server that was started with new parameters start with those before, if no session can load the new ones' libraries. If no other
    /// ones are known with which clients can connect, it does not run: an update of all servers ends with the first one.
    pub(super) async fn check_libraries(&mut self, before: Option<String>) -> Result<(), Error> {
        self.try_libraries().await;
        let Some((why, used)) = self.refused_in_use().await else { return Ok(()) };
        let mut instead = before.filter(|before| *before != used);
        // While a server runs at which they can be tried.
        if let Some(before) = &instead
            && !matches!(timeout(LIMIT, self.load(before)).await, Ok(Ok(Some(Ok(())))))
        {
            instead = None;
        }
        self.stop(Stop::Immediate).await?;
        let Some(before) = instead else {
            return Err(Error::Unusable(format!("no client could connect with the mounted parameters: {why}")));
        };
        self.use_parameters(before).await?;
        self.start(true).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_again_and_a_slow_try_changes_no_refusal() {
        let (began, text) = (Instant::now(), || "session_preload_libraries = 'one'".to_owned());
        let refused = Tried::after(None, text(), Some(Err("no such file".to_owned())), began);
        assert!(refused.holds(&text(), began) && !refused.holds("another", began));
        assert!(!refused.holds(&text(), began + AGAIN), "it may be there now");
        let late = Tried::after(Some(&refused), text(), None, began + AGAIN);
        assert_eq!(late.refused, refused.refused);
        assert!(!late.holds(&text(), began + 2 * AGAIN));
        let unknown = Tried::after(Some(&refused), "another".to_owned(), None, began);
        assert_eq!(unknown.refused, None, "nothing is known of it");
        assert!(!unknown.holds("another", began + AGAIN));
        let loaded = Tried::after(Some(&late), text(), Some(Ok(())), began);
        assert!(loaded.refused.is_none() && loaded.holds(&text(), began + 100 * AGAIN));
    }
}
