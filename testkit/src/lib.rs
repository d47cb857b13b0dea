//! What the tests of all crates share. `docs/testing.md` says which test runs in which tier.

pub mod chance;
pub mod history;
pub mod postgres;
pub mod report;
pub mod tier;
pub mod wait;

pub use chance::Chance;
pub use postgres::postgres;
pub use tier::tier;
pub use wait::{PATIENCE, eventually, eventually_async, try_eventually};
