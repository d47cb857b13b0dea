//! Which transaction engine a client is sent to: the language of load-balancer queries, and what a query finds.
//!
//! `docs/load-balancing.md` is the reference of the language and of every choice that its sources leave open. Reading
//! order: [`query`] (the tree), [`parse`], [`candidates`] (the processes, prepared once for many decisions), [`policies`]
//! (which query and which pre-filters a client gets), [`choose`](mod@choose), [`explain`](mod@explain).
//!
//! A query comes from anybody who may connect: whatever its text is, it costs a bounded time and no stack.

pub mod candidates;
pub mod choose;
mod evaluate;
pub mod explain;
pub mod parse;
pub mod policies;
pub mod prepared;
pub mod query;
mod set;
pub mod turns;
