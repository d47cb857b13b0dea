//! The metrics of databases with one primary.

use super::register;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{GrantPrimary, GrantReason};
use kaa_core::domain::ids::{DatabaseName, Millis};
use kaa_core::replication::NotLost;
use kaa_core::replication::waits::{self, REPLICATION_WAITS, ReplicationWait};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A label `database`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDatabase {
    database: String,
}

/// Where a primary is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PrimaryOf {
    database: String,
    archive: u64,
    pod: String,
}

/// What a server is in its database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleOf {
    database: String,
    pod: String,
    role: &'static str,
}

/// Why something is so of a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    database: String,
    reason: &'static str,
}

/// Of the databases with one primary.
#[derive(Debug)]
pub(super) struct Replicated {
    primary: Family<PrimaryOf, Gauge>,
    roles: Family<RoleOf, Gauge>,
    generation: Family<OfDatabase, Gauge>,
    sync_set_size: Family<OfDatabase, Gauge>,
    open: Family<OfDatabase, Gauge>,
    synchronous: Family<OfDatabase, Gauge>,
    commits_wait: Family<OfDatabase, Gauge>,
    waiting: Family<Why, Gauge>,
    failover_held: Family<Why, Gauge>,
    grants: Family<Why, Counter>,
}

impl Replicated {
    pub(super) fn new(r: &mut Registry) -> Self {
        let primary = register(r, "database_primary", "1 for the archive and pod of the primary", Family::default());
        let roles = register(r, "database_role", "1 for the role of each server", Family::default());
        let help = "The generation: one more for each grant";
        let generation = register(r, "database_generation", help, Family::default());
        let help = "Archives that hold every acknowledged commit";
        let sync_set_size = register(r, "database_sync_set_size", help, Family::default());
        let open = register(r, "database_open", "1 if the primary lets clients in", Family::default());
        let help = "Standbys that are to confirm each commit";
        let synchronous = register(r, "database_synchronous", help, Family::default());
        let help = "1 while commits wait until a standby confirms them again";
        let commits_wait = register(r, "database_commits_wait", help, Family::default());
        let waiting = register(r, "database_waiting", "What the database waits for, by reason", Family::default());
        let help = "1 while the primary is away and no failover begins by itself, by reason";
        let failover_held = register(r, "database_failover_held", help, Family::default());
        let help = "Generations that were granted on this agent's proposal, by reason";
        let grants = register(r, "database_grants", help, Family::default());
        Self {
            primary,
            roles,
            generation,
            sync_set_size,
            open,
            synchronous,
            commits_wait,
            waiting,
            failover_held,
            grants,
        }
    }

    /// Counts a generation that was granted.
    pub(super) fn granted(&self, grant: &GrantPrimary) {
        let why = Why { database: grant.database.to_string(), reason: (&grant.reason).into() };
        self.grants.get_or_create(&why).inc();
    }

    /// Sets what mirrors the databases. A database before its first grant has no primary and generation 0. An agent that is `behind`, as
    /// without a quorum, does not know what they are now: it says nothing of them.
    pub(super) fn mirror(&self, domain: &Domain, behind: bool, now: Millis) {
        // A primary that moved, and a database that was deleted, leave no series behind: two primaries of one database would be
        // an alarm.
        self.primary.clear();
        self.roles.clear();
        for family in [&self.generation, &self.sync_set_size, &self.open, &self.synchronous, &self.commits_wait] {
            family.clear();
        }
        self.waiting.clear();
        self.failover_held.clear();
        for (name, database) in domain.databases.iter().filter(|_| !behind) {
            let Some(replicated) = database.replicated.as_deref() else { continue };
            let of = OfDatabase { database: name.to_string() };
            let record = replicated.record.as_ref();
            let granted = record.filter(|_| replicated.primary.is_some());
            if let Some(record) = granted {
                let (database, archive) = (name.to_string(), record.primary.0);
                let at = PrimaryOf { database, archive, pod: domain.pod_of(record.primary) };
                self.primary.get_or_create(&at).set(1);
            }
            let generation = granted.map_or(0, |record| record.generation.0);
            self.generation.get_or_create(&of).set(generation.cast_signed());
            self.sync_set_size.get_or_create(&of).set(record.map_or(0, |record| record.sync_set.len()) as i64);
            // One whose session is lost is not known to let clients in.
            let open =
                domain.is_open(replicated) && record.is_some_and(|record| domain.serving(record.primary).is_some());
            self.open.get_or_create(&of).set(i64::from(open));
            if let Some(settings) = &replicated.settings {
                self.synchronous.get_or_create(&of).set(settings.synchronous.into());
            }
            for place in domain.places(name, replicated) {
                let of = RoleOf { database: name.to_string(), pod: place.pod, role: place.role.into() };
                self.roles.get_or_create(&of).set(1);
            }
            for reason in GrantReason::CODES {
                // A counter that is not there before its first event would hide that one from rates.
                drop(self.grants.get_or_create(&Why { database: name.to_string(), reason }));
            }
            self.mirror_waits(name, &waits::of(domain, name, replicated, now));
        }
    }

