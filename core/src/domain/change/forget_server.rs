//! An operator removes an admin server whose volume is gone: `delete server` of the published client. The resync does the same
//! by itself where it can prove that the StatefulSet does not want the server.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{ClusterName, RaftId, ServerId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::server::raft_log_claim;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Removes an admin server by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetServer {
    /// The server.
    pub server: ServerId,
    /// The log that it held; if it came back with another, it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raft_id: Option<RaftId>,
    /// The cluster in which the claim was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// The proof that the claim of its log is gone.
    pub evidence: Evidence,
}

impl Change for ForgetServer {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { server: _, raft_id: _, cluster: _, evidence } = self;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { server: id, raft_id, cluster, evidence } = self;
        only_an_operator(actor)?;
        let server = domain.servers.get(&id).ok_or_else(|| Refusal::UnknownServer(id.clone()))?;
        if raft_id.is_some_and(|raft_id| raft_id != server.raft_id) {
            return Err(Refusal::AnotherLog { server: id, raft_id: server.raft_id });
        }
        // A quorum may still count on it. Where several clusters share the domain no scale-down removes a vote, so it is removed
        // from the voters after this: its claim is gone, and so is its log.
        if domain.voters.as_ref().is_none_or(|voters| voters.servers.contains(&id)) && !domain.is_spread() {
            return Err(Refusal::StillVotes(id));
        }
        domain.unused_server(&id)?;
        Domain::read_in(cluster.as_ref(), &server.cluster)?;
        domain.anchored(&server.cluster, &evidence)?;
        let claim = raft_log_claim(&id);
        if !evidence.claim_is_gone(&claim) {
            return Err(Refusal::Unproven(format!("claim {claim} of server {id} is gone")));
        }
        domain.drop_server(actor, id, evidence);
        Ok(Outcome::Changed)
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::change::{AdmitServer, Command, ForgetServer, FoundDomain, NoteVoters};
    use crate::domain::command::{Actor, Entry, Request, Role};
    use crate::domain::evidence::{Evidence, Fact};
    use crate::domain::ids::{MembershipEpoch, Millis, RaftId, ServerId};
    use crate::domain::outcome::Outcome;
    use crate::domain::process::{About, EngineKind, Identity, Registration};
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

    /// Asks for it as an operator whose agent has read this.
    fn forget(domain: &mut Domain, server: &str, facts: [Fact; 2], change: impl FnOnce(&mut ForgetServer)) -> String {
        let evidence = Evidence { read_at: Millis(5), facts: facts.into() };
        let mut forget = ForgetServer { server: server.into(), raft_id: None, cluster: None, evidence };
        change(&mut forget);
        apply(domain, Role::Operator, Command::ForgetServer(forget))
    }

    fn anchor() -> Fact {
        Fact::AnchorIs { uid: "A1".into() }
    }

    fn gone(server: &str) -> [Fact; 2] {
        [anchor(), Fact::ClaimAbsent { name: format!("raftlog-{server}") }]
    }

    #[test]
    fn an_operator_removes_a_server_whose_claim_is_gone() {
        let mut domain = domain();
        let mut told = |server: &str, facts| forget(&mut domain, server, facts, |_| {});
        assert_eq!(
            told("admin-0", gone("admin-0")),
            "server admin-0 may still vote: it can be removed once it is known not to vote (scale the StatefulSet down if that wants it)"
        );
        assert_eq!(told("admin-2", gone("admin-2")), "there is no server admin-2");
        assert_eq!(told("admin-1", gone("admin-1")), "Changed");
        assert_eq!(told("admin-1", gone("admin-1")), "there is no server admin-1");
        let subject = Subject::Server("admin-1".into());
        let last = domain.audit.of(&subject).last().unwrap();
        assert_eq!(last.text(), "server admin-1 removed: its claim raftlog-admin-1 was deleted");
    }

    #[test]
    fn what_is_not_proven_of_this_server_removes_nothing() {
        let mut domain = domain();
        let unproven = "no fresh read proves that claim raftlog-admin-1 of server admin-1 is gone";
        let there = [anchor(), Fact::ClaimIs { name: "raftlog-admin-1".to_owned(), uid: "C1".into() }];
        assert_eq!(forget(&mut domain, "admin-1", there, |_| {}), unproven);
        assert_eq!(forget(&mut domain, "admin-1", gone("admin-0"), |_| {}), unproven);
        let another = [Fact::AnchorIs { uid: "A2".into() }, gone("admin-1")[1].clone()];
        assert_eq!(
            forget(&mut domain, "admin-1", another, |_| {}),
            "no fresh read proves that this is the Kubernetes that the domain was founded in"
        );
        let elsewhere = |asked: &mut ForgetServer| asked.cluster = Some("c2".into());
        assert_eq!(forget(&mut domain, "admin-1", gone("admin-1"), elsewhere), "it belongs to cluster c1");
        let earlier = |asked: &mut ForgetServer| asked.raft_id = Some(RaftId(6));
        let said = forget(&mut domain, "admin-1", gone("admin-1"), earlier);
        assert!(said.contains("admin-1"), "{said}");
        let forget_server = |domain: &Domain| {
            let evidence = Evidence { read_at: Millis(5), facts: gone("admin-1").into() };
            let known = &domain.servers[&ServerId::from("admin-1")];
            let (raft_id, cluster) = (Some(known.raft_id), Some(known.cluster.clone()));
            Command::ForgetServer(ForgetServer { server: known.id.clone(), raft_id, cluster, evidence })
        };
        let command = forget_server(&domain);
        assert_eq!(apply(&mut domain, Role::Agent, command.clone()), "only an operator may ask for this");
        let voters = domain.voters.take();
        assert!(
            apply(&mut domain, Role::Operator, command.clone()).contains("may still vote"),
            "who votes is not known"
        );
        domain.voters = voters;
        assert_eq!(apply(&mut domain, Role::Operator, command), "Changed");
    }

    #[test]
    fn a_server_that_an_engine_has_a_session_with_stays() {
        let mut domain = domain();
        let registration = Registration {
            database: "demo".into(),
            kind: EngineKind::Sm,
            cluster: "c1".into(),
            identity: Identity {
                namespace: "default".to_owned(),
                pod: "sm-0".to_owned(),
                pod_uid: "P0".into(),
                container: "engine".to_owned(),
                nonce: 1,
                started: Millis(1),
            },
            known_as: None,
            claim: None,
            marker: None,
            path: "/archive".to_owned(),
            server: "admin-1".into(),
            connection: 1,
            about: About::default(),
            evidence: None,
            as_of: None,
        };
        apply(&mut domain, Role::Agent, Command::RegisterProcess(Box::new(registration)));
        let said = forget(&mut domain, "admin-1", gone("admin-1"), |_| {});
        assert!(said.contains("process 1") && domain.servers.len() == 2, "{said}");
    }
}
