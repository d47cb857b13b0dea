//! The faults of a seed, and the changes of operators: nothing here depends on the run.

use crate::sim::kubernetes::Trouble;
use crate::sim::schedule::Action;
use embedded_kubernetes::store::Ids;

/// When the faults begin: by then the primary is open, and has a sync set.
pub const FROM_MS: u64 = 22_000;
/// When they end.
pub const UNTIL_MS: u64 = FROM_MS + 40_000;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that is an open primary at that time; without one, the first.
    Primary,
    Ordinal(u32),
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The server crashes; its wrapper lives.
    Crash(Which),
    /// The container is killed; it starts again.
    Kill(Which),
    DeletePod(Which),
    /// The pod is deleted without a grace period, while its container still runs.
    ForceDeletePod(Which),
    /// The container is killed, and its pod deleted.
    Lose(Which),
    /// The machine of a wrapper and its server stands still for so long.
    Pause(Which, u64),
    /// The same for the server alone.
    PauseServer(Which, u64),
    /// Nothing gets through between a server and the two others, for so long.
    CutServers(Which, u64),
    /// Nothing gets through between a wrapper and all agents, for so long.
    CutAgents(Which, u64),
    /// Both.
    Isolate(Which, u64),
    /// Nothing gets through between a server with one agent, and the others, for so long.
    Part(Which, usize, u64),
    Switchover,
    Scale(u32),
    /// The claim and the pod are deleted together, so that both are created again.
    RecreateClaim(Which),
    /// The container is killed, and the volume is put back to what it was before that started.
    SetBack(Which),
    /// All containers are killed at once.
    KillAll,
    /// The agent that leads Raft is killed, for so long.
    KillLeader(u64),
    /// It stands still for so long.
    PauseLeader(u64),
    /// Something of the other simulation.
    Other(Action),
}

/// The faults of a seed, in their order.
pub fn schedule(seed: u64) -> Vec<(u64, Fault)> {
    let mut dice = Ids::new(seed ^ 0xdb5eed);
    let mut roll = move |end: u64| dice.number() % end;
    let mut faults = Vec::new();
    let mut at = FROM_MS;
    while at < UNTIL_MS {
        one(&mut roll, at, &mut faults);
        // Often another one follows before the database has recovered.
        at += if roll(3) == 0 { roll(1_500) } else { 2_000 + roll(5_000) };
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn which(roll: &mut dyn FnMut(u64) -> u64) -> Which {
    match roll(6) {
        0..3 => Which::Primary,
        other => Which::Ordinal(other as u32 - 3),
    }
}

fn one(roll: &mut dyn FnMut(u64) -> u64, at: u64, faults: &mut Vec<(u64, Fault)>) {
    let which = which(roll);
    let lasts = 300 + roll(7_000);
    let fault = match roll(28) {
        0 | 1 => Fault::Crash(which),
        2..=4 => Fault::Kill(which),
        5 => Fault::DeletePod(which),
        6 => Fault::ForceDeletePod(which),
        7 => Fault::Lose(which),
        8..=10 => Fault::Pause(which, lasts),
        11 => Fault::PauseServer(which, lasts),
        12 | 13 => Fault::CutServers(which, lasts),
        14 => Fault::CutAgents(which, lasts),
        15 | 16 => Fault::Isolate(which, lasts),
        17 | 18 => Fault::Switchover,
        19 => {
            faults.push((at + 3_000 + roll(8_000), Fault::Scale(3)));
            Fault::Scale(1 + roll(2) as u32)
        }
        20 => Fault::RecreateClaim(which),
        21 => Fault::KillAll,
        22 | 23 => Fault::Part(which, roll(3) as usize, lasts),
        24 if roll(2) == 0 => Fault::KillLeader(lasts),
        24 => Fault::PauseLeader(lasts),
        26 | 27 => {
            // Its second start, the snapshot, and sometimes the loss of the primary before that can take it out of the set.
            let which = Which::Ordinal(roll(3) as u32);
            let at = at + 3_000 + roll(3_000);
            faults.push((at, Fault::SetBack(which)));
            if roll(2) == 0 {
                faults.push((at + roll(200), Fault::Pause(Which::Primary, 6_000 + roll(4_000))));
            }
            Fault::Kill(which)
        }
        _ => {
            let host = roll(3) as usize;
            faults.push((at + lasts, Fault::Other(Action::Trouble(host, Trouble::default()))));
            Fault::Other(Action::Trouble(host, Trouble { down: true, ..Trouble::default() }))
        }
    };
    faults.push((at, fault));
}
