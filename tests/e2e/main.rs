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
#[path = "../clients/clients.rs"]
#[allow(dead_code, reason = "tests/faults uses the rest")]
mod clients;
#[allow(dead_code, reason = "benches/latency.rs uses the rest")]
mod cluster;
mod masks;
mod members;
mod nodes;
mod rights;

use cluster::{Cluster, Disturb};
use nodes::Host;

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

mod missing_rights {
    use super::*;

    #[test]
    fn fresh_reads() {
        run("missing_fresh_reads", Disturb::Nobody, rights::fresh_reads_withdrawn);
    }

    #[test]
    fn lists_and_lease() {
        run("missing_lists_lease", Disturb::Nobody, rights::lists_and_lease_withdrawn);
    }
}

#[test]
fn claim_recreated_unseen() {
    run("claim_recreated_unseen", Disturb::Nobody, nodes::claim_recreated_unseen);
}

/// One test for each case of the group of admin servers, which begins with so many.
macro_rules! members {
    ($($case:ident from $servers:expr;)*) => {
        mod membership {
            use super::*;
            $(
                #[test]
                fn $case() {
                    run_with(concat!("members_", stringify!($case)), $servers, members::$case);
                }
            )*
        }
    };
}

members! {
    grown_and_restarted from 1;
}

/// One test for each thing that befalls a node or the API server.
macro_rules! on_nodes {
    ($($name:ident: $case:expr;)*) => {
        mod node {
            use super::*;
            $(
                #[test]
                #[ignore = "needs the nodes of tests/cluster: tests/e2e/run DIR"]
                fn $name() {
                    let _mended = nodes::Mended::afterwards();
                    run(concat!("node_", stringify!($name)), Disturb::Nobody, $case);
                }
            )*
        }
    };
}

on_nodes! {
    cut_with_lease_holder: |cluster| nodes::cut(cluster, Host::LeaseHolder);
    cut_with_storage_manager: |cluster| nodes::cut(cluster, Host::StorageManager);
    killed_with_raft_leader: nodes::killed;
    lost_with_storage_manager: nodes::lost;
    drained_with_lease_holder: nodes::drained;
    api_server_killed: nodes::api_server_killed;
}

fn run_with(name: &str, servers: u32, case: fn(&mut Cluster)) {
    let mut cluster = Cluster::up_with(name, Disturb::Nobody, servers);
    case(&mut cluster);
    cluster.passed();
}

fn run(name: &str, disturb: Disturb, case: fn(&mut Cluster)) {
    let mut cluster = Cluster::up(name, disturb);
    case(&mut cluster);
    cluster.passed();
}
