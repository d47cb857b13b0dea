//! Faults as tests: random sequences of the actions of Kubernetes, engines and several resync leaders, in which views
//! lag, events are lost, leaders end between reading and proposing, and commands arrive late or twice.
//!
//! Each sequence runs twice. The first run has faults, and after every command a judge compares it with what was true
//! when its evidence was read. The second is a reference without faults, in which everyone sees everything at once.
//! When the faults end, both runs must come to the same final state. Each sequence has its own seed: `KAA_SEED=n
//! KAA_SEQUENCES=1` repeats one, `KAA_SEQUENCES=n` runs this number of sequences instead of the number of the tier.

mod by_hand;
mod engines;
mod judge;
mod kubernetes;
mod leader;
mod run;
mod upgrades;

use by_hand::{ByHand, DATABASES};
use kubernetes::{Change, Death, KINDS, Kind};
use leader::Watch;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use run::Run;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::chance::number;
use testkit::tier;

/// The number of agents that lead, or led, the resync.
const LEADERS: usize = 3;
/// The maximum number of steps of a sequence.
const STEPS: usize = 60;

/// A sequence.
#[derive(Clone, Debug)]
pub struct Script {
    purge_delay_s: u8,
    another_cluster: bool,
    tells_history: bool,
    few_tombstones: bool,
    steps: Vec<Step>,
}

/// One step of a sequence. Only `Change` changes the real state; all other steps decide who notices what, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Change(Change),
    Engines,
    Engine(usize),
    /// An engine sends a registration, which does not arrive for a long time.
    Delayed(usize),
    /// A registration arrives that was sent some time ago, for the first time or again.
    Late(usize),
    Notice,
    Watch {
        leader: usize,
        kind: Kind,
        watch: Watch,
    },
    See {
        leader: usize,
    },
    Lead {
        leader: usize,
        late: bool,
    },
    Plan {
        leader: usize,
        follow: bool,
    },
    Read {
        leader: usize,
        fails: Option<Kind>,
    },
    Send {
        leader: usize,
        most: usize,
        twice: bool,
    },
    Pass {
        leader: usize,
    },
    Crash {
        leader: usize,
    },
    /// A leader's clock is set to be off by this many seconds.
    Clock {
        leader: usize,
        seconds: i64,
    },
}

