//! An operator creates a database: `create database` of the published client. An engine that registers creates its database by
//! itself; this one is there before, with its options, and the resync does not delete it before an engine has registered.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::database::{Database, DatabaseState, Incarnation};
use crate::domain::event::DatabaseEvent;
use crate::domain::ids::{DatabaseName, NodeId};
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Creates a database by an operator's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateDatabase {
    /// Its name.
    pub database: DatabaseName,
    /// Its options.
    pub options: BTreeMap<String, String>,
    /// Whether it may be there already: then nothing is changed.
    pub may_exist: bool,
}

impl Change for CreateDatabase {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database, options, may_exist: _ } = self;
        bounds.database_name(database)?;
        bounds.options(options)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, options, may_exist } = self;
        only_an_operator(actor)?;
        let known = domain.databases.get(&name);
        match known {
            Some(known) if known.state != DatabaseState::Tombstone && may_exist => return Ok(Outcome::Unchanged),
            Some(known) if known.state != DatabaseState::Tombstone => return Err(Refusal::DatabaseExists(name)),
            Some(_) => domain.has_room()?,
            None if domain.oldest_deleted().is_some() => domain.has_room()?,
            None => domain.may_add("databases", domain.databases.len(), domain.bounds.databases)?,
        }
        let again = known.is_some();
        if !again {
            domain.forget_oldest_deleted(actor);
        }
        let database = domain.databases.entry(name.clone()).or_insert(Database {
            name: name.clone(),
            state: DatabaseState::NotRunning,
            incarnation: Incarnation::default(),
            next_node: NodeId(1),
            created: domain.time,
            stopping_since: None,
            protocol: None,
            options: BTreeMap::new(),
            by_hand: false,
            judged: BTreeMap::new(),
            replicated: None,
        });
        // Node ids and incarnations of one that was deleted continue.
        database.state = DatabaseState::NotRunning;
        database.by_hand = true;
        let created = DatabaseEvent::Created { database: name.clone(), again };
        domain.note(actor, [Subject::Database(name.clone())], created, None);
        domain.set_options(actor, name, options);
        Ok(Outcome::Changed)
    }
}

impl Domain {
    /// Gives a database these options and no others. Returns whether that is a change.
    pub(super) fn set_options(&mut self, actor: &Actor, name: DatabaseName, options: BTreeMap<String, String>) -> bool {
        let Some(database) = self.databases.get_mut(&name).filter(|known| known.options != options) else {
            return false;
        };
        let configured = DatabaseEvent::Configured { options: options.keys().cloned().collect() };
        database.options = options;
        self.note(actor, [Subject::Database(name)], configured, None);
        true
    }
}
