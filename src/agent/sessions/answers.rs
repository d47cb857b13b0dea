//! How an engine's registration is answered.

use crate::agent::Shared;
use crate::proto::engine as wire;
use kaa_core::domain::bounds::Excess;
use kaa_core::domain::command::{Refusal, Registered};

/// What an engine is told whose registration is committed.
pub(super) fn registered_message(shared: &Shared, registered: &Registered) -> wire::Registered {
    wire::Registered {
        domain: registered.domain.to_string(),
        start_id: registered.process.0,
        node_id: registered.node.0,
        archive: registered.archive.map_or(0, |archive| archive.0),
        session: registered.session.0,
        server: shared.config.server.to_string(),
    }
}

/// What an engine is told whose registration is not accepted.
pub(super) fn refused(shared: &Shared, refusal: &Refusal) -> wire::Refused {
    let exited = match refusal {
        Refusal::Exited { process, at, reason } => {
            Some(wire::Tombstone { start_id: process.0, at_ms: at.0, reason: reason.to_string() })
        }
        Refusal::Forgotten(process) => {
            Some(wire::Tombstone { start_id: process.0, at_ms: 0, reason: refusal.to_string() })
        }
        _ => None,
    };
    let lasting = matches!(
        refusal,
        Refusal::ForeignVolume(_)
            | Refusal::AnotherDatabase(_)
            | Refusal::Copy { .. }
            | Refusal::NoClaim(_)
            | Refusal::EarlierStart { .. }
            | Refusal::OutOfBounds(Excess::Long { .. } | Excess::NotALabel(_))
    );
    let domain = shared.raft.read(|domain| domain.id.clone()).map_or(String::new(), |id| id.to_string());
    wire::Refused { domain, reason: refusal.to_string(), exited, lasting }
}
