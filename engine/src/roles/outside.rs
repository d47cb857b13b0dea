//! A server that was promoted by other means than a grant: by `pg_promote()` or `pg_ctl`.

use super::decide::State;
use crate::postgres::Data;
use kaa_core::domain::ids::Generation;
use kaa_core::domain::replicated::Begins;

/// Whether a server was promoted by other means than a grant: `pg_promote()`, say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outside {
    #[default]
    No,
    /// It is to stop.
    Runs,
    /// It has ended since. Its data is replaced before it follows.
    Was,
}

/// Why data is replaced of a server that was promoted by other means than a grant.
pub(super) const PROMOTED_OUTSIDE: &str = "it was promoted, and not by Kaa: by pg_promote() or pg_ctl";

/// Whether data is, or may be, that of a server that was promoted by other means than a grant.
///
/// Such a server takes the next number for its timeline, which the domain may grant as well. Then neither a comparison nor `pg_rewind` tells
/// the two logs apart. Data has the timeline of a generation only from the server that took it up, so this one knows of that.
pub(super) fn was_promoted_outside(state: &State, history: &[Begins]) -> bool {
    let Data::Initialized { highest, .. } = state.data else { return false };
    let unknown = Generation(highest.into()) > state.memory.followed.max(state.memory.taken_up);
    state.outside != Outside::No || (unknown && history.iter().any(|it| it.generation.0 == u64::from(highest)))
}
