//! An operator ends a pause.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::outcome::Outcome;
use crate::domain::{Applied, Domain};

/// Ends a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeResync;

impl Change for ResumeResync {
    fn fit(&mut self, _bounds: &Bounds) -> Fits {
        Ok(())
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        only_an_operator(actor)?;
        let Some(pause) = domain.paused.take() else { return Ok(Outcome::Unchanged) };
        let resumed = DomainEvent::ResyncResumed { by: pause.by, why: pause.why };
        domain.note(actor, [Subject::Domain], resumed, None);
        Ok(Outcome::Changed)
    }
}
