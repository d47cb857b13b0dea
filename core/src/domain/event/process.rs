//! What becomes of a process.

use crate::domain::ids::{ArchiveId, ContainerId, ServerId, SessionNumber, StartId};
use crate::domain::process::{DurableState, EngineKind, EngineState, ExitReason, Stop};
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum ProcessEvent {
    /// It registered.
    Registered {
        /// The process.
        process: StartId,
        /// What it is.
        kind: EngineKind,
        /// Its pod.
        pod: String,
        /// Its archive.
        archive: Option<ArchiveId>,
    },
    /// It has another session.
    SessionOpened {
        /// Its number.
        session: SessionNumber,
        /// With which server.
        server: ServerId,
        /// With which one the session before was, if with another.
        from: Option<ServerId>,
    },
    /// Its session is down.
    SessionLost {
        /// Its number.
        session: SessionNumber,
        /// With which server it was.
        server: ServerId,
        /// How that is known.
        why: String,
    },
    /// It has another state.
    StateChanged {
        /// What the domain takes it for.
        durable: DurableState,
        /// What the engine says.
        engine: EngineState,
    },
    /// It said how new its data is.
    HistoryReported {
        /// The higher, the newer.
        history: u64,
    },
    /// It was proven to have run after an entry.
    RanAfter {
        /// The entry.
        entry: u64,
    },
    /// Its container is known.
    ContainerLearned {
        /// The container.
        container: ContainerId,
    },
    /// It was asked to end.
    StopAsked {
        /// How.
        how: Stop,
    },
    /// It is gone.
    Exited {
        /// The process.
        process: StartId,
        /// How.
        reason: ExitReason,
        /// Its exit code.
        exit_code: Option<i32>,
    },
    /// Its zone was read, and is another one than was known.
    ZoneLearned {
        /// The zone.
        zone: String,
    },
}

impl ProcessEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Registered { process: _, kind: _, pod, archive: _ } => pod.len(),
            Self::SessionOpened { session: _, server, from } => {
                server.as_str().len() + from.as_ref().map_or(0, |from| from.as_str().len())
            }
            Self::ZoneLearned { zone } => zone.len(),
            Self::SessionLost { session: _, server, why } => server.as_str().len() + why.len(),
            Self::ContainerLearned { container } => container.as_str().len(),
            Self::Exited { process: _, reason, exit_code: _ } => {
                if let ExitReason::Exited(why) = reason {
                    why.len()
                } else {
                    0
                }
            }
            Self::StateChanged { durable: _, engine: _ }
            | Self::HistoryReported { history: _ }
            | Self::RanAfter { entry: _ }
            | Self::StopAsked { how: _ } => 0,
        }
    }
}

impl fmt::Display for ProcessEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered { process, kind, pod, archive } => {
                write!(f, "{kind} {pod} registered as process {process}")?;
                archive.map_or(Ok(()), |archive| write!(f, " on archive {archive}"))
            }
            Self::SessionOpened { session, server, from: None } => write!(f, "session {session} with {server}"),
            Self::SessionOpened { session, server, from: Some(from) } => {
                write!(f, "session {session} with {server}, moved from {from}")
            }
            Self::ZoneLearned { zone } => write!(f, "its pod is in zone {zone}"),
            Self::SessionLost { session, server, why } => write!(f, "session {session} with {server} lost: {why}"),
            Self::StateChanged { durable, engine } => write!(f, "{durable}:{engine}"),
            Self::HistoryReported { history } => write!(f, "the history of its archive is {history}"),
            Self::RanAfter { entry } => write!(f, "its engine was still running after entry {entry}"),
            Self::ContainerLearned { container } => write!(f, "runs in container {container}"),
            Self::StopAsked { how: Stop::Gracefully } => f.write_str("asked to stop"),
            Self::StopAsked { how: Stop::Kill } => f.write_str("asked to be killed"),
            Self::Exited { process, reason, exit_code } => {
                write!(f, "process {process} exited: {reason}")?;
                exit_code.map_or(Ok(()), |code| write!(f, " ({code})"))
            }
        }
    }
}
