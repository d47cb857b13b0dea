//! What is said to agents, and what they say, in the words of this crate.

use super::admission;
use super::decide::{self, Primary, Readers, Run, State, Step};
use super::declines;
use super::keeper::Hearing;
use super::standbys::Standbys;
use crate::postgres::{Data, Reading};
use crate::proto::{self as wire, EngineState, assignment::What};
use kaa_core::domain::bounds::{Bounds, cut};
use kaa_core::domain::ids::{ArchiveId, Generation, Permission, SetVersion, StartId};
use kaa_core::domain::replicated::{Begins, Ended, Position};
use kaa_core::replication::{Assignment, Memory, Rule, Source, Wanted};

/// What an agent assigns; `None` if this wrapper is too old to know it.
pub fn assigned(said: wire::Assignment) -> Option<Assignment> {
    let what = match said.what? {
        What::Hold(hold) => Wanted::Hold(Generation(hold.generation)),
        What::Initialize(_) => Wanted::Initialize,
        What::Lead(lead) => Wanted::Primary {
            rule: Rule {
                generation: Generation(lead.generation),
                version: SetVersion(lead.version),
                members: lead.members.into_iter().map(ArchiveId).collect(),
            },
            blocks: lead.blocks,
            stand_down: lead.stand_down,
            standbys: lead.standbys.into_iter().map(ArchiveId).collect(),
            lease_ms: lead.lease_ms,
            wait_ms: lead.wait_ms,
        },
        What::Follow(follow) => Wanted::Follow {
            generation: Generation(follow.generation),
            source: Source {
                archive: ArchiveId(follow.archive),
                host: follow.host,
                address: follow.address,
                port: u16::try_from(follow.port).ok()?,
            },
            history: follow.history.iter().map(begins).collect(),
            permission: (follow.permission != 0).then_some(Permission(follow.permission)),
            discard: follow.discard,
        },
    };
    let wire::Assignment { may_start, may_stop, replaceable, .. } = said;
    Some(Assignment { what, may_start, may_stop, replaceable })
}

fn begins(said: &wire::Begins) -> Begins {
    Begins { generation: Generation(said.generation), parent: Generation(said.parent), at: Position(said.at) }
}

/// Cuts the texts to what an agent keeps of them. What PostgreSQL says of a mounted file may be longer than a message may be.
pub fn bounded(mut said: wire::Replica) -> wire::Replica {
    cut(&mut said.trouble, Bounds::DEFAULT.text);
    cut(&mut said.needs_overwrite_why, Bounds::DEFAULT.text);
    said
}

/// What a wrapper knows of its server.
pub struct Known<'a> {
    pub state: &'a State,
    /// The last start that the volume remembered when the wrapper came up.
    pub start_before: StartId,
    /// The one that it remembers now.
    pub start: StartId,
    pub wanted: Option<&'a Assignment>,
    /// The step that is under way.
    pub under: Option<&'a Step>,
    /// The last generation in which the server was the primary and has ended, and how.
    pub ended: Option<(Generation, Ended)>,
    pub reading: Option<&'a Reading>,
    pub hearing: &'a Hearing,
    pub standbys: &'a Standbys,
}

