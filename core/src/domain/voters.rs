//! Who votes, for the audit trail. Raft's membership alone decides who does; here is kept what was noted last, so that each
//! change is noted once, whoever leads when.

use super::command::{Actor, Outcome, Refusal};
use super::ids::{MembershipEpoch, ServerId};
use super::{Applied, Domain, Subject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The voters of a membership that is committed, with no change under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Voters {
    /// The membership epoch.
    pub epoch: MembershipEpoch,
    /// The log entry of this membership. A later one has a greater index: that is the fence against who led before.
    pub since: u64,
    /// Whose logs vote.
    pub servers: BTreeSet<ServerId>,
}

impl Voters {
    /// Whether the same servers vote in the same epoch. Memberships may follow one another that differ only in who learns.
    pub fn are(&self, other: &Self) -> bool {
        (self.epoch, &self.servers) == (other.epoch, &other.servers)
    }
}

impl Domain {
    pub(super) fn note_voters(&mut self, actor: &Actor, voters: Voters, wanted: Option<u32>) -> Applied {
        let known = self.voters.as_ref();
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
        self.note(actor, subjects, what, None);
        self.voters = Some(voters);
        Ok(Outcome::Changed)
    }
}

fn listed<'a>(servers: impl IntoIterator<Item = &'a ServerId>) -> String {
    servers.into_iter().map(ServerId::as_str).collect::<Vec<_>>().join(", ")
}
