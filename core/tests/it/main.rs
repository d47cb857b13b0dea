//! Readable cases: each file of `tests/data` is a script of the actions of Kubernetes, engines and operators, with the
//! answers of the domain and the proposals of the next pass. Each file is a test: `cargo test -p kaa-core --test it
//! case::claim_deleted`. `UPDATE=1 cargo test -p kaa-core` rewrites the answers.

#![allow(clippy::unwrap_used, reason = "a test's panic is its verdict")]

mod balancer;
mod faults;
mod membership;
mod quorum_override;
mod recover;
mod retired;
mod roles;
mod script;
mod sequences;
mod stating;

use proptest::test_runner::RngSeed;
use std::path::{Path, PathBuf};
use testkit::chance::{fresh, number};

/// The seed of generated cases: `KAA_SEED`, or a new one. Prints it.
fn seed() -> RngSeed {
    let seed = number("KAA_SEED").unwrap_or_else(fresh);
    eprintln!("{}: KAA_SEED={seed}", std::thread::current().name().unwrap_or_default());
    RngSeed::Fixed(seed)
}

/// One test for each file.
macro_rules! cases {
    ($($name:ident)*) => {
        const CASES: &[&str] = &[$(stringify!($name)),*];
        mod case {
            $(
                #[test]
                fn $name() {
                    super::comes_out_as_written(stringify!($name));
                }
            )*
        }
    };
}

cases! {
    adopted
    anchor_unread
    another_uid
    bounds
    claim_deleted
    claim_learned
    claim_replaced
    claim_replaced_scaled_down
    claim_restored_unread
    claim_taken
    claim_unread
    claims_vanished_beside_unbound
    claims_vanished_unseen
    clocks
    clusters_delete
    clusters_entry_point
    clusters_judged
    clusters_lost
    clusters_scaled
    clusters_upgrade
    cold_start
    container_failed
    container_taken_for_another
    copied_volume
    copied_volume_lost
    database_deleted
    database_deleted_and_back
    database_of_two_clusters
    evicted
    fencing
    first_light
    given_up
    held_back
    join_cut_off
    late_registration
    load_balancer
    moved_to_another_cluster
    never_ran
    newest
    no_claim
    orphaned_pods
    out_of_reach
    people
    pod_gone
    primary_begins_anew
    restored
    restored_marked
    restored_unmarked
    scale_down
    second_line
    server_removed
    silent
    silent_peer
    stopped_before_it_ran
    tombstones
    upgrade
    upgrade_by_hand
    upgrade_engine_gone
    upgrade_fenced
    upgrade_gate
    upgrade_two_clusters
    upgrade_unknown_engines
    voters
    what_if_admin_servers
    what_if_delete
    what_if_scale
    what_if_unknown
    workloads
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn comes_out_as_written(case: &str) {
    plays_as_written(&directory().join(case.replace('_', "-")).with_extension("txt"), script::run);
}

fn plays_as_written(file: &Path, play: fn(&str) -> String) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let answered = play(&text);
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(file, &answered).unwrap();
    }
    let mut lines = text.lines().zip(answered.lines()).enumerate();
    let first = lines.find(|(_, (written, got))| written != got);
    let told = first.map(|(number, (written, got))| format!("line {}:\n- {written}\n+ {got}", number + 1));
    assert!(
        answered == text,
        "{} comes out otherwise (UPDATE=1 rewrites it), {}",
        file.display(),
        told.unwrap_or("at its end".to_owned())
    );
}

/// The names of the cases in a directory, in order.
fn cases_in(directory: &Path) -> Vec<String> {
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file());
    let mut names: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().replace('-', "_")).collect();
    names.sort();
    names
}

#[test]
fn every_file_is_a_case() {
    assert_eq!(cases_in(&directory()), CASES, "the list in main.rs, in order");
}
