//! The replication of a database that has one primary: which archive is the primary's, and which archives hold every
//! commit that counts. The scheme is that of a leader with a set of in-sync replicas. A grant needs no votes and compares no
//! positions.
//!
//! [`Replication`] is the record in the domain, with the transitions that the domain accepts. [`Ruling`] is what a primary
//! obeys, [`Memory`] what each server keeps on its volume. `kaa-model` explores everything that these three allow together.
//!
//! Safety rests on four sentences:
//! 1. Every archive of the recorded *sync set* holds every commit that counts: all of them confirm each commit, not some.
//! 2. Only an archive of the sync set becomes the primary's, and its server first stops to follow. From then on the old
//!    primary completes no commit that this server lacks, wherever it runs, since it waits for this server.
//! 3. An archive is added to the sync set after the primary has begun to wait for it. It is removed before the primary stops
//!    to wait for it.
//! 4. No server is promoted twice in one *generation*, and no generation is granted twice.
//!
//! A commit *counts* if a client got its acknowledgement, or if a client could read it at a primary that serves. An engine
//! must not show a commit to readers before the rule is fulfilled either, also if its client stops to wait.
//!
//! One server at a time runs on an archive. That is not decided here: the volume and the numbers of starts have to ensure it.

mod assignment;
mod duties;
mod elapsed;
mod failover;
pub mod grants;
pub mod lease;
pub mod lost;
mod memory;
mod places;
mod record;
mod report;
pub mod route;
mod ruling;
mod survival;
mod sync_set;
pub mod vitals;
pub mod waits;

pub(crate) use assignment::is_stopping;
pub use assignment::{Assignment, Source, Wanted};
pub use elapsed::{Found, Now};
pub use failover::{Accepted, NoFailover, failover};
pub use grants::Timing;
pub use lease::{Lease, Released};
pub use lost::NotLost;
pub use memory::{Declined, Memory};
pub use places::{Place, PlaceState, Role};
pub use record::{Refused, Replication};
pub use report::{Report, Stand, Standby};
pub use ruling::{InForce, Rule, Ruling};
pub use survival::{Loss, Survival, loss_of, survival};
pub use vitals::Vitals;
