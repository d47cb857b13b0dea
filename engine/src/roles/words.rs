//! What is said to agents, and what they say, in the words of this crate.

use crate::postgres::Data;
use crate::proto::{self as wire, assignment::What};
use kaa_core::domain::ids::{ArchiveId, Generation, Permission, SetVersion};
use kaa_core::domain::replicated::{Begins, Position};
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

/// Where the log of a generation begins, for an agent.
pub fn said(begins: &Begins) -> wire::Begins {
    wire::Begins { generation: begins.generation.0, parent: begins.parent.0, at: begins.at.0 }
}

/// What is on the volume, for an agent. The highest generation is also one that was taken up and came to nothing.
pub fn volume(data: &Data, memory: &Memory) -> Option<wire::Volume> {
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
