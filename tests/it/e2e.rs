//! Whole domains: real agents and engines as processes, on a Kubernetes. By default each case has its own small
//! Kubernetes in the test's process. `tests/e2e/run DIR` runs the same cases on a real cluster that `tests/cluster/up
//! DIR` created, or on the cluster that KUBECONFIG names if KAA_IMAGE says which image to run there.
//!
//! A case does to Kubernetes what an operator does with kubectl. The use cases run one after another in one domain, and
//! the test compares the output of `kaa show` with golden files, volatile fields masked. It runs them three times:
//! undisturbed; with the pod of the resync leader deleted in the middle of each; with the pod of the Raft leader
//! deleted in the middle of each. The golden files are the same, since the end state is the same. `UPDATE=1` rewrites
//! them from the undisturbed run. The cases of `members` change the set of admin servers itself, while clients write.
//!
//! `real`: one case of each kind, with `cargo test`. `ci`: the others, with `.ci/run`. `long`: with `.ci/long`. `nodes`:
//! needs a cluster of `tests/cluster`.

mod cases;
mod clusters;
mod elsewhere;
mod members;
mod nodes;
mod permissions;
mod postgres;
mod upgrades;

use crate::domain::cluster::{Cluster, Disturb};

/// Starts a domain with this number of admin servers and the example database, and runs a case in it.
fn run_with(name: &str, disturb: Disturb, servers: u32, case: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::up_with(name, disturb, servers);
    case(&mut cluster);
    cluster.passed();
}

/// One test for each case in a domain that begins with this number of admin servers.
macro_rules! cases {
    ($($(#[$attribute:meta])* $name:ident from $servers:literal: $case:expr;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $name() {
            run_with(stringify!($name), Disturb::Nothing, $servers, $case);
        }
    )*};
}

/// The same without a database.
macro_rules! corners {
    ($($(#[$attribute:meta])* $case:ident from $servers:literal;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $case() {
            let mut cluster = Cluster::without_database(concat!("corner_", stringify!($case)), $servers);
            members::corners::$case(&mut cluster);
            cluster.passed();
        }
    )*};
}

/// One test for each change of the membership in which agents are killed at their fail points.
macro_rules! killed {
    ($($(#[$attribute:meta])* $name:ident: $case:expr;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $name() {
            let mut cluster = Cluster::mortal(stringify!($name));
            $case(&mut cluster);
            cluster.passed();
        }
    )*};
}

/// One test for each change of the number of servers, with a disturbance.
macro_rules! ways {
    ($($name:ident: $befalls:ident on $from:literal -> $to:literal;)*) => {$(
        #[test]
        #[ignore = "with .ci/long: tests/e2e/run DIR e2e::"]
        fn $name() {
            run_with(concat!("ways_", stringify!($name)), Disturb::Nothing, $from, |cluster| {
                members::full::way(cluster, $from, $to, members::full::Befalls::$befalls);
            });
        }
    )*};
}

mod real {
    use super::*;

    #[test]
    fn stories() {
        run_with("stories", Disturb::Nothing, 3, cases::all);
    }

    cases! {
        scaled_down_and_up from 3: members::scaled_down_and_up;
    }

    corners! {
        two_processes_on_one_volume from 1;
        given_up_and_brought_back from 3;
    }

    killed! {
        killed_founding: members::killed::founding;
    }

    #[test]
    fn postgres_primary_deleted() {
        postgres::primary_deleted();
    }

    #[test]
    fn restored_in_another_cluster() {
        elsewhere::restored_in_another_cluster();
    }
}

mod ci {
    use super::*;

    #[test]
    #[ignore = "with .ci/run"]
    fn stories_lease_holder_deleted() {
        run_with("stories", Disturb::LeaseHolder, 3, cases::all);
    }

    #[test]
    #[ignore = "with .ci/run"]
    fn stories_raft_leader_deleted() {
        run_with("stories", Disturb::RaftLeader, 3, cases::all);
    }

    #[test]
    #[ignore = "with .ci/run"]
    fn postgres_by_command() {
        postgres::by_command();
    }

    #[test]
    #[ignore = "with .ci/run"]
    fn postgres_two_databases() {
        postgres::two_databases();
    }

