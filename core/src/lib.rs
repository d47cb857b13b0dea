//! The decisions of Kaa as pure functions: what the domain is, what Kubernetes shows, what to propose.
//!
//! Reading order: [`domain`] (the replicated state and its one function `apply`), [`observed`] (what Kubernetes shows,
//! where unknown is not empty), [`resync`] (domain and observed in, a plan out), [`tasks`] (changes in several steps),
//! [`membership`] (who may start, found and vote), [`balancer`] (which engine a client is sent to), [`replication`] (which
//! archive is the primary's, and which ones hold every commit; not used by the agent yet).
//!
//! What always holds here:
//! - nothing waits, listens, reads a clock or rolls a dice: the same input gives the same output on every machine;
//! - no Kubernetes type and no async function exists in this crate (its Cargo.toml proves it);
//! - nothing is iterated in hash order.

pub mod balancer;
pub mod domain;
pub mod membership;
pub mod observed;
pub mod replication;
pub mod resync;
pub mod tasks;
pub mod wait;
