//! Which query a client gets, and which pre-filters.

use super::evaluate::Client;
use super::parse::SyntaxError;
use super::query::{Filter, Query};
use crate::domain::ids::DatabaseName;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The property of a client that is a query.
pub const QUERY_PROPERTY: &str = "LBQuery";
/// The property of a client that names a policy.
pub const POLICY_PROPERTY: &str = "LBPolicy";

/// What operators have set, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// For every database.
    pub global: Config,
    /// For one database.
    pub databases: BTreeMap<DatabaseName, Config>,
    /// By name.
    pub named: BTreeMap<String, Query>,
}

/// What is used for a client that does not say otherwise, and for every client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The query of a client that names none.
    pub default: Option<Query>,
    /// What every request's candidates pass first.
    pub prefilter: Option<Filter>,
}

/// How a request is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// The pre-filters in the order in which candidates pass them.
    pub prefilters: Vec<(Scope, &'a Filter)>,
    /// What the remaining ones pass.
    pub query: Cow<'a, Query>,
    /// Who said so.
    pub origin: Origin,
}

/// For which requests a pre-filter was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    Global,
    /// Those for the database.
    Database,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "the global pre-filter",
            Self::Database => "the database's pre-filter",
        })
    }
}

/// Where a query comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client sent it.
    Inline,
    /// The client named this policy.
    Policy(String),
    /// It is the database's default.
    Database,
    /// It is the global default.
    Global,
    /// None is set.
    BuiltIn,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline => f.write_str("the client's query"),
            Self::Policy(name) => write!(f, "the policy '{name}'"),
            Self::Database => f.write_str("the database's default"),
            Self::Global => f.write_str("the global default"),
            Self::BuiltIn => f.write_str("the built-in default"),
        }
    }
}

/// Why a client gets no query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// The one that it sent does not parse.
    #[error("{QUERY_PROPERTY}: {0}")]
    Syntax(#[from] SyntaxError),
    /// It named a policy that does not exist.
    #[error("{POLICY_PROPERTY}: there is no load-balancer policy '{0}'")]
    NoSuchPolicy(String),
}

impl<'a> Route<'a> {
    /// By a query alone, without pre-filters.
    pub fn by(query: &'a Query) -> Self {
        Self { prefilters: Vec::new(), query: Cow::Borrowed(query), origin: Origin::Inline }
    }
}

impl Policies {
    /// The query for a client's request and the pre-filters. A request that says what it wants and does not get it is an
    /// error: it never falls back to what it does not want.
    pub fn route(&self, database: &DatabaseName, client: Client<'_>) -> Result<Route<'_>, NoRoute> {
        let own = self.databases.get(database);
        let (query, origin) = if let Some(text) = client.property(QUERY_PROPERTY) {
            (Cow::Owned(text.parse()?), Origin::Inline)
        } else if let Some(name) = client.property(POLICY_PROPERTY) {
            let policy = self.named.get(name).ok_or_else(|| NoRoute::NoSuchPolicy(name.to_owned()))?;
            (Cow::Borrowed(policy), Origin::Policy(name.to_owned()))
        } else if let Some(default) = own.and_then(|config| config.default.as_ref()) {
            (Cow::Borrowed(default), Origin::Database)
        } else if let Some(default) = &self.global.default {
            (Cow::Borrowed(default), Origin::Global)
        } else {
            (Cow::Owned(Query::ANY), Origin::BuiltIn)
        };
        let global = self.global.prefilter.as_ref().map(|filter| (Scope::Global, filter));
        let own = own.and_then(|config| config.prefilter.as_ref()).map(|filter| (Scope::Database, filter));
        Ok(Route { prefilters: global.into_iter().chain(own).collect(), query, origin })
    }
}
