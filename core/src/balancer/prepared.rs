//! What decisions need of the domain, prepared once and kept until the domain says otherwise.

use super::candidates::Candidates;
use super::policies::Policies;
use crate::domain::Domain;
use crate::domain::ids::{DatabaseName, DomainId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was prepared last. It never answers with what is out of date: each use compares it with the domain.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Of which domain, and by which of its entries they were changed last.
    of: Option<(Option<DomainId>, u64)>,
    policies: Arc<Policies>,
    candidates: BTreeMap<DatabaseName, Arc<Candidates>>,
}

impl Prepared {
    /// What is set, and the candidates of a database.
    pub fn of(&mut self, domain: &Domain, database: &DatabaseName) -> (Arc<Policies>, Arc<Candidates>) {
        let of = (domain.id.clone(), domain.balancing.changed);
        if self.of.as_ref() != Some(&of) {
            self.policies = Arc::new(domain.balancing.policies());
            self.of = Some(of);
        }
        if let Some(candidates) = self.candidates.get(database).filter(|kept| kept.are_of(domain, database)) {
            return (self.policies.clone(), candidates.clone());
        }
        let candidates = Arc::new(Candidates::of(domain, database));
        self.candidates.retain(|name, _| domain.databases.contains_key(name));
        if domain.databases.contains_key(database) {
            self.candidates.insert(database.clone(), candidates.clone());
        }
        (self.policies.clone(), candidates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::balancing::{Item, Manual};
    use crate::domain::database::{Database, DatabaseState};

    #[test]
    fn it_is_prepared_again_when_the_domain_changes() {
        let (mut domain, mut prepared) = (Domain::default(), Prepared::default());
        let demo: DatabaseName = "demo".into();
        let set = |domain: &mut Domain, index: u64, text: &str| {
            let manual = Some(Manual { text: text.to_owned(), by: "ann".to_owned() });
            domain.balancing.change(Item::Default(None), index, |entry| entry.manual = manual);
        };
        let default = |prepared: &mut Prepared, domain: &Domain| {
            prepared.of(domain, &"demo".into()).0.global.default.as_ref().map(ToString::to_string)
        };
        assert_eq!(default(&mut prepared, &domain), None);
        set(&mut domain, 1, "random(any)");
        assert_eq!(default(&mut prepared, &domain).as_deref(), Some("random(any)"));
        set(&mut domain, 2, "round_robin(any)");
        assert_eq!(default(&mut prepared, &domain).as_deref(), Some("round_robin(any)"));
        assert!(prepared.candidates.is_empty(), "names that no database has cost no memory");
        let database = Database {
            name: demo.clone(),
            state: DatabaseState::NotRunning,
            incarnation: Default::default(),
            next_node: Default::default(),
            created: Default::default(),
            stopping_since: None,
            protocol: None,
            options: Default::default(),
            by_hand: false,
            judged: BTreeMap::new(),
            replicated: None,
        };
        domain.databases.insert(demo.clone(), database);
        prepared.of(&domain, &demo);
        assert_eq!(prepared.candidates.len(), 1);
    }
}
