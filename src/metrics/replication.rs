//! The metrics of databases with one primary.

use super::register;
use kaa_core::domain::Domain;
use prometheus_client::encoding::EncodeLabelSet;
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

/// Of the databases with one primary.
#[derive(Debug)]
pub(super) struct Replicated {
    primary: Family<PrimaryOf, Gauge>,
    generation: Family<OfDatabase, Gauge>,
    sync_set_size: Family<OfDatabase, Gauge>,
    open: Family<OfDatabase, Gauge>,
    synchronous: Family<OfDatabase, Gauge>,
}

impl Replicated {
    pub(super) fn new(r: &mut Registry) -> Self {
        let primary = register(r, "database_primary", "1 for the archive and pod of the primary", Family::default());
        let help = "The generation: one more for each grant";
        let generation = register(r, "database_generation", help, Family::default());
        let help = "Archives that hold every acknowledged commit";
        let sync_set_size = register(r, "database_sync_set_size", help, Family::default());
        let open = register(r, "database_open", "1 if the primary lets clients in", Family::default());
        let help = "Standbys that are to confirm each commit";
        let synchronous = register(r, "database_synchronous", help, Family::default());
        Self { primary, generation, sync_set_size, open, synchronous }
    }

    /// Sets what mirrors the databases. A database before its first grant has no primary and generation 0. An agent that is `behind`, as
    /// without a quorum, does not know what they are now: it says nothing of them.
    pub(super) fn mirror(&self, domain: &Domain, behind: bool) {
        // A primary that moved, and a database that was deleted, leave no series behind: two primaries of one database would be
        // an alarm.
        self.primary.clear();
        for family in [&self.generation, &self.sync_set_size, &self.open, &self.synchronous] {
            family.clear();
        }
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaa_core::domain::change::{Command, CreateDatabase, FoundDomain};
    use kaa_core::domain::command::{Actor, Entry, Request, Role};
    use kaa_core::domain::ids::Millis;
    use std::collections::BTreeMap;

    #[test]
    fn an_agent_that_is_behind_says_nothing_of_a_primary() {
        let mut registry = Registry::default();
        let metrics = Replicated::new(&mut registry);
        let exported = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text.lines().filter(|line| line.contains("{database=\"shop\"")).count()
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
        metrics.mirror(&domain, false);
        assert_eq!(exported(), 3);
        metrics.mirror(&domain, true);
        assert_eq!(exported(), 0);
    }
}
