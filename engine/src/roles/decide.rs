//! What is to be done next with a server that has a role: what is wanted of it, what it does, and what it must not forget.

use super::admission::Held;
use super::outside::{Outside, PROMOTED_OUTSIDE};
use crate::postgres::Data;
use kaa_core::domain::ids::{ArchiveId, Generation, Permission, SetVersion};
use kaa_core::domain::replicated::{Begins, Position};
use kaa_core::replication::{Assignment, Memory, Rule, Ruling, Source, Wanted};

/// What a server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// It does not run.
    Down,
    /// A standby that follows no server.
    Fenced,
    /// A standby that was told to follow the primary of this generation.
    Follows { generation: Generation, source: Source, readers: Readers },
    /// It was promoted.
    Primary(Box<Primary>),
}

/// Whether a standby lets clients in, who only read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// What it shows may never have been acknowledged.
    No,
    /// It holds the first record of its generation, and streams.
    May,
    Admitted,
}

/// A server that was promoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    pub begins: Begins,
    pub ruling: Ruling,
    /// When it was found to take no log any more, before it was promoted: milliseconds of the clock that never goes back.
    pub stopped_ms: u64,
    /// Whether its first record is on all that its rule requires.
    pub established: bool,
    pub open: bool,
    /// Whether it may let clients in: from the beginning of the step that opens it to the end of one that closes it.
    pub admits: bool,
    /// Whether the roles of the Secrets are there.
    pub prepared: bool,
    /// The archives for whose servers it keeps its log.
    pub slots: Vec<ArchiveId>,
    /// Where the logs before its own begin.
    pub ancestors: Vec<Begins>,
}

impl Primary {
    /// One that was promoted a moment ago: it lets no client in. `stopped_ms`: when it was found to take no log any more.
    pub fn promoted(begins: Begins, rule: Rule, stopped_ms: u64, ancestors: Vec<Begins>) -> Self {
        // The end of the first record takes the place of this when the record is confirmed.
        let ruling = Ruling::begin(rule, begins.at.0);
        let (established, open, admits, prepared, slots) = (false, false, false, false, Vec::new());
        Self { begins, ruling, stopped_ms, established, open, admits, prepared, slots, ancestors }
    }

    /// Takes note that all that its rule requires have flushed its log up to a position.
    pub fn establish(&mut self, end: Position) {
        (self.established, self.ruling.point) = (true, end.0);
    }

    /// Takes note that no client is let in. A commit whose client was told to end shows although no member may have it: before it opens
    /// again, all members have to flush what is there now.
    pub fn close(&mut self) {
        (self.open, self.admits, self.established) = (false, false, false);
    }

    /// Clients may be refused already, or served still: it opens again, if it is to, and closes if its lease ends before that.
    pub fn may_refuse(&mut self) {
        (self.open, self.established) = (false, false);
    }
}

/// What is known of a server.
#[derive(Clone, Debug)]
pub struct State {
    pub data: Data,
    pub run: Run,
    pub memory: Memory,
    /// How many starts may still fail with a whole copy of the primary's data, with which the server has yet to stream; 0 if the data that is
    /// being overwritten is no such copy. A wrapper that starts again does not know of it, and copies once more.
    pub copied: u16,
    /// The last permission by which this process has made the data a whole copy; 0 if it has not.
    pub overwritten: Permission,
    /// Whether the domain lets the server start.
    pub may_start: bool,
    /// Set if the data cannot follow a primary.
    pub unfit: Option<Unfit>,
    /// Whether the server was promoted by other means than a grant: what it has written since is in no history.
    pub outside: Outside,
    /// The highest generation that was granted to this server and that it gave up before it took it up; 0 if none. This process never
    /// takes it up.
    pub gave_up: Generation,
    /// Whether the pod is to end.
    pub stopping: bool,
    /// Whether what is mounted has changed since the server uses it.
    pub stale: bool,
    /// Whether the server was told to shut down by other means, and lets no new session in.
    pub shuts_down: bool,
    /// Whether no client can connect, since sessions cannot load a library of the user's parameters.
    pub keeps_out: bool,
    /// The lease of a primary.
    pub lease: Held,
}

/// Why the data cannot follow the primary of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub generation: Generation,
    pub why: String,
    /// Whether it is not a part of the primary's history, so that a rewind may help.
    pub forked: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Initialize,
    StartFenced,
    /// Stop at once: another primary was granted, the data has to be overwritten, or the server hangs.
    Stop,
    /// Take up a generation, and be promoted in it.
    Promote(Rule),
    /// Have the first record confirmed.
    Establish,
    Open,
    /// Let no client in, and end their sessions: the lease is over.
    Close,
    /// Make what the Secrets ask for.
    Prepare,
    /// Keep the log for the servers of these archives, and let them connect.
    KeepLog(Vec<ArchiveId>),
    /// Change the rule.
    Require(Rule),
    /// Have commits wait until a rule with members is in force.
    HoldCommits,
    /// Write a checkpoint and close, before the server stands down.
    Retire,
    StandDown,
    Follow {
        generation: Generation,
        source: Source,
        history: Vec<Begins>,
    },
    /// Replace the data, and follow with it.
    Overwrite {
        permission: Permission,
        generation: Generation,
        source: Source,
        history: Vec<Begins>,
        rewind: bool,
    },
    /// Note that a permission is used no more.
    Return(Permission),
    AdmitReaders,
    /// Use what is mounted now.
    Refresh,
}

impl Step {
    /// Whether it waits for others, so that it is dropped if another step is wanted instead.
    pub fn waits(&self) -> bool {
        matches!(self, Self::Establish | Self::Require(_) | Self::Prepare | Self::Refresh)
    }

    /// Whether it is dropped so that a primary can close whose lease is over. What is to end the server comes to that as well.
    pub fn gives_way(&self) -> bool {
        matches!(self, Self::Open | Self::KeepLog(_) | Self::HoldCommits | Self::Retire)
    }

    /// Whether a server whose pod is to end still begins it: what a hand-over needs, and what is decided to come before that. One that
    /// must not serve any more stops at once, and not when its pod ends: until then clients would see what is old.
    fn hands_over(&self) -> bool {
        matches!(
            self,
            Self::Stop
                | Self::KeepLog(_)
                | Self::Establish
                | Self::Open
                | Self::Close
                | Self::Require(_)
                | Self::Retire
                | Self::StandDown
        )
    }
}

