//! Which commands may be proposed: those that the oldest member of the group understands. Which servers may join it: those
//! that understand everything that was ever proposed.
//!
//! A member that meets an entry it does not know stops, rather than continuing with another domain than the others. So a
//! command waits until every member, voter or not, runs a version that knows it; that is what makes an upgrade one server at a
//! time possible. An evicted server is one as long as it follows the log.

use super::Domain;
use super::change::Command;
use super::ids::{RaftId, ServerId};
use super::server::Server;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// A version of the agent. What comes after the third number does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Reads a version; what is none counts as older than all.
    pub fn read(text: &str) -> Self {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        next().zip(next()).zip(next()).map_or(Self::default(), |((major, minor), patch)| Self(major, minor, patch))
    }
}

/// A command that a member would not understand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("server {server} runs version '{runs}', and this needs {needs} on every server: upgrade it")]
pub struct TooNew {
    /// The oldest member.
    pub server: ServerId,
    /// Its version, in its own words.
    pub runs: String,
    /// The first version that knows the command.
    pub needs: Version,
}

/// A server that would not understand what it would be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("server {server} runs version '{runs}', and this domain has entries of {needs}: upgrade it")]
pub struct TooOld {
    /// The server.
    pub server: ServerId,
    /// Its version, in its own words.
    pub runs: String,
    /// The first version that knows all that is in the log.
    pub needs: Version,
}

/// Says whether a server understands everything in the log.
pub(super) fn may_join(domain: &Domain, server: &Server) -> Result<(), TooOld> {
    if Version::read(&server.version) >= domain.needs {
        return Ok(());
    }
    Err(TooOld { server: server.id.clone(), runs: server.version.clone(), needs: domain.needs })
}

/// Says whether every member of the group understands a command; `members` are their logs.
pub fn check(domain: &Domain, members: &BTreeSet<RaftId>, command: &Command) -> Result<(), TooNew> {
    let oldest = domain
        .servers
        .values()
        .filter(|server| members.contains(&server.raft_id))
        .min_by_key(|server| Version::read(&server.version));
    let needs = command.since();
    match oldest {
        Some(oldest) if Version::read(&oldest.version) < needs => {
            Err(TooNew { server: oldest.id.clone(), runs: oldest.version.clone(), needs })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{TooOld, Version, check};
    use crate::domain::Domain;
    use crate::domain::change::{self, Command};
    use crate::domain::command::{Actor, Entry, Expected, Outcome, Refusal, Request, Role};
    use crate::domain::ids::{Millis, RaftId};
    use crate::domain::server::Server;
    use std::collections::BTreeSet;

    fn server(log: u64, version: &str) -> Server {
        let (cluster, address, raft_id) = ("c1".into(), String::new(), RaftId(log));
        let (version, labels, joined) = (version.to_owned(), Default::default(), Default::default());
        Server { id: format!("admin-{log}").into(), cluster, address, raft_id, version, labels, joined }
    }

    fn domain(versions: &[&str]) -> Domain {
        let servers = (0..).zip(versions).map(|(log, version)| server(log, version));
        Domain { servers: servers.map(|server| (server.id.clone(), server)).collect(), ..Domain::default() }
    }

    fn set() -> Command {
        Command::SetValue(change::SetValue { key: "k".to_owned(), value: None, expected: Expected::Anything })
    }

    fn members(logs: impl IntoIterator<Item = u64>) -> BTreeSet<RaftId> {
        logs.into_iter().map(RaftId).collect()
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let read = ["", "test", "1.2", "0.1.0", "0.1.0-rc.1", "0.9.0", "0.10.0+build", "1.0.0"].map(Version::read);
        assert!(read.is_sorted());
        assert_eq!((read[2], read[4], read[6]), (Version(0, 0, 0), Version(0, 1, 0), Version(0, 10, 0)));
    }

    #[test]
    fn a_newer_command_waits_for_the_oldest_member() {
        let old = domain(&["0.2.0", "0.0.9", "0.1.0"]);
        let why = check(&old, &members(0..3), &set()).unwrap_err();
        assert_eq!((why.server.as_str(), why.runs.as_str(), why.needs), ("admin-1", "0.0.9", Version(0, 1, 0)));
        assert!(why.to_string().contains("upgrade it"), "{why}");
        assert_eq!(check(&domain(&["0.2.0", "0.1.0"]), &members(0..2), &set()), Ok(()));
        assert_eq!(check(&Domain::default(), &members(0..1), &set()), Ok(()), "before anybody is known");
    }

    #[test]
    fn a_server_that_was_evicted_is_not_waited_for() {
        assert_eq!(check(&domain(&["0.2.0", "0.0.9", "0.1.0"]), &members([0, 2]), &set()), Ok(()));
    }

    #[test]
    fn one_that_is_too_old_does_not_join_and_one_that_is_a_member_may_say_what_it_runs() {
        let mut domain = Domain::default();
        let mut apply = |command| {
            let request = Request { actor: Actor { role: Role::RaftLeader, name: "admin-0".to_owned() }, command };
            domain.apply(Entry { index: domain.index + 1, time: Millis(0), request })
        };
        apply(Command::FoundDomain(change::FoundDomain {
            domain: "D1".into(),
            name: "kaa".to_owned(),
            anchor: "A1".into(),
        }));
        let admit = |server| Command::AdmitServer(change::AdmitServer { server });
        assert_eq!(apply(admit(server(1, "0.0.9"))), Outcome::Changed, "nothing newer is in the log yet");
        apply(set());
        let refused = Outcome::Refused(Refusal::TooOld(TooOld {
            server: "admin-2".into(),
            runs: "0.0.9".to_owned(),
            needs: Version(0, 1, 0),
        }));
        assert_eq!(apply(admit(server(2, "0.0.9"))), refused);
        assert_eq!(apply(admit(server(2, "0.1.0"))), Outcome::Changed);
        let downgraded = Server { version: "0.0.8".to_owned(), ..server(1, "") };
        assert_eq!(apply(admit(downgraded)), Outcome::Changed, "it is sent everything anyhow");
        let emptied = Server { raft_id: RaftId(7), ..server(1, "0.0.9") };
        assert!(matches!(apply(admit(emptied)), Outcome::Refused(Refusal::TooOld(_))), "it joins with an empty log");
    }

    #[test]
    fn an_upgraded_server_can_always_say_so() {
        let admit = Command::AdmitServer(change::AdmitServer { server: server(0, "0.1.0") });
        assert_eq!(check(&domain(&["0.0.1"]), &members(0..1), &admit), Ok(()));
    }
}
