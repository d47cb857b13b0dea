//! How a server fares, as people are told: a level that is kept in memory and decides nothing.

use super::PlaceState;
use crate::domain::ids::{ArchiveId, Millis};
use crate::domain::replicated::Position;
use crate::wait::Wait;
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// Below this free part of a server's volume, in percent, there is a warning.
const LEAST_FREE: u64 = 10;
/// A transaction id that is older is warned of. PostgreSQL freezes by itself from 200 million on, and stops to write near 2.1 billion.
const OLDEST_XID: u64 = 1_500_000_000;
/// A transaction that has been prepared for so many minutes is warned of: the two steps of a commit follow each other within seconds.
const PREPARED_LONG: u64 = 60;
/// Slots that retain more than this part of the volume, in percent, are warned of. PostgreSQL gives up what is more than a quarter.
const MOST_RETAINED: u64 = 12;
/// A certificate that expires within so many milliseconds is warned of: a week, as with those of the agents.
const EXPIRES_SOON: u64 = 7 * 86_400_000;

/// How a server fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Whether it has answered within the last seconds. If not, only the volume is known.
    pub answers: bool,
    /// The end of the log that a primary has flushed, or that a standby has replayed.
    pub end: Position,
    /// The standbys that are connected to a primary, by its own server.
    pub connections: Vec<Connection>,
    /// At a standby that streams, the age of the last commit that it has replayed, in milliseconds; 0 if it has replayed all that
    /// it received.
    pub replay_lag_ms: Option<u64>,
    /// The room on its volume, if that is known.
    pub volume: Option<Volume>,
    /// The parameters whose new values wait for a restart.
    pub restart_pending: Vec<String>,
    /// How many clients are connected.
    pub clients: u32,
    /// The greatest age of a database's oldest transaction id, in transactions.
    pub oldest_xid_age: u64,
    /// How much of the log slots retain, in bytes.
    pub retained_log_bytes: u64,
    /// The parameters of the rule and of the source that a superuser has changed.
    pub overridden: Vec<String>,
    /// For how many whole minutes the oldest prepared transaction has been prepared; 0 if there is none, and at a standby.
    pub prepared_for_minutes: u64,
    /// How often a client has cancelled the wait of its commit for the standbys, since the server started. That commit was acknowledged
    /// with a warning, and a failover may lose it.
    pub cancelled_waits: u64,
    /// Whether a primary lets no client in, since nothing has renewed its lease.
    pub closed: bool,
    /// When its certificates expire.
    pub expiry: Expiry,
    /// What the application's Secret names.
    pub application: Option<Application>,
}

/// The role and the database of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
}

/// When what a server was given from its Secret expires; `None` if it has none, or if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// What expires first in its `tls.crt`.
    pub certificate: Option<Millis>,
    /// The authority in its `ca.crt` that expires first.
    pub authority: Option<Millis>,
}

impl Expiry {
    /// Each file of which it is known, and when.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, Millis)> {
        let files = [("tls.crt", self.certificate), ("ca.crt", self.authority)];
        files.into_iter().filter_map(|(file, at)| Some((file, at?)))
    }
}

/// A standby's connection to its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The standby's archive.
    pub archive: ArchiveId,
    /// How far it has flushed the log.
    pub flushed: Position,
    /// How far it has replayed the log.
    pub replayed: Position,
    /// Whether it has caught up once, and streams.
    pub streams: bool,
}

/// The room on a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What is free.
    pub free: u64,
    /// All of it.
    pub size: u64,
}

impl Volume {
    /// How much is free, in whole percent.
    pub fn free_percent(&self) -> u64 {
        percent(self.free, self.size)
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

impl Vitals {
    /// How a primary sees the standby on an archive, if that is connected.
    pub fn connection(&self, archive: ArchiveId) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.archive == archive)
    }

    /// How far behind its end a standby replays, in bytes.
    pub fn behind(&self, standby: &Connection) -> u64 {
        self.end.0.saturating_sub(standby.replayed.0)
    }

