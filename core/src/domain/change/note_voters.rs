//! Who votes, for the audit trail.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, few};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::ids::ServerId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::voters::Voters;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Notes who votes, and how many servers the StatefulSet wanted when that was seen, if it was known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteVoters {
    /// Who.
    pub voters: Voters,
    /// How many are wanted.
    pub wanted: Option<u32>,
}

impl Change for NoteVoters {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { voters, wanted: _ } = self;
        few("voters", voters.servers.len(), bounds.servers)?;
        voters.servers.iter().try_for_each(|server| bounds.name("a server's id", server))
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { voters, wanted } = self;
        let known = domain.voters.as_ref();
        if known.is_some_and(|known| known.are(&voters)) {
            return Ok(Outcome::Unchanged);
        }
        if let Some(known) = known.filter(|known| (known.epoch, known.since) >= (voters.epoch, voters.since)) {
            return Err(Refusal::StaleVoters { epoch: known.epoch, since: known.since });
        }
        let none = BTreeSet::new();
        let before = known.map_or(&none, |known| &known.servers);
        let epoch = known.filter(|known| known.epoch < voters.epoch).map(|_| voters.epoch);
        let left: BTreeSet<ServerId> = before.difference(&voters.servers).cloned().collect();
        let came: BTreeSet<ServerId> = voters.servers.difference(before).cloned().collect();
        let changed = left.iter().chain(&came).cloned().map(Subject::Server);
        let subjects: Vec<Subject> = [Subject::Domain].into_iter().chain(changed).collect();
        let event = DomainEvent::VotersChanged { epoch, left, came, voters: voters.servers.clone(), wanted };
        domain.note(actor, subjects, event, None);
        domain.voters = Some(voters);
        Ok(Outcome::Changed)
    }
}
