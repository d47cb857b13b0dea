//! What a person says about the resync as a whole: that it shall take nothing away for a while, and that another
//! Kubernetes is the domain's from now on. Both rest on a person's word, which the audit trail keeps.

use super::command::{Actor, Outcome, Refusal, Role};
use super::evidence::Evidence;
use super::ids::{Millis, Uid};
use super::{Applied, Domain, Subject};
use serde::{Deserialize, Serialize};

/// A pause of the resync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Since when.
    pub at: Millis,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub why: String,
}

impl Domain {
    pub(super) fn pause(&mut self, actor: &Actor, why: String) -> Applied {
        only_a_person(actor)?;
        if self.paused.as_ref().is_some_and(|pause| pause.by == actor.name && pause.why == why) {
            return Ok(Outcome::Unchanged);
        }
        self.note(actor, [Subject::Domain], format!("resync paused: {why}"), None);
        self.paused = Some(Pause { at: self.time, by: actor.name.clone(), why });
        Ok(Outcome::Changed)
    }

    pub(super) fn resume(&mut self, actor: &Actor) -> Applied {
        only_a_person(actor)?;
        let Some(pause) = self.paused.take() else { return Ok(Outcome::Unchanged) };
        let what = format!("resync resumed, which {} had paused: {}", pause.by, pause.why);
        self.note(actor, [Subject::Domain], what, None);
        Ok(Outcome::Changed)
    }

    pub(super) fn adopt_anchor(
        &mut self,
        actor: &Actor,
        known: &Uid,
        anchor: Uid,
        why: &str,
        evidence: Evidence,
    ) -> Applied {
        only_a_person(actor)?;
        if self.anchor.as_ref() == Some(&anchor) {
            return Ok(Outcome::Unchanged);
        }
        if self.anchor.as_ref() != Some(known) {
            return Err(Refusal::AnotherAnchor(self.anchor.clone().unwrap_or_default()));
        }
        if !evidence.anchored_by(&anchor) {
            return Err(Refusal::Unproven(format!("the anchor lease has uid {anchor}")));
        }
        let what = format!("adopted by the Kubernetes whose anchor has uid {anchor} instead of {known}: {why}");
        self.note(actor, [Subject::Domain], what, Some(evidence));
        self.anchor = Some(anchor);
        Ok(Outcome::Changed)
    }
}

fn only_a_person(actor: &Actor) -> Result<(), Refusal> {
    if actor.role == Role::Person { Ok(()) } else { Err(Refusal::OnlyAPerson) }
}
