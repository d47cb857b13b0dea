//! Whether a server does what was assigned to it: the readiness of its pod.
//!
//! A rolling update continues with the next pod once this one is ready, and a drained node waits for it. So a standby is ready when the loss
//! of another server costs nothing that it could have prevented: it streams, and has nearly all of the log.

use super::decide::{Run, State};
use crate::postgres::{Data, Reading};
use kaa_core::domain::ids::Generation;
use kaa_core::replication::{Assignment, Wanted};

/// A standby has caught up once it lacks less than this of what its primary has sent last: one file of the log, in bytes.
const BEHIND: u64 = 16 << 20;

/// Whether a standby has caught up with the primary that it was told to follow; `before`: whether it had, at the last reading.
/// Later it may fall back under load, as long as it streams.
pub fn caught_up(state: &State, reading: &Reading, before: bool) -> bool {
    let Run::Follows { generation, .. } = &state.run else { return false };
    let streams = reading.streams_from.map(u64::from) == Some(generation.0);
    let near = reading.behind.is_some_and(|behind| behind < BEHIND);
    streams && (before || (near && u64::from(reading.timeline) == generation.0))
}

/// Whether the server does what was assigned to it, or why not. `caught_up`: whether it streams from its primary, as a standby.
pub fn readiness(state: &State, wanted: Option<&Assignment>, caught_up: bool) -> Result<(), String> {
    let Some(wanted) = wanted else {
        return Err("no agent has assigned a role to it yet".to_owned());
    };
    if state.stopping {
        return Err("its pod is to end".to_owned());
    }
    if state.keeps_out && state.run != Run::Down {
        return Err("no client can connect to it: sessions cannot load a library of the mounted parameters".to_owned());
    }
    match (&wanted.what, &state.run) {
        (Wanted::Primary { rule, .. }, run) => leads(run, rule.generation),
        (Wanted::Follow { generation, .. }, run) => follows(state, run, *generation, caught_up),
        (Wanted::Initialize, Run::Down) => Err("its data is being made".to_owned()),
        (Wanted::Hold(_), Run::Down) if state.data == Data::Empty => Err("it has no data yet".to_owned()),
        (Wanted::Hold(_), Run::Down) => Err("its server does not run".to_owned()),
        // It waits for a primary, or to be it. The domain decides that, and no more pods would help.
        (Wanted::Initialize | Wanted::Hold(_), _) => Ok(()),
    }
}

fn leads(run: &Run, generation: Generation) -> Result<(), String> {
    match run {
        Run::Primary(primary) if primary.begins.generation == generation && primary.open => Ok(()),
        Run::Primary(primary) if primary.begins.generation == generation => {
            Err(format!("it is the primary of generation {generation}, and lets no client in"))
        }
        _ => Err(format!("it is not the primary of generation {generation} yet")),
    }
}

