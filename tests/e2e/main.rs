//! Whole domains: real agents and engines as processes, on a Kubernetes. By default each case has a small one of its own
//! in the test's process; `tests/e2e/run DIR` plays the same cases on a real cluster that `tests/cluster/up DIR` made, or
//! on whatever KUBECONFIG names if KAA_IMAGE says which image to run there (README, "Tests").
//!
//! Each case does to Kubernetes what a person would do with kubectl, and compares what `kaa show` prints with a golden
//! file, volatile fields masked. Each runs three times: undisturbed, with the pod of the resync Lease's
//! holder deleted in the middle, and with that of the Raft leader. The golden files are the same: same end state.
//! `UPDATE=1` rewrites them from the undisturbed runs.

#![allow(clippy::unwrap_used, reason = "a test's panic is its verdict")]

mod cases;
#[allow(dead_code, reason = "benches/latency.rs uses the rest")]
mod cluster;
mod masks;

use cluster::{Cluster, Disturb};

/// One test for each way to disturb a case.
macro_rules! cases {
    ($($case:ident)*) => {$(
        mod $case {
            use super::*;

            #[test]
            fn undisturbed() {
                run(stringify!($case), Disturb::Nobody, cases::$case);
            }

            #[test]
            fn lease_holder_deleted() {
                run(stringify!($case), Disturb::LeaseHolder, cases::$case);
            }

            #[test]
            fn raft_leader_deleted() {
                run(stringify!($case), Disturb::RaftLeader, cases::$case);
            }
        }
    )*};
}

cases! {
    storage_manager_scaled_down_and_up
    claim_deleted
    transaction_engine_deleted_and_killed
    admin_deleted_under_an_engine
}

fn run(name: &str, disturb: Disturb, case: fn(&mut Cluster)) {
    let mut cluster = Cluster::up(name, disturb);
    case(&mut cluster);
    cluster.passed();
}
