//! What the annotations of a StatefulSet say of the replication of its database, if that has one primary.
//!
//! Each counts by itself: one that cannot be followed leaves what was set last, and the plan says which one that is, and which ones
//! below the prefix are none that is read.

use super::annotations::{DEFAULT, POLICY, PREFILTER, SYNC};
use super::objects::{HOLD_PURGE, PAUSE_RESYNC, SECONDARY_RELEASE, StatefulSet, TE_PREFERENCE, UPGRADE_PROTOCOL};
use crate::domain::bounds::{LABEL_VALUE, is_label_value};
use crate::domain::evidence::Fact;
use crate::domain::replicated::{FailoverMode, Settings, WhenAlone};
use std::collections::BTreeMap;
use std::fmt;

/// The prefix of these annotations. It is fixed, unlike that of the others.
pub const PREFIX: &str = "kaa.dev/";
/// The annotation with the number of standbys that confirm each commit.
const SYNCHRONOUS: &str = "synchronous";
/// The annotation that says what a primary does that no standby can confirm.
const WHEN_ALONE: &str = "when-alone";
/// The annotation that says who begins a failover.
const FAILOVER: &str = "failover";
/// The annotation with the zone that is preferred for the primary.
const PREFERRED_ZONE: &str = "preferred-zone";
/// Those that are read.
const KEYS: [&str; 4] = [SYNCHRONOUS, WHEN_ALONE, FAILOVER, PREFERRED_ZONE];
/// Those that one may expect to be read, and why they are not.
const UNSUPPORTED: [(&str, &str); 1] = [("primaries", "a database with roles has one primary")];
/// The most bytes that are kept of a value: all good ones are shorter.
const KEPT: usize = LABEL_VALUE + 1;
/// The most bytes that are kept of a name: Kubernetes has no longer ones.
const KEPT_NAME: usize = 63;
/// The most annotations that are kept though none reads them.
const MOST_UNREAD: usize = 8;
/// The most standbys that confirm each commit.
const MOST: u32 = 16;

/// The annotations below the prefix, by their names behind it; values are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotated {
    read: BTreeMap<Box<str>, Box<str>>,
    unread: BTreeMap<Box<str>, Box<str>>,
}

/// An annotation that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its whole name.
    pub annotation: String,
    /// What it says, cut.
    pub says: String,
    /// Why it is not followed.
    pub why: NotFollowed,
}

/// Why an annotation is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotFollowed {
    /// It says something else than it may.
    Value {
        /// What it may say.
        expected: &'static str,
        /// As what it counts meanwhile.
        counts_as: String,
    },
    /// What it asks for cannot be had: why.
    Unsupported(&'static str),
    /// None of this name is read.
    Unknown,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { annotation, says, why } = self;
        write!(f, "annotation {annotation} says {says:?}, and ")?;
        match why {
            NotFollowed::Value { expected, counts_as } => {
                write!(f, "may say {expected}; until it does, it counts as {counts_as}")
            }
            NotFollowed::Unsupported(why) => write!(f, "is not supported: {why}"),
            NotFollowed::Unknown => {
                let known = KEYS.map(|key| format!("{PREFIX}{key}"));
                write!(f, "is not known: it changes nothing. Those that are read are {}", known.join(", "))
            }
        }
    }
}

/// Whether an annotation of this name, behind the prefix of all others, is read at some object.
fn is_read_elsewhere(key: &str) -> bool {
    let others =
        [HOLD_PURGE, PAUSE_RESYNC, SECONDARY_RELEASE, UPGRADE_PROTOCOL, TE_PREFERENCE, DEFAULT, PREFILTER, SYNC];
    others.contains(&key) || key.starts_with(POLICY)
}

