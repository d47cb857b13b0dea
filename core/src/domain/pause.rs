//! A pause of the resync: it removes nothing meanwhile.

use super::ids::Millis;
use serde::{Deserialize, Serialize};

/// A pause of the resync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Since when.
    pub at: Millis,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub why: String,
}