    /// Sets every reason of a database, so that one that ends goes back to 0.
    fn mirror_waits(&self, name: &DatabaseName, waits: &[ReplicationWait]) {
        let set = |family: &Family<Why, Gauge>, reason: &'static str, is_so: bool| {
            family.get_or_create(&Why { database: name.to_string(), reason }).set(i64::from(is_so));
        };
        for wait in REPLICATION_WAITS {
            set(&self.waiting, wait.code, waits.iter().any(|it| Into::<&str>::into(it) == wait.code));
        }
        let held = waits.iter().find_map(|it| match it {
            ReplicationWait::PrimaryAway { holds: Some(why), .. } => Some(why.code()),
            _ => None,
        });
        for reason in NotLost::CODES {
            set(&self.failover_held, reason, held == Some(*reason));
        }
        let blocked = waits.iter().any(|it| matches!(it, ReplicationWait::FewStandbys { blocked: true, .. }));
        let of = OfDatabase { database: name.to_string() };
        self.commits_wait.get_or_create(&of).set(i64::from(blocked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use kaa_core::domain::change::{Command, CreateDatabase, FoundDomain};
    use kaa_core::domain::command::Refusal;
    use kaa_core::domain::command::{Actor, Entry, Outcome, Request, Role};
    use kaa_core::domain::ids::{ArchiveId, Generation, StartId};
    use std::collections::BTreeMap;

    #[test]
    fn an_agent_that_is_behind_says_nothing_of_a_primary() {
        let mut registry = Registry::default();
        let metrics = Replicated::new(&mut registry);
        let exported = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            // What this agent has done itself stays true.
            let of_it = |line: &&str| line.contains("database=\"shop\"") && !line.contains("_grants_total");
            text.lines().filter(of_it).count()
        };
        let mut domain = Domain::default();
        let found = FoundDomain { domain: "D1".into(), name: "kaa".to_owned(), anchor: "A1".into() };
        let create = CreateDatabase { database: "shop".into(), options: BTreeMap::new(), may_exist: false };
        let commands = [(Role::Agent, Command::FoundDomain(found)), (Role::Operator, Command::CreateDatabase(create))];
        for (index, (role, command)) in (1..).zip(commands) {
            let request = Request { actor: Actor { role, name: "ann".to_owned() }, command };
            domain.apply(Entry { index, time: Millis(1), request });
        }
        domain.databases.get_mut(&"shop".into()).unwrap().replicated = Some(Box::default());
        metrics.mirror(&domain, false, Millis(1));
        assert!(exported() > 3);
        metrics.mirror(&domain, true, Millis(1));
        assert_eq!(exported(), 0);
    }

    /// Only what the domain granted counts.
    #[test]
    fn grants_are_counted_by_reason() {
        let metrics = Metrics::new();
        let grant = |reason| {
            let (database, current, winner, process) = ("shop".into(), Generation(2), ArchiveId(5), StartId(7));
            Command::GrantPrimary(GrantPrimary {
                database,
                current,
                winner,
                process,
                sync_set: [winner].into(),
                reason,
                lease_ms: 2500,
            })
        };
        let silent = || GrantReason::Silent { by: [ArchiveId(5)].into(), held_back_ms: 0 };
        metrics.proposed(&grant(silent()), &Outcome::Changed);
        metrics.proposed(&grant(silent()), &Outcome::Refused(Refusal::UnknownArchive(ArchiveId(5))));
        metrics.proposed(&grant(GrantReason::HandedOver), &Outcome::Changed);
        let text = metrics.text();
        for counted in [r#"reason="silent"} 1"#, r#"reason="handed_over"} 1"#] {
            let line = format!(r#"kaa_database_grants_total{{database="shop",{counted}"#);
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}
