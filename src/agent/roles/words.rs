//! What is said on the stream of an engine with roles, in the words of the domain and back.

use crate::proto::engine as wire;
use kaa_core::domain::bounds::{Bounds, cut};
use kaa_core::domain::ids::{ArchiveId, Generation, Permission, SetVersion, StartId, SystemId};
use kaa_core::domain::process::Handicap;
use kaa_core::domain::replicated::{Begins, Data, Ended, HISTORY, Position};
use kaa_core::replication::{Assignment, InForce, Report, Stand, Standby, Wanted};

/// More standbys than a database has archives are not believed.
pub(super) const STANDBYS: usize = 64;

/// What a wrapper says of its server.
pub fn reported(said: wire::Replica) -> Report {
    let generation = Generation(said.generation);
    let begins = || Begins { generation, parent: Generation(said.parent), at: Position(said.begins_at) };
    let stand = match said.stand() {
        wire::Stand::Down => Stand::Down,
        wire::Stand::Fenced => Stand::Fenced,
        wire::Stand::Follows => Stand::Follows(generation),
        wire::Stand::Promoted => Stand::Promoted(begins()),
        wire::Stand::Open => Stand::Open(begins()),
    };
    let data = said.volume.map_or(Data::Empty, |volume| Data::Initialized {
        system: SystemId(volume.system),
        highest: Generation(volume.highest),
    });
    let text = |mut text: String| {
        cut(&mut text, Bounds::DEFAULT.text);
        text
    };
    let ended = if said.stood_down { Ended::StoodDown } else { Ended::Failed };
    let standbys = said.standbys.into_iter().take(STANDBYS).map(|standby| Standby {
        archive: ArchiveId(standby.archive),
        streams: standby.streams,
        flushed: Position(standby.flushed),
        silent_ms: standby.silent_ms,
        is_steady: standby.steady,
    });
    Report {
        data,
        start_before: StartId(said.start_before),
        start: StartId(said.start),
        stand,
        ancestors: said.ancestors.iter().take(HISTORY).map(begun).collect(),
        in_force: (said.in_force != 0).then_some(InForce { generation, version: SetVersion(said.in_force) }),
        ended: (said.ended != 0).then_some((Generation(said.ended), ended)),
        needs_overwrite: (said.needs_overwrite != 0)
            .then(|| (Generation(said.needs_overwrite), text(said.needs_overwrite_why))),
        returned: Permission(said.returned),
        standbys: standbys.collect(),
        end: Position(said.end),
        unheard: (said.unheard != 0).then_some(Generation(said.unheard)),
        keeps_lease: said.keeps_lease,
        handicap: Handicap { short_of_room: said.short_of_room, replays_late: said.replays_late },
        trouble: Some(text(said.trouble)).filter(|trouble| !trouble.is_empty()),
    }
}

fn begun(said: &wire::Begins) -> Begins {
    Begins { generation: Generation(said.generation), parent: Generation(said.parent), at: Position(said.at) }
}

/// What the domain wants of a server, as its wrapper is told.
pub fn assigned(assignment: &Assignment) -> wire::Assignment {
    let what = match &assignment.what {
        Wanted::Hold(generation) => wire::assignment::What::Hold(wire::Hold { generation: generation.0 }),
        Wanted::Initialize => wire::assignment::What::Initialize(wire::Initialize {}),
        Wanted::Primary { rule, blocks, stand_down, standbys, lease_ms, wait_ms } => {
            wire::assignment::What::Lead(wire::Lead {
                generation: rule.generation.0,
                version: rule.version.0,
                members: rule.members.iter().map(|archive| archive.0).collect(),
                blocks: *blocks,
                stand_down: *stand_down,
                standbys: standbys.iter().map(|archive| archive.0).collect(),
                lease_ms: *lease_ms,
                wait_ms: *wait_ms,
            })
        }
        Wanted::Follow { generation, source, history, permission, discard } => {
            let begins = |it: &Begins| wire::Begins { generation: it.generation.0, parent: it.parent.0, at: it.at.0 };
            wire::assignment::What::Follow(wire::Follow {
                generation: generation.0,
                archive: source.archive.0,
                host: source.host.clone(),
                address: source.address.clone(),
                port: source.port.into(),
                history: history.iter().map(begins).collect(),
                permission: permission.map_or(0, |permission| permission.0),
                discard: *discard,
            })
        }
    };
    let Assignment { may_start, may_stop, replaceable, .. } = *assignment;
    wire::Assignment { may_start, may_stop, replaceable, what: Some(what) }
}
