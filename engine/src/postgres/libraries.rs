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
    verdict: Verdict,
    at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Loads,
    /// Why a session that loads them is refused.
    Refused(String),
    /// There was no answer in time.
    Late,
}

impl Tried {
    /// Why no session can load the libraries.
    pub fn refused(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::Refused(why) => Some(why),
            Verdict::Loads | Verdict::Late => None,
        }
    }
}

impl Server {
    /// Whether the libraries of the mounted parameters were refused: they are to be tried again in a while.
    pub fn retries_libraries(&self) -> bool {
        self.libraries.as_ref().is_some_and(|tried| tried.verdict != Verdict::Loads)
    }

    /// Whether the server uses parameters by which no session of a client begins.
    pub async fn keeps_clients_out(&mut self) -> bool {
        let Some(refused) = self.libraries.clone().filter(|tried| tried.refused().is_some()) else { return false };
        let path = configuration::parameters(&self.settings);
        self.in_time(move || files::read(&path)).await.is_ok_and(|used| used == Some(refused.text))
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
        let before = self.libraries.clone().filter(|tried| tried.text == text);
        if before.as_ref().is_some_and(|it| it.verdict == Verdict::Loads || it.at.elapsed() < AGAIN) {
            return;
        }
        let verdict = match timeout(LIMIT, self.verdict(&text)).await {
            Ok(Ok(Some(verdict))) => verdict,
            // It accepts no session now: nothing new is known of them.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => return tracing::warn!(%error, "the libraries of sessions are not tried"),
            Err(_) => {
                tracing::warn!("a session takes long to load its libraries");
                before.map_or(Verdict::Late, |before| before.verdict)
            }
        };
        self.libraries = Some(Tried { text, verdict, at: Instant::now() });
    }

    /// Whether a session loads the libraries of these parameters; `None` if that is not known.
    async fn verdict(&mut self, text: &str) -> Result<Option<Verdict>, Error> {
        if Session::connect(&self.settings).await.is_err() {
            return Ok(None);
        }
        let (settings, text) = (self.settings.clone(), text.to_owned());
        let values = self.in_time(move || configuration::values(&settings, &text, &SESSION_LIBRARIES)).await?;
        // The server's program refuses them for another reason, which is said elsewhere.
        let Some(values) = values else { return Ok(None) };
        Ok(match Session::loading(&self.settings, &values).await {
            Ok(_) => Some(Verdict::Loads),
            Err(error @ Error::NoSql { .. }) if is_ill(&error) => {
                Some(Verdict::Refused(format!("no session can load their libraries: {error}")))
            }
            Err(_) => None,
        })
    }

    /// Has a server that was started with new parameters start with those before, if no session can load the new ones' libraries. If no other
    /// ones are known with which clients can connect, it does not run: an update of all servers ends with the first one.
    pub(super) async fn check_libraries(&mut self, before: Option<String>) -> Result<(), Error> {
        self.try_libraries().await;
        if !self.keeps_clients_out().await {
            return Ok(());
        }
        let used = self.libraries.clone();
        let other = before.filter(|before| used.as_ref().is_none_or(|used| used.text != *before));
        // While a server runs that can try them.
        let loads = match &other {
            Some(before) => {
                matches!(timeout(LIMIT, self.verdict(before)).await, Ok(Ok(Some(Verdict::Loads))))
            }
            None => false,
        };
        self.stop(Stop::Immediate).await?;
        let Some(before) = other.filter(|_| loads) else {
            let why = used.as_ref().and_then(Tried::refused).unwrap_or_default();
            return Err(Error::Unusable(format!("no client could connect with the mounted parameters: {why}")));
        };
        let (path, user) = (configuration::parameters(&self.settings), self.settings.user);
        self.in_time(move || files::replace(&path, before.as_bytes(), user)).await?;
        self.start(true).await
    }
}
