//! A whole domain on one machine: a Kubernetes in this process, agents and engines as its children.
//!
//! [`stage`] is the Kubernetes that both the demo and the end-to-end tests play on; [`manifests`] are the objects that
//! they play with; [`postgres`] is what PostgreSQL servers among them need of this machine.

pub mod install;
pub mod manifests;
pub mod postgres;
pub mod stage;
