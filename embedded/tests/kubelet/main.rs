//! The kubelet with real processes: pods are put on the node by hand, without an API server or controllers.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a test is told by where it stops")]

mod ending;
mod inside;
mod life;
mod world;
