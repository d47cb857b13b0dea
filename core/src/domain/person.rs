//! What people ask of the domain, by way of the API. It rests on their word, which the audit trail keeps.

use super::command::{Actor, Expected, Outcome, Refusal, Role};
use super::ids::{MembershipEpoch, Millis, ServerId, StartId};
use super::process::{DurableState, ExitReason, Stop};
use super::{Applied, CLAIMS_PREFIX, Domain, Subject};

impl Domain {
    /// Once for each epoch, whoever leads it when.
    pub(super) fn accept_loss(
        &mut self,
        actor: &Actor,
        epoch: MembershipEpoch,
        founder: ServerId,
        at: Millis,
        lost: &str,
    ) -> Applied {
        if actor.role != Role::Person {
            return Err(Refusal::OnlyAPerson);
        }
        if epoch <= self.lossy_epoch {
            return Ok(Outcome::Unchanged);
        }
        self.lossy_epoch = epoch;
        let what = format!("epoch {epoch} begins with the log of {founder}; given up at {at}: {lost}");
        self.note(actor, [Subject::Domain, Subject::Server(founder)], what, None);
        Ok(Outcome::Changed)
    }

    pub(super) fn set_value(
        &mut self,
        actor: &Actor,
        key: String,
        value: Option<String>,
        expected: &Expected,
    ) -> Applied {
        let current = self.values.get(&key);
        let as_expected = match expected {
            Expected::Anything => true,
            Expected::Absent => current.is_none(),
            Expected::Value(wanted) => current == Some(wanted),
        };
        if !as_expected {
            return Err(Refusal::AnotherValue(current.cloned()));
        }
        if current == value.as_ref() {
            return Ok(Outcome::Unchanged);
        }
        if let Some(value) = &value {
            if current.is_none() {
                // What the domain writes there itself comes with archives, which are counted.
                let others = self.values.keys().filter(|key| !key.starts_with(CLAIMS_PREFIX)).count();
                self.may_add("values", others, self.bounds.values)?;
            }
            let more = (64 + key.len() + value.len()).saturating_sub(current.map_or(0, |it| 64 + key.len() + it.len()));
            self.may_grow_values(more)?;
        }
        let what = if value.is_some() { "set" } else { "deleted" };
        self.note(actor, [Subject::Value(key.clone())], what.to_owned(), None);
        match value {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
        Ok(Outcome::Changed)
    }

    pub(super) fn stop_process(&mut self, actor: &Actor, id: StartId, how: Stop) -> Applied {
        if self.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        let process = self.processes.get_mut(&id).ok_or(Refusal::UnknownProcess(id))?;
        // To be killed is more than to stop, and not taken back.
        if process.stop >= Some(how) {
            return Ok(Outcome::Unchanged);
        }
        process.stop = Some(how);
        // One that never ran keeps its state: its database would be taken to run.
        if process.durable == DurableState::Monitored {
            process.durable = DurableState::RequestedShutdown;
        }
        let what = match how {
            Stop::Gracefully => "asked to stop",
            Stop::Kill => "asked to be killed",
        };
        self.note(actor, [Subject::Process(id)], what.to_owned(), None);
        Ok(Outcome::Changed)
    }

    pub(super) fn evict_process(&mut self, actor: &Actor, id: StartId) -> Applied {
        if actor.role != Role::Person {
            return Err(Refusal::OnlyAPerson);
        }
        if self.tombstones.contains_key(&id) {
            return Ok(Outcome::Unchanged);
        }
        if !self.processes.contains_key(&id) {
            return Err(Refusal::UnknownProcess(id));
        }
        self.bury(actor, id, ExitReason::Evicted, None, None);
        Ok(Outcome::Changed)
    }
}
