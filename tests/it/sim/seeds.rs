//! Plays many seeds, and says how those that failed are repeated.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::chance::number;

/// What a run tells of itself.
pub struct Told {
    pub hash: u64,
    pub text: String,
    /// What must not be, and was.
    pub wrong: Vec<String>,
}

/// Plays the seeds from 0 up to `count`, or what `KAA_SIM_SEED` or `KAA_SIM_SEEDS` ask for, two at a time; panics if one fails. Of one that
/// fails, the last lines of its text are printed, at most `tail`. Gives the number of seeds; `note` is told of each.
pub fn play_all<R>(
    test: &str,
    count: u64,
    tail: usize,
    play: impl Fn(u64) -> (Told, R) + Sync,
    note: impl FnMut(R) + Send,
) -> u64 {
    let only = number("KAA_SIM_SEED");
    let seeds = only.map_or(0..number("KAA_SIM_SEEDS").unwrap_or(count), |seed| seed..seed + 1);
    let (next, end) = (AtomicU64::new(seeds.start), seeds.end);
    let (failed, note) = (Mutex::new(Vec::new()), Mutex::new(note));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let (told, run) = play(seed);
            if only.is_some() {
                println!("{}\nhash {:016x}", told.text, told.hash);
            }
            if !told.wrong.is_empty() {
                let lines: Vec<&str> = told.text.lines().collect();
                let last = lines[lines.len().saturating_sub(tail)..].join("\n");
                println!("seed {seed}: {}\n{last}", told.wrong.join("; "));
                failed.lock().unwrap().push((seed, told.wrong));
            }
            (note.lock().unwrap())(run);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let failed = failed.into_inner().unwrap();
    let told: Vec<String> = (failed.iter())
        .map(|(seed, wrong)| {
            format!("KAA_SIM_SEED={seed} cargo test -p kaa --test it {test} -- --nocapture\n  {}", wrong.join("\n  "))
        })
        .collect();
    assert!(failed.is_empty(), "{} seeds failed; each is replayed by\n{}", failed.len(), told.join("\n"));
    end - seeds.start
}
