//! Which transaction engine is restarted to finish an upgrade.

use crate::domain::process::Process;

/// The longest query that is looked at.
pub const MOST_BYTES: usize = 1024;

/// The candidate that a query prefers; none if it finds none; or why it is no query. `chance` decides between several.
pub fn prefers<'a>(query: &str, candidates: &[&'a Process], chance: u64) -> Result<Option<&'a Process>, String> {
    if query.len() > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    let inner = |text: &'_ str, name: &str| {
        let text = text.trim().strip_prefix(name)?.trim_start();
        Some(text.strip_prefix('(')?.strip_suffix(')')?.trim().to_owned())
    };
    let filter = inner(query, "random").or_else(|| inner(query, "round_robin"));
    let filter = filter.ok_or("expected random(FILTER) or round_robin(FILTER)")?;
    if filter == "any" {
        return Ok(any_of(candidates, chance));
    }
    let id = inner(&filter, "start_id").ok_or("expected any or start_id(N)")?;
    let id: u64 = id.parse().map_err(|_| "expected a number in start_id")?;
    Ok(candidates.iter().find(|process| process.id.0 == id).copied())
}

/// One of the candidates.
pub fn any_of<'a>(candidates: &[&'a Process], chance: u64) -> Option<&'a Process> {
    let at = chance.checked_rem(candidates.len() as u64)?;
    candidates.get(at as usize).copied()
}
