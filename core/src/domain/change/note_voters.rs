//! Who votes, for the audit trail.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, few};
use crate::domain::command::Actor;
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
        let nobody = BTreeSet::new();
        let before = known.map_or(&nobody, |known| &known.servers);
        let founded = known.filter(|known| known.epoch < voters.epoch);
        let founded = founded.map(|_| format!("membership epoch {} began", voters.epoch));
        let left: BTreeSet<&ServerId> = before.difference(&voters.servers).collect();
        let came: BTreeSet<&ServerId> = voters.servers.difference(before).collect();
        let verb = |many: usize, one: &str, more: &str| if many == 1 { one.to_owned() } else { more.to_owned() };
        let said = |servers: &BTreeSet<&ServerId>, does: String| {
            (!servers.is_empty()).then(|| format!("{} {does}", listed(servers.iter().copied())))
        };
        let parts = [
            founded,
            said(&left, verb(left.len(), "does not vote any more", "do not vote any more")),
            said(&came, verb(came.len(), "votes", "vote")),
            Some(format!("the voters are {}", listed(&voters.servers))),
            wanted
                .map(|wanted| format!("the StatefulSet wants {wanted} {}", verb(wanted as usize, "server", "servers"))),
        ];
        let what = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
        let changed = left.into_iter().chain(came).map(|server| Subject::Server(server.clone()));
        let subjects: Vec<Subject> = [Subject::Domain].into_iter().chain(changed).collect();
        domain.note(actor, subjects, what, None);
        domain.voters = Some(voters);
        Ok(Outcome::Changed)
    }
}

fn listed<'a>(servers: impl IntoIterator<Item = &'a ServerId>) -> String {
    servers.into_iter().map(ServerId::as_str).collect::<Vec<_>>().join(", ")
}
