//! How much of a test with many repetitions runs: `KAA_TIER` names the tier (`docs/testing.md`).

/// A tier. Each runs everything that the one before runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// `cargo t`.
    Quick,
    /// `cargo test`.
    Test,
    /// `.ci/run`.
    Ci,
    /// `.ci/long`.
    Long,
}

/// The tier of this run: that of `cargo test` if `KAA_TIER` is not set.
///
/// # Panics
/// Where `KAA_TIER` is set to something that is no tier.
pub fn tier() -> Tier {
    match std::env::var("KAA_TIER").as_deref() {
        Err(_) | Ok("test") => Tier::Test,
        Ok("quick") => Tier::Quick,
        Ok("ci") => Tier::Ci,
        Ok("long") => Tier::Long,
        Ok(other) => panic!("KAA_TIER={other} is none of quick, test, ci, long"),
    }
}

impl Tier {
    /// Selects the number for this tier.
    pub fn of<T>(self, quick: T, test: T, ci: T, long: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Test => test,
            Self::Ci => ci,
            Self::Long => long,
        }
    }
}