    #[test]
    #[ignore = "with .ci/run"]
    fn two_clusters() {
        clusters::two_clusters();
    }

    #[test]
    #[ignore = "with .ci/run"]
    fn half_in_another_cluster() {
        clusters::half_in_another_cluster();
    }

    cases! {
        #[ignore = "with .ci/run"]
        missing_fresh_reads from 3: permissions::fresh_reads_withdrawn;
        #[ignore = "with .ci/run"]
        missing_lists_and_lease from 3: permissions::lists_and_lease_withdrawn;
        #[ignore = "with .ci/run"]
        claim_recreated_unseen from 3: nodes::claim_recreated_unseen;
        #[ignore = "with .ci/run"]
        grown_and_restarted from 1: members::grown_and_restarted;
        #[ignore = "with .ci/run"]
        half_of_two_lost from 2: members::half_of_two_lost;
        #[ignore = "with .ci/run"]
        too_many_given_up from 3: members::too_many_given_up;
    }

    corners! {
        #[ignore = "with .ci/run"]
        first_wiped from 3;
        #[ignore = "with .ci/run"]
        anchor_turned_back from 2;
        #[ignore = "with .ci/run"]
        anchor_written_by_hand from 3;
        #[ignore = "with .ci/run"]
        two_sets_of_agents from 1;
    }

    killed! {
        #[ignore = "with .ci/run"]
        upgraded: upgrades::upgraded;
        #[ignore = "with .ci/run"]
        leaders_killed_upgrading: upgrades::leaders_killed;
        #[ignore = "with .ci/run"]
        leaders_paused_upgrading: upgrades::leaders_paused;
        #[ignore = "with .ci/run"]
        founder_lost: members::founder_lost::founded_from_what_was_retired;
        #[ignore = "with .ci/run"]
        killed_recovering: members::killed::recovering;
        #[ignore = "with .ci/run"]
        killed_at_a_pair: members::killed::pairs;
    }
}

mod long {
    use super::*;

    cases! {
        #[ignore = "with .ci/long"]
        too_many_lost from 3: members::too_many_lost;
        #[ignore = "with .ci/long"]
        claim_deleted_while_scaled_down from 2: members::claim_deleted_while_scaled_down;
        #[ignore = "with .ci/long"]
        five_scaled_down_and_up from 5: members::five_scaled_down_and_up;
        #[ignore = "with .ci/long"]
        half_of_four_lost from 4: members::half_of_four_lost;
    }

    corners! {
        #[ignore = "with .ci/long"]
        anchor_deleted from 3;
        #[ignore = "with .ci/long"]
        given_up_and_continued from 3;
    }

    killed! {
        #[ignore = "with .ci/long"]
        killed_overriding: members::killed::overriding;
        #[ignore = "with .ci/long"]
        killed_following_the_founder: members::killed::following_the_founder;
    }
}

/// Only on the nodes of `tests/cluster`.
mod nodes_of_a_cluster {
    use super::*;
    use nodes::{Host, Mended};

    /// One test for each fault of a node or of the API server.
    macro_rules! on_nodes {
        ($($name:ident: $case:expr;)*) => {$(
            #[test]
            #[ignore = "needs the nodes of tests/cluster: tests/e2e/run DIR"]
            fn $name() {
                let _mended = Mended::afterwards();
                run_with(concat!("node_", stringify!($name)), Disturb::Nothing, 3, $case);
            }
        )*};
    }

    on_nodes! {
        cut_with_lease_holder: |cluster| nodes::cut(cluster, Host::LeaseHolder);
        cut_with_storage_manager: |cluster| nodes::cut(cluster, Host::StorageManager);
        killed_with_raft_leader: nodes::killed;
        lost_with_storage_manager: nodes::lost;
        drained_with_lease_holder: nodes::drained;
        api_server_killed: nodes::api_server_killed;
        scaled_with_the_api_server_killed: members::api_server_killed;
    }

    #[test]
    #[ignore = "needs the nodes of tests/cluster: tests/e2e/run DIR"]
    fn a_real_and_an_embedded_cluster() {
        let _mended = Mended::afterwards();
        clusters::real_and_embedded();
    }

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
