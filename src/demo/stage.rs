//! The Kubernetes in this process: what the demo and the end-to-end tests play on.

mod directory;

pub use directory::Directory;

use super::manifests;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::kubelet::{self, Image, Kubelet};
use embedded_kubernetes::server::{self, Server};
use embedded_kubernetes::tokens::Tokens;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a container that ended waits before it starts anew, the second time: a real kubelet waits ten seconds, and
/// nobody who watches a demo wants to.
const BACKOFF: Duration = Duration::from_secs(1);
