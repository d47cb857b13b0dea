//! Libraries that the user's parameters have each session load. One that cannot be loaded keeps every client out. The wrapper's own
//! sessions load none of them, so nothing else would notice.

use super::Server;
use super::configuration::{self, SESSION_LIBRARIES};
use super::error::Error;
use super::session::Session;
use super::start::is_ill;

/// Mounted parameters whose libraries were tried at a server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub text: String,
    /// Why a session that loads them is refused.
    pub refused: Option<String>,
}

impl Server {
    /// Tries the libraries of mounted parameters that the server does not use yet, in a session of its own.
    ///
    /// # Errors
    /// If the disk hangs, or the server's program is not there.
    pub(super) async fn try_libraries(&mut self) -> Result<(), Error> {
        let settings = self.settings.clone();
        let Some(text) = self.in_time(move || Ok(configuration::loading(&settings))).await? else { return Ok(()) };
        if self.libraries.as_ref().is_some_and(|tried| tried.text == text) {
            return Ok(());
        }
        let (settings, parameters) = (self.settings.clone(), text.clone());
        let values = self.in_time(move || configuration::values(&settings, &parameters, &SESSION_LIBRARIES)).await?;
        // The server's program refuses them for another reason, which is said elsewhere.
        let Some(values) = values else { return Ok(()) };
        let refused = match Session::loading(&self.settings, &values).await {
            Ok(_) => None,
            Err(error @ Error::NoSql { .. }) if is_ill(&error) => {
                Some(format!("no session can load their libraries: {error}"))
            }
            // It accepts no session now: nothing is known of them.
            Err(_) => return Ok(()),
        };
        self.libraries = Some(Tried { text, refused });
        Ok(())
    }
}
