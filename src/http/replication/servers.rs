//! How the servers of a database fare, as the agents that have their streams hear it.

use super::shown::{Coded, PlaceRow, WarningRow};
use crate::http::source::{Heard, Peer, Reached};
use kaa_core::domain::Domain;
use kaa_core::domain::ids::{ArchiveId, Millis, ServerId, StartId};
use kaa_core::domain::process::SessionState;
use kaa_core::domain::replicated::Replicated;
use kaa_core::replication::vitals::{Application, Connection, WARNINGS, Warning};
use kaa_core::replication::{Place, PlaceState, Vitals};
use kaa_core::wait::{self, Names};
use serde::{Deserialize, Serialize};

/// How a server fares. What is not known is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerRow {
    /// The agent that has its stream; null if none has.
    pub heard_by: Option<String>,
    /// Why the agent that answers does not know what that one hears.
    pub unknown: Option<String>,
    /// How far the log is flushed: by its own word at a primary, by the primary's at a standby.
    pub flushed: Option<String>,
    /// How far a standby has replayed the log.
    pub replayed: Option<String>,
    /// How far that is behind the end of the primary's log, in bytes, by the primary's word.
    pub replay_lag_bytes: Option<u64>,
    /// The age of the last commit that a standby has replayed, in milliseconds; 0 if it has replayed all that it received.
    pub replay_lag_ms: Option<u64>,
    /// What is free on its volume, in bytes.
    pub free_bytes: Option<u64>,
    /// The size of its volume, in bytes.
    pub size_bytes: Option<u64>,
    /// What is free on its volume, in percent.
    pub free_percent: Option<u64>,
    /// How many clients are connected.
    pub clients: Option<u32>,
    /// The greatest age of a database's oldest transaction id, in transactions.
    pub transaction_id_age: Option<u64>,
    /// How much of the log slots retain, in bytes.
    pub retained_log_bytes: Option<u64>,
    /// For how many whole minutes the oldest prepared transaction has been prepared; 0 if there is none, and at a standby.
    pub prepared_for_minutes: Option<u64>,
    /// How often a client has cancelled the wait of its commit for the standbys, since the server started.
    pub cancelled_waits: Option<u64>,
    /// The parameters whose new values wait for a restart.
    pub restart_pending: Vec<String>,
    /// The parameters of replication that a superuser has changed.
    pub overridden: Vec<String>,
    /// Of a server that is not heard: how far its log was at least when an agent last heard that.
    pub last_reached: Option<String>,
    /// When that was.
    pub last_heard: Option<Millis>,
    /// What expires first in its `tls.crt`.
    pub certificate_expires: Option<Millis>,
    /// The authority in its `ca.crt` that expires first.
    pub authority_expires: Option<Millis>,
}

/// What the agents hear.
pub(super) struct Hearing<'a> {
    domain: &'a Domain,
    replicated: &'a Replicated,
    peers: &'a [Peer],
    now: Millis,
}

impl<'a> Hearing<'a> {
    pub(super) fn new(domain: &'a Domain, replicated: &'a Replicated, peers: &'a [Peer], now: Millis) -> Self {
        Self { domain, replicated, peers, now }
    }

    /// The agent that has the stream of a process, and what it hears by it, or why that is not known.
    fn heard(&self, process: StartId) -> Option<(&'a ServerId, Result<&'a Heard, String>)> {
        let session = &self.domain.processes.get(&process)?.session;
        if session.state != SessionState::Live {
            return None;
        }
        let by = &session.server;
        let peer = self.peers.iter().find(|peer| peer.id == *by && peer.connected);
        let Some(status) = peer.and_then(|peer| peer.status.as_ref()) else {
            return Some((by, Err(format!("{by} has its stream, and does not answer this agent"))));
        };
        let heard = status.hears.get(&process).filter(|heard| heard.session == session.number);
        Some((by, heard.ok_or_else(|| format!("{by} has its stream, and has not heard how it fares yet"))))
    }

