//! A wrapper reports the end of its engine, or a later one in the same container the end of the one before it.

use super::Change;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::ids::{SessionNumber, StartId};
use crate::domain::outcome::Outcome;
use crate::domain::process::{ExitReason, Stop};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes that an engine has exited, by its wrapper's word, or since a later start of its container proves it
/// ([`Domain::outlived`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportExit {
    /// The process.
    pub process: StartId,
    /// The session by which it was said.
    pub session: SessionNumber,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// How it ended.
    pub reason: ExitReason,
}

impl Change for ReportExit {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { process: _, session: _, exit_code: _, reason } = self;
        if let ExitReason::Exited(why) = reason {
            cut(why, bounds.text);
        }
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { process: id, session, exit_code, reason } = self;
        if domain.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let asked = domain.in_session(id, session)?.stop;
        // The wrapper knows that it was told to stop, and not why.
        let killed = asked == Some(Stop::Kill) && reason == ExitReason::Graceful;
        domain.bury(actor, id, if killed { ExitReason::Killed } else { reason }, exit_code, None);
        Ok(Outcome::Changed)
    }
}
