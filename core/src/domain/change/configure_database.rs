//! An operator sets the options of a database: `update database-options` of the published client.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::database::DatabaseState;
use crate::domain::ids::DatabaseName;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sets the options of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigureDatabase {
    /// The database.
    pub database: DatabaseName,
    /// The options.
    pub options: BTreeMap<String, String>,
    /// Whether it has no others then; else those that are not named stay.
    pub replace_all: bool,
}

impl Change for ConfigureDatabase {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { database: _, options, replace_all: _ } = self;
        bounds.options(options)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { database: name, options, replace_all } = self;
        only_an_operator(actor)?;
        let known = domain.databases.get(&name).filter(|database| database.state != DatabaseState::Tombstone);
        let Some(known) = known else { return Err(Refusal::UnknownDatabase(name)) };
        let mut all = if replace_all { BTreeMap::new() } else { known.options.clone() };
        all.extend(options);
        // What was there before counts too.
        domain.bounds.options(&all)?;
        if all.len() > known.options.len() {
            domain.has_room()?;
        }
        Ok(if domain.set_options(actor, name, all) { Outcome::Changed } else { Outcome::Unchanged })
    }
}
