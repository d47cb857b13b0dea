//! What an operator should know of the voters though the protocol is content with them. Warnings, never rules: the goal stays
//! the servers that the StatefulSet wants, and nothing here changes who votes.

use super::logs;
use crate::domain::ids::ServerId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The voters, and where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Electorate {
    /// Who votes, or will when the change under way is finished; each with its zone, where that is known.
    pub voters: BTreeMap<ServerId, Option<String>>,
    /// How many servers the StatefulSet wants, where that is known.
    pub wanted: Option<u32>,
}

/// Something to know of the voters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Their number is even: one of them adds nothing to what can be lost.
    Even {
        /// How many vote.
        voters: usize,
    },
    /// One zone holds a majority of them.
    OneZone {
        /// The zone.
        zone: String,
        /// How many of the voters are in it.
        there: usize,
        /// How many vote.
        voters: usize,
    },
    /// There is one only, though more servers are wanted.
    Alone {
        /// The voter.
        server: ServerId,
        /// How many servers are wanted.
        wanted: u32,
    },
}

impl Warning {
    /// The same as one word.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Even { .. } => "even_voters",
            Self::OneZone { .. } => "zone_majority",
            Self::Alone { .. } => "single_voter",
        }
    }
}

/// Every word of [`Warning::code`].
pub const CODES: [&str; 3] = ["even_voters", "zone_majority", "single_voter"];

/// What there is to know. Of zones that are not known nothing is said.
pub fn warnings(electorate: &Electorate) -> Vec<Warning> {
    let Electorate { voters, wanted } = electorate;
    let number = voters.len();
    let mut found = Vec::new();
    if number > 0 && number.is_multiple_of(2) {
        found.push(Warning::Even { voters: number });
    }
    found.extend(zone_majority(voters));
    if let (Some(server), 1, Some(wanted @ 2..)) = (voters.keys().next(), number, *wanted) {
        found.push(Warning::Alone { server: server.clone(), wanted });
    }
    found
}

/// One voter is always in one zone, and that is no news.
fn zone_majority(voters: &BTreeMap<ServerId, Option<String>>) -> Option<Warning> {
    let zones: BTreeSet<&String> = voters.values().flatten().collect();
    let number = voters.len();
    let there = |zone: &String| voters.values().flatten().filter(|of| *of == zone).count();
    let most = zones.into_iter().find(|zone| there(zone) >= logs::majority_of(number))?;
    (number > 1).then(|| Warning::OneZone { zone: most.clone(), there: there(most), voters: number })
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even { voters: 2 } => f.write_str(
                "2 voters are an even number: when one is lost nothing is committed until it is back, or the StatefulSet is \
                 scaled down to the other",
            ),
            Self::Even { voters } => {
                let spare = voters - logs::majority_of(*voters);
                let fewer = voters - 1;
                write!(f, "{voters} voters are an even number: {spare} of them can be lost, as of {fewer}")
            }
            Self::OneZone { zone, there, voters } => {
                write!(f, "zone {zone} holds {there} of the {voters} voters: without it nothing is committed")
            }
            Self::Alone { server, wanted } => write!(
                f,
                "{server} votes alone, though the StatefulSet wants {wanted} servers: what is committed is on one disk only"
            ),
        }
    }
}
