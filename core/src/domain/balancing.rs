//! What operators and annotations have set for load balancing, with the origin of each entry.
//!
//! The domain keeps texts and does not parse them. A later version may understand more of them than this one, and all servers
//! have to answer the same to a command: who proposes one parses it first. A text that this version does not understand counts
//! as not set.

use super::Domain;
use super::database::DatabaseState;
use super::ids::{ClusterName, DatabaseName};
use super::outcome::Refusal;
use crate::balancer::policies::{Config, Policies};
use crate::balancer::query::{Filter, Query};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What can be set. Its text is its key wherever entries are kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Item {
    /// The query of a client that names none: of one database, or of all.
    Default(Option<DatabaseName>),
    /// The pre-filter: of one database, or of all.
    Prefilter(Option<DatabaseName>),
    /// A query that clients can name.
    Policy(String),
}

/// The object whose annotation has set an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Object {
    /// The StatefulSet of the admin servers.
    StatefulSet(String),
    /// The Deployment of the transaction engines of a database.
    Deployment(String),
}

/// What an operator has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manual {
    /// The query or filter.
    pub text: String,
    /// Who.
    pub by: String,
}

/// What an annotation has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Annotated {
    /// The query or filter.
    pub text: String,
    /// The cluster of the object.
    pub cluster: ClusterName,
    /// The object.
    pub object: Object,
}

/// What is set for one item, by whom. Neither origin touches what the other has set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// By an operator. Has no effect while there is an annotation.
    pub manual: Option<Manual>,
    /// By an annotation.
    pub annotated: Option<Annotated>,
}

/// Everything that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balancing {
    /// The entry of the log that changed it last: who prepares it prepares it again when this differs.
    pub changed: u64,
    /// By item; none is empty.
    pub entries: BTreeMap<Item, Entry>,
}

impl Item {
    /// The database that it is of, if it is of one.
    pub fn database(&self) -> Option<&DatabaseName> {
        match self {
            Self::Default(database) | Self::Prefilter(database) => database.as_ref(),
            Self::Policy(_) => None,
        }
    }

    /// What it is called in the list of policies, which has defaults and pre-filters too. A policy's name has no `/`.
    pub fn listed_as(&self) -> String {
        if let Self::Policy(name) = self { name.clone() } else { self.to_string() }
    }

    /// The annotation that sets it, without the prefix.
    pub fn annotation(&self) -> String {
        match self {
            Self::Default(_) => "load-balancer-default".to_owned(),
            Self::Prefilter(_) => "load-balancer-prefilter".to_owned(),
            Self::Policy(name) => format!("load-balancer-policy.{name}"),
        }
    }

    /// Says why a text cannot be its value.
    pub fn parses(&self, text: &str) -> Result<(), crate::balancer::parse::SyntaxError> {
        match self {
            Self::Default(_) | Self::Policy(_) => Query::read(text.as_bytes()).map(drop),
            Self::Prefilter(_) => Filter::read(text.as_bytes()).map(drop),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(None) => f.write_str("global/default"),
            Self::Default(Some(database)) => write!(f, "database/{database}/default"),
            Self::Prefilter(None) => f.write_str("global/prefilter"),
            Self::Prefilter(Some(database)) => write!(f, "database/{database}/prefilter"),
            Self::Policy(name) => write!(f, "policy/{name}"),
        }
    }
}

/// A text that names no item.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is not one of global/default, global/prefilter, database/NAME/default, database/NAME/prefilter, policy/NAME"
)]
pub struct NotAnItem(String);

impl FromStr for Item {
    type Err = NotAnItem;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split('/').collect::<Vec<_>>()[..] {
            ["global", "default"] => Self::Default(None),
            ["global", "prefilter"] => Self::Prefilter(None),
            ["database", name, "default"] if !name.is_empty() => Self::Default(Some(name.into())),
            ["database", name, "prefilter"] if !name.is_empty() => Self::Prefilter(Some(name.into())),
            ["policy", name] if !name.is_empty() => Self::Policy(name.to_owned()),
            _ => return Err(NotAnItem(text.to_owned())),
        })
    }
}

impl From<Item> for String {
    fn from(item: Item) -> Self {
        item.to_string()
    }
}

impl TryFrom<String> for Item {
    type Error = NotAnItem;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl Object {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::StatefulSet(name) | Self::Deployment(name) => name,
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StatefulSet(name) => write!(f, "statefulset {name}"),
            Self::Deployment(name) => write!(f, "deployment {name}"),
        }
    }
}

impl Entry {
    /// The text that has effect.
    pub fn text(&self) -> &str {
        let annotated = self.annotated.as_ref().map(|annotated| annotated.text.as_str());
        annotated.or(self.manual.as_ref().map(|manual| manual.text.as_str())).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.manual.is_none() && self.annotated.is_none()
    }

