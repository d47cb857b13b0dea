//! Every identifier of the domain, as a type of its own.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! name_ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps the name as it is.
            pub fn new(name: impl Into<String>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

macro_rules! number_ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The number that follows.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    )*};
}

name_ids! {
    /// The name of an admin pod, which is also its agent's.
    ServerId;
    /// The name of a database: the label `database` of its objects.
    DatabaseName;
    /// The Kubernetes cluster that an object lives in.
    ClusterName;
    /// What Kubernetes calls `metadata.uid`: names one object forever, unlike its name.
    Uid;
    /// Names one domain, made at its founding.
    DomainId;
    /// The id of a running container without its `runtime://` prefix.
    ContainerId;
}

number_ids! {
    /// Names one archive; grows over the whole domain and is never reused.
    ArchiveId;
    /// Names one start of an engine; grows over the whole domain and is never reused.
    StartId;
    /// Names one engine within its database; never reused.
    NodeId;
    /// Counts the sessions of one process.
    SessionNumber;
    /// A resync epoch: the log index of the `BeginResync` that opened it.
    ResyncEpoch;
    /// Names one Raft log, not one server: new and random for every empty log.
    RaftId;
    /// Which founding a log descends from; 0 before any.
    MembershipEpoch;
    /// Names one task; grows over the whole domain and is never reused.
    TaskId;
    /// The number of a protocol version: a later one is greater.
    ProtocolId;
    /// The number of a grant: which primary in the history of a database. It is PostgreSQL's timeline.
    Generation;
    /// Counts the changes of what the primary of a database has to require.
    SetVersion;
    /// What PostgreSQL calls the system identifier: names one database cluster and all copies of its data.
    SystemId;
    /// Numbers the permissions to overwrite archives of a database; never reused.
    Permission;
}

/// A moment as the log saw it: milliseconds since 1970-01-01 UTC, never decreasing from entry to entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// How much later this is than `earlier`, in milliseconds; 0 if it is not later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Millis {
    /// `2026-11-21T16:30:00.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, of_day) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil(days as i64);
        let (hours, minutes, millis) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day % 60_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{:02}.{:03}Z", millis / 1000, millis % 1000)
    }
}

/// The date that lies `days` after 1970-01-01 (Howard Hinnant's algorithm).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::Millis;

    #[test]
    fn a_moment_is_shown_in_utc() {
        assert_eq!(Millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Millis(951_782_400_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Millis(1_795_278_622_045).to_string(), "2026-11-21T16:30:22.045Z");
    }
}
