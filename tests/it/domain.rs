//! A whole domain as processes on a Kubernetes, and the clients that use it.

pub mod clients;
pub mod cluster;
pub mod masks;
pub mod processes;