fn by_hand() -> impl Strategy<Value = ByHand> {
    let database = || 0..DATABASES.len();
    prop_oneof![
        3 => database().prop_map(|database| ByHand::CreateDatabase { database }),
        2 => database().prop_map(|database| ByHand::CreateArchive { database, restored: false }),
        1 => database().prop_map(|database| ByHand::CreateArchive { database, restored: true }),
        2 => (0..4usize).prop_map(|archive| ByHand::Resurrect { archive }),
        4 => (database(), any::<bool>()).prop_map(|(database, purge)| ByHand::DropDatabase { database, purge }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let set = || prop_oneof![4 => Just(0usize), 3 => Just(1usize), 1 => Just(2usize)];
    let pod = || 0..8usize;
    let ordinal = || 0..4u32;
    let death = || prop_oneof![3 => Just(Death::Graceful), 3 => Just(Death::Silent), 1 => Just(Death::Zombie)];
    let yes = any::<bool>;
    let kind = || proptest::sample::select(KINDS.to_vec());
    let workloads = prop_oneof![
        8 => (set(), 0..4u32).prop_map(|(set, replicas)| Change::Scale { set, replicas }),
        3 => set().prop_map(|set| Change::Scale { set, replicas: 0 }),
        2 => (set(), 0..3u32).prop_map(|(set, start)| Change::FirstOrdinal { set, start }),
        1 => (set(), yes()).prop_map(|(set, delete)| Change::Retention { set, delete }),
        2 => (set(), yes(), yes()).prop_map(|(set, hold_purge, pause)| Change::Annotate { set, hold_purge, pause }),
        2 => (set(), yes(), death()).prop_map(|(set, claims, death)| Change::DeleteSet { set, claims, death }),
        3 => (set(), 0..3u32).prop_map(|(set, replicas)| Change::CreateSet { set, replicas }),
        2 => set().prop_map(|set| Change::RecreateSet { set }),
        1 => Just(Change::RenameDeployment),
        1 => (0..3u32).prop_map(|replicas| Change::ScaleDeployment { replicas }),
        16 => Just(Change::Reconcile),
        3 => (yes(), yes()).prop_map(|(all, said)| Change::RollOut { all, said }),
        2 => yes().prop_map(Change::AskForUpgrades),
        2 => (0..4usize, yes()).prop_map(|(workload, rolling)| Change::Rolling { workload, rolling }),
    ];
    let objects = prop_oneof![
        6 => (pod(), death()).prop_map(|(pod, death)| Change::DeletePod { pod, death }),
        1 => pod().prop_map(|pod| Change::Terminating { pod }),
        8 => (set(), ordinal()).prop_map(|(set, ordinal)| Change::DeleteClaim { set, ordinal }),
        2 => (set(), death()).prop_map(|(set, death)| Change::Wipe { set, death }),
        3 => (set(), ordinal()).prop_map(|(set, ordinal)| Change::RestoreClaim { set, ordinal }),
        2 => (set(), ordinal(), pod()).prop_map(|(set, ordinal, from)| Change::CopyClaim { set, ordinal, from }),
        1 => (set(), ordinal()).prop_map(|(set, ordinal)| Change::RemoveMarker { set, ordinal }),
        4 => (pod(), yes(), yes()).prop_map(|(pod, said, shown)| Change::Restart { pod, said, shown }),
        2 => (pod(), yes()).prop_map(|(pod, said)| Change::Ends { pod, said }),
        2 => Just(Change::Shown),
        3 => pod().prop_map(|pod| Change::Cut { pod }),
        1 => Just(Change::ZombiesDie),
    ];
    let anchor = prop_oneof![1 => Just(None), 1 => Just(Some("A2")), 2 => Just(Some("A1"))];
    let people = prop_oneof![
        2 => anchor.prop_map(Change::Anchor),
        1 => Just(Change::Adopt),
        3 => (kind(), yes()).prop_map(|(kind, granted)| Change::Permissions { kind, granted }),
        2 => yes().prop_map(Change::Pause),
        1 => pod().prop_map(|pod| Change::Evict { pod }),
        1 => pod().prop_map(|pod| Change::Stop { pod }),
        2 => (5..60u64).prop_map(|seconds| Change::Later { seconds }),
        2 => by_hand().prop_map(Change::ByHand),
    ];
    prop_oneof![9 => workloads, 8 => objects, 2 => people]
}

fn step() -> impl Strategy<Value = Step> {
    let leader = || 0..LEADERS;
    let yes = any::<bool>;
    let kind = || proptest::sample::select(KINDS.to_vec());
    let watch = prop_oneof![
        6 => (1..8usize).prop_map(Watch::Deliver),
        1 => Just(Watch::Lose),
        1 => Just(Watch::Repeat),
        1 => Just(Watch::Swap),
        1 => Just(Watch::Partial),
        2 => Just(Watch::Relist),
    ];
    let fails = prop_oneof![8 => Just(None), 1 => kind().prop_map(Some)];
    let resync = prop_oneof![
        8 => (leader(), kind(), watch).prop_map(|(leader, kind, watch)| Step::Watch { leader, kind, watch }),
        6 => leader().prop_map(|leader| Step::See { leader }),
        3 => (leader(), yes()).prop_map(|(leader, late)| Step::Lead { leader, late }),
        5 => (leader(), yes()).prop_map(|(leader, follow)| Step::Plan { leader, follow }),
        6 => (leader(), fails).prop_map(|(leader, fails)| Step::Read { leader, fails }),
        6 => (leader(), 1..4usize, yes()).prop_map(|(leader, most, twice)| Step::Send { leader, most, twice }),
        8 => leader().prop_map(|leader| Step::Pass { leader }),
        1 => leader().prop_map(|leader| Step::Crash { leader }),
        2 => (leader(), -7200..7200i64).prop_map(|(leader, seconds)| Step::Clock { leader, seconds }),
    ];
    let engines = prop_oneof![
        3 => Just(Step::Engines),
        2 => (0..8usize).prop_map(Step::Engine),
        1 => (0..8usize).prop_map(Step::Delayed),
        1 => (0..64usize).prop_map(Step::Late),
        2 => Just(Step::Notice),
    ];
    prop_oneof![6 => change().prop_map(Step::Change), 3 => engines, 6 => resync]
}

fn script() -> impl Strategy<Value = Script> {
    let delay = prop_oneof![4 => Just(0u8), 1 => Just(30u8), 1 => Just(250u8)];
    let another = prop_oneof![7 => Just(false), 1 => Just(true)];
    let few = prop_oneof![3 => Just(false), 1 => Just(true)];
    (delay, another, any::<bool>(), few, prop::collection::vec(step(), 1..STEPS)).prop_map(
        |(purge_delay_s, another_cluster, tells_history, few_tombstones, steps)| Script {
            purge_delay_s,
            another_cluster,
            tells_history,
            few_tombstones,
            steps,
        },
    )
}

/// Runs a script, with or without its faults. Stops at the first violation.
fn carried_out(script: &Script, faults: bool, tells: bool) -> Run {
    let mut run = Run::new(script, tells);
    run.settle();
    for step in &script.steps {
        if faults || matches!(step, Step::Change(_)) {
            run.step(step);
        }
        if !faults {
            run.settle();
        }
        if run.wrong.is_some() {
            return run;
        }
    }
    run.finish();
    run.judge_rest();
    run
}

/// What is wrong with a script, if anything; otherwise whether its whole end could be compared.
fn tried(script: &Script, tells: bool) -> Result<bool, String> {
    let mut run = carried_out(script, true, tells);
    let reference = carried_out(script, false, tells);
    let complete = match (&run.wrong, &reference.wrong) {
        (None, None) => run.judge_end(&reference),
        _ => false,
    };
    let told = |run: &Run| if tells { run.trace.join("\n") } else { String::new() };
    match (&run.wrong, &reference.wrong) {
        (Some(wrong), _) => Err(format!("{wrong}\n{}\nwithout faults\n{}", told(&run), told(&reference))),
        (None, Some(wrong)) => Err(format!("without faults: {wrong}\n{}", told(&reference))),
        (None, None) => Ok(complete),
    }
}

/// Tries the sequence of a seed. Returns whether its whole end could be compared, or the shortest script that fails.
fn sequence(seed: u64) -> Result<bool, String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { failure_persistence: None, max_shrink_iters: 5_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tree = script().new_tree(&mut runner).map_err(|why| why.to_string())?;
    let complete = AtomicU64::new(0);
    let verdict = runner.run_one(tree, |script| {
        let outcome = catch_unwind(AssertUnwindSafe(|| tried(&script, false)));
        match outcome.unwrap_or_else(|_| Err("it panics".to_owned())) {
            Ok(whole) => complete.store(whole.into(), Ordering::Relaxed),
            Err(wrong) => return Err(TestCaseError::fail(wrong)),
        }
        Ok(())
    });
    match verdict {
        Ok(_) => Ok(complete.into_inner() == 1),
        Err(TestError::Fail(wrong, script)) => {
            let told = catch_unwind(AssertUnwindSafe(|| tried(&script, true)));
            let told = told.unwrap_or_else(|_| Err("it panics, as shown above".to_owned())).err().unwrap_or_default();
            Err(format!("{}\n{script:?}\n{told}", wrong.message()))
        }
        Err(TestError::Abort(why)) => Err(why.message().to_owned()),
    }
}

#[test]
fn whatever_fails_nothing_is_taken_away_wrongly_and_the_end_is_the_same() {
    let count = number("KAA_SEQUENCES").unwrap_or(tier().of(300, 1_000, 10_000, 200_000));
    // New seeds with every run: a sequence that never runs finds nothing.
    let first = number("KAA_SEED").unwrap_or_else(testkit::chance::fresh);
    eprintln!("KAA_SEED={first} KAA_SEQUENCES={count}");
    let (next, complete) = (AtomicU64::new(0), AtomicU64::new(0));
    let failure = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || failure.lock().unwrap().is_some() {
                        return;
                    }
                    let seed = first.wrapping_add(number);
                    match sequence(seed) {
                        Ok(whole) => drop(complete.fetch_add(whole.into(), Ordering::Relaxed)),
                        Err(told) => {
                            let again =
                                format!("KAA_SEED={seed} KAA_SEQUENCES=1 cargo test -p kaa-core --test it whatever");
                            *failure.lock().unwrap() = Some(format!("{told}\nagain: {again}"))
                        }
                    }
                }
            });
        }
    });
    if let Some(told) = failure.into_inner().unwrap() {
        panic!("{told}");
    }
    let complete = complete.into_inner();
    eprintln!("{complete} of {count} ends could be compared as a whole");
    let (raised, stopped) = (upgrades::RAISED.load(Ordering::Relaxed), upgrades::STOPPED.load(Ordering::Relaxed));
    eprintln!("{raised} protocol versions were raised, {stopped} engines stopped for it");
    assert!(count < 1000 || stopped * 10 > count, "{stopped} engines stopped in {count} sequences: too few upgrades");
    assert!(count < 1000 || complete * 5 > count, "{complete} of {count} ends compared: the sequences say too little");
}