impl State {
    /// That of a server that does not run, before the domain has said anything of it.
    pub fn down(data: Data, memory: Memory, outside: Outside) -> Self {
        Self {
            data,
            run: Run::Down,
            memory,
            copied: 0,
            overwritten: Permission(0),
            may_start: false,
            unfit: None,
            outside,
            gave_up: Generation(0),
            stopping: false,
            stale: false,
            shuts_down: false,
            keeps_out: false,
            lease: Held::default(),
        }
    }

    /// Whether the data lacks a part.
    fn is_incomplete(&self) -> bool {
        self.memory.overwriting && self.copied == 0
    }
}

/// For the primary of which generation the data has to be overwritten, and why.
pub fn needed(state: &State, wanted: &Assignment) -> Option<(Generation, String)> {
    let Wanted::Follow { generation, permission, discard, .. } = &wanted.what else { return None };
    let follows = matches!(state.run, Run::Follows { .. });
    let why = if is_given_up(state, *permission, *discard) {
        "an operator gave up its data"
    } else if state.outside != Outside::No {
        PROMOTED_OUTSIDE
    } else if state.data == Data::Empty {
        "its volume is empty"
    } else if state.is_incomplete() && !follows {
        "the overwrite of its data was interrupted"
    } else {
        return state.unfit.clone().map(|unfit| (unfit.generation, unfit.why));
    };
    Some((*generation, why.to_owned()))
}

/// Whether an operator gave up the data, and it was not copied since: once by a permission.
fn is_given_up(state: &State, permission: Option<Permission>, discard: bool) -> bool {
    discard && permission.is_none_or(|permission| permission > state.overwritten)
}

/// Whether the server is a primary that lets no client in, since nothing has renewed its lease.
pub(super) fn is_closed(state: &State) -> bool {
    matches!(&state.run, Run::Primary(primary) if !primary.open) && !state.lease.holds
}

/// What becomes of the step that is under way, if one is.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing changes.
    Stay,
    /// It is dropped, and this step begins, if any; or why none does.
    Instead(Result<Option<Step>, String>),
}

/// What to do while a step is under way or none is. A step that waits for others is dropped if another one is wanted instead. `pauses`:
/// one has failed a moment ago.
pub fn choose(state: &State, wanted: &Assignment, under: Option<&Step>, pauses: bool) -> Choice {
    let step = next(state, wanted);
    let is_strange = state.outside == Outside::Runs || state.shuts_down;
    let hangs = hangs(state, wanted) || (is_strange && matches!(step, Ok(Some(Step::Stop))));
    let closes = matches!(step, Ok(Some(Step::Close)));
    if pauses && !closes && !hangs {
        return Choice::Stay;
    }
    // `next` may refuse the step that is under way, such as a promotion that the volume already remembers: that is no error.
    let stays = |under: &Step| {
        let gives_way = under.waits() || (closes && under.gives_way()) || hangs || is_withdrawn(under, wanted, &step);
        !gives_way || matches!(&step, Ok(Some(step)) if step == under)
    };
    if under.is_some_and(stays) { Choice::Stay } else { Choice::Instead(step) }
}

/// Whether a step that may last long, on a slow disk or with a silent source, has lost its purpose.
fn is_withdrawn(under: &Step, wanted: &Assignment, step: &Result<Option<Step>, String>) -> bool {
    match under {
        // Its checkpoint may last for minutes, in which the rule may have to change, or the switchover is given up.
        Step::Retire => !matches!(step, Ok(Some(Step::Retire | Step::StandDown))),
        // The connection to a server that is frozen stays.
        Step::Overwrite { generation: from, .. } => {
            matches!(&wanted.what, Wanted::Follow { generation, .. } if generation > from)
        }
        _ => false,
    }
}

/// The next step; `None` if there is nothing to do, or the server may not do what is wanted: `Err` says why.
pub(super) fn next(state: &State, wanted: &Assignment) -> Result<Option<Step>, String> {
    let step = step(state, wanted)?;
    // Nothing that a role needs waits for it.
    let refresh = || (state.stale && state.run != Run::Down).then_some(Step::Refresh);
    Ok(step.or_else(refresh).filter(|step| !state.stopping || step.hands_over()))
}

fn step(state: &State, wanted: &Assignment) -> Result<Option<Step>, String> {
    if hangs(state, wanted) || (state.shuts_down && state.run != Run::Down) {
        return Ok(Some(Step::Stop));
    }
    if state.outside == Outside::Runs && matches!(state.run, Run::Fenced | Run::Follows { .. }) {
        return Ok(Some(Step::Stop));
    }
    let step = wanted_step(state, wanted);
    // Whatever else is wanted: what clients see may be old.
    let closes = matches!(&state.run, Run::Primary(primary) if primary.admits && !state.lease.holds);
    if closes && !matches!(step, Ok(Some(Step::Stop))) { Ok(Some(Step::Close)) } else { step }
}

/// Whether the server is a primary that does not answer, and another one takes over once it has ended. Otherwise it would only be the next
/// primary itself.
pub(super) fn hangs(state: &State, wanted: &Assignment) -> bool {
    state.lease.stalled && wanted.replaceable && matches!(state.run, Run::Primary(_))
}

fn wanted_step(state: &State, wanted: &Assignment) -> Result<Option<Step>, String> {
    match &wanted.what {
        Wanted::Initialize if state.data == Data::Empty && state.may_start => Ok(Some(Step::Initialize)),
        Wanted::Initialize => Ok(started(state)),
        Wanted::Hold(current) => match &state.run {
            // Another one was granted: it could acknowledge nothing more, and would show what is old.
            Run::Primary(primary) if primary.begins.generation < *current => Ok(Some(Step::Stop)),
            // Its data counts no more: it would confirm commits to the old primary, and show an old history to readers.
            Run::Follows { generation, .. } if generation < current && !state.may_start => Ok(Some(Step::Stop)),
            _ => Ok(started(state)),
        },
        Wanted::Primary { rule, blocks, stand_down, standbys, lease_ms: _, wait_ms: _ } => {
            lead(state, rule, *blocks, *stand_down, standbys)
        }
        Wanted::Follow { generation, source, history, permission, discard } => {
            follows(state, *generation, source, history, *permission, *discard)
        }
    }
}

/// A server with data runs, as a standby that follows no server if nothing else is wanted.
pub fn started(state: &State) -> Option<Step> {
    let has_data = state.data != Data::Empty && !state.is_incomplete() && state.may_start;
    (state.run == Run::Down && has_data).then_some(Step::StartFenced)
}

