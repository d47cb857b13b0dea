//! An operator has the resync remove nothing for a while.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::outcome::Outcome;
use crate::domain::pause::Pause;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Pauses all removals by the resync until `ResumeResync`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseResync {
    /// Why, in the words of the operator who asks.
    pub why: String,
}

impl Change for PauseResync {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { why } = self;
        fits("why", why, bounds.text)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { why } = self;
        only_an_operator(actor)?;
        if domain.paused.as_ref().is_some_and(|pause| pause.by == actor.name && pause.why == why) {
            return Ok(Outcome::Unchanged);
        }
        domain.note(actor, [Subject::Domain], DomainEvent::ResyncPaused { why: why.clone() }, None);
        domain.paused = Some(Pause { at: domain.time, by: actor.name.clone(), why });
        Ok(Outcome::Changed)
    }
}
