//! A small Kubernetes in one process, as far as `kubectl`, `kube` and a handful of workloads need one.
//!
//! It serves a demonstration on a machine without Kubernetes, fast end-to-end tests, and deterministic simulation. It
//! knows nothing of what runs on it. What it does not do it refuses with a sentence; what it does is compared with a
//! real Kubernetes by one conversation that is held with both (`tests/transcript`).
//!
//! The core is pure. Time is passed in, identifiers come from a seed, nothing waits:
//! - [`resource`]: the kinds there are; [`object`]: what all of their objects have; [`failure`]: why something is refused.
//! - [`store`]: the objects, their versions, and the history that watches are fed from.
//!   What goes into it is completed ([`defaults`]) and checked ([`validate`]), by whatever way it comes.
//! - [`patch`]: what patches make of objects, and who has set which fields; [`selector`]: which objects are meant;
//!   [`table`]: what people are shown of them.
//! - [`controllers`]: what a change leaves to be done; [`events`]: what people are told of it; [`hollow`]: a kubelet
//!   without containers, for where only the objects matter.
//! - [`api`]: what is asked and what is answered; [`discovery`], [`openapi`] and [`review`]: what clients ask besides
//!   objects; [`rbac`]: who may do what.
//!
//! Around it a thin shell: [`instance`] keeps the store behind one lock and rings a bell after every change; [`server`]
//! speaks HTTPS, and [`tokens`] tell it who calls; [`kubelet`] runs containers as processes.

pub mod api;
pub mod controllers;
pub mod defaults;
pub mod discovery;
pub mod events;
pub mod failure;
pub mod hollow;
pub mod instance;
pub mod kubeconfig;
pub mod kubelet;
pub mod object;
pub mod openapi;
pub mod patch;
pub mod rbac;
pub mod resource;
pub mod review;
pub mod runtime;
pub mod selector;
pub mod server;
pub mod store;
pub mod table;
pub mod tokens;
pub mod validate;