    /// What an operator should see to now.
    pub fn warnings(&self, now: Millis) -> Vec<Warning> {
        let mut found = Vec::new();
        if !self.answers {
            found.push(Warning::ServerSilent);
        }
        if self.closed {
            found.push(Warning::PrimaryClosed);
        }
        if let Some(volume) = self.volume {
            if volume.free_percent() < LEAST_FREE {
                found.push(Warning::VolumeFull(volume));
            }
            if percent(self.retained_log_bytes, volume.size) >= MOST_RETAINED {
                found.push(Warning::LogRetained(self.retained_log_bytes, volume.size));
            }
        }
        if self.oldest_xid_age > OLDEST_XID {
            found.push(Warning::TransactionIdsOld(self.oldest_xid_age));
        }
        if self.prepared_for_minutes >= PREPARED_LONG {
            found.push(Warning::PreparedLong(self.prepared_for_minutes));
        }
        if !self.restart_pending.is_empty() {
            found.push(Warning::RestartPending(self.restart_pending.clone()));
        }
        if !self.overridden.is_empty() {
            found.push(Warning::ParametersOverridden(self.overridden.clone()));
        }
        let soon = Millis(now.0.saturating_add(EXPIRES_SOON));
        let expire = self.expiry.files().filter(|(_, at)| *at <= soon);
        found.extend(expire.map(|(file, at)| Warning::CertificateExpires { file, at, is_over: at <= now }));
        found
    }
}

/// What an operator should see to at a server.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Warning {
    /// Its wrapper is connected, and the server does not run or does not answer it.
    ServerSilent,
    /// It is a primary whose lease is over.
    PrimaryClosed,
    /// Its volume is nearly full.
    VolumeFull(Volume),
    /// Slots retain much of the log: how many bytes, on a volume of how many.
    LogRetained(u64, u64),
    /// Transaction ids are not frozen: the age of the oldest one, in transactions.
    TransactionIdsOld(u64),
    /// A transaction was prepared long ago, and neither committed nor rolled back: for how many minutes.
    PreparedLong(u64),
    /// Parameters wait for a restart.
    RestartPending(Vec<String>),
    /// A superuser has changed parameters that replication depends on.
    ParametersOverridden(Vec<String>),
    /// A certificate expires soon, or has expired.
    CertificateExpires {
        /// In which of the mounted files it is.
        file: &'static str,
        /// When it expires.
        at: Millis,
        /// Whether it has expired.
        is_over: bool,
    },
    /// It does not do what it was assigned: why.
    ServerInTrouble(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerSilent => f.write_str("the server does not run, or does not answer its wrapper"),
            Self::PrimaryClosed => f.write_str(
                "the primary lets no client in: for a while neither all of its sync set nor the agents have confirmed that it is the primary",
            ),
            Self::VolumeFull(volume) => {
                let (free, size) = (Bytes(volume.free), Bytes(volume.size));
                write!(f, "{} % of the volume is free: {free} of {size}", volume.free_percent())
            }
            Self::LogRetained(bytes, size) => {
                write!(f, "slots retain {} of the log, on a volume of {}", Bytes(*bytes), Bytes(*size))
            }
            Self::TransactionIdsOld(age) => write!(
                f,
                "the oldest transaction id is {age} transactions old; the server stops to accept writes near 2100000000"
            ),
            Self::PreparedLong(minutes) => write!(
                f,
                "a transaction has been prepared for {} h {} min: it keeps its locks, and rows that VACUUM would remove",
                minutes / 60,
                minutes % 60
            ),
            Self::RestartPending(names) => write!(f, "new values wait for a restart: {}", names.join(", ")),
            Self::ParametersOverridden(names) => {
                write!(f, "a superuser has changed what replication depends on: {}", names.join(", "))
            }
            Self::CertificateExpires { file, at, is_over } => {
                let verb = if *is_over { "expired" } else { "expires" };
                write!(f, "a certificate in its {file} {verb} at {at}")
            }
            Self::ServerInTrouble(why) => write!(f, "it does not do what it was assigned: {why}"),
        }
    }
}

