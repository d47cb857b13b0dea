//! The faults, and the operators' changes in the meantime: generated from a seed, printed as text, and replayed from
//! it.

use crate::domain::processes::Role;
use embedded_kubernetes::server::Faults;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// One action of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sets the faults of the API from now on.
    Api(Faults),
    /// SIGKILL to the nth process of a role.
    Kill(Role, usize),
    /// Sends SIGSTOP to the nth process of a role, and SIGCONT after this number of seconds.
    Pause(Role, usize, u64),
    /// `kubectl scale`.
    Scale(String, u64),
    /// `kubectl delete pod` of the nth pod of a workload.
    DeletePod(String, usize),
    /// `kubectl delete pvc` of the nth claim for an archive, and of the pod that uses it.
    DeleteClaim(usize),
}

/// One line of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// In milliseconds from the beginning.
    pub at_ms: u64,
    pub act: Act,
}

/// The whole schedule, in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(pub Vec<Step>);

/// The durations of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// For how long each fault of the API lasts, in seconds.
    pub round_s: u64,
    /// How much later answers and watch events arrive, in seconds.
    pub delay_s: u64,
    /// How often each fault of the API comes.
    pub times: u32,
}

impl Length {
    /// The length for CI.
    pub const SHORT: Self = Self { round_s: 12, delay_s: 5, times: 1 };
    /// The API is down for a minute, and answers take half a minute longer.
    pub const LONG: Self = Self { round_s: 60, delay_s: 30, times: 3 };

    /// How long one round takes, including the time without a fault at its end.
    fn round_ms(self) -> u64 {
        self.round_s * 1000 + WELL_MS
    }
}

/// The length of a part of a round.
const PART_MS: u64 = 12_000;

/// The time without a fault of the API at the end of each round.
const WELL_MS: u64 = 12_000;

/// How long after the end of an API fault a claim is deleted. If an archive's claim was deleted before any agent could
/// read it, the archive is kept for an operator to examine and blocks a cold start. That is correct, but the domain
/// would then not converge. Agents read every 5 s.
const CLAIMS_MS: u64 = 9_000;

/// The longest pause is 1 s longer than this: long enough for sessions and the Lease to be lost, too short for a
/// liveness probe to fail.
const MOST_PAUSE_S: u64 = 35;

const AGENTS: usize = 3;
const ENGINES: usize = 4;

impl Schedule {
    /// Each round has one fault of the API. Each part of a round has two faults of processes and two changes as
    /// operators make them. At the end of half of the rounds, chosen at random, a claim is deleted. Each part begins a
    /// fault of at most one agent, so that a quorum mostly lives; the first claim is never deleted, so that some data
    /// survives.
    pub fn random(seed: u64, length: Length) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut steps, mut began) = (Vec::new(), 0);
        for _ in 0..length.times {
            let mut faults = api_faults(length.delay_s);
            faults.shuffle(&mut random);
            for fault in faults {
                let end = began + length.round_s * 1000;
                for part in (began..end).step_by(PART_MS as usize) {
                    for act in acts(&mut random, length) {
                        let at_ms = random.random_range(part..end.min(part + PART_MS));
                        steps.push(Step { at_ms, act });
                    }
                }
                if random.random_range(0..2) == 0 {
                    let act = Act::DeleteClaim(random.random_range(1..3));
                    steps.push(Step { at_ms: end + CLAIMS_MS, act });
                }
                steps.push(Step { at_ms: began, act: Act::Api(fault) });
                steps.push(Step { at_ms: end, act: Act::Api(Faults::default()) });
                began += length.round_ms();
            }
        }
        steps.sort_by_key(|step| step.at_ms);
        Self(steps)
    }
}

fn api_faults(delay_s: u64) -> Vec<Faults> {
    let (none, delay) = (Faults::default(), Duration::from_secs(delay_s));
    vec![
        Faults { down: true, ..none },
        Faults { errors_percent: 50, ..none },
        Faults { delay, ..none },
        Faults { lost_percent: 40, ..none },
        Faults { lag: delay, watch_life: Some(Duration::from_secs(3)), ..none },
    ]
}

