//! What the annotations of a StatefulSet say of the replication of its database, if that has one primary.
//!
//! An annotation that does not parse changes nothing: the last good value stays, and the plan says which key is wrong.

use super::objects::StatefulSet;
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
/// The most bytes that are kept of a value: all good ones are shorter.
const KEPT: usize = 32;
/// The most standbys that confirm each commit.
const MOST: u32 = 16;

/// The annotations that are of replication, by their names behind the prefix; values are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotated(BTreeMap<Box<str>, Box<str>>);

/// An annotation that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its whole name.
    pub annotation: String,
    /// What it says, cut.
    pub says: String,
    /// What it may say.
    pub expected: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { annotation, says, expected } = self;
        write!(f, "annotation {annotation} says {says:?}, and may say {expected}")
    }
}

impl Annotated {
    /// Reads an object's annotations by their whole names.
    pub fn read<'a>(annotations: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let keys = [SYNCHRONOUS, WHEN_ALONE, FAILOVER];
        let ours = annotations.into_iter().filter_map(|(name, text)| Some((name.strip_prefix(PREFIX)?, text)));
        let known = ours.filter(|(name, _)| keys.contains(name));
        Self(known.map(|(name, text)| (name.into(), text[..text.floor_char_boundary(KEPT)].into())).collect())
    }

    fn says(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|text| text.trim())
    }
}

impl StatefulSet {
    /// What it asks for of a database with one primary.
    ///
    /// # Errors
    ///
    /// The annotation that cannot be followed.
    pub fn replication(&self) -> Result<Settings, Broken> {
        let broken = |key: &str, says: &str, expected| Broken {
            annotation: format!("{PREFIX}{key}"),
            says: says.to_owned(),
            expected,
        };
        let synchronous = match self.replication.says(SYNCHRONOUS) {
            None => 1,
            Some(text) => match text.parse() {
                Ok(number) if number <= MOST => number,
                _ => return Err(broken(SYNCHRONOUS, text, "a number from 0 to 16")),
            },
        };
        let when_alone = match self.replication.says(WHEN_ALONE) {
            None | Some("degrade") => WhenAlone::Degrade,
            Some("block") if synchronous == 0 => {
                let expected =
                    "`degrade` while kaa.dev/synchronous is 0: no standby would confirm a commit that waits for one";
                return Err(broken(WHEN_ALONE, "block", expected));
            }
            Some("block") => WhenAlone::Block,
            Some(text) => return Err(broken(WHEN_ALONE, text, "`degrade` or `block`")),
        };
        let failover = match self.replication.says(FAILOVER) {
            None | Some("automatic") => FailoverMode::Automatic,
            Some("manual") => FailoverMode::Manual,
            Some("paused") => FailoverMode::Paused,
            Some(text) => return Err(broken(FAILOVER, text, "`automatic`, `manual` or `paused`")),
        };
        Ok(Settings {
            stateful_set: self.name.clone(),
            uid: self.uid.clone(),
            replicas: self.replicas,
            synchronous,
            when_alone,
            failover,
        })
    }

    /// What a fresh read of it proves of replication.
    pub(super) fn replication_fact(&self) -> Option<Fact> {
        let settings = self.replication().ok().filter(|_| self.database.is_some());
        settings.map(|settings| Fact::AsksForReplication(Box::new(settings)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Annotated, PREFIX, StatefulSet};

    fn asked(annotations: &[(&str, &str)]) -> String {
        let named: Vec<_> = annotations.iter().map(|(key, text)| (format!("{PREFIX}{key}"), *text)).collect();
        let set = StatefulSet {
            name: "shop".to_owned(),
            replicas: 3,
            replication: Annotated::read(named.iter().map(|(key, text)| (key.as_str(), *text))),
            ..StatefulSet::default()
        };
        match set.replication() {
            Ok(settings) => format!("{} {} {}", settings.synchronous, settings.when_alone, settings.failover),
            Err(broken) => broken.to_string(),
        }
    }

    #[test]
    fn what_is_not_said_has_a_default_and_what_is_wrong_is_named() {
        assert_eq!(asked(&[]), "1 degrade automatic");
        assert_eq!(asked(&[("synchronous", " 2 "), ("when-alone", "block"), ("failover", "manual")]), "2 block manual");
        let wrong = "annotation kaa.dev/synchronous says \"-1\", and may say a number from 0 to 16";
        assert_eq!(asked(&[("synchronous", "-1")]), wrong);
        assert!(asked(&[("synchronous", "17")]).contains("from 0 to 16"));
        assert!(asked(&[("when-alone", "")]).contains("`degrade` or `block`"));
        assert_eq!(asked(&[("synchronous", "0")]), "0 degrade automatic");
        assert!(
            asked(&[("synchronous", "0"), ("when-alone", "block")])
                .contains("`degrade` while kaa.dev/synchronous is 0")
        );
        assert_eq!(asked(&[("failover", "paused")]), "1 degrade paused");
        assert!(asked(&[("failover", "auto")]).contains("`automatic`, `manual` or `paused`"));
        assert!(asked(&[("when-alone", &"ß".repeat(1000))]).len() < 200, "what is kept is bounded");
    }
}