impl Warning {
    /// What an operator should see to at a server in this state, by what was said of it.
    pub fn of(state: PlaceState, vitals: Option<&Vitals>, trouble: Option<&str>, now: Millis) -> Vec<Self> {
        let mut found = vitals.map_or_else(Vec::new, |vitals| vitals.warnings(now));
        // A server that stops, or whose data is being copied, does not answer. Why one has nothing to do is said by a wait.
        let is_to_run =
            !matches!(state, PlaceState::Stopping | PlaceState::Fenced | PlaceState::Starting | PlaceState::Replaced);
        found.retain(|warning| *warning != Self::ServerSilent || is_to_run);
        found.extend(trouble.map(|why| Self::ServerInTrouble(why.to_owned())));
        found
    }

    /// The same as one word.
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// Every warning, in the order of the variants. In what ends them `{pod}` is the server's pod, `{set}` its StatefulSet.
pub const WARNINGS: [Wait; 10] = [
    Wait {
        code: "server_silent",
        means: "the wrapper of a server is connected, and its server has not answered it for 5 s or does not run",
        ends: "ends by itself when the server has started; what holds it up is in its log: `kubectl logs {pod}`",
    },
    Wait {
        code: "primary_closed",
        means: "the lease of a primary is over: it has ended the sessions of its clients, and lets none in, since another server may have been granted the next generation",
        ends: "ends by itself when all of its sync set, or a quorum of the agents, is heard again: `kubectl get pods -o wide`",
    },
    Wait {
        code: "volume_full",
        means: "less than 10 % of a server's volume is free. A server whose volume is full stops",
        ends: "enlarge the claim: `kubectl edit pvc archive-volume-{pod}`; or `DROP` or `TRUNCATE` tables: a `DELETE` frees nothing",
    },
    Wait {
        code: "log_retained",
        means: "the slots of a server retain log of more than an eighth of its volume: a standby is away or behind",
        ends: "start the standbys, `kubectl get pods`; if the pod that is away has the highest ordinal and is not needed: `kubectl scale statefulset {set} --replicas=N`, which would remove a healthy server in place of any other pod",
    },
    Wait {
        code: "transaction_ids_old",
        means: "the oldest transaction id of a database is more than 1.5 billion transactions old: its rows were not frozen, since a transaction is open for long or autovacuum does not get through. At about 2.1 billion the server accepts no more writes",
        ends: "end what is open for long, `SELECT pid, age(backend_xmin), query FROM pg_stat_activity ORDER BY 2 DESC`, then `VACUUM (FREEZE)` in each database",
    },
    Wait {
        code: "prepared_long",
        means: "a transaction has been prepared for more than an hour, `PREPARE TRANSACTION`, and neither committed nor rolled back: it keeps its locks, also over a failover, and rows that VACUUM would remove",
        ends: "`SELECT gid, prepared, owner, database FROM pg_prepared_xacts ORDER BY 2`, then `COMMIT PREPARED 'GID'` or `ROLLBACK PREPARED 'GID'` in its database, as its transaction manager knows",
    },
    Wait {
        code: "restart_pending",
        means: "parameters have new values that a server takes over when it starts",
        ends: "`kubectl rollout restart statefulset {set}`: one pod after the other, and a primary hands over before it ends",
    },
    Wait {
        code: "parameters_overridden",
        means: "a superuser has changed parameters that the wrapper decides. At a primary no rule is in force then: no commit is known to be held by the sync set",
        ends: "the wrapper undoes it at a primary. At a standby: `ALTER SYSTEM RESET NAME` (from PostgreSQL 17 on, remove the line from postgresql.auto.conf), then `SELECT pg_reload_conf()`",
    },
    Wait {
        code: "certificate_expires",
        means: "a certificate in the `tls.crt` or the `ca.crt` of a server expires within seven days or has expired. Once that of the primary has expired, no standby and no client that verifies it can connect; a server trusts nothing that an expired CA of its `ca.crt` has signed",
        ends: "put a new certificate into the Secret that `KAA_POSTGRES_TLS` mounts (`kubectl describe certificate` says why cert-manager has not): the wrapper uses it without a restart. If a CA in `ca.crt` expires and no certificate of it is used any more, remove that CA",
    },
    Wait {
        code: "server_in_trouble",
        means: "a server does not do what it was assigned; its wrapper says why, and tries again",
        ends: "look at its log: `kubectl logs {pod}`",
    },
];

/// A number of bytes with a unit: `0 B`, `1.5 GiB`.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, bits)| self.0 >> bits > 0) {
            None => write!(f, "{} B", self.0),
            Some((unit, bits)) => {
                let tenths = (u128::from(self.0) * 10) >> bits;
                write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const NOW: Millis = Millis(1_795_000_000_000);

    fn warned(change: impl FnOnce(&mut Vitals)) -> Vec<String> {
        let volume = Some(Volume { free: 50 * GIB, size: 100 * GIB });
        let mut vitals = Vitals { answers: true, volume, ..Vitals::default() };
        change(&mut vitals);
        vitals.warnings(NOW).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_server_is_warned_of_before_it_stops() {
        let none = [""; 0];
        assert_eq!(warned(|_| {}), none);
        assert_eq!(warned(|it| it.volume = Some(Volume { free: 10 * GIB, size: 100 * GIB })), none);
        let full = Volume { free: 10 * GIB - 1, size: 100 * GIB };
        assert_eq!(warned(|it| it.volume = Some(full)), ["9 % of the volume is free: 9.9 GiB of 100.0 GiB"]);
        assert_eq!(warned(|it| it.retained_log_bytes = 12 * GIB - 1), none);
        let retained = ["slots retain 12.0 GiB of the log, on a volume of 100.0 GiB"];
        assert_eq!(warned(|it| it.retained_log_bytes = 12 * GIB), retained);
        assert_eq!(warned(|it| it.oldest_xid_age = 1_500_000_000), none);
        assert_eq!(warned(|it| it.oldest_xid_age += 1_500_000_001).len(), 1);
        assert_eq!(warned(|it| it.prepared_for_minutes = 59), none);
        let prepared =
            ["a transaction has been prepared for 2 h 5 min: it keeps its locks, and rows that VACUUM would remove"];
        assert_eq!(warned(|it| it.prepared_for_minutes = 125), prepared);
        assert_eq!(warned(|it| it.volume = None), none, "not known");
        let (silent, pending) = (|it: &mut Vitals| it.answers = false, "max_connections".to_owned());
        assert_eq!(warned(silent), ["the server does not run, or does not answer its wrapper"]);
        let pending = warned(|it| it.restart_pending = vec![pending]);
        assert_eq!(pending, ["new values wait for a restart: max_connections"]);
    }

    #[test]
    fn a_certificate_is_warned_of_a_week_before_it_expires() {
        let expires = |certificate: Option<u64>, authority: Option<u64>| {
            let after = |ms: u64| Millis(NOW.0 + ms);
            warned(|it| it.expiry = Expiry { certificate: certificate.map(after), authority: authority.map(after) })
        };
        let (week, none) = (7 * 86_400_000, [""; 0]);
        assert_eq!(expires(None, None), none);
        assert_eq!(expires(Some(week + 1), Some(week + 1)), none);
        assert_eq!(expires(Some(week), None), ["a certificate in its tls.crt expires at 2026-11-25T11:06:40.000Z"]);
        assert_eq!(
            expires(Some(1), Some(0)),
            [
                "a certificate in its tls.crt expires at 2026-11-18T11:06:40.001Z",
                "a certificate in its ca.crt expired at 2026-11-18T11:06:40.000Z"
            ]
        );
    }

    #[test]
    fn every_warning_has_its_row() {
        assert_eq!(WARNINGS.map(|warning| warning.code), Warning::VARIANTS);
    }

    #[test]
    fn bytes_are_shown_with_a_unit() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(u64::MAX).to_string(), "16777215.9 TiB");
    }
}
