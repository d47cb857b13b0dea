//! A server that was promoted by other means than a grant: by `pg_promote()` or `pg_ctl`.
//!
//! It takes the next number for its timeline, which the domain may grant as well. Then neither a comparison of positions nor `pg_rewind`
//! tells the two logs apart: its data is copied. The volume remembers that.

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

impl Outside {
    /// What a volume remembers.
    pub fn remembered(was: bool) -> Self {
        if was { Self::Was } else { Self::No }
    }
}

/// Why the data of a server that was promoted by other means than a grant is replaced.
pub(super) const PROMOTED_OUTSIDE: &str = "it was promoted, and not by Kaa: by pg_promote() or pg_ctl";