fn lead(
    state: &State,
    rule: &Rule,
    blocks: bool,
    stand_down: bool,
    standbys: &[ArchiveId],
) -> Result<Option<Step>, String> {
    // A rule without members is not obeyed where commits have to wait.
    let waits = blocks && rule.members.is_empty();
    if let Run::Primary(primary) = &state.run
        && primary.begins.generation == rule.generation
    {
        return Ok(if stand_down {
            Some(if primary.admits { Step::Retire } else { Step::StandDown })
        } else if primary.slots != standbys {
            Some(Step::KeepLog(standbys.to_vec()))
        } else {
            of_primary(primary, rule, waits, state.lease)
        });
    }
    if let Run::Primary(_) = state.run {
        return Ok(Some(Step::Stop));
    }
    let mut memory = state.memory;
    if memory.taken_up == rule.generation || state.gave_up >= rule.generation {
        // It has ended, and the domain does not know it yet.
        return Ok(None);
    }
    memory.take_up(rule.generation).map_err(|why| why.to_string())?;
    if state.run == Run::Down {
        return Ok(started(state));
    }
    Ok(Some(Step::Promote(rule.clone())))
}

fn of_primary(primary: &Primary, rule: &Rule, waits: bool, lease: Held) -> Option<Step> {
    let known = |version: SetVersion| version >= rule.version;
    let newer = !known(primary.ruling.in_force.version)
        && primary.ruling.coming.as_ref().is_none_or(|coming| coming.version < rule.version);
    if (newer || primary.ruling.coming.is_some()) && !waits {
        return Some(Step::Require(rule.clone()));
    }
    if waits {
        // It was alone before it was told to block.
        let alone = primary.ruling.coming.is_none() && primary.ruling.in_force.members.is_empty();
        if primary.open && alone {
            return Some(Step::HoldCommits);
        }
        // Standbys connect as a role that has to be there; nothing that is written for it counts.
        return (!primary.prepared).then_some(Step::Prepare);
    }
    match primary {
        Primary { established: false, .. } => Some(Step::Establish),
        Primary { open: false, .. } if lease.holds && lease.may_open => Some(Step::Open),
        Primary { prepared: false, .. } => Some(Step::Prepare),
        Primary { .. } => None,
    }
}