    /// The role and the database of the application, by the word of the primary's wrapper; while that is away, by that of another one,
    /// which has the same Secret.
    pub(super) fn application(&self, places: &[Place]) -> Option<&'a Application> {
        let (primary, others): (Vec<&Place>, Vec<&Place>) = places.iter().partition(|place| self.is_primary(place));
        let of = |place: &Place| self.vitals(place.process?)?.application.as_ref();
        primary.into_iter().chain(others).find_map(of)
    }

    /// How far the log of an archive's server is at least, or was when an agent last heard that.
    pub(super) fn reached(&self, archive: ArchiveId) -> Option<Reached> {
        let exited = self.domain.tombstones.values().map(|exited| &exited.process);
        let on_it = self.domain.process_on(archive).into_iter().chain(exited.filter(|it| it.archive == Some(archive)));
        let told = |process: StartId| {
            self.peers.iter().filter_map(move |peer| peer.status.as_ref()?.reached.get(&process).copied())
        };
        on_it.flat_map(|process| told(process.id)).max_by_key(|reached| reached.at)
    }

    fn vitals(&self, process: StartId) -> Option<&'a Vitals> {
        self.heard(process)?.1.ok()?.vitals.as_ref()
    }

    /// How the primary's server sees the standby of a place, and how far behind its own log that replays, in bytes.
    fn seen(&self, place: &Place) -> Option<(&'a Connection, u64)> {
        let primary = self.replicated.record.as_ref()?.primary;
        let vitals = self.vitals(self.domain.process_on(primary)?.id)?;
        let connection = vitals.connection(place.archive)?;
        Some((connection, vitals.behind(connection)))
    }

    fn is_primary(&self, place: &Place) -> bool {
        self.replicated.record.as_ref().is_some_and(|record| record.primary == place.archive)
    }

    /// What the server of a place does: whether a standby streams is known by the primary's word alone, and that a primary is closed by
    /// its own.
    pub(super) fn state(&self, place: &Place) -> Coded {
        let both = |code: &str, text: &str| Coded { code: code.to_owned(), text: text.to_owned() };
        match (place.state, self.seen(place)) {
            (PlaceState::Assigned | PlaceState::Replaced, Some((connection, _))) if connection.streams => {
                both("streaming", "streaming")
            }
            (PlaceState::Assigned | PlaceState::Replaced, Some(_)) => both("catches_up", "catches up"),
            (PlaceState::Open, _) if self.is_closed(place) => both("closed", "closed"),
            (state, _) => both(state.into(), &state.to_string()),
        }
    }

    /// Whether the server of a place says that it lets no client in.
    pub(super) fn is_closed(&self, place: &Place) -> bool {
        let heard = place.process.and_then(|process| self.heard(process));
        let Some((_, Ok(Heard { vitals: Some(vitals), .. }))) = heard else { return false };
        vitals.closed
    }

    /// How the server of a place fares.
    pub(super) fn row(&self, place: &Place) -> ServerRow {
        let Some((by, heard)) = place.process.and_then(|process| self.heard(process)) else {
            let reached = self.reached(place.archive);
            let (last_reached, last_heard) = (reached.map(|it| it.end.to_string()), reached.map(|it| it.at));
            return ServerRow { last_reached, last_heard, ..ServerRow::default() };
        };
        let seen = self.seen(place).filter(|_| !self.is_primary(place));
        let row = ServerRow {
            heard_by: Some(by.to_string()),
            flushed: seen.map(|(connection, _)| connection.flushed.to_string()),
            replayed: seen.map(|(connection, _)| connection.replayed.to_string()),
            replay_lag_bytes: seen.map(|(_, behind)| behind),
            ..ServerRow::default()
        };
        match heard {
            Err(why) => ServerRow { unknown: Some(why), ..row },
            Ok(Heard { vitals: None, .. }) => {
                ServerRow { unknown: Some(format!("its wrapper has not told {by} how it fares")), ..row }
            }
            Ok(Heard { vitals: Some(vitals), .. }) => row.with(vitals, self.is_primary(place)),
        }
    }

    /// What an operator should see to at the servers.
    pub(super) fn warnings(&self, places: &[Place]) -> Vec<WarningRow> {
        places.iter().flat_map(|place| self.warnings_of(place)).collect()
    }

    fn warnings_of(&self, place: &Place) -> Vec<WarningRow> {
        let Some((_, Ok(heard))) = place.process.and_then(|process| self.heard(process)) else { return Vec::new() };
        let found = Warning::of(place.state, heard.vitals.as_ref(), heard.trouble.as_deref(), self.now);
        let set = self.replicated.settings.as_ref().map(|settings| settings.stateful_set.as_str());
        let names = Names { set, pod: Some(&place.pod), ..Names::default() };
        let row = |warning: Warning| {
            let text = format!("{}: {warning}", place.pod);
            let code = warning.code();
            let ends = wait::ends(&WARNINGS, code).unwrap_or_default();
            WarningRow { code: code.to_owned(), text, ends: names.fill(ends) }
        };
        found.into_iter().map(row).collect()
    }
}

impl ServerRow {
    fn with(self, vitals: &Vitals, is_primary: bool) -> Self {
        let end = vitals.answers.then(|| vitals.end.to_string());
        let (flushed, replayed) = if is_primary { (end, None) } else { (self.flushed, self.replayed.or(end)) };
        let volume = vitals.volume.as_ref();
        Self {
            flushed,
            replayed,
            replay_lag_ms: vitals.replay_lag_ms.filter(|_| !is_primary),
            free_bytes: volume.map(|volume| volume.free),
            size_bytes: volume.map(|volume| volume.size),
            free_percent: volume.map(|volume| volume.free_percent()),
            clients: vitals.answers.then_some(vitals.clients),
            transaction_id_age: vitals.answers.then_some(vitals.oldest_xid_age),
            retained_log_bytes: vitals.answers.then_some(vitals.retained_log_bytes),
            prepared_for_minutes: vitals.answers.then_some(vitals.prepared_for_minutes),
            cancelled_waits: vitals.answers.then_some(vitals.cancelled_waits),
            restart_pending: vitals.restart_pending.clone(),
            overridden: vitals.overridden.clone(),
            certificate_expires: vitals.expiry.certificate,
            authority_expires: vitals.expiry.authority,
            ..self
        }
    }
}

impl PlaceRow {
    /// The same, with what the agents hear of its server.
    pub(super) fn heard(self, place: &Place, hearing: &Hearing<'_>) -> Self {
        Self { state: hearing.state(place), server: hearing.row(place), ..self }
    }
}
