//! What the server says of itself, and what follows from that. The wrapper reads it while steps run, so a late answer delays none of them.

use super::Keeper;
use super::hearing::Ear;
use crate::postgres::{Reader, Reading};
use crate::roles::decide::Run;
use crate::roles::noted;
use crate::roles::outside::Outside;
use crate::roles::readiness;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a reading may take: a server that does not answer is no reason to stop it.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// A reading that is under way.
pub(super) type Reads = Pin<Box<dyn Future<Output = Result<Reading, Unread>> + Send>>;

/// That a server was not read.
#[derive(Debug)]
pub(super) struct Unread {
    /// Whether its log says that it lacks log which its primary has removed.
    lacks_log: bool,
}

async fn read(reader: Reader) -> Result<Reading, Unread> {
    match timeout(READ_LIMIT, reader.read()).await {
        Ok(Ok(reading)) => return Ok(reading),
        Ok(Err(error)) => tracing::debug!(%error, "the server was not read"),
        Err(_) => tracing::warn!("the server did not answer within {READ_LIMIT:?}"),
    }
    Err(Unread { lacks_log: reader.lacks_log() })
}

impl Keeper {
    /// Begins a reading, unless one is under way.
    pub(super) fn begin_to_read(&mut self) {
        if self.reads.is_some() {
            return;
        }
        // A step that is under way may hold the server for long. What a primary sees of its standbys is read meanwhile.
        let reader = match self.server.try_lock() {
            Ok(server) => server.reader().ok(),
            Err(_) => self.standbys.reader(),
        };
        match reader {
            Some(reader) => {
                self.door.knock(&reader);
                self.standbys.set_reader(reader.clone());
                self.reads = Some(Box::pin(read(reader)));
            }
            None => self.hears(Ear::Deaf),
        }
    }

    /// Takes note of a reading.
    pub(super) fn was_read(&mut self, reading: Result<Reading, Unread>) {
        self.reads = None;
        let reading = match reading {
            Ok(reading) => reading,
            Err(Unread { lacks_log }) => {
                if lacks_log {
                    noted::note_lack_of_log(&mut self.state);
                }
                return self.hears(Ear::Unknown);
            }
        };
        if let Run::Primary(primary) = &self.state.run {
            self.standbys.note(&reading, &primary.ruling, Instant::now());
        }
        let under = self.under.as_ref().map(|(step, _)| step);
        let noted::Heard { ear, whole } = noted::note_reading(&mut self.state, &reading, under);
        if self.state.outside == Outside::Runs {
            tracing::error!("the server was promoted, and not by Kaa: it is stopped");
        }
        if whole {
            self.whole();
        }
        self.hears(ear);
        self.overridden(&reading.overridden);
        self.vitals.note(&reading, Instant::now());
        self.caught_up = readiness::caught_up(&self.state, &reading, self.caught_up);
        self.reading = Some(reading);
    }

    /// Takes note of whether its server hears the primary of the current generation.
    fn hears(&mut self, ear: Ear) {
        self.hearing.look(&self.state.run, self.wanted.as_ref(), ear, Instant::now());
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
        self.write(memory, self.start);
    }
}
