//! What the server says of itself, and what follows from that.

use super::Keeper;
use crate::roles::decide::{Readers, Run};
use crate::roles::words;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a reading may take: a server that does not answer is no reason to stop it.
const READ_LIMIT: Duration = Duration::from_secs(2);

impl Keeper {
    pub(super) async fn read(&mut self) {
        // A step that is under way may hold the server for long. What a primary sees of its standbys is read meanwhile.
        let reader = match self.server.try_lock() {
            Ok(server) => server.reader().ok(),
            Err(_) => self.standbys.reader(),
        };
        let Some(reader) = reader else { return };
        self.standbys.set_reader(reader.clone());
        match timeout(READ_LIMIT, reader.read()).await {
            Ok(Ok(reading)) => {
                if let Run::Primary(primary) = &self.state.run {
                    self.standbys.note(&reading, &primary.ruling, Instant::now());
                }
                if let Run::Follows { generation, readers, .. } = &mut self.state.run {
                    let timeline = words::timeline(*generation);
                    let is_past = reading.streams_from == Some(timeline) && reading.timeline == timeline;
                    if is_past && *readers == Readers::No {
                        *readers = Readers::May;
                    }
                    if reading.streams_from == Some(timeline) && self.state.memory.overwriting {
                        self.whole();
                    }
                }
                self.overridden(&reading.overridden);
                self.vitals.note(&reading, Instant::now());
                self.reading = Some(reading);
            }
            Ok(Err(error)) => tracing::debug!(%error, "the server was not read"),
            Err(_) => tracing::warn!("the server did not answer within {READ_LIMIT:?}"),
        }
    }

    /// What the wrapper has written was changed from outside. At a primary the rule is made again: until then it is not in force.
    fn overridden(&mut self, parameters: &[String]) {
        if parameters.is_empty() || self.under.is_some() {
            return;
        }
        tracing::error!(?parameters, "these parameters were changed from outside");
        if let Run::Primary(primary) = &mut self.state.run {
            primary.ruling.doubt();
        }
    }

    /// The server streams with data that was overwritten: it is whole.
    fn whole(&mut self) {
        let mut memory = self.state.memory;
        memory.end_overwrite();
        if let Err(error) = self.remember(memory, self.start) {
            self.failed(error.to_string());
        }
    }
}