fn follows(
    state: &State,
    generation: Generation,
    source: &Source,
    history: &[Begins],
    permission: Option<Permission>,
    discard: bool,
) -> Result<Option<Step>, String> {
    let mut memory = state.memory;
    memory.follow(generation).map_err(|why| why.to_string())?;
    let usable = permission.filter(|permission| *permission > state.memory.returned);
    let unfit = state.unfit.as_ref().filter(|unfit| unfit.generation == generation);
    let is_given_up = is_given_up(state, permission, discard);
    match &state.run {
        Run::Primary(_) => return Ok(Some(Step::Stop)),
        Run::Follows { generation: followed, source: from, readers }
            if *followed == generation && from == source && unfit.is_none() && !(is_given_up && usable.is_some()) =>
        {
            // It was not needed, or it was used and the data is whole again; until it streams that is not known.
            let whole = !state.memory.overwriting;
            let returned = usable.filter(|_| whole).map(Step::Return);
            return Ok(returned.or_else(|| (*readers == Readers::May).then_some(Step::AdmitReaders)));
        }
        Run::Down | Run::Fenced | Run::Follows { .. } => {}
    }
    let outside = state.outside != Outside::No;
    if state.data == Data::Empty || state.is_incomplete() || unfit.is_some() || outside || is_given_up {
        // A rewind of data that is being replaced already would begin from what is left of it.
        let forked = unfit.is_some_and(|unfit| unfit.forked) && !outside;
        let rewind = state.data != Data::Empty && !state.memory.overwriting && !discard && forked;
        let (source, history) = (source.clone(), history.to_vec());
        let usable = usable.filter(|_| state.may_start);
        let overwrite = usable.map(|permission| Step::Overwrite { permission, generation, source, history, rewind });
        // Until it may: clients that go through a list of servers pass over one that does not listen, and stop at one that turns
        // them away.
        return Ok(overwrite.or_else(|| (state.run != Run::Down).then_some(Step::Stop)));
    }
    if state.run == Run::Down {
        return Ok(started(state));
    }
    Ok(Some(Step::Follow { generation, source: source.clone(), history: history.to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Reading;
    use crate::roles::declines::{FAILS, LONG, START_LIMIT, Tries, declined, ended};
    use crate::roles::noted::*;
    use crate::roles::perform::Outcome;
    use kaa_core::domain::replicated::Ended;
    use std::time::Duration;
    use tokio::time::Instant;

    const DATA: Data = Data::Initialized { system: 7, timeline: 2, highest: 2, major: 15, checkpoint: Position(0) };

    fn state(run: Run) -> State {
        let lease = Held { holds: true, may_open: true, stalled: false };
        State { run, may_start: true, lease, ..State::down(DATA, Memory::default(), Outside::No) }
    }

    fn unfit(why: &str, forked: bool) -> Unfit {
        Unfit { generation: Generation(3), why: why.to_owned(), forked }
    }

    fn rule(generation: u64, version: u64, members: &[u64]) -> Rule {
        let members = members.iter().copied().map(ArchiveId).collect();
        Rule { generation: Generation(generation), version: SetVersion(version), members }
    }

    fn primary(version: u64, members: &[u64], established: bool, open: bool) -> Run {
        let begins = Begins { generation: Generation(3), parent: Generation(2), at: Position(9) };
        let ruling = Ruling::begin(rule(3, version, members), 10);
        Run::Primary(Box::new(Primary {
            begins,
            ruling,
            stopped_ms: 0,
            established,
            open,
            admits: open,
            prepared: true,
            slots: Vec::new(),
            ancestors: Vec::new(),
        }))
    }

    fn lead(rule: Rule) -> Assignment {
        let what = Wanted::Primary {
            rule,
            blocks: false,
            stand_down: false,
            standbys: Vec::new(),
            lease_ms: 2_500,
            wait_ms: 0,
        };
        assigned(what)
    }

    fn assigned(what: Wanted) -> Assignment {
        Assignment { what, may_start: true, may_stop: false, replaceable: true }
    }

    fn stand_down() -> Assignment {
        assigned(Wanted::Primary {
            rule: rule(3, 4, &[2]),
            blocks: false,
            stand_down: true,
            standbys: Vec::new(),
            lease_ms: 2_500,
            wait_ms: 0,
        })
    }

    #[test]
    fn what_takes_long_and_is_not_wanted_any_more_is_dropped() {
        let chosen = |state: &State, wanted: &Assignment, under: &Step| choose(state, wanted, Some(under), false);
        let mut at = state(primary(4, &[2], true, true));
        assert_eq!(chosen(&at, &stand_down(), &Step::Retire), Choice::Stay);
        let requires = Choice::Instead(Ok(Some(Step::Require(rule(3, 5, &[6])))));
        assert_eq!(chosen(&at, &lead(rule(3, 5, &[6])), &Step::Retire), requires, "the switchover is given up");
        note_dropped(&mut at, &Step::Retire);
        assert_eq!(said(&at, &lead(rule(3, 4, &[2]))), "Establish", "clients may be refused already: it opens again");
        assert_eq!(chosen(&at, &stand_down(), &Step::Establish), Choice::Instead(Ok(Some(Step::Retire))));
        at.lease.holds = false;
        assert_eq!(said(&at, &lead(rule(3, 4, &[2]))), "Close", "clients may be served still");

        let mut at = state(Run::Down);
        at.memory.overwriting = true;
        let Choice::Instead(Ok(Some(copy))) = choose(&at, &follow(3, Some(7)), None, false) else { panic!("a copy") };
        assert_eq!(chosen(&at, &follow(3, Some(7)), &copy), Choice::Stay);
        let again = chosen(&at, &follow(4, Some(7)), &copy);
        let is_copy = matches!(&again, Choice::Instead(Ok(Some(Step::Overwrite { generation: Generation(4), .. }))));
        assert!(is_copy, "its source may be frozen: {again:?}");
    }

    #[test]
    fn data_is_whole_once_it_streams_and_not_while_it_is_overwritten_again() {
        let mut copied = state(follows(3));
        copied.memory.overwriting = true;
        let Choice::Instead(Ok(Some(again))) = choose(&copied, &follow(4, Some(7)), None, false) else {
            panic!("a copy")
        };
        assert!(matches!(again, Step::Overwrite { .. }), "{again:?}");
        let streams = Reading { streams_from: Some(3), timeline: 3, ..Reading::of_test() };
        assert!(!note_reading(&mut copied, &streams, Some(&again)).whole, "a reading of the server before");
        assert!(note_reading(&mut copied, &streams, None).whole);
    }

    #[test]
    fn a_primary_lets_clients_in_only_while_its_lease_holds() {
        let leased = |open, holds, may_open| State {
            lease: Held { holds, may_open, stalled: false },
            ..state(primary(4, &[2], true, open))
        };
        let lead = lead(rule(3, 4, &[2]));
        assert_eq!(said(&leased(true, true, true), &lead), "nothing");
        assert_eq!(said(&leased(true, false, true), &lead), "Close");
        assert_eq!(
            said(&leased(true, false, true), &assigned(Wanted::Hold(Generation(3)))),
            "Close",
            "whatever is wanted"
        );
        assert_eq!(said(&leased(true, false, true), &stand_down()), "Close");
        assert_eq!(
            said(&leased(true, false, true), &assigned(Wanted::Hold(Generation(4)))),
            "Stop",
            "another was granted"
        );
        assert_eq!(said(&leased(false, false, true), &lead), "nothing");
        assert_eq!(said(&leased(false, true, false), &lead), "nothing", "an earlier lease may last");
        assert_eq!(said(&leased(false, true, true), &lead), "Open", "in the same generation");
        assert!(is_closed(&leased(false, false, true)));
        assert!(
            !is_closed(&leased(false, true, false)) && !is_closed(&leased(true, false, true)),
            "it waits, or closes"
        );
    }

    #[test]
    fn a_primary_that_hangs_is_stopped_if_another_may_take_over() {
        let stalled = |run| State { lease: Held { holds: true, may_open: true, stalled: true }, ..state(run) };
        let both = lead(rule(3, 4, &[2]));
        assert_eq!(said(&stalled(primary(4, &[2], true, true)), &both), "Stop");
        assert_eq!(said(&State { stopping: true, ..stalled(primary(4, &[2], true, true)) }, &both), "Stop");
        let alone = Assignment { replaceable: false, ..both.clone() };
        assert_eq!(said(&stalled(primary(4, &[2], true, true)), &alone), "nothing", "no other one would take over");
        assert_eq!(said(&stalled(Run::Fenced), &assigned(Wanted::Hold(Generation(3)))), "nothing");
    }

    fn source(archive: u64) -> Source {
        Source { archive: ArchiveId(archive), host: "shop-1".to_owned(), address: "10.0.0.1".to_owned(), port: 5432 }
    }

    fn follow(generation: u64, permission: Option<u64>) -> Assignment {
        let what = Wanted::Follow {
            generation: Generation(generation),
            source: source(1),
            history: Vec::new(),
            permission: permission.map(Permission),
            discard: false,
        };
        assigned(what)
    }

    fn follows(generation: u64) -> Run {
        Run::Follows { generation: Generation(generation), source: source(1), readers: Readers::No }
    }

    /// The step in one word, or why there is none.
    fn said(state: &State, wanted: &Assignment) -> String {
        match next(state, wanted) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(step)) => format!("{step:?}").split([' ', '(', '{']).next().unwrap().to_owned(),
            Err(why) => why,
        }
    }

    #[test]
    fn every_start_is_a_start_as_a_standby_that_follows_no_server() {
        for wanted in [lead(rule(3, 1, &[])), follow(3, None), assigned(Wanted::Hold(Generation(3)))] {
            assert_eq!(said(&state(Run::Down), &wanted), "StartFenced", "{wanted:?}");
        }
        let empty = State { data: Data::Empty, ..state(Run::Down) };
        assert_eq!(said(&empty, &assigned(Wanted::Initialize)), "Initialize");
        assert_eq!(said(&empty, &assigned(Wanted::Hold(Generation(3)))), "nothing");
        assert_eq!(said(&empty, &lead(rule(3, 1, &[]))), "nothing", "there is nothing to promote");
    }

    #[test]
    fn a_grant_leads_to_an_open_primary() {
        let wanted = lead(rule(3, 4, &[2]));
        assert_eq!(said(&state(Run::Fenced), &wanted), "Promote");
        assert_eq!(said(&state(follows(2)), &wanted), "Promote");
        assert_eq!(said(&state(primary(4, &[2], false, false)), &wanted), "Establish");
        assert_eq!(said(&state(primary(4, &[2], true, false)), &wanted), "Open");
        assert_eq!(said(&state(primary(4, &[2], true, true)), &wanted), "nothing");
        assert_eq!(said(&state(primary(4, &[2], true, true)), &lead(rule(3, 3, &[]))), "nothing", "an older version");
        assert_eq!(
            said(&state(primary(4, &[2], false, false)), &lead(rule(3, 5, &[]))),
            "Require",
            "its member is gone"
        );
        assert_eq!(said(&state(primary(4, &[2], true, true)), &lead(rule(4, 5, &[2]))), "Stop");
    }

    #[test]
    fn a_generation_is_taken_up_once() {
        let memory = Memory { taken_up: Generation(3), ..Memory::default() };
        let after_a_crash = State { memory, ..state(Run::Fenced) };
        assert_eq!(said(&after_a_crash, &lead(rule(3, 4, &[]))), "nothing", "the domain is told that it has ended");
        assert!(said(&after_a_crash, &lead(rule(2, 4, &[]))).contains("generation 3 before"));
        assert_eq!(said(&after_a_crash, &lead(rule(4, 5, &[]))), "Promote");
        assert!(said(&after_a_crash, &follow(3, None)).contains("generation 3 before"));
    }

    #[test]
    fn a_primary_that_blocks_does_not_continue_alone() {
        let blocks = |version, members: &[u64]| {
            assigned(Wanted::Primary {
                rule: rule(3, version, members),
                blocks: true,
                stand_down: false,
                standbys: Vec::new(),
                lease_ms: 2_500,
                wait_ms: 0,
            })
        };
        assert_eq!(said(&state(primary(4, &[], false, false)), &blocks(4, &[])), "nothing");
        assert_eq!(
            said(&state(primary(4, &[2], true, true)), &blocks(5, &[])),
            "nothing",
            "it still requires archive 2"
        );
        assert_eq!(said(&state(primary(4, &[2], true, true)), &blocks(6, &[3])), "Require");
    }

    #[test]
    fn a_primary_that_is_alone_when_it_is_told_to_block_holds_its_commits_until_it_is_told_otherwise() {
        let told = |version, members: &[u64], blocks| {
            let rule = rule(3, version, members);
            assigned(Wanted::Primary {
                rule,
                blocks,
                stand_down: false,
                standbys: Vec::new(),
                lease_ms: 2_500,
                wait_ms: 0,
            })
        };
        let mut alone = state(primary(4, &[], true, true));
        assert_eq!(said(&alone, &told(4, &[], false)), "nothing");
        assert_eq!(said(&alone, &told(4, &[], true)), "HoldCommits");
        let Run::Primary(primary) = &mut alone.run else { panic!("a primary") };
        primary.ruling.doubt();
        assert_eq!(said(&alone, &told(4, &[], true)), "nothing");
        assert_eq!(said(&alone, &told(4, &[], false)), "Require", "of the rule that it has: it releases again");
        assert_eq!(said(&alone, &told(5, &[2], true)), "Require");
    }

    #[test]
    fn a_server_that_was_told_to_shut_down_is_stopped_whether_another_one_takes_over_or_not() {
        for (run, wanted) in [(primary(4, &[2], true, true), lead(rule(3, 4, &[2]))), (follows(3), follow(3, None))] {
            let mut told = State { shuts_down: true, ..state(run.clone()) };
            assert_eq!(said(&told, &wanted), "Stop");
            assert_eq!(choose(&told, &wanted, Some(&Step::Refresh), true), Choice::Instead(Ok(Some(Step::Stop))));
            note_done(&mut told, &Step::Stop, &Ok(Outcome::default()), Run::Down);
            assert!(!told.shuts_down, "the next one was told nothing");
        }
        let down = State { shuts_down: true, ..state(Run::Down) };
        assert_eq!(said(&down, &follow(3, None)), "StartFenced");
    }

    #[test]
    fn a_standby_stops_to_confirm_for_an_old_primary_if_its_data_counts_no_more() {
        let hold = assigned(Wanted::Hold(Generation(3)));
        let given_up = State { may_start: false, ..state(follows(2)) };
        assert_eq!(said(&given_up, &hold), "Stop");
        assert_eq!(said(&State { run: Run::Down, ..given_up }, &hold), "nothing");
        assert_eq!(said(&state(follows(2)), &hold), "nothing", "the next primary is not promoted yet");
    }

    #[test]
    fn what_is_mounted_is_used_once_nothing_else_is_to_be_done() {
        let stale = |run| State { stale: true, ..state(run) };
        assert_eq!(said(&stale(primary(4, &[2], true, true)), &lead(rule(3, 4, &[2]))), "Refresh");
        assert_eq!(said(&stale(primary(4, &[2], true, true)), &lead(rule(3, 5, &[]))), "Require", "its member is gone");
        assert_eq!(said(&stale(follows(3)), &follow(3, None)), "Refresh");
        assert_eq!(said(&stale(Run::Down), &assigned(Wanted::Hold(Generation(3)))), "StartFenced", "a start uses it");
        let leaves = State { stopping: true, ..stale(primary(4, &[2], true, true)) };
        assert_eq!(said(&leaves, &lead(rule(3, 4, &[2]))), "nothing");
        // Its commits may wait for a member that is gone: it must not hold up the rule without that one.
        assert!(Step::Refresh.waits() && Step::Prepare.waits());
    }

    #[test]
    fn data_is_overwritten_with_a_permission_and_never_twice_with_one() {
        let cannot = State { unfit: Some(unfit("", true)), ..state(Run::Fenced) };
        assert_eq!(said(&state(Run::Fenced), &follow(3, None)), "Follow");
        assert_eq!(said(&cannot, &follow(3, None)), "Stop", "it would turn clients away that look for the primary");
        assert_eq!(said(&State { run: Run::Down, ..cannot.clone() }, &follow(3, None)), "nothing");
        assert_eq!(said(&cannot, &follow(3, Some(5))), "Overwrite");
        assert_eq!(said(&cannot, &follow(4, None)), "Follow", "another primary: it is compared again");
        let memory = Memory { returned: Permission(5), ..Memory::default() };
        assert_eq!(said(&State { memory, ..cannot }, &follow(3, Some(5))), "Stop");
        assert_eq!(said(&state(follows(3)), &follow(3, Some(5))), "Return", "it can stream");
        let memory = Memory { overwriting: true, ..Memory::default() };
        let copied = State { memory, ..state(follows(3)) };
        assert_eq!(said(&copied, &follow(3, Some(5))), "nothing", "it has not streamed with the new data yet");
        let empty = State { data: Data::Empty, ..state(Run::Down) };
        assert_eq!(said(&empty, &follow(3, Some(5))), "Overwrite");
        let memory = Memory { overwriting: true, ..Memory::default() };
        let half = State { memory, ..state(Run::Down) };
        assert_eq!(said(&half, &assigned(Wanted::Hold(Generation(3)))), "nothing", "incomplete data");
        match next(&half, &follow(3, Some(6))) {
            Ok(Some(Step::Overwrite { rewind, .. })) => assert!(!rewind),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_operator_has_the_data_of_a_standby_overwritten_once() {
        let discard = |permission: Option<u64>| {
            let mut wanted = follow(3, permission);
            if let Wanted::Follow { discard, .. } = &mut wanted.what {
                *discard = true;
            }
            wanted
        };
        assert_eq!(said(&state(Run::Down), &discard(None)), "nothing", "the domain knows nothing of it");
        let mut follows = state(follows(3));
        assert_eq!(needed(&follows, &discard(None)).unwrap().1, "an operator gave up its data");
        assert_eq!(said(&follows, &discard(None)), "nothing", "it follows until it may");
        let step = next(&follows, &discard(Some(5))).unwrap().unwrap();
        assert!(matches!(step, Step::Overwrite { rewind: false, .. }), "{step:?}");
        let run = follows.run.clone();
        note_begin(&mut follows, &step, 0);
        let mut rewound = follows.clone();
        note_done(&mut rewound, &step, &Ok(Outcome::default()), run.clone());
        assert_eq!(said(&rewound, &discard(Some(5))), "Overwrite", "a rewind leaves what is damaged");
        note_copied(&mut follows, &step);
        let mut fails = follows.clone();
        note_done(&mut fails, &step, &Err("no such library".to_owned()), Run::Down);
        assert_eq!(said(&fails, &discard(Some(5))), "StartFenced", "it is copied");
        note_done(&mut follows, &step, &Ok(Outcome::default()), run);
        assert_eq!(said(&follows, &discard(Some(5))), "Return");
        assert_eq!(needed(&follows, &discard(Some(5))), None, "no other permission is asked for");
        assert_eq!(said(&follows, &discard(Some(6))), "Overwrite", "another order");
    }

    #[test]
    fn a_copy_with_which_the_server_has_yet_to_stream_is_not_made_once_more() {
        let memory = Memory { overwriting: true, ..Memory::default() };
        let outside = Outside::Was;
        let mut made = State { memory, outside, unfit: Some(unfit("it has more", true)), ..state(Run::Down) };
        assert_eq!(said(&made, &follow(3, Some(5))), "Overwrite");
        let copies = next(&made, &follow(3, Some(5))).unwrap().unwrap();
        note_copied(&mut made, &copies);
        let fails = Err("no such library".to_owned());
        let mut damaged = made.clone();
        for _ in 0..STARTS {
            assert_eq!(said(&damaged, &follow(3, Some(5))), "StartFenced", "its start has failed");
            note_done(&mut damaged, &Step::StartFenced, &fails, Run::Down);
        }
        assert_eq!(said(&damaged, &follow(3, Some(5))), "Overwrite", "it may be damaged");
        assert_eq!(said(&State { run: Run::Fenced, ..made.clone() }, &follow(3, Some(5))), "Follow");
        let replays = State { run: follows(3), ..made.clone() };
        assert_eq!(said(&replays, &follow(3, Some(5))), "nothing", "its permission is in use");
        assert_eq!(said(&replays, &follow(4, Some(5))), "Follow", "another primary: it is compared");
        assert_eq!(needed(&made, &follow(4, None)), None);
        assert!(next(&made, &lead(rule(4, 1, &[]))).is_err(), "it has not streamed: what it lacks is not known");
        let compared = State { unfit: Some(unfit("it has more", true)), ..made.clone() };
        match next(&compared, &follow(3, Some(5))) {
            Ok(Some(Step::Overwrite { rewind, .. })) => assert!(!rewind, "the copy is of another history"),
            other => panic!("{other:?}"),
        }
        let step = next(&compared, &follow(3, Some(5))).unwrap().unwrap();
        note_begin(&mut made, &step, 0);
        assert_eq!(said(&made, &follow(4, None)), "nothing", "an interrupted copy is incomplete");
    }

    #[test]
    fn a_standby_whose_primary_has_removed_log_that_it_lacks_is_copied() {
        let mut lacks = state(follows(3));
        note_reading(&mut lacks, &Reading::of_test(), None);
        assert_eq!(said(&lacks, &follow(3, Some(5))), "Return", "it may stream later");
        note_reading(&mut lacks, &Reading { lacks_log: true, ..Reading::of_test() }, None);
        assert_eq!(needed(&lacks, &follow(3, None)).unwrap().1, "its primary has removed log that it lacks");
        assert_eq!(said(&lacks, &follow(3, None)), "Stop", "readers would see what is old");
        match next(&lacks, &follow(3, Some(5))) {
            Ok(Some(Step::Overwrite { rewind, .. })) => assert!(!rewind, "it is not forked: nothing would be changed"),
            other => panic!("{other:?}"),
        }
        assert_eq!(said(&lacks, &follow(4, None)), "Follow", "another primary may have it");
        let memory = Memory { overwriting: true, ..Memory::default() };
        assert_eq!(said(&State { memory, ..lacks }, &follow(3, Some(5))), "Overwrite", "the copy has taken too long");
    }

    #[test]
    fn a_server_that_stood_down_is_not_said_to_have_failed() {
        let stood_down = Some((Generation(3), Ended::StoodDown));
        assert_eq!(ended(stood_down, Some(Generation(3))), stood_down);
        assert_eq!(ended(stood_down, Some(Generation(4))), Some((Generation(4), Ended::Failed)));
        assert_eq!(ended(None, Some(Generation(4))), Some((Generation(4), Ended::Failed)));
        assert_eq!(ended(stood_down, None), stood_down);
    }

    #[test]
    fn a_server_whose_pod_is_to_end_begins_only_what_a_hand_over_needs() {
        let stopping = |run| State { stopping: true, ..state(run) };
        for wanted in [lead(rule(3, 1, &[])), follow(3, None), assigned(Wanted::Hold(Generation(3)))] {
            assert_eq!(said(&stopping(Run::Down), &wanted), "nothing", "{wanted:?}");
            assert_eq!(said(&stopping(Run::Fenced), &wanted), "nothing", "{wanted:?}");
        }
        assert_eq!(said(&stopping(primary(4, &[2], true, true)), &lead(rule(3, 5, &[2, 3]))), "Require");
        assert_eq!(said(&stopping(primary(4, &[2], true, false)), &lead(rule(3, 4, &[2]))), "Open");
        assert_eq!(said(&stopping(primary(4, &[2], true, true)), &stand_down()), "Retire");
        assert_eq!(said(&stopping(primary(4, &[2], true, false)), &stand_down()), "StandDown");
    }

    #[test]
    fn what_is_under_way_gives_way_to_what_is_wanted_instead_if_it_may() {
        let chosen =
            |state: &State, wanted: &Assignment, under: Step, pauses| match choose(state, wanted, Some(&under), pauses)
            {
                Choice::Stay => "it stays".to_owned(),
                Choice::Instead(Ok(Some(step))) => step.name().to_owned(),
                Choice::Instead(other) => format!("{other:?}"),
            };
        let leads = lead(rule(3, 4, &[2]));
        let over = Held { holds: false, may_open: true, stalled: false };
        let closes = State { lease: over, ..state(primary(4, &[2], true, true)) };
        assert_eq!(chosen(&closes, &leads, Step::Open, true), "close", "and no pause counts");
        assert_eq!(chosen(&closes, &leads, Step::Require(rule(3, 5, &[2])), false), "close", "it waits for others");
        assert_eq!(chosen(&closes, &leads, Step::Close, false), "it stays");
        assert_eq!(chosen(&closes, &leads, Step::StandDown, false), "it stays", "it ends the server anyway");
        let hangs = State { lease: Held { holds: true, stalled: true, ..over }, ..closes };
        assert_eq!(chosen(&hangs, &leads, Step::StandDown, true), "stop");
        assert_eq!(chosen(&hangs, &leads, Step::Stop, false), "it stays");
        let serves = state(primary(4, &[2], true, true));
        assert_eq!(chosen(&serves, &assigned(Wanted::Hold(Generation(4))), Step::Prepare, false), "stop");
        assert_eq!(
            chosen(&serves, &assigned(Wanted::Hold(Generation(4))), Step::Prepare, true),
            "it stays",
            "it has failed"
        );
        assert_eq!(chosen(&serves, &leads, Step::Establish, false), "Ok(None)", "it is not wanted any more");
    }

    #[test]
    fn the_end_of_a_primary_is_noted_with_how_it_ended() {
        let ended = |step: Step, result: Result<Outcome, String>, run: Run| {
            let mut state = state(primary(4, &[2], true, true));
            note_done(&mut state, &step, &result, run)
        };
        let ok = || Ok(Outcome::default());
        assert_eq!(ended(Step::StandDown, ok(), Run::Down), Some((Generation(3), Ended::StoodDown)));
        assert_eq!(ended(Step::StandDown, Err("stuck".to_owned()), Run::Down), Some((Generation(3), Ended::Failed)));
        assert_eq!(ended(Step::Stop, ok(), Run::Down), Some((Generation(3), Ended::Failed)));
        assert_eq!(ended(Step::Close, ok(), primary(4, &[2], true, false)), None, "in the same generation");
    }

    #[test]
    fn an_old_primary_stops_at_once_although_its_pod_is_to_end() {
        let stopping = |holds| {
            let lease = Held { holds, may_open: true, stalled: false };
            State { stopping: true, lease, ..state(primary(4, &[2], true, true)) }
        };
        let granted = [assigned(Wanted::Hold(Generation(4))), follow(4, None)];
        for (wanted, holds) in granted.iter().flat_map(|wanted| [(wanted, true), (wanted, false)]) {
            assert_eq!(said(&stopping(holds), wanted), "Stop", "{wanted:?}, the lease holds: {holds}");
        }
    }

    #[test]
    fn a_grant_that_comes_to_nothing_here_is_declined() {
        let wanted = lead(rule(3, 4, &[]));
        assert_eq!(declined(&state(Run::Fenced), &wanted, None), None, "it is to be promoted");
        let memory = Memory { taken_up: Generation(3), ..Memory::default() };
        let crashed = State { memory, ..state(Run::Fenced) };
        assert_eq!(declined(&crashed, &wanted, None), Some(Generation(3)));
        assert_eq!(declined(&crashed, &wanted, Some(&Step::Promote(rule(3, 4, &[])))), None, "it is being promoted");
        assert_eq!(declined(&State { memory, ..state(primary(4, &[], true, true)) }, &wanted, None), None);
        let stopping = State { stopping: true, ..state(Run::Fenced) };
        assert_eq!(declined(&stopping, &wanted, None), Some(Generation(3)), "its pod ends");
        assert_eq!(declined(&stopping, &follow(3, None), None), None);
    }

    #[test]
    fn a_grant_that_fails_again_and_again_is_given_up_for_good() {
        let (wanted, mut fails) = (lead(rule(3, 4, &[])), state(Run::Down));
        let (mut tries, now) = (Tries::default(), Instant::now());
        for _ in 1..FAILS {
            tries.failed(&mut fails, &wanted, now);
        }
        assert_eq!((declined(&fails, &wanted, None), said(&fails, &wanted)), (None, "StartFenced".to_owned()));
        let alone = Assignment { replaceable: false, ..wanted.clone() };
        let (mut tries_on, mut more) = (fails.clone(), Tries::default());
        (0..2 * FAILS).for_each(|_| more.failed(&mut tries_on, &alone, now + LONG));
        assert_eq!(declined(&tries_on, &alone, None), None, "no other one would get it");
        tries.failed(&mut fails, &wanted, now);
        assert_eq!(
            (declined(&fails, &wanted, None), said(&fails, &wanted)),
            (Some(Generation(3)), "nothing".to_owned())
        );
        let starts = State { run: Run::Fenced, ..fails.clone() };
        assert_eq!(said(&starts, &wanted), "nothing", "another server may have been granted the next one");
        assert_eq!(said(&fails, &assigned(Wanted::Hold(Generation(3)))), "StartFenced", "it is tried again");
        assert_eq!(said(&starts, &lead(rule(4, 5, &[]))), "Promote", "a later one");
        (0..FAILS).for_each(|_| tries.failed(&mut fails, &follow(5, None), now));
        assert_eq!(fails.gave_up, Generation(3), "no grant");
    }

    #[test]
    fn a_grant_that_has_come_to_nothing_for_long_is_given_up_with_the_next_failure() {
        let (wanted, granted) = (lead(rule(3, 4, &[])), Instant::now());
        for (after, gives_up) in [(LONG - Duration::from_millis(1), false), (LONG, true)] {
            let (mut fails, mut tries) = (state(Run::Down), Tries::default());
            tries.look(&mut fails, &wanted, granted);
            tries.look(&mut fails, &wanted, granted + 2 * LONG);
            assert_eq!(declined(&fails, &wanted, None), None, "it has not failed");
            tries.failed(&mut fails, &wanted, granted + after);
            assert_eq!(declined(&fails, &wanted, None).is_some(), gives_up, "{after:?}");
        }
        let alone = Assignment { replaceable: false, ..wanted.clone() };
        let (mut fails, mut tries) = (state(Run::Down), Tries::default());
        tries.look(&mut fails, &alone, granted);
        tries.failed(&mut fails, &alone, granted + LONG);
        tries.look(&mut fails, &wanted, granted + 2 * LONG);
        assert_eq!(declined(&fails, &wanted, None), None, "its next try may succeed before another one takes over");
    }

    #[test]
    fn a_grant_to_a_server_that_does_not_start_is_given_up_and_it_has_longer_the_next_time() {
        let (wanted, granted, moment) = (lead(rule(3, 4, &[])), Instant::now(), Duration::from_millis(1));
        let gives_up = |at: &mut State, tries: &mut Tries, wanted: &Assignment, after: Duration| {
            tries.look(at, wanted, granted + after);
            declined(at, wanted, Some(&Step::StartFenced)).is_some()
        };
        let (mut at, mut tries) = (state(Run::Down), Tries::default());
        assert!(!gives_up(&mut at, &mut tries, &wanted, Duration::ZERO));
        assert!(!gives_up(&mut at, &mut tries, &wanted, START_LIMIT - moment));
        assert!(gives_up(&mut at, &mut tries, &wanted, START_LIMIT));
        let next = lead(rule(5, 6, &[]));
        assert!(!gives_up(&mut at, &mut tries, &next, START_LIMIT));
        assert!(!gives_up(&mut at, &mut tries, &next, 3 * START_LIMIT - moment), "the others may be as slow");
        assert!(gives_up(&mut at, &mut tries, &next, 3 * START_LIMIT));

        let alone = Assignment { replaceable: false, ..wanted.clone() };
        for (run, may_start, before) in
            [(Run::Fenced, true, &wanted), (Run::Down, false, &wanted), (Run::Down, true, &alone)]
        {
            let (mut at, mut tries) = (State { may_start, ..state(run) }, Tries::default());
            assert!(!gives_up(&mut at, &mut tries, before, Duration::ZERO));
            assert!(!gives_up(&mut at, &mut tries, before, START_LIMIT), "{:?}", at.run);
            at.may_start = true;
            assert!(!gives_up(&mut at, &mut tries, &wanted, START_LIMIT), "{:?}", at.run);
        }
    }

    #[test]
    fn a_standby_that_was_promoted_from_outside_stops_and_is_copied() {
        let promoted = Reading { in_recovery: false, ..Reading::of_test() };
        for run in [Run::Fenced, follows(3)] {
            let (mut standby, mut tries) = (state(run), Tries::default());
            let wanted = follow(3, Some(5));
            note_reading(&mut standby, &promoted, Some(&Step::Promote(rule(4, 1, &[]))));
            assert_ne!(said(&standby, &wanted), "Stop", "by its grant");
            note_reading(&mut standby, &promoted, None);
            assert_eq!(said(&standby, &wanted), "Stop");
            assert_eq!(
                choose(&standby, &wanted, Some(&Step::AdmitReaders), true),
                Choice::Instead(Ok(Some(Step::Stop)))
            );
            assert_eq!(choose(&standby, &wanted, Some(&Step::Stop), true), Choice::Stay);
            assert_eq!(said(&standby, &assigned(Wanted::Hold(Generation(3)))), "Stop", "whatever is wanted");
            note_done(&mut standby, &Step::Stop, &Ok(Outcome::default()), Run::Down);
            assert!(needed(&standby, &wanted).unwrap().1.starts_with("it was promoted, and not by Kaa"));
            assert_eq!(said(&standby, &follow(3, None)), "nothing", "not without a permission");
            standby.unfit = Some(unfit("it has more", true));
            match next(&standby, &wanted) {
                Ok(Some(Step::Overwrite { rewind, .. })) => assert!(!rewind, "its timeline may have a number of Kaa's"),
                other => panic!("{other:?}"),
            }
            let hold = assigned(Wanted::Hold(Generation(3)));
            assert_eq!(said(&standby, &hold), "StartFenced", "no primary is there: it is not lost");
            note_begin(&mut standby, &Step::StartFenced, 0);
            standby.run = Run::Fenced;
            assert_eq!(said(&standby, &hold), "nothing");
            let alone = Assignment { replaceable: false, ..lead(rule(4, 5, &[])) };
            tries.look(&mut standby, &alone, Instant::now());
            assert_eq!(said(&standby, &alone), "Promote", "there is no other data");
            tries.look(&mut standby, &lead(rule(4, 5, &[])), Instant::now());
            assert_eq!(declined(&standby, &lead(rule(4, 5, &[])), None), Some(Generation(4)), "another one is better");
            tries.look(&mut standby, &lead(rule(6, 7, &[])), Instant::now());
            assert_eq!(
                said(&standby, &lead(rule(6, 7, &[]))),
                "Promote",
                "the others have given up, or an operator wants it"
            );
        }
    }

    #[test]
    fn why_data_has_to_be_overwritten_is_said_of_the_primary_that_is_to_be_followed() {
        let why = |state: &State, wanted: &Assignment| needed(state, wanted).map(|(of, why)| format!("{of}: {why}"));
        assert_eq!(why(&state(Run::Fenced), &follow(3, None)), None);
        let empty = State { data: Data::Empty, ..state(Run::Down) };
        assert_eq!(why(&empty, &follow(3, None)).unwrap(), "3: its volume is empty");
        assert_eq!(why(&empty, &assigned(Wanted::Hold(Generation(3)))), None);
        let memory = Memory { overwriting: true, ..Memory::default() };
        let half = State { memory, ..state(Run::Down) };
        assert_eq!(why(&half, &follow(3, None)).unwrap(), "3: the overwrite of its data was interrupted");
        assert_eq!(why(&State { memory, ..state(follows(3)) }, &follow(3, None)), None, "it has not streamed yet");
        let compared = State { unfit: Some(unfit("it has more", true)), ..state(Run::Fenced) };
        assert_eq!(why(&compared, &follow(3, None)).unwrap(), "3: it has more");
    }

    #[test]
    fn an_old_primary_stops_before_it_follows() {
        assert_eq!(said(&state(primary(4, &[2], true, true)), &follow(4, None)), "Stop");
        let granted = assigned(Wanted::Hold(Generation(4)));
        assert_eq!(said(&state(primary(4, &[2], true, true)), &granted), "Stop", "another one was granted");
        assert_eq!(said(&state(primary(4, &[2], true, true)), &assigned(Wanted::Hold(Generation(3)))), "nothing");
    }

    #[test]
    fn a_server_whose_start_is_not_confirmed_does_not_start() {
        for wanted in [lead(rule(3, 1, &[])), follow(3, None), assigned(Wanted::Hold(Generation(3)))] {
            let held = State { may_start: false, ..state(Run::Down) };
            assert!(matches!(next(&held, &wanted), Ok(None)), "{wanted:?}");
        }
    }
}
