//! Where clients of a database with one primary are sent: to the primary for writes, to standbys for reads. A pure function of the
//! domain, so any agent may publish it.

use crate::domain::Domain;
use crate::domain::ids::{ClusterName, DatabaseName, MembershipEpoch, Uid};
use crate::domain::process::{DurableState, EngineState, Process, SessionState};
use crate::domain::replicated::Replicated;
use std::fmt;
use std::str::FromStr;

/// What a client wants of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// To write and read.
    ReadWrite,
    /// To read what may be a moment old.
    ReadOnly,
}

impl Purpose {
    /// The end of the names of its Service and its slice.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::ReadWrite => "rw",
            Self::ReadOnly => "ro",
        }
    }
}

/// Where the clients of a database are sent for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The database.
    pub database: DatabaseName,
    /// For what.
    pub purpose: Purpose,
    /// The servers, in the order of their pods' names; none while there is no server for it.
    pub endpoints: Vec<Endpoint>,
}

/// A server that clients are sent to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its pod.
    pub pod: String,
    /// The UID of its pod.
    pub uid: Uid,
    /// The address of its pod.
    pub address: String,
    /// Its port.
    pub port: u16,
}

/// As of which state of the domain a route was published. A later one replaces an earlier one, and never the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AsOf {
    /// The membership epoch.
    pub epoch: MembershipEpoch,
    /// The last entry of the log.
    pub index: u64,
}

impl fmt::Display for AsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.index)
    }
}

impl FromStr for AsOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = |number: &str| number.parse().map_err(|error| format!("{text:?}: {error}"));
        let (epoch, index) = text.split_once('.').ok_or_else(|| format!("{text:?} is not EPOCH.INDEX"))?;
        Ok(Self { epoch: MembershipEpoch(read(epoch)?), index: read(index)? })
    }
}

impl Route {
    /// The name of its Service, and of its slice.
    pub fn name(&self) -> String {
        format!("{}-{}", self.database, self.purpose.suffix())
    }
}

/// The routes of all databases with one primary whose archives are in a cluster.
pub fn routes(domain: &Domain, cluster: &ClusterName) -> Vec<Route> {
    let replicated = domain.databases.values().filter_map(|it| Some((&it.name, it.replicated.as_deref()?)));
    let here = replicated.filter(|(name, _)| domain.active_archives(name).any(|archive| archive.cluster == *cluster));
    here.flat_map(|(name, replicated)| {
        [Purpose::ReadWrite, Purpose::ReadOnly].map(|purpose| {
            let mut endpoints: Vec<Endpoint> =
                servers(domain, name, replicated, purpose).into_iter().filter_map(endpoint).collect();
            endpoints.sort();
            Route { database: name.clone(), purpose, endpoints }
        })
    })
    .collect()
}

/// The processes that clients are sent to.
fn servers<'a>(
    domain: &'a Domain,
    name: &'a DatabaseName,
    replicated: &'a Replicated,
    purpose: Purpose,
) -> Vec<&'a Process> {
    let Some(record) = &replicated.record else { return Vec::new() };
    match purpose {
        // Also one that is not open: it turns clients away by itself, and they ask again at once. A Service without any server costs
        // more: kube-proxy applies its first server in two steps, and who connects between them waits for an answer in vain.
        Purpose::ReadWrite => domain.process_on(record.primary).into_iter().collect(),
        Purpose::ReadOnly => {
            let serves = |process: &&Process| {
                let archive = process.archive.filter(|archive| *archive != record.primary);
                let whole = archive
                    .is_some_and(|archive| !record.overwriting.contains_key(&archive) && replicated.owns(archive));
                process.database == *name
                    && whole
                    && process.durable == DurableState::Monitored
                    && !is_lost_primary(replicated, process)
            };
            // The node of a server whose session is lost may be gone, and its clients would wait in vain. A member of the set confirms
            // commits.
            let is_heard = |process: &&Process| {
                process.session.state == SessionState::Live
                    || process.archive.is_some_and(|archive| record.sync_set.contains(&archive))
            };
            let runs = |process: &&Process| process.engine == EngineState::Running;
            let (running, others): (Vec<_>, Vec<_>) = domain.processes.values().filter(serves).partition(runs);
            let (heard, lost): (Vec<_>, Vec<_>) = running.into_iter().partition(is_heard);
            match (heard.is_empty(), lost.is_empty()) {
                (false, _) => heard,
                // All agents may have restarted.
                (true, false) => lost,
                // None lets readers in for a moment when the primary has moved. They refuse at once, which costs less than a Service without
                // any server.
                (true, true) => others.into_iter().filter(is_heard).collect(),
            }
        }
    }
}

/// Whether it is the server of the primary before, and no agent has heard it since the next one opened: it has not been told to follow, and
/// lets no client in.
fn is_lost_primary(replicated: &Replicated, process: &Process) -> bool {
    let (Some(primary), SessionState::Lost(at)) = (&replicated.primary, process.session.state) else { return false };
    process.archive == primary.from && primary.opened.is_none_or(|opened| at <= opened)
}

/// A server whose pod has told its address.
fn endpoint(process: &Process) -> Option<Endpoint> {
    let address = Some(process.about.address.clone()).filter(|address| !address.is_empty())?;
    Some(Endpoint {
        pod: process.identity.pod.clone(),
        uid: process.identity.pod_uid.clone(),
        address,
        port: process.about.port,
    })
}

#[cfg(test)]
mod tests {
    use super::AsOf;
    use crate::domain::ids::MembershipEpoch;

    #[test]
    fn a_later_epoch_counts_more_than_a_later_entry() {
        let read = |text: &str| text.parse::<AsOf>();
        assert_eq!(read("2.17"), Ok(AsOf { epoch: MembershipEpoch(2), index: 17 }));
        assert!(read("2.1") > read("1.999") && read("1.10") > read("1.9"));
        assert!(read("17").is_err() && read("a.b").is_err());
    }
}