impl Annotated {
    /// Reads an object's annotations by their whole names. `others` is the prefix of all others, which may be the same.
    pub fn read<'a>(annotations: impl IntoIterator<Item = (&'a str, &'a str)>, others: &str) -> Self {
        let mut read = Self::default();
        let cut = |text: &str, most: usize| -> Box<str> { text[..text.floor_char_boundary(most)].into() };
        for (name, text) in annotations {
            let Some(key) = name.strip_prefix(PREFIX) else { continue };
            if KEYS.contains(&key) {
                read.read.insert(key.into(), cut(text, KEPT));
            } else if read.unread.len() < MOST_UNREAD && !(others == PREFIX && is_read_elsewhere(key)) {
                read.unread.insert(cut(key, KEPT_NAME), cut(text, KEPT));
            }
        }
        read
    }

    fn says(&self, key: &str) -> Option<&str> {
        self.read.get(key).map(|text| text.trim())
    }

    /// What an annotation asks for: `default` if it is not there, `None` if it cannot be followed.
    fn asks<T>(&self, key: &str, default: T, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.says(key).map_or(Some(default), parse)
    }

    /// Those that are not read.
    fn unread(&self) -> impl Iterator<Item = Broken> {
        self.unread.iter().map(|(key, says)| {
            let unsupported = UNSUPPORTED.iter().find(|(name, _)| **name == **key);
            let why = unsupported.map_or(NotFollowed::Unknown, |(_, why)| NotFollowed::Unsupported(why));
            Broken { annotation: format!("{PREFIX}{key}"), says: says.trim().to_owned(), why }
        })
    }
}

impl StatefulSet {
    /// What it asks for of a database with one primary, and the annotations of it that cannot be followed. Where one cannot, `last` stays,
    /// which was set before; without it, it is as if the annotation were not there.
    pub fn replication(&self, last: Option<&Settings>) -> (Settings, Vec<Broken>) {
        let asked = &self.replication;
        let synchronous = asked.asks(SYNCHRONOUS, 1, |text| text.parse().ok().filter(|number| *number <= MOST));
        let when_alone = asked.asks(WHEN_ALONE, WhenAlone::Degrade, |text| match text {
            "degrade" => Some(WhenAlone::Degrade),
            "block" => Some(WhenAlone::Block),
            _ => None,
        });
        let failover = asked.asks(FAILOVER, FailoverMode::Automatic, |text| match text {
            "automatic" => Some(FailoverMode::Automatic),
            "manual" => Some(FailoverMode::Manual),
            "paused" => Some(FailoverMode::Paused),
            _ => None,
        });
        let preferred_zone =
            asked.asks(PREFERRED_ZONE, None, |text| is_label_value(text).then(|| Some(text.to_owned())));
        let last_zone = || last.and_then(|last| last.preferred_zone.clone());
        let mut settings = Settings {
            stateful_set: self.name.clone(),
            uid: self.uid.clone(),
            replicas: self.replicas,
            synchronous: synchronous.unwrap_or(last.map_or(1, |last| last.synchronous)),
            when_alone: when_alone.unwrap_or(last.map_or(WhenAlone::Degrade, |last| last.when_alone)),
            failover: failover.unwrap_or(last.map_or(FailoverMode::Automatic, |last| last.failover)),
            preferred_zone: preferred_zone.clone().unwrap_or_else(last_zone),
        };
        // Of two that contradict each other neither changes anything: one of them alone might ask for less than both did.
        let contradict = settings.synchronous == 0 && settings.when_alone == WhenAlone::Block;
        if contradict {
            (settings.synchronous, settings.when_alone) =
                last.map_or((1, WhenAlone::Degrade), |last| (last.synchronous, last.when_alone));
        }
        let mut broken = Vec::new();
        let mut note = |key: &str, expected, counts_as: String| {
            if let Some(says) = asked.says(key) {
                let why = NotFollowed::Value { expected, counts_as };
                broken.push(Broken { annotation: format!("{PREFIX}{key}"), says: says.to_owned(), why });
            }
        };
        if synchronous.is_none() {
            note(SYNCHRONOUS, "a number from 0 to 16", settings.synchronous.to_string());
        } else if contradict {
            note(SYNCHRONOUS, "1 to 16 while kaa.dev/when-alone is `block`", settings.synchronous.to_string());
        }
        if when_alone.is_none() {
            note(WHEN_ALONE, "`degrade` or `block`", settings.when_alone.to_string());
        } else if contradict {
            let expected =
                "`degrade` while kaa.dev/synchronous is 0: no standby would confirm a commit that waits for one";
            note(WHEN_ALONE, expected, settings.when_alone.to_string());
        }
        if failover.is_none() {
            note(FAILOVER, "`automatic`, `manual` or `paused`", settings.failover.to_string());
        }
        if preferred_zone.is_none() {
            let counts_as = settings.preferred_zone.as_deref().unwrap_or("none");
            note(PREFERRED_ZONE, "a zone such as eu-west-1a, as the nodes' labels have it", counts_as.to_owned());
        }
        broken.extend(asked.unread());
        (settings, broken)
    }

