//! The faults and the operators' changes, from a seed: nothing here depends on the run.

use crate::sim::kubernetes::Trouble;
use embedded_kubernetes::store::Ids;
use std::fmt;

/// An action of a schedule.
#[derive(Clone, Debug)]
pub enum Action {
    /// The agent's process is killed; its container starts again later.
    Crash(usize),
    Start(usize),
    /// The agent is told to end, and moves its sessions and its leadership if it can.
    Stop(usize),
    /// The agent's claim and pod are deleted; new ones replace them if the server is wanted.
    Wipe(usize),
    /// The agent's pod is deleted; another one replaces it, on the same volume.
    DeleteAdmin(usize, Leave),
    /// From now on this number of agents is wanted; the others leave.
    ScaleAdmins(usize, Leave),
    /// The agent's process is paused, and continues later.
    Pause(usize),
    /// The same for the agent that holds the resync Lease at that time.
    PauseHolder,
    Resume(usize),
    ResumeAll,
    /// No message gets through between two agents.
    Cut(usize, usize),
    Mend(usize, usize),
    /// No message gets through between an agent and all the others.
    Isolate(usize),
    Rejoin(usize),
    /// The volume of an agent has no free space.
    Fill(usize),
    MakeRoom(usize),
    /// No message gets through between an engine's pod and an agent.
    CutEngine(String, usize),
    MendEngine(String, usize),
    /// Faults between an agent and Kubernetes; the default: none.
    Trouble(usize, Trouble),
    /// The same for all agents.
    TroubleForAll(Trouble),
    /// Every watch has to list again.
    Forget,
    /// The container of an engine is killed; it starts again.
    KillEngine(u64),
    /// The container of a storage manager is killed, and restarts only after this number of milliseconds.
    KillFor(u32, u64),
    /// All engines are killed at once.
    KillEngines,
    DeletePod(u64),
    /// The pod is deleted without a grace period, while its containers still run.
    ForceDeletePod(u64),
    Scale(u32),
    DeleteClaim(u32),
    /// Claim and pod are deleted together, so that both are created again.
    RecreateClaim(u32),
}

/// How an agent's pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The agent is told to end, and has its grace period.
    Gracefully,
    /// The pod is deleted without a grace period, while its process still runs.
    AtOnce,
    /// The pod is deleted without a grace period, and its process is dead.
    Dead,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// When the faults begin: by then the agents are connected to each other.
const FROM_MS: u64 = 12_000;
/// When the faults end.
pub const UNTIL_MS: u64 = FROM_MS + 30_000;

/// The actions of a seed, in their order.
pub fn schedule(seed: u64) -> Vec<(u64, Action)> {
    let mut dice = Ids::new(seed ^ 0x5eed);
    let mut roll = move |end: u64| dice.number() % end;
    let mut actions = Vec::new();
    if seed.is_multiple_of(2) {
        faults(&mut roll, &mut actions);
    } else {
        scales(&mut roll, &mut actions);
        group_faults(&mut roll, &mut actions);
    }
    storage(&mut roll, &mut actions);
    actions.sort_by_key(|(at, _)| *at);
    actions
}

type Actions = Vec<(u64, Action)>;

/// The admin servers are scaled repeatedly: often before the previous change of the voters is complete, and seldom
/// gracefully.
fn scales(roll: &mut dyn FnMut(u64) -> u64, actions: &mut Actions) {
    let mut at = FROM_MS + roll(2_000);
    while at < UNTIL_MS - 2_000 {
        match roll(6) {
            0 | 1 => {
                // By then two servers vote, and one of them is lost for good: the other continues alone, if there is
                // enough time.
                actions.push((at, Action::ScaleAdmins(2, Leave::Gracefully)));
                actions.push((at + 2_500 + roll(2_000), Action::ScaleAdmins(1, Leave::Dead)));
                at += 8_000 + roll(5_000);
                continue;
            }
            2 => {
                // The only wanted server hears nothing from the others, and they continue without it for a while.
                let scaled = at + 3_000 + roll(1_000);
                actions.push((at, Action::ScaleAdmins(3, Leave::Gracefully)));
                actions.push((scaled - roll(1_000), Action::Isolate(0)));
                actions.push((scaled, Action::ScaleAdmins(1, Leave::Gracefully)));
                at = scaled + 5_000 + roll(8_000);
                actions.push((at, Action::Rejoin(0)));
                continue;
            }
            _ => {}
        }
        let replicas = [1, 1, 2, 2, 3, 4][roll(6) as usize];
        let how = match roll(6) {
            0 | 1 => Leave::Gracefully,
            2 | 3 => Leave::AtOnce,
            _ => Leave::Dead,
        };
        actions.push((at, Action::ScaleAdmins(replicas, how)));
        at += if roll(5) == 0 { 20 + roll(1_000) } else { 2_000 + roll(7_000) };
    }
}