    fn bytes(&self) -> usize {
        let manual = self.manual.as_ref().map_or(0, |manual| manual.text.len() + manual.by.len());
        let annotated = self.annotated.as_ref();
        let annotated = annotated.map_or(0, |it| it.text.len() + it.cluster.as_str().len() + it.object.name().len());
        64 + manual + annotated
    }
}

impl Balancing {
    /// The text that has effect for an item.
    pub fn text(&self, item: &Item) -> Option<&str> {
        self.entries.get(item).map(Entry::text)
    }

    /// What has effect, parsed.
    pub fn policies(&self) -> Policies {
        let mut policies = Policies::default();
        for (item, entry) in &self.entries {
            let text = entry.text().as_bytes();
            let config = match item.database() {
                Some(database) => policies.databases.entry(database.clone()).or_default(),
                None => &mut policies.global,
            };
            let Config { default, prefilter } = config;
            match item {
                Item::Default(_) => *default = Query::read(text).ok(),
                Item::Prefilter(_) => *prefilter = Filter::read(text).ok(),
                Item::Policy(name) => drop(Query::read(text).map(|query| policies.named.insert(name.clone(), query))),
            }
        }
        policies
    }

    /// What operators have set.
    pub(super) fn manual(&self) -> BTreeMap<Item, Manual> {
        let manual = self.entries.iter().filter_map(|(item, entry)| Some((item.clone(), entry.manual.clone()?)));
        manual.collect()
    }

    /// How many bytes it has, about.
    pub(super) fn bytes(&self) -> usize {
        self.entries.iter().map(|(item, entry)| 64 + item.to_string().len() + entry.bytes()).sum()
    }

    /// Changes an entry, or makes one. What is empty then is dropped.
    pub(crate) fn change(&mut self, item: Item, index: u64, change: impl FnOnce(&mut Entry)) {
        let entry = self.entries.entry(item.clone()).or_default();
        change(entry);
        if entry.is_empty() {
            self.entries.remove(&item);
        }
        self.changed = index;
    }

    /// Drops what is set for a database.
    pub(super) fn drop_database(&mut self, name: &DatabaseName, index: u64) {
        let before = self.entries.len();
        self.entries.retain(|item, _| item.database() != Some(name));
        if self.entries.len() != before {
            self.changed = index;
        }
    }
}

impl Domain {
    /// Whether an item may be set: nothing is set for a database that there is not.
    pub(super) fn may_balance(&self, item: &Item, text: &str) -> Result<(), Refusal> {
        if let Some(database) = item.database() {
            let known = self.databases.get(database).filter(|database| database.state != DatabaseState::Tombstone);
            known.ok_or_else(|| Refusal::NoDatabase(database.clone()))?;
        }
        if !self.balancing.entries.contains_key(item) && item.database().is_none() {
            let count = self.balancing.entries.keys().filter(|item| item.database().is_none()).count();
            self.may_add("load-balancer policies", count, self.bounds.policies)?;
        }
        self.may_grow_balancing(128 + item.to_string().len() + text.len())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_read_as_it_is_written() {
        let (demo, policy) = (|| Some("demo".into()), Item::Policy("nearest".to_owned()));
        for item in [Item::Default(None), Item::Prefilter(None), Item::Default(demo()), Item::Prefilter(demo()), policy]
        {
            assert_eq!(item.to_string().parse::<Item>().unwrap(), item);
        }
        for wrong in
            ["", "default", "policy/", "policy/a/b", "database//default", "database/demo/other", "global/default/"]
        {
            assert!(wrong.parse::<Item>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_understood_counts_as_not_set() {
        let mut balancing = Balancing::default();
        let text = |text: &str| Some(Manual { text: text.to_owned(), by: "ann".to_owned() });
        balancing.change(Item::Default(None), 1, |entry| entry.manual = text("sticky(any)"));
        balancing.change(Item::Policy("near".to_owned()), 2, |entry| entry.manual = text("random(any)"));
        balancing.change(Item::Prefilter(Some("demo".into())), 3, |entry| entry.manual = text("any"));
        let policies = balancing.policies();
        assert_eq!((policies.global.default, policies.named.len()), (None, 1));
        assert!(policies.databases[&"demo".into()].prefilter.is_some());
        balancing.drop_database(&"demo".into(), 4);
        assert_eq!((balancing.entries.len(), balancing.changed), (2, 4));
        balancing.change(Item::Default(None), 5, |entry| entry.manual = None);
        assert_eq!(balancing.entries.len(), 1, "none is empty");
    }
}
