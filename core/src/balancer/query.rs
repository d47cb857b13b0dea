//! A load-balancer query as a tree. Printed, it is the text that parses to the same tree, with single spaces.

use std::fmt;

/// How one of the suitable processes is drawn, and which are suitable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// How one is drawn.
    pub selector: Selector,
    /// Which are suitable.
    pub filter: Filter,
}

impl Query {
    /// The query where none is given or configured: any process, at random.
    pub const ANY: Self =
        Self { selector: Selector::Random, filter: Filter { position: FIRST_FILTER, test: Test::Any } };
}

/// Where the filter of `random(any)` stands.
const FIRST_FILTER: u32 = 8;

/// How one of the suitable processes is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum Selector {
    /// Each with the same probability.
    Random,
    /// One after another.
    RoundRobin,
}

/// Takes a set of processes and lets some of them pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The character of the text at which it begins, counted from 1.
    pub position: u32,
    /// Which it lets pass.
    pub test: Test,
}

/// Which processes a filter lets pass. The filters in one take the same set as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// All.
    Any,
    /// Those at the client's address.
    Colocated,
    /// Those with a value that the pattern matches.
    Matches(Field, Pattern),
    /// Those that the filter does not let pass.
    Not(Box<Filter>),
    /// Those that each of them lets pass.
    And(Vec<Filter>),
    /// Those that one of them lets pass.
    Or(Vec<Filter>),
    /// What the first of them lets pass that lets any pass.
    First(Vec<Filter>),
}

/// A value of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// Its start id.
    StartId,
    /// The agent that holds its session.
    ServerId,
    /// Its node id.
    NodeId,
    /// The engine's process id.
    Pid,
    /// Its pod's address.
    Address,
    /// Its host's name.
    Hostname,
    /// One of its labels.
    Label(String),
    /// One of its options.
    Option(String),
}

/// Matches what one of its alternatives matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub Vec<Alternative>);

/// One alternative of a pattern. One whose value comes out empty matches nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alternative {
    /// `*`: any value.
    Anything,
    /// `v`: this value.
    Exactly(Value),
    /// `v*`: what begins with it.
    Begins(Value),
    /// `*v`: what ends with it.
    Ends(Value),
    /// `${name:-*}`: the client's value, or any value if it has none.
    ClientsOrAnything(String),
}

/// Texts and variables, one after another; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub Vec<Piece>);

/// A piece of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it stands.
    Text(String),
    /// A property of the client.
    Variable {
        /// Its name.
        name: String,
        /// What stands for it where it is not set or empty.
        default: Option<String>,
    },
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.selector, self.filter)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, word: &str, filters: &[Self]| {
            write!(f, "{word}(")?;
            for (n, filter) in filters.iter().enumerate() {
                write!(f, "{}{filter}", if n == 0 { "" } else { " " })?;
            }
            f.write_str(")")
        };
        match &self.test {
            Test::Any => f.write_str("any"),
            Test::Colocated => f.write_str("colocated"),
            Test::Matches(Field::Label(name), pattern) => write!(f, "label({name} {pattern})"),
            Test::Matches(Field::Option(name), pattern) => write!(f, "option({name} {pattern})"),
            Test::Matches(field, pattern) => write!(f, "{}({pattern})", field.word()),
            Test::Not(filter) => write!(f, "not({filter})"),
            Test::And(filters) => list(f, "and", filters),
            Test::Or(filters) => list(f, "or", filters),
            Test::First(filters) => list(f, "first", filters),
        }
    }
}

impl Field {
    /// The word of the language for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::StartId => "start_id",
            Self::ServerId => "server_id",
            Self::NodeId => "node_id",
            Self::Pid => "pid",
            Self::Address => "address",
            Self::Hostname => "hostname",
            Self::Label(_) => "label",
            Self::Option(_) => "option",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, alternative) in self.0.iter().enumerate() {
            write!(f, "{}{alternative}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anything => f.write_str("*"),
            Self::Exactly(value) => write!(f, "{value}"),
            Self::Begins(value) => write!(f, "{value}*"),
            Self::Ends(value) => write!(f, "*{value}"),
            Self::ClientsOrAnything(name) => write!(f, "${{{name}:-*}}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Variable { name, default: None } => write!(f, "${{{name}}}"),
            Piece::Variable { name, default: Some(default) } => write!(f, "${{{name}:-{default}}}"),
        })
    }
}