fn acts(random: &mut StdRng, length: Length) -> Vec<Act> {
    let mut below = |end: usize| random.random_range(0..end);
    let pause_s = length.round_s.min(MOST_PAUSE_S) as usize;
    let agent = match below(3) {
        0 => Act::Kill(Role::Agent, below(AGENTS)),
        1 => Act::Pause(Role::Agent, below(AGENTS), 2 + below(pause_s) as u64),
        _ => Act::DeletePod("kaa-admin".to_owned(), below(AGENTS)),
    };
    let role = [Role::Wrapper, Role::Engine][below(2)];
    let engine = match below(2) {
        0 => Act::Kill(role, below(ENGINES)),
        _ => Act::Pause(role, below(ENGINES), 2 + below(pause_s) as u64),
    };
    let change = match below(3) {
        0 => Act::DeletePod("te-demo".to_owned(), below(2)),
        1 => Act::DeletePod("sm-demo".to_owned(), below(2)),
        _ => Act::Scale("te-demo".to_owned(), 1 + below(3) as u64),
    };
    vec![agent, engine, change, Act::Scale("sm-demo".to_owned(), 1 + below(3) as u64)]
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Wrapper => "wrapper",
            Self::Engine => "engine",
        })
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(faults) => {
                let Faults { down, errors_percent, lost_percent, delay, lag, watch_life } = faults;
                let life = watch_life.unwrap_or_default();
                let down = u8::from(*down);
                let (delay, lag, life) = (delay.as_secs(), lag.as_secs(), life.as_secs());
                write!(
                    f,
                    "api down {down} errors {errors_percent} lost {lost_percent} delay {delay} lag {lag} life {life}"
                )
            }
            Self::Kill(role, nth) => write!(f, "kill {role} {nth}"),
            Self::Pause(role, nth, seconds) => write!(f, "pause {role} {nth} {seconds}"),
            Self::Scale(workload, replicas) => write!(f, "scale {workload} {replicas}"),
            Self::DeletePod(workload, nth) => write!(f, "delete {workload} {nth}"),
            Self::DeleteClaim(nth) => write!(f, "delete claim {nth}"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|step| writeln!(f, "{} {}", step.at_ms, step.act))
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{line}: {error}"));
        let nth = |word: &str| number(word).map(|nth| nth as usize);
        let role = |word: &str| {
            let role = [Role::Agent, Role::Wrapper, Role::Engine].into_iter().find(|role| role.to_string() == word);
            role.ok_or_else(|| format!("{line}: no role"))
        };
        let [at, rest @ ..] = &words[..] else { return Err("an empty line".to_owned()) };
        let act = match rest {
            ["api", "down", down, "errors", errors, "lost", lost, "delay", delay, "lag", lag, "life", life] => {
                let seconds = |word| number(word).map(Duration::from_secs);
                Act::Api(Faults {
                    down: number(down)? > 0,
                    errors_percent: number(errors)? as u8,
                    lost_percent: number(lost)? as u8,
                    delay: seconds(delay)?,
                    lag: seconds(lag)?,
                    watch_life: Some(seconds(life)?).filter(|life| !life.is_zero()),
                })
            }
            ["kill", of, which] => Act::Kill(role(of)?, nth(which)?),
            ["pause", of, which, seconds] => Act::Pause(role(of)?, nth(which)?, number(seconds)?),
            ["scale", workload, replicas] => Act::Scale((*workload).to_owned(), number(replicas)?),
            ["delete", "claim", which] => Act::DeleteClaim(nth(which)?),
            ["delete", workload, which] => Act::DeletePod((*workload).to_owned(), nth(which)?),
            _ => return Err(format!("{line}: not an act")),
        };
        Ok(Self { at_ms: number(at)?, act })
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.lines().filter(|line| !line.trim().is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

#[test]
fn a_schedule_is_the_same_after_it_was_written_and_read_and_by_the_same_seed() {
    for seed in 0..50 {
        let made = Schedule::random(seed, Length::LONG);
        assert_eq!(made.to_string().parse(), Ok(made.clone()));
        assert_eq!(Schedule::random(seed, Length::LONG), made);
        assert_ne!(Schedule::random(seed + 1, Length::LONG), made);
    }
}
