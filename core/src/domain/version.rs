//! Which commands may be proposed: those that the oldest member of the domain understands.
//!
//! A member that meets an entry it does not know stops, rather than going on with another domain than the others. So a
//! command waits until every server runs a version that knows it; that is what makes an upgrade one server at a time
//! possible.

use super::Domain;
use super::command::Command;
use super::ids::ServerId;
use serde::{Deserialize, Serialize};
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
#[error("server {server} runs version '{runs}', and this needs {needs} on every server: upgrade it, or evict it")]
pub struct TooNew {
    /// The oldest member.
    pub server: ServerId,
    /// Its version, in its own words.
    pub runs: String,
    /// The first version that knows the command.
    pub needs: Version,
}

impl Command {
    /// The first version that understands it. By the first two a server becomes known at all, with its version.
    pub fn since(&self) -> Version {
        match self {
            Self::FoundDomain { .. } | Self::AdmitServer { .. } => Version(0, 0, 0),
            Self::BeginResync { .. }
            | Self::RegisterProcess(_)
            | Self::LoseSession { .. }
            | Self::ReportState { .. }
            | Self::LearnContainer { .. }
            | Self::ReportExit { .. }
            | Self::RemoveProcess { .. }
            | Self::RemoveArchive { .. }
            | Self::PurgeArchive { .. }
            | Self::SetValue { .. }
            | Self::StopProcess { .. }
            | Self::EvictProcess { .. }
            | Self::ReportHistory { .. }
            | Self::NoteClaimGone { .. }
            | Self::DeleteDatabase { .. }
            | Self::RemoveServer { .. }
            | Self::PauseResync { .. }
            | Self::ResumeResync
            | Self::AdoptAnchor { .. }
            | Self::AcceptLoss { .. }
            | Self::NoteVoters { .. }
            | Self::RestoreDomain(_) => Version(0, 1, 0),
        }
    }
}

/// Says whether every member understands a command.
pub fn check(domain: &Domain, command: &Command) -> Result<(), TooNew> {
    let oldest = domain.servers.values().min_by_key(|server| Version::read(&server.version));
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
    use super::{Version, check};
    use crate::domain::Domain;
    use crate::domain::command::{Command, Expected};
    use crate::domain::server::Server;

    fn server(name: &str, version: &str) -> Server {
        let (cluster, address, raft_id) = ("c1".into(), String::new(), Default::default());
        let (version, labels, joined) = (version.to_owned(), Default::default(), Default::default());
        Server { id: name.into(), cluster, address, raft_id, version, labels, joined }
    }

    fn domain(versions: &[(&str, &str)]) -> Domain {
        let servers = versions.iter().map(|(name, version)| ((*name).into(), server(name, version))).collect();
        Domain { servers, ..Domain::default() }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let read = ["", "test", "1.2", "0.1.0", "0.1.0-rc.1", "0.9.0", "0.10.0+build", "1.0.0"].map(Version::read);
        assert!(read.is_sorted());
        assert_eq!((read[2], read[4], read[6]), (Version(0, 0, 0), Version(0, 1, 0), Version(0, 10, 0)));
    }

    #[test]
    fn a_newer_command_waits_for_the_oldest_member() {
        let set = Command::SetValue { key: "k".to_owned(), value: None, expected: Expected::Anything };
        let old = domain(&[("admin-0", "0.2.0"), ("admin-1", "0.0.9"), ("admin-2", "0.1.0")]);
        let why = check(&old, &set).unwrap_err();
        assert_eq!((why.server.as_str(), why.runs.as_str(), why.needs), ("admin-1", "0.0.9", Version(0, 1, 0)));
        assert!(why.to_string().contains("upgrade it"), "{why}");
        assert_eq!(check(&domain(&[("admin-0", "0.2.0"), ("admin-1", "0.1.0")]), &set), Ok(()));
        assert_eq!(check(&Domain::default(), &set), Ok(()), "before anybody is known there is nobody to wait for");
    }

    #[test]
    fn an_upgraded_server_can_always_say_so() {
        let admit = Command::AdmitServer { server: server("admin-1", "0.1.0") };
        assert_eq!(check(&domain(&[("admin-1", "0.0.1")]), &admit), Ok(()));
    }
}
