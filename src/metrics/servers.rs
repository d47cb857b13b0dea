//! The metrics of the servers with roles whose streams this agent has. Those of other agents are theirs: so no agent shows what is out
//! of date, and what was shown vanishes with the stream.

use super::register;
use kaa_core::domain::Domain;
use kaa_core::domain::ids::{Millis, SessionNumber, StartId};
use kaa_core::domain::process::{Process, SessionState};
use kaa_core::replication::Vitals;
use kaa_core::replication::vitals::{WARNINGS, Warning};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfServer {
    database: String,
    pod: String,
}

/// What an operator should see to at a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Warned {
    database: String,
    pod: String,
    warning: &'static str,
}

/// A mounted file of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFile {
    database: String,
    pod: String,
    file: &'static str,
}

type Number = Family<OfServer, Gauge>;

/// What was said of a server by a session of a process.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// The process.
    pub process: StartId,
    /// The session.
    pub session: SessionNumber,
    /// Why the server does not do what it was assigned, if it does not.
    pub trouble: Option<&'a str>,
    /// How it fares, if that was said.
    pub vitals: Option<&'a Vitals>,
}

/// Of the servers with roles.
#[derive(Debug)]
pub(super) struct Servers {
    answers: Number,
    streams: Number,
    lag_bytes: Number,
    lag_seconds: Family<OfServer, Gauge<f64, AtomicU64>>,
    free: Number,
    size: Number,
    clients: Number,
    xid_age: Number,
    retained: Number,
    prepared: Number,
    cancelled: Number,
    restart_pending: Number,
    closed: Number,
    certificates: Family<OfFile, Gauge>,
    warnings: Family<Warned, Gauge>,
}

impl Servers {
    pub(super) fn new(r: &mut Registry) -> Self {
        let mut number = |name: &str, help: &str| register(r, name, help, Number::default());
        Self {
            answers: number("database_server_answers", "1 if the server answers its wrapper"),
            streams: number("database_streams", "1 if the standby streams from the primary, by the primary's word"),
            lag_bytes: number("database_replay_lag_bytes", "How far behind the primary's log the standby replays"),
            free: number("database_volume_free_bytes", "What is free on the server's volume"),
            size: number("database_volume_size_bytes", "The size of the server's volume"),
            clients: number("database_clients", "Clients that are connected to the server"),
            xid_age: number("database_transaction_id_age", "The greatest age of an oldest transaction id"),
            retained: number("database_retained_log_bytes", "How much of the log slots retain"),
            prepared: number(
                "database_prepared_transaction_age_seconds",
                "For how long the oldest prepared transaction has been prepared, in whole minutes; 0 at a standby",
            ),
            cancelled: number(
                "database_cancelled_waits",
                "How often a client has cancelled the wait of its commit for the standbys, since the server started",
            ),
            restart_pending: number("database_restart_pending", "1 if parameters wait for a restart of the server"),
            closed: number("database_primary_closed", "1 if the primary lets no client in, since its lease is over"),
            certificates: register(
                r,
                "database_certificate_not_after_seconds",
                "What expires first in a file with certificates that the server was given, in seconds since 1970",
                Family::default(),
            ),
            warnings: register(r, "database_server_warning", "1 for each warning of the server", Family::default()),
            lag_seconds: register(
                r,
                "database_replay_lag_seconds",
                "The age of the last commit that the standby has replayed; 0 if it has replayed all that it received",
                Family::default(),
            ),
        }
    }

    fn numbers(&self) -> [&Number; 12] {
        let Self {
            answers,
            streams,
            lag_bytes,
            lag_seconds: _,
            free,
            size,
            clients,
            xid_age,
            retained,
            prepared,
            cancelled,
            restart_pending,
            closed,
            certificates: _,
            warnings: _,
        } = self;
        [
            answers,
            streams,
            lag_bytes,
            free,
            size,
            clients,
            xid_age,
            retained,
            prepared,
            cancelled,
            restart_pending,
            closed,
        ]
    }

    /// Sets what mirrors the servers.
    pub(super) fn mirror<'a>(&self, domain: &Domain, said: impl Iterator<Item = Said<'a>>, now: Millis) {
        self.numbers().into_iter().for_each(Family::clear);
        self.certificates.clear();
        self.lag_seconds.clear();
        self.warnings.clear();
        for said in said {
            let process = domain.processes.get(&said.process);
            let current = |it: &&Process| it.session.number == said.session && it.session.state == SessionState::Live;
            let Some(process) = process.filter(current) else { continue };
            self.warn(domain, process, &said, now);
            if let Some(vitals) = said.vitals {
                self.set(domain, process, vitals);
            }
        }
    }

    /// Sets every warning of a server, so that one that ends goes back to 0.
    fn warn(&self, domain: &Domain, process: &Process, said: &Said<'_>, now: Millis) {
        let Some(replicated) = domain.replicated(&process.database) else { return };
        let Some(archive) = process.archive else { return };
        let found = Warning::of(domain.place(replicated, archive).state, said.vitals, said.trouble, now);
        for warning in WARNINGS.map(|warning| warning.code) {
            let (database, pod) = (process.database.to_string(), process.identity.pod.clone());
            let is_so = found.iter().any(|found| found.code() == warning);
            self.warnings.get_or_create(&Warned { database, pod, warning }).set(is_so.into());
        }
    }

    fn set(&self, domain: &Domain, process: &Process, vitals: &Vitals) {
        let at = |pod: String| OfServer { database: process.database.to_string(), pod };
        let of = at(process.identity.pod.clone());
        let set = |family: &Number, value: u64| {
            family.get_or_create(&of).set(value.cast_signed());
        };
        set(&self.answers, vitals.answers.into());
        if let Some(volume) = vitals.volume {
            set(&self.free, volume.free);
            set(&self.size, volume.size);
        }
        for (file, at) in vitals.expiry.files() {
            let OfServer { database, pod } = of.clone();
            self.certificates.get_or_create(&OfFile { database, pod, file }).set((at.0 / 1000).cast_signed());
        }
        // Of one that does not answer, nothing else is known.
        if !vitals.answers {
            return;
        }
        set(&self.clients, vitals.clients.into());
        set(&self.xid_age, vitals.oldest_xid_age);
        set(&self.retained, vitals.retained_log_bytes);
        set(&self.prepared, vitals.prepared_for_minutes.saturating_mul(60));
        set(&self.cancelled, vitals.cancelled_waits);
        set(&self.restart_pending, (!vitals.restart_pending.is_empty()).into());
        if let Some(ms) = vitals.replay_lag_ms {
            self.lag_seconds.get_or_create(&of).set(ms as f64 / 1000.0);
        }
        let record = domain.replicated(&process.database).and_then(|replicated| replicated.record.as_ref());
        if record.is_some_and(|record| Some(record.primary) == process.archive) {
            set(&self.closed, vitals.closed.into());
            self.set_standbys(domain, process, vitals, at);
        }
    }

    /// What a primary says of each other archive of its database.
    fn set_standbys(&self, domain: &Domain, primary: &Process, vitals: &Vitals, at: impl Fn(String) -> OfServer) {
        let others = domain.active_archives(&primary.database).filter(|archive| Some(archive.id) != primary.archive);
        for archive in others {
            let of = at(domain.pod_of(archive.id));
            let connection = vitals.connection(archive.id);
            let streams = connection.is_some_and(|connection| connection.streams);
            self.streams.get_or_create(&of).set(streams.into());
            if let Some(connection) = connection {
                self.lag_bytes.get_or_create(&of).set(vitals.behind(connection).cast_signed());
            }
        }
    }
}
