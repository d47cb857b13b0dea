//! An operator removes an admin server whose volume is gone: `delete server` of the published client. The resync does the same
//! by itself where it can prove that the StatefulSet does not want the server.

use super::Change;
use super::guard::only_a_person;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::ServerEvent;
use crate::domain::evidence::Evidence;
use crate::domain::ids::ServerId;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::process::{Process, SessionState};
use crate::domain::server::raft_log_claim;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes an admin server on an operator's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetServer {
    /// The server.
    pub server: ServerId,
    /// The proof that the claim of its log is gone.
    pub evidence: Evidence,
}

impl Change for ForgetServer {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { server: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { server: id, evidence } = self;
        only_a_person(actor)?;
        if !domain.servers.contains_key(&id) {
            return Err(Refusal::UnknownServer(id));
        }
        domain.anchored(&evidence)?;
        let claim = raft_log_claim(&id);
        if !evidence.claim_is_gone(&claim) {
            return Err(Refusal::Unproven(format!("claim {claim} of server {id} is gone")));
        }
        // A quorum may still count on it.
        if domain.voters.as_ref().is_some_and(|voters| voters.servers.contains(&id)) {
            return Err(Refusal::Unproven(format!("server {id} does not vote any more")));
        }
        let speaks = |process: &&Process| process.session.server == id && process.session.state == SessionState::Live;
        if let Some(process) = domain.processes.values().find(speaks) {
            return Err(Refusal::ServerInUse { server: id, process: process.id });
        }
        domain.servers.remove(&id);
        let removed = ServerEvent::Removed { server: id.clone() };
        domain.note(actor, [Subject::Server(id)], removed, Some(evidence));
        Ok(Outcome::Changed)
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::change::{AdmitServer, Command, ForgetServer, FoundDomain, NoteVoters};
    use crate::domain::command::{Actor, Entry, Request, Role};
    use crate::domain::evidence::{Evidence, Fact};
    use crate::domain::ids::{MembershipEpoch, Millis, RaftId};
    use crate::domain::outcome::Outcome;
    use crate::domain::server::Server;
    use crate::domain::voters::Voters;
    use crate::domain::{Domain, Subject};

    fn apply(domain: &mut Domain, role: Role, command: Command) -> String {
        let request = Request { actor: Actor { role, name: "ann".to_owned() }, command };
        match domain.apply(Entry { index: domain.index + 1, time: Millis(5), request }) {
            Outcome::Refused(refusal) => refusal.to_string(),
            outcome => format!("{outcome:?}"),
        }
    }

    /// A domain with the servers admin-0 and admin-1, of which admin-0 votes.
    fn domain() -> Domain {
        let mut domain = Domain::default();
        let found = FoundDomain { domain: "D1".into(), name: "kaa".to_owned(), anchor: "A1".into() };
        apply(&mut domain, Role::Agent, Command::FoundDomain(found));
        for (id, raft_id) in [("admin-0", RaftId(7)), ("admin-1", RaftId(8))] {
            let server = Server {
                id: id.into(),
                cluster: "c1".into(),
                address: format!("{id}:48005"),
                raft_id,
                version: "0.1.0".to_owned(),
                labels: [].into(),
                joined: Millis(0),
            };
            apply(&mut domain, Role::Agent, Command::AdmitServer(AdmitServer { server }));
        }
        let voters = Voters { epoch: MembershipEpoch(1), since: 1, servers: ["admin-0".into()].into() };
        apply(&mut domain, Role::RaftLeader, Command::NoteVoters(NoteVoters { voters, wanted: Some(1) }));
        domain
    }

    fn forget(domain: &mut Domain, role: Role, server: &str, claim: Fact) -> String {
        let evidence = Evidence { read_at: Millis(5), facts: vec![Fact::AnchorIs { uid: "A1".into() }, claim] };
        apply(domain, role, Command::ForgetServer(ForgetServer { server: server.into(), evidence }))
    }

    #[test]
    fn an_operator_removes_a_server_whose_claim_is_gone() {
        let mut domain = domain();
        let gone = |server: &str| Fact::ClaimAbsent { name: format!("raftlog-{server}") };
        let there = Fact::ClaimIs { name: "raftlog-admin-1".to_owned(), uid: "C1".into() };
        let told = [
            forget(&mut domain, Role::Agent, "admin-1", gone("admin-1")),
            forget(&mut domain, Role::Person, "admin-1", there),
            forget(&mut domain, Role::Person, "admin-0", gone("admin-0")),
            forget(&mut domain, Role::Person, "admin-2", gone("admin-2")),
            forget(&mut domain, Role::Person, "admin-1", gone("admin-1")),
            forget(&mut domain, Role::Person, "admin-1", gone("admin-1")),
        ];
        assert_eq!(
            told,
            [
                "only an operator may ask for this",
                "nothing read proves that claim raftlog-admin-1 of server admin-1 is gone",
                "nothing read proves that server admin-0 does not vote any more",
                "there is no server admin-2",
                "Changed",
                "there is no server admin-1",
            ]
        );
        let subject = Subject::Server("admin-1".into());
        let last = domain.audit.of(&subject).last().unwrap();
        assert_eq!(last.text(), "server admin-1 removed: its claim raftlog-admin-1 was deleted");
    }
}
