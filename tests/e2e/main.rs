//! Whole domains: real agents and engines as processes, on a Kubernetes. By default each case has a small one of its own
//! in the test's process; `tests/e2e/run DIR` plays the same cases on a real cluster that `tests/cluster/up DIR` made, or
//! on whatever KUBECONFIG names if KAA_IMAGE says which image to run there (README, "Tests").
//!
//! The cases of `membership` change the group of the admin servers itself, while clients write (`members.rs`). Of the rest
//! each does to Kubernetes what a person would do with kubectl, and compares what `kaa show` prints with a golden
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
mod elsewhere;
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

#[test]
fn restored_in_another_cluster() {
    elsewhere::restored_in_another_cluster();
}

/// One test for each case of the group of admin servers, which begins with so many.
macro_rules! members {
    ($($case:ident from $servers:expr;)*) => {$(
        #[test]
        fn $case() {
            run_with(concat!("members_", stringify!($case)), $servers, members::$case);
        }
    )*};
}

/// One test for each way of the group with what befalls it.
macro_rules! ways {
    ($($name:ident: $befalls:ident on $from:literal -> $to:literal;)*) => {$(
        #[test]
        #[ignore = "by hand: KAA_MEMBERS=full tests/e2e/run DIR"]
        fn $name() {
            run_with(concat!("ways_", stringify!($name)), $from, |cluster| {
                members::full::way(cluster, $from, $to, members::full::Befalls::$befalls);
            });
        }
    )*};
}

mod membership {
    use super::*;

    members! {
        grown_and_restarted from 1;
        scaled_down_and_up from 3;
        half_of_two_lost from 2;
        too_many_lost from 3;
        too_many_given_up from 3;
    }

    #[test]
    fn founder_lost() {
        run_with("members_founder_lost", 5, members::founder_lost::founded_from_what_was_set_aside);
    }

    #[test]
    #[ignore = "needs the nodes of tests/cluster: tests/e2e/run DIR"]
    fn api_server_killed() {
        run_with("members_api_server_killed", 3, members::api_server_killed);
    }

    /// On a cluster by hand only: KAA_MEMBERS=full tests/e2e/run DIR.
    mod more {
        use super::*;

        members! {
            claim_deleted_while_scaled_down from 2;
            five_scaled_down_and_up from 5;
            half_of_four_lost from 4;
        }
    }

    mod full {
        use super::*;

        ways! {
            told_2_1: Nothing on 2 -> 1;
            told_3_1: Nothing on 3 -> 1;
            told_5_2: Nothing on 5 -> 2;
            told_3_0: Nothing on 3 -> 0;
            led_by_leaver_2_1: LeaderLeaves on 2 -> 1;
            led_by_leaver_3_1: LeaderLeaves on 3 -> 1;
            led_by_leaver_5_2: LeaderLeaves on 5 -> 2;
            forced_2_1: Force on 2 -> 1;
            forced_3_1: Force on 3 -> 1;
            forced_5_2: Force on 5 -> 2;
            forced_3_0: Force on 3 -> 0;
            lost_2_1: Loss on 2 -> 1;
            lost_4_2: Loss on 4 -> 2;
            lost_3_1: Loss on 3 -> 1;
            lost_5_2: Loss on 5 -> 2;
            lost_3_0: Loss on 3 -> 0;
            node_cut_2_1: Cut on 2 -> 1;
            node_cut_3_1: Cut on 3 -> 1;
            node_cut_5_2: Cut on 5 -> 2;
            node_cut_3_0: Cut on 3 -> 0;
            api_server_2_1: ApiServer on 2 -> 1;
            api_server_3_1: ApiServer on 3 -> 1;
            api_server_5_2: ApiServer on 5 -> 2;
            api_server_3_0: ApiServer on 3 -> 0;
            api_server_1_3: ApiServer on 1 -> 3;
            claims_2_1: Claims on 2 -> 1;
            claims_3_1: Claims on 3 -> 1;
            claims_5_2: Claims on 5 -> 2;
            second_thought_2_1: SecondThought on 2 -> 1;
            second_thought_3_1: SecondThought on 3 -> 1;
            second_thought_5_2: SecondThought on 5 -> 2;
            second_thought_3_0: SecondThought on 3 -> 0;
            second_thought_1_3: SecondThought on 1 -> 3;
        }
    }
}

/// One test for each change of the group in which agents are killed at their fail points.
macro_rules! killed {
    ($($case:ident)*) => {
        mod killed {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let mut cluster = Cluster::mortal(concat!("killed_", stringify!($case)));
                    members::killed::$case(&mut cluster);
                    cluster.passed();
                }
            )*
        }
    };
}

/// One test for each corner, which begins with so many servers and no database.
macro_rules! corners {
    ($($case:ident from $servers:literal;)*) => {
        mod corner {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let mut cluster = Cluster::without_database(concat!("corner_", stringify!($case)), $servers);
                    members::corners::$case(&mut cluster);
                    cluster.passed();
                }
            )*
        }
    };
}

corners! {
    first_wiped from 3;
    anchor_deleted from 3;
    anchor_turned_back from 2;
    two_sets_of_agents from 1;
    two_processes_on_one_volume from 1;
    given_up_and_continued from 3;
    given_up_and_brought_back from 3;
}

killed! { founding overriding following_the_founder recovering pairs }

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
