//! Who is listened to on the port for agents: each with a certificate of its own, over real connections.

use super::cluster::join_request;
use super::{Agent, blank, found, node, until};
use crate::certificates::{Authority, Pair};
use crate::net::Tls;
use crate::raft::Peers;
use crate::raft::transport::{Connector, Error, Method};
use crate::raft::types::TypeConfig;
use openraft::raft::{VoteRequest, VoteResponse};
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;

const ASK: Duration = Duration::from_secs(2);

fn tls(authority: &Authority, names: &[&str], domain: Option<&str>) -> Tls {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let Pair { certificate, key } = authority.agents(&names, domain, 30).unwrap();
    Tls::from_pem(authority.certificate.as_str(), certificate, key).unwrap()
}

/// The agent's answer to a status request with this certificate.
async fn asked(agent: &Agent, tls: Tls) -> Result<String, String> {
    let asked = Peers::new(Some(tls)).status(&agent.address).await;
    asked.map(|status| status.server).map_err(said)
}

fn said(error: Error) -> String {
    match error {
        Error::Call { source, .. } => source.message().to_owned(),
        other => other.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_the_authority_is_not_enough() {
    let authority = Authority::new(30).unwrap();
    let dir = tempdir().unwrap();
    let agent = found(dir.path(), "admin-0", Some(&tls(&authority, &["admin-0.kaa.test"], None))).await;
    for (names, domain) in [(["admin-1.kaa.test"], None), (["*.kaa.test"], None), (["admin-2.kaa.test"], Some("test"))]
    {
        assert_eq!(asked(&agent, tls(&authority, &names, domain)).await.unwrap(), "admin-0", "{names:?} {domain:?}");
    }
    for (names, domain) in [(["web.other"], None), (["*.other"], None), (["admin-1.kaa.test"], Some("another"))] {
        let why = asked(&agent, tls(&authority, &names, domain)).await.unwrap_err();
        assert!(why.contains("has no address of an agent of this domain"), "{names:?} {domain:?}: {why}");
    }
    let stranger = Authority::new(30).unwrap();
    let names = ["admin-1.kaa.test".to_owned()];
    let Pair { certificate, key } = stranger.agents(&names, None, 30).unwrap();
    let theirs = Tls::from_pem(authority.certificate.as_str(), certificate, key).unwrap();
    assert!(asked(&agent, theirs).await.is_err(), "another authority vouches for it");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_one_agent_speaks_for_no_other() {
    let authority = Authority::new(30).unwrap();
    let own = |name: &str| tls(&authority, &[name], None);
    let dirs = [tempdir().unwrap(), tempdir().unwrap()];
    let first = found(dirs[0].path(), "admin-0", Some(&own("admin-0.kaa.test"))).await;
    let second = blank(dirs[1].path(), "admin-1", 1, Some(&own("admin-1.kaa.test"))).await;
    let to_first = std::slice::from_ref(&first.address);

    let request = join_request(&second);
    let thief = Peers::new(Some(own("admin-2.kaa.test")));
    let why = said(thief.join(to_first, &request).await.unwrap_err());
    assert!(why.contains("does not have the address of server admin-1"), "{why}");
    let mut request = join_request(&second);
    request.address = request.address.replace("admin-1", "admin-2");
    let why = said(thief.join(to_first, &request).await.unwrap_err());
    assert!(why.contains("is not an address of server admin-1"), "{why}");

    let joined = second.handle.peers().join(to_first, &join_request(&second)).await.unwrap();
    assert!(joined.accepted, "{}", joined.reason);
    until("it is replicated to", || second.handle.status().leader.is_some()).await;

    // A vote in the name of the log of admin-1, shown with the certificate of admin-2, and with its own.
    let vote = openraft::Vote::new(2 << 32, second.id().0);
    let vote = VoteRequest::<TypeConfig>::new(vote, None);
    let call = async |tls: Tls| {
        let connector = Connector::new(Peers::new(Some(tls)), "d1".to_owned(), 1);
        let connection = connector.connect(first.id().0, &node("admin-0", &first.address));
        connection.call::<_, VoteResponse<TypeConfig>>(Method::PreVote, &vote, ASK).await.map(drop)
    };
    let why = said(call(own("admin-2.kaa.test")).await.unwrap_err());
    assert!(why.contains("does not have the address of server admin-1"), "{why}");
    call(own("admin-1.kaa.test")).await.unwrap();
    second.stop().await;
    first.stop().await;
}

fn write(dir: &Path, authority: &Authority, trusted: &str) {
    let Pair { certificate, key } = authority.agents(&["*.kaa.test".to_owned()], None, 30).unwrap();
    for (name, text) in [("ca.crt", trusted), ("tls.crt", &certificate), ("tls.key", &key)] {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

/// The authority changes by way of a bundle, as one does it; then the old one is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_change_under_connections_that_live() {
    let (old, new) = (Authority::new(30).unwrap(), Authority::new(30).unwrap());
    let both = format!("{}{}", old.certificate, new.certificate);
    let (dir, data) = (tempdir().unwrap(), tempdir().unwrap());
    write(dir.path(), &old, &old.certificate);
    let current = Tls::load(dir.path()).unwrap();
    let agent = found(data.path(), "admin-0", Some(&current)).await;
    let with = |authority: &Authority, trusted: &str| {
        let Pair { certificate, key } = authority.agents(&["admin-1.kaa.test".to_owned()], None, 30).unwrap();
        Peers::new(Some(Tls::from_pem(trusted, certificate, key).unwrap()))
    };
    let (of_old, of_new) = (with(&old, &both), with(&new, &both));
    of_old.status(&agent.address).await.unwrap();
    assert!(of_new.status(&agent.address).await.is_err(), "its authority is not trusted yet");

    write(dir.path(), &new, &both);
    assert!(current.reload().unwrap());
    of_old.status(&agent.address).await.unwrap();
    of_new.status(&agent.address).await.unwrap();
    with(&old, &both).status(&agent.address).await.unwrap();
    let of_new_alone = with(&new, &new.certificate);
    of_new_alone.status(&agent.address).await.expect("the agent shows its new certificate");

    write(dir.path(), &new, &new.certificate);
    assert!(current.reload().unwrap());
    of_new.status(&agent.address).await.unwrap();
    let why = said(of_old.status(&agent.address).await.unwrap_err());
    assert!(why.contains("is no longer trusted"), "its connection lives, and is of no use: {why}");
    agent.stop().await;
}

/// The other direction: an agent whose own certificate changes shows the new one to those that it called before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_calls_with_its_new_certificate() {
    let authority = Authority::new(30).unwrap();
    let (dir, data) = (tempdir().unwrap(), tempdir().unwrap());
    let agent = found(data.path(), "admin-0", Some(&tls(&authority, &["admin-0.kaa.test"], None))).await;
    write(dir.path(), &authority, &authority.certificate);
    let own = Tls::load(dir.path()).unwrap();
    let calls = Peers::new(Some(own.clone()));
    calls.status(&agent.address).await.unwrap();
    // One that the other does not let in shows that it is the new one which is shown.
    let Pair { certificate, key } = authority.agents(&["web.other".to_owned()], None, 30).unwrap();
    std::fs::write(dir.path().join("tls.crt"), certificate).unwrap();
    std::fs::write(dir.path().join("tls.key"), key).unwrap();
    assert!(own.reload().unwrap());
    let why = said(calls.status(&agent.address).await.unwrap_err());
    assert!(why.contains("has no address of an agent"), "{why}");
    agent.stop().await;
}