fn follows(state: &State, run: &Run, generation: Generation, caught_up: bool) -> Result<(), String> {
    match run {
        Run::Follows { generation: followed, .. } if *followed == generation && caught_up => Ok(()),
        Run::Follows { generation: followed, .. } if *followed == generation => {
            Err(format!("it does not stream from the primary of generation {generation}, or has not caught up with it"))
        }
        _ if state.data == Data::Empty || state.memory.overwriting => {
            Err(format!("the data of the primary of generation {generation} is to be copied to it"))
        }
        _ => Err(format!("it does not follow the primary of generation {generation} yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::decide::{Primary, Readers};
    use crate::roles::outside::Outside;
    use kaa_core::domain::ids::{ArchiveId, SetVersion};
    use kaa_core::domain::replicated::{Begins, Position};
    use kaa_core::replication::{Memory, Rule, Source};

    const DATA: Data = Data::Initialized { system: 7, timeline: 2, highest: 2, major: 15, checkpoint: Position(0) };

    fn state(data: Data, run: Run) -> State {
        State { run, may_start: true, ..State::down(data, Memory::default(), Outside::No) }
    }

    fn source() -> Source {
        Source { archive: ArchiveId(1), host: "shop-0".to_owned(), address: String::new(), port: 5432 }
    }

    fn follows_in(generation: u64) -> Run {
        Run::Follows { generation: Generation(generation), source: source(), readers: Readers::No }
    }

    fn primary(open: bool) -> Run {
        let begins = Begins { generation: Generation(2), parent: Generation(1), at: Position(9) };
        let mut primary = Primary::promoted(begins, rule(), 0, Vec::new());
        (primary.open, primary.admits) = (open, open);
        Run::Primary(Box::new(primary))
    }

    fn rule() -> Rule {
        Rule { generation: Generation(2), version: SetVersion(1), members: [ArchiveId(2)].into() }
    }

    fn wanted(what: Wanted) -> Assignment {
        Assignment { what, may_start: true, may_stop: false, replaceable: false }
    }

    fn to_follow() -> Assignment {
        let generation = Generation(2);
        let (history, permission) = (Vec::new(), None);
        wanted(Wanted::Follow { generation, source: source(), history, permission, discard: false })
    }

    fn to_lead() -> Assignment {
        let (standbys, lease_ms, wait_ms) = (Vec::new(), 2500, 2500);
        wanted(Wanted::Primary { rule: rule(), blocks: false, stand_down: false, standbys, lease_ms, wait_ms })
    }

    fn reading(streams_from: Option<u32>, timeline: u32, behind: Option<u64>) -> Reading {
        Reading { streams_from, timeline, behind, ..Reading::of_test() }
    }

    #[test]
    fn a_standby_is_ready_once_it_streams_and_has_caught_up() {
        let state = state(DATA, follows_in(2));
        let ready = |caught_up| readiness(&state, Some(&to_follow()), caught_up);
        assert_eq!(ready(true), Ok(()));
        let why = "it does not stream from the primary of generation 2, or has not caught up with it";
        assert_eq!(ready(false), Err(why.to_owned()));
    }

    #[test]
    fn one_that_follows_an_older_primary_or_none_or_has_no_data_is_not_ready() {
        let why = |data, run| readiness(&state(data, run), Some(&to_follow()), true).unwrap_err();
        assert_eq!(why(DATA, follows_in(1)), "it does not follow the primary of generation 2 yet");
        assert_eq!(why(DATA, Run::Fenced), "it does not follow the primary of generation 2 yet");
        assert_eq!(why(Data::Empty, Run::Down), "the data of the primary of generation 2 is to be copied to it");
    }

    #[test]
    fn a_primary_is_ready_while_it_lets_clients_in() {
        let ready = |run| readiness(&state(DATA, run), Some(&to_lead()), false);
        assert_eq!(ready(primary(true)), Ok(()));
        assert_eq!(ready(primary(false)), Err("it is the primary of generation 2, and lets no client in".to_owned()));
        assert_eq!(ready(Run::Fenced), Err("it is not the primary of generation 2 yet".to_owned()));
    }

    #[test]
    fn a_server_to_which_no_client_can_connect_ends_a_rolling_update() {
        let state = State { keeps_out: true, ..state(DATA, follows_in(3)) };
        let why = readiness(&state, Some(&to_follow()), true).unwrap_err();
        assert_eq!(why, "no client can connect to it: sessions cannot load a library of the mounted parameters");
    }

    #[test]
    fn a_server_that_waits_for_a_primary_is_ready_if_it_runs() {
        let ready = |data, run| readiness(&state(data, run), Some(&wanted(Wanted::Hold(Generation(2)))), false);
        assert_eq!(ready(DATA, Run::Fenced), Ok(()));
        assert_eq!(ready(DATA, Run::Down), Err("its server does not run".to_owned()));
        assert_eq!(ready(Data::Empty, Run::Down), Err("it has no data yet".to_owned()));
    }

    #[test]
    fn before_it_is_assigned_a_role_and_while_its_pod_ends_it_is_not() {
        let why = "no agent has assigned a role to it yet".to_owned();
        assert_eq!(readiness(&state(DATA, Run::Fenced), None, false), Err(why));
        let stopping = State { stopping: true, ..state(DATA, follows_in(2)) };
        assert_eq!(readiness(&stopping, Some(&to_follow()), true), Err("its pod is to end".to_owned()));
    }

    #[test]
    fn a_standby_has_caught_up_when_it_lacks_less_than_a_file_and_stays_so_while_it_streams() {
        let state = state(DATA, follows_in(2));
        let caught_up = |reading: Reading, before| caught_up(&state, &reading, before);
        assert!(caught_up(reading(Some(2), 2, Some(0)), false));
        assert!(!caught_up(reading(Some(2), 2, Some(16 << 20)), false));
        assert!(!caught_up(reading(Some(2), 2, None), false), "it is not known how far it is");
        assert!(!caught_up(reading(Some(2), 1, Some(0)), false), "the log of the generation has not reached it");
        assert!(!caught_up(reading(None, 2, Some(0)), true), "it does not stream");
        assert!(caught_up(reading(Some(2), 2, Some(1 << 30)), true));
    }
}
