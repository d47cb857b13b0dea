//! Which transaction engine is restarted to finish an upgrade.

use crate::balancer::candidates::{Candidate, Candidates};
use crate::balancer::choose::{Client, suitable};
use crate::balancer::policies::Route;
use crate::balancer::query::Query;
use crate::domain::process::Process;
use std::collections::BTreeMap;

/// The longest query that is read.
pub const MOST_BYTES: usize = 1024;

/// The candidate that a load-balancer query prefers; none if it finds none; or why it is no query. `chance` decides between
/// several, whatever the selector: there are no turns to take. No client asks, so no variable has a value.
pub fn prefers<'a>(query: &str, candidates: &[&'a Process], chance: u64) -> Result<Option<&'a Process>, String> {
    if query.len() > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    let query: Query = query.parse().map_err(|error| format!("{error}"))?;
    let prepared = Candidates::new(candidates.iter().map(|process| Candidate::from(*process)));
    let no_client = Client { properties: &BTreeMap::new(), address: None };
    let found = suitable(&Route::by(&query), &prepared, no_client);
    let found: Vec<&Process> = candidates.iter().copied().filter(|process| found.contains(&process.id)).collect();
    Ok(any_of(&found, chance))
}

/// One of the candidates.
pub fn any_of<'a>(candidates: &[&'a Process], chance: u64) -> Option<&'a Process> {
    let at = chance.checked_rem(candidates.len() as u64)?;
    candidates.get(at as usize).copied()
}
