//! Whole agents in simulated time: three of them, each with its Raft, its watches, its Lease, its evidence and the
//! sessions of its engines, on a small Kubernetes and a network whose faults come from a seed. In every other seed the
//! admin servers are scaled. [`databases`] is the same with a database with roles.
//!
//! A seed decides everything, so that each run can be repeated: `KAA_SIM_SEED=7 cargo test -p kaa --test it
//! sim::nothing` runs one seed and prints what happened; `KAA_SIM_SEEDS=1000` runs this number of seeds instead of the
//! number of the tier.

#[cfg(not(tokio_unstable))]
compile_error!(
    "built without the flags of .cargo/config.toml (RUSTFLAGS overrides them), a seed would not decide everything"
);

mod admins;
mod checks;
mod databases;
mod disk;
mod engine;
mod group;
mod host;
mod kubelet;
mod kubernetes;
mod network;
mod people;
mod schedule;
mod seeds;
mod stories;
mod trace;
mod world;

use group::Counts;
use seeds::play_all;
use testkit::tier;
use world::play;

/// In this number of seeds, each counted event happens at least once.
const ENOUGH: u64 = 40;

/// The number of lines of the trace, counted from its end, that are printed when a seed fails.
const TAIL: usize = 25;

#[test]
fn nothing_is_lost_or_wrongly_taken_and_the_domain_converges() {
    let mut figures = (0, 0, 0, 0, Counts::default());
    let seeds = play_all("sim::nothing", tier().of(3, 8, ENOUGH, 200), TAIL, play, |run: world::Run| {
        let (converged_ms, acknowledged, reads, taken_away, group) = &mut figures;
        *converged_ms = run.converged_ms.max(*converged_ms);
        *acknowledged += run.acknowledged;
        *reads += run.reads;
        *taken_away += run.taken_away;
        *group += run.group;
    });
    let (converged_ms, acknowledged, reads, taken_away, group) = figures;
    println!(
        "{seeds} seeds: converged within {converged_ms} ms, {acknowledged} writes acknowledged, {reads} reads answered, \
         {taken_away} removed; {group:?}"
    );
    let Counts { overrides, retired, evictions, inclusions } = group;
    let all = [acknowledged, reads, overrides, retired, evictions, inclusions];
    // With few seeds some event may never happen.
    assert!(seeds < ENOUGH || taken_away > 0 && !all.contains(&0), "something never happened");
}

#[test]
fn a_seed_replays_bit_for_bit() {
    let hashes = [10, 11].map(|seed| {
        let other = std::thread::spawn(move || play(seed));
        let ((one, _), (other, _)) = (play(seed), other.join().unwrap());
        assert_eq!(one.text, other.text);
        assert_eq!(one.hash, other.hash, "seed {seed}: the words agree and what is behind them does not");
        one.hash
    });
    assert_ne!(hashes[0], hashes[1]);
}
