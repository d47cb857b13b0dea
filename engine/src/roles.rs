//! An engine with a role: its server is the primary of its database or follows it, as the domain assigns, and starts and stops many
//! times in the life of one wrapper.
//!
//! `keeper` is the one task that decides; `decide` says what is next, without any side effect; `perform` does it at the server.
//!
//! A process of the domain is one life of the wrapper. It keeps its start id over all starts of its server, and its exit is that of
//! the wrapper.

mod admission;
mod decide;
mod declines;
mod keeper;
mod kept;
mod noted;
mod outside;
mod perform;
mod readiness;
mod standbys;
mod using;
mod words;

pub(crate) use keeper::Keeper;

/// The decisions of this module, for a simulation that has another server and another clock.
#[doc(hidden)]
pub mod decisions {
    pub use super::admission::{Admission, Held, granted, version};
    pub use super::decide::{Choice, Primary, Readers, Run, State, Step, choose};
    pub use super::declines::Tries;
    pub use super::keeper::{Ear, Hearing};
    pub use super::noted::{Heard, note_begin, note_copied, note_done, note_dropped, note_reading};
    pub use super::outside::Outside;
    pub use super::perform::{Outcome, remembers};
    pub use super::standbys::Standbys;
    pub use super::words::{Known, assigned};
    pub use crate::postgres::{Place, differs};
}