    /// What a fresh read of it proves of replication, if nothing depends on what was set last.
    pub(super) fn replication_fact(&self) -> Option<Fact> {
        let (settings, broken) = self.replication(None);
        let depends = broken.iter().any(|broken| matches!(broken.why, NotFollowed::Value { .. }));
        (self.database.is_some() && !depends).then(|| Fact::AsksForReplication(Box::new(settings)))
    }

    /// What a fresh read of it proves, if this was set last.
    pub fn facts_after(&self, last: Option<&Settings>) -> Vec<Fact> {
        let mut facts = self.facts();
        if self.database.is_some() && self.replication_fact().is_none() {
            facts.push(Fact::AsksForReplication(Box::new(self.replication(last).0)));
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(annotations: &[(&str, &str)]) -> StatefulSet {
        let named: Vec<_> = annotations.iter().map(|(key, text)| (format!("{PREFIX}{key}"), *text)).collect();
        let replication = Annotated::read(named.iter().map(|(key, text)| (key.as_str(), *text)), "nuodb.com/");
        StatefulSet {
            name: "shop".to_owned(),
            replicas: 3,
            database: Some("shop".into()),
            replication,
            ..StatefulSet::default()
        }
    }

    /// What counts, and what is said of the annotations that do not.
    fn asked(annotations: &[(&str, &str)], last: Option<&Settings>) -> (String, Vec<String>) {
        let (settings, broken) = set(annotations).replication(last);
        let counts = format!("{} {} {}", settings.synchronous, settings.when_alone, settings.failover);
        (counts, broken.iter().map(ToString::to_string).collect())
    }

    fn first(annotations: &[(&str, &str)]) -> (String, String) {
        let (counts, broken) = asked(annotations, None);
        (counts, broken.join("\n"))
    }

    #[test]
    fn what_is_not_said_has_a_default_and_what_is_wrong_is_named() {
        let good = |annotations: &[(&str, &str)], counts: &str| {
            assert_eq!(first(annotations), (counts.to_owned(), String::new()));
        };
        good(&[], "1 degrade automatic");
        good(&[("synchronous", " 2 "), ("when-alone", "block"), ("failover", "manual")], "2 block manual");
        good(&[("synchronous", "0")], "0 degrade automatic");
        good(&[("failover", "paused")], "1 degrade paused");
        let wrong = "annotation kaa.dev/synchronous says \"two\", and may say a number from 0 to 16; until it does, it counts as 1";
        assert_eq!(first(&[("synchronous", "two")]), ("1 degrade automatic".to_owned(), wrong.to_owned()));
        assert!(first(&[("synchronous", "-1")]).1.contains("from 0 to 16"));
        assert!(first(&[("synchronous", "17")]).1.contains("from 0 to 16"));
        assert!(first(&[("when-alone", "")]).1.contains("`degrade` or `block`"));
        assert!(first(&[("failover", "auto")]).1.contains("`automatic`, `manual` or `paused`"));
        assert!(first(&[("when-alone", &"ß".repeat(1000))]).1.len() < 200, "what is kept is bounded");
    }

    #[test]
    fn one_that_is_wrong_keeps_what_was_set_and_the_others_count() {
        let (last, _) = set(&[("synchronous", "2"), ("when-alone", "block"), ("failover", "manual")]).replication(None);
        let (counts, broken) = asked(&[("synchronous", "two"), ("when-alone", "degrade")], Some(&last));
        assert_eq!((counts.as_str(), broken.len()), ("2 degrade automatic", 1), "one that is gone has its default");
        assert!(broken[0].ends_with("counts as 2"), "{broken:?}");
        let (counts, broken) = asked(&[("synchronous", "3"), ("when-alone", "no"), ("failover", "no")], Some(&last));
        assert_eq!((counts.as_str(), broken.len()), ("3 block manual", 2));
    }

    #[test]
    fn a_zone_is_one_that_a_label_may_have() {
        let asked = |says: &str, last: Option<&Settings>| set(&[("preferred-zone", says)]).replication(last);
        for good in ["a", " eu-west-1a ", "Zone_1.b", &"z".repeat(63)] {
            let (settings, broken) = asked(good, None);
            assert_eq!((settings.preferred_zone.as_deref(), broken.len()), (Some(good.trim()), 0));
        }
        let last = asked("a", None).0;
        for wrong in ["", "a b", "-a", "a,b", "ß", &"z".repeat(64), &"z".repeat(1000)] {
            let (settings, broken) = asked(wrong, Some(&last));
            assert_eq!((settings.preferred_zone.as_deref(), broken.len()), (Some("a"), 1), "{wrong:?}");
            assert_eq!(asked(wrong, None).0.preferred_zone, None, "{wrong:?}");
        }
        assert_eq!(set(&[]).replication(Some(&last)).0.preferred_zone, None, "one that is gone prefers none");
        assert_eq!(
            asked("a b", None).1[0].to_string(),
            "annotation kaa.dev/preferred-zone says \"a b\", and may say a zone such as eu-west-1a, as the nodes' labels have it; until it \
             does, it counts as none"
        );
    }

    #[test]
    fn two_that_contradict_each_other_both_keep_what_was_set() {
        let both = [("synchronous", "0"), ("when-alone", "block"), ("failover", "manual")];
        let (counts, broken) = asked(&both, None);
        assert_eq!((counts.as_str(), broken.len()), ("1 degrade manual", 2));
        assert!(
            broken[0].contains("says \"0\", and may say 1 to 16 while kaa.dev/when-alone is `block`"),
            "{broken:?}"
        );
        assert!(broken[1].contains("`degrade` while kaa.dev/synchronous is 0"), "{broken:?}");
        let (last, _) = set(&[("synchronous", "2"), ("when-alone", "block")]).replication(None);
        assert_eq!(asked(&both, Some(&last)).0, "2 block manual");
        let slip = [("synchronous", "0"), ("when-alone", "blok")];
        assert_eq!(asked(&slip, Some(&last)).0, "2 block automatic", "a slip does not make commits wait forever");
    }

    #[test]
    fn one_that_none_reads_is_named_and_changes_nothing() {
        let (counts, broken) = asked(&[("synchronus", "2"), ("primaries", "2"), ("failover", "manual")], None);
        assert_eq!(counts, "1 degrade manual");
        let expected = [
            "annotation kaa.dev/primaries says \"2\", and is not supported: a database with roles has one primary",
            "annotation kaa.dev/synchronus says \"2\", and is not known: it changes nothing. Those that are read are kaa.dev/synchronous, \
             kaa.dev/when-alone, kaa.dev/failover, kaa.dev/preferred-zone",
        ];
        assert_eq!(broken, expected);
        let many: Vec<_> = (0..1000).map(|number| format!("{PREFIX}{number}")).collect();
        let read = Annotated::read(many.iter().map(|name| (name.as_str(), "")), PREFIX);
        assert_eq!(read.unread.len(), MOST_UNREAD, "what is kept is bounded");
        let others = ["hold-purge", "load-balancer-policy.near"].map(|key| format!("{PREFIX}{key}"));
        let read = |prefix| Annotated::read(others.iter().map(|name| (name.as_str(), "")), prefix).unread.len();
        assert_eq!((read(PREFIX), read("nuodb.com/")), (0, 2), "agents may be told the same prefix");
    }

    #[test]
    fn a_fresh_read_proves_what_was_planned() {
        let (last, _) = set(&[("synchronous", "2")]).replication(None);
        let asks = |set: &StatefulSet, last: Option<&Settings>| -> Vec<u32> {
            let asks = |fact| match fact {
                Fact::AsksForReplication(settings) => Some(settings.synchronous),
                _ => None,
            };
            set.facts_after(last).into_iter().filter_map(asks).collect()
        };
        let broken = set(&[("synchronous", "two"), ("failover", "manual")]);
        assert_eq!((asks(&broken, Some(&last)), asks(&broken, None)), (vec![2], vec![1]));
        assert_eq!(asks(&set(&[("synchronous", "3"), ("other", "")]), Some(&last)), [3]);
    }
}