impl Known<'_> {
    /// What the server does, for an agent: all that decides about roles.
    pub fn replica(&self) -> wire::Replica {
        let mut said = wire::Replica {
            volume: volume(&self.state.data, &self.state.memory),
            start_before: self.start_before.0,
            start: self.start.0,
            returned: self.state.memory.returned.0,
            end: self.reading.map_or(0, |reading| reading.end.max(reading.received).0),
            unheard: self.hearing.unheard().map_or(0, |unheard| unheard.0),
            ..wire::Replica::default()
        };
        let declined = self.wanted.and_then(|wanted| declines::declined(self.state, wanted, self.under));
        if let Some((generation, how)) = declines::ended(self.ended, declined) {
            (said.ended, said.stood_down) = (generation.0, how == Ended::StoodDown);
        }
        if let Some((generation, why)) = self.wanted.and_then(|wanted| decide::needed(self.state, wanted)) {
            (said.needs_overwrite, said.needs_overwrite_why) = (generation.0, why);
        }
        let stand = match &self.state.run {
            Run::Down => wire::Stand::Down,
            Run::Fenced => wire::Stand::Fenced,
            Run::Follows { generation, .. } => {
                said.generation = generation.0;
                wire::Stand::Follows
            }
            Run::Primary(primary) => {
                self.of_primary(primary, &mut said);
                if primary.open { wire::Stand::Open } else { wire::Stand::Promoted }
            }
        };
        said.stand = stand.into();
        said
    }

    fn of_primary(&self, primary: &Primary, said: &mut wire::Replica) {
        let begins = primary.begins;
        (said.generation, said.parent, said.begins_at) = (begins.generation.0, begins.parent.0, begins.at.0);
        if primary.established {
            let flushed = self.standbys.flushed();
            said.in_force = primary.ruling.report(&flushed).map_or(0, |word| word.version.0);
        }
        said.keeps_lease = admission::granted(self.wanted).is_some_and(|(lease_ms, _)| lease_ms > 0);
        said.standbys = self.standbys.said();
        said.ancestors = primary.ancestors.iter().map(said_begins).collect();
    }

    /// What the engine is said to do.
    pub fn engine(&self) -> EngineState {
        engine(self.state)
    }
}

/// It runs while it lets clients in: `NAME-ro` leads to standbys that do.
fn engine(state: &State) -> EngineState {
    match &state.run {
        _ if state.stopping => EngineState::ShuttingDown,
        Run::Primary(primary) if primary.open => EngineState::Running,
        Run::Follows { readers: Readers::Admitted, .. } => EngineState::Running,
        Run::Down | Run::Fenced | Run::Primary(_) | Run::Follows { .. } => EngineState::Syncing,
    }
}

/// Where the log of a generation begins, for an agent.
fn said_begins(begins: &Begins) -> wire::Begins {
    wire::Begins { generation: begins.generation.0, parent: begins.parent.0, at: begins.at.0 }
}

/// What is on the volume, for an agent. The highest generation is also one that was taken up and came to nothing.
fn volume(data: &Data, memory: &Memory) -> Option<wire::Volume> {
    match data {
        Data::Empty => None,
        Data::Initialized { system, highest, .. } => {
            let highest = u64::from(*highest).max(memory.taken_up.0).max(memory.followed.0);
            Some(wire::Volume { system: *system, highest })
        }
    }
}

/// A generation as a timeline. No server has had so many: then it is none.
pub fn timeline(generation: Generation) -> u32 {
    u32::try_from(generation.0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::outside::Outside;

    #[test]
    fn a_standby_runs_while_it_lets_readers_in() {
        let mut state = State::down(Data::Empty, Memory::default(), Outside::No);
        let mut follows = |readers| {
            let source = Source { archive: ArchiveId(1), host: String::new(), address: String::new(), port: 5432 };
            state.run = Run::Follows { generation: Generation(2), source, readers };
            engine(&state)
        };
        let said = [Readers::No, Readers::May, Readers::Admitted].map(&mut follows);
        assert_eq!(said, [EngineState::Syncing, EngineState::Syncing, EngineState::Running]);
    }

    #[test]
    fn texts_are_cut_to_what_a_message_may_have() {
        let long = "a line that PostgreSQL does not know; ".repeat(30_000);
        let said =
            bounded(wire::Replica { trouble: long.clone(), needs_overwrite_why: long, ..wire::Replica::default() });
        assert_eq!([said.trouble.len(), said.needs_overwrite_why.len()], [Bounds::DEFAULT.text; 2]);
        let short = wire::Replica { trouble: "short".to_owned(), ..wire::Replica::default() };
        assert_eq!(bounded(short.clone()), short);
    }
}
