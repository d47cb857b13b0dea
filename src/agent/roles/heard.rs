//! What is heard of a server: what decides goes to the loop that proposes, what is for people to the other agents, with this one's
//! status, and nowhere else. No loop is woken by the latter.

use super::reported;
use super::words::STANDBYS;
use crate::agent::connected::Connected;
use crate::clock;
use crate::proto::engine as wire;
use crate::proto::raft::{Hears, Reached};
use crate::raft::Host;
use kaa_core::domain::bounds::{Bounds, cut};
use kaa_core::domain::command::Registered;
use prost::Message;

/// More parameters than this are not told.
const PARAMETERS: usize = 64;
/// The longest name of a parameter, a role or a database, in bytes.
const NAME: usize = 64;

/// Notes how a server fares.
pub fn hear_vitals(host: &Host, connection: u64, registered: &Registered, mut said: wire::Vitals) {
    said.connections.truncate(STANDBYS);
    for names in [&mut said.restart_pending, &mut said.overridden] {
        names.truncate(PARAMETERS);
        names.iter_mut().for_each(|name| cut(name, NAME));
    }
    if let Some(wire::Application { user, database }) = &mut said.application {
        [user, database].into_iter().for_each(|name| cut(name, NAME));
    }
    if said.answers {
        host.note_reached(Reached { process: registered.process.0, end: said.end, at_ms: clock::now().0 });
    }
    let vitals = said.encode_to_vec();
    hear(host, connection, registered, |hears| hears.vitals = vitals);
}

/// Notes what a server does.
pub fn hear_replica(host: &Host, connected: &Connected, connection: u64, registered: &Registered, said: wire::Replica) {
    hear_trouble(host, connection, registered, &said.trouble);
    connected.report(connection, reported(said));
}

/// Notes why a server does not do what it was assigned; empty if it does.
fn hear_trouble(host: &Host, connection: u64, registered: &Registered, trouble: &str) {
    let mut trouble = trouble.to_owned();
    cut(&mut trouble, Bounds::DEFAULT.text);
    hear(host, connection, registered, |hears| hears.trouble = trouble);
}

fn hear(host: &Host, connection: u64, registered: &Registered, change: impl FnOnce(&mut Hears)) {
    host.hear(connection, |hears| {
        (hears.process, hears.session) = (registered.process.0, registered.session.0);
        change(hears);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::source::{Heard, Status};
    use kaa_core::domain::ids::{ArchiveId, Millis, NodeId, SessionNumber, StartId};
    use kaa_core::domain::replicated::Position;
    use kaa_core::replication::vitals::Expiry;

    fn heard(host: &Host) -> Vec<(StartId, Heard)> {
        Status::from(host.status()).hears.into_iter().collect()
    }

    /// Two streams of one process are its old and its new session: each tells of its own.
    #[test]
    fn what_is_heard_of_a_server_is_told_until_its_stream_is_down() {
        let host = Host::new("admin-0".into(), "admin-0:48005".to_owned(), "main".into(), String::new());
        let (process, session) = (StartId(7), SessionNumber(3));
        let registered =
            Registered { domain: "d".into(), process, node: NodeId(1), archive: Some(ArchiveId(4)), session };
        let connection = wire::Connection { archive: 5, flushed: 990, replayed: 980, streams: true };
        let said = wire::Vitals {
            answers: true,
            end: 1000,
            connections: vec![connection; STANDBYS + 1],
            restart_pending: vec!["x".repeat(NAME + 1)],
            certificate_not_after: Some(2),
            authority_not_after: Some(3),
            application: Some(wire::Application { user: "u".repeat(NAME + 1), database: "shop".to_owned() }),
            ..wire::Vitals::default()
        };
        hear_trouble(&host, 1, &registered, "it is late");
        hear_vitals(&host, 1, &registered, said);
        let told = heard(&host);
        let [(StartId(7), Heard { session: SessionNumber(3), trouble: Some(trouble), vitals: Some(vitals) })] =
            told.as_slice()
        else {
            panic!("{told:?}")
        };
        assert_eq!((trouble.as_str(), vitals.end, vitals.volume), ("it is late", Position(1000), None));
        assert_eq!((vitals.connections.len(), vitals.restart_pending[0].len()), (STANDBYS, NAME), "bounded");
        let application = vitals.application.as_ref().map(|it| (it.user.len(), it.database.as_str()));
        assert_eq!(application, Some((NAME, "shop")));
        assert_eq!(vitals.behind(&vitals.connections[0]), 20);
        let expiry = Expiry { certificate: Some(Millis(2000)), authority: Some(Millis(3000)) };
        assert_eq!(vitals.expiry, expiry);
        host.hear_no_more(1);
        assert_eq!(heard(&host), []);
        let reached = |host: &Host| Status::from(host.status()).reached;
        assert_eq!(reached(&host)[&process].end, Position(1000), "it stays");
        for process in 8..108 {
            host.note_reached(Reached { process, end: 1, at_ms: process });
        }
        let kept = reached(&host);
        let is_kept = [7, 44, 45].map(|process| kept.contains_key(&StartId(process)));
        assert_eq!((kept.len(), is_kept), (64, [true, false, true]), "those that were heard last");
    }
}
