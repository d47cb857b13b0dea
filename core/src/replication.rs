//! The replication of a database that has one primary: which archive is the primary's, and which archives hold every
//! commit that counts. The scheme is that of a leader with a set of in-sync replicas: no votes, and no positions to compare.
//!
//! [`Replication`] is the record in the domain, with the transitions that the domain accepts. [`Ruling`] is what a primary
//! obeys, [`Memory`] what each server keeps on its volume. `kaa-model` explores everything that these three allow together.
//!
//! Safety rests on four sentences:
//! 1. Every archive of the recorded *sync set* holds every commit that counts: all of them confirm each commit, not some.
//! 2. Only an archive of the sync set becomes the primary's, and its server first stops to follow. From then on the old
//!    primary completes no further commit, wherever it runs, since it waits for that server.
//! 3. The sync set grows at the server first, then in the record. It shrinks in the record first, then at the server.
//! 4. No server is promoted twice in one *generation*, and no generation is granted twice.
//!
//! A commit *counts* if a client got its acknowledgement, or if a client could read it at a primary that serves.

mod memory;
mod record;
mod ruling;

pub use memory::{Memory, NotTaken};
pub use record::{Refused, Replication};
pub use ruling::{InForce, Rule, Ruling};