/// The faults of the admin servers while they are scaled.
fn group_faults(roll: &mut dyn FnMut(u64) -> u64, actions: &mut Actions) {
    for _ in 0..5 + roll(6) {
        let (at, host) = (FROM_MS + roll(28_000), roll(4) as usize);
        let lasts = |roll: &mut dyn FnMut(u64) -> u64, most: u64| at + 200 + roll(most);
        let (begin, end) = match roll(12) {
            0 | 1 => (Action::Crash(host), Some((lasts(roll, 6_000), Action::Start(host)))),
            2 | 3 => (Action::Wipe(host), None),
            4 => (Action::Pause(host), Some((lasts(roll, 12_000), Action::Resume(host)))),
            5..=7 => {
                let other = (host + 1 + roll(3) as usize) % 4;
                (Action::Cut(host, other), Some((lasts(roll, 12_000), Action::Mend(host, other))))
            }
            8 => {
                let end = (lasts(roll, 10_000), Action::Trouble(host, Trouble::default()));
                (Action::Trouble(host, trouble(roll)), Some(end))
            }
            9 => {
                let end = (lasts(roll, 6_000), Action::TroubleForAll(Trouble::default()));
                (Action::TroubleForAll(trouble(roll)), Some(end))
            }
            10 => (Action::DeleteAdmin(host, Leave::Gracefully), None),
            _ => (Action::DeleteAdmin(host, Leave::AtOnce), None),
        };
        actions.push((at, begin));
        actions.extend(end);
    }
}

/// The faults of the admin servers while all three are wanted.
fn faults(mut roll: &mut dyn FnMut(u64) -> u64, actions: &mut Actions) {
    for _ in 0..7 + roll(8) {
        let (at, host) = (FROM_MS + roll(28_000), roll(3) as usize);
        let lasts = |roll: &mut dyn FnMut(u64) -> u64, most: u64| at + 200 + roll(most);
        let pod = ["sm-demo-0", "sm-demo-1", "sm-demo-2"][roll(3) as usize].to_owned();
        let (begin, end) = match roll(14) {
            0 | 1 => (Action::Crash(host), Some((lasts(&mut roll, 10_000), Action::Start(host)))),
            12 => (Action::Isolate(host), Some((lasts(&mut roll, 20_000), Action::Rejoin(host)))),
            13 => (Action::Fill(host), Some((lasts(&mut roll, 15_000), Action::MakeRoom(host)))),
            2 => (Action::Wipe(host), None),
            3 => (Action::Pause(host), Some((lasts(&mut roll, 20_000), Action::Resume(host)))),
            4 => (Action::PauseHolder, Some((at + 4_000 + roll(20_000), Action::ResumeAll))),
            5 | 6 => {
                let other = (host + 1 + roll(2) as usize) % 3;
                (Action::Cut(host, other), Some((lasts(&mut roll, 15_000), Action::Mend(host, other))))
            }
            7 => {
                (Action::CutEngine(pod.clone(), host), Some((lasts(&mut roll, 15_000), Action::MendEngine(pod, host))))
            }
            8 => {
                let end = (lasts(&mut roll, 12_000), Action::Trouble(host, Trouble::default()));
                (Action::Trouble(host, trouble(&mut roll)), Some(end))
            }
            9 => (Action::Stop(host), Some((lasts(&mut roll, 6_000), Action::Start(host)))),
            10 => {
                let end = (lasts(&mut roll, 8_000), Action::TroubleForAll(Trouble::default()));
                (Action::TroubleForAll(trouble(&mut roll)), Some(end))
            }
            _ => (Action::Forget, None),
        };
        actions.push((at, begin));
        actions.extend(end);
    }
}

/// The operators' changes to the storage managers, and the faults of engines.
fn storage(roll: &mut dyn FnMut(u64) -> u64, actions: &mut Actions) {
    for _ in 0..5 + roll(7) {
        let at = FROM_MS + roll(28_000);
        let action = match roll(14) {
            0..=3 => Action::Scale(1 + roll(3) as u32),
            12 => Action::Scale(0),
            13 => {
                // One storage manager has been away for a while when all the others end too, so its data is old.
                let lone = roll(2) as u32;
                actions.push((at, Action::KillFor(lone, 2_000 + roll(7_000))));
                actions.push((at + 200 + roll(3_000), Action::KillEngines));
                continue;
            }
            4 | 5 => Action::KillEngine(roll(16)),
            6 => Action::DeletePod(roll(16)),
            7 => Action::ForceDeletePod(roll(16)),
            8 | 9 => Action::DeleteClaim(roll(3) as u32),
            _ => Action::RecreateClaim(roll(3) as u32),
        };
        actions.push((at, action));
    }
}

fn trouble(roll: &mut dyn FnMut(u64) -> u64) -> Trouble {
    let none = Trouble::default();
    match roll(6) {
        0 => Trouble { down: true, ..none },
        1 => Trouble { errors_percent: 50, ..none },
        2 => Trouble { latency_ms: 4_000, ..none },
        3 => Trouble { forbidden: true, ..none },
        _ => Trouble { lag_ms: 1_000 + roll(9_000), ..none },
    }
}
