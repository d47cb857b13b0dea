//! What a primary requires before it acknowledges a commit, and when it may say that a new rule is in force.

use crate::domain::ids::{ArchiveId, Generation, SetVersion};
use std::collections::{BTreeMap, BTreeSet};

/// Which archives, besides the primary's own, must have flushed a commit before its client is told that it is done, and before
/// readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Of this generation.
    pub generation: Generation,
    /// Of this version of the sync set.
    pub version: SetVersion,
    /// All of them must have flushed it. Empty: the primary's own disk is enough.
    pub members: BTreeSet<ArchiveId>,
}

/// The word of a primary that no part of its engine releases a commit by an older rule, and that each member of the rule holds
/// all that was released by an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The generation.
    pub generation: Generation,
    /// The version of the sync set.
    pub version: SetVersion,
}

/// The rules of a primary: the one in force, and the one that is coming into force. While one is coming, a part of the
/// engine may still release commits by the rule before it.
///
/// Positions are bytes of the log from its beginning; a member that has flushed up to a position holds everything before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The last rule that every part of the engine is known to apply.
    pub in_force: Rule,
    /// The rule that some parts of the engine may obey already.
    pub coming: Option<Rule>,
    /// The end of the log when the rule came into force. Nothing behind it was released by an older rule.
    pub point: u64,
}

impl Ruling {
    /// The rule of a new primary, whose first own record ends at this position. It is in force at once: nothing was released
    /// in this generation.
    pub fn begin(rule: Rule, first: u64) -> Self {
        Self { in_force: rule, coming: None, point: first }
    }

    /// Takes a rule of the domain: true if the engine is to change to it. A version that is not newer is not obeyed, and none
    /// while another one is coming into force: with three rules at once it would be unknown which one released a commit. The
    /// caller offers the rule again afterwards.
    ///
    /// `end` is the end of the log now.
    pub fn take(&mut self, rule: Rule, end: u64) -> bool {
        let is_newer = rule.generation == self.in_force.generation && rule.version > self.in_force.version;
        if self.coming.is_some() || !is_newer {
            return false;
        }
        if rule.members == self.in_force.members {
            (self.in_force, self.point) = (rule, self.point.max(end));
            return false;
        }
        self.coming = Some(rule);
        true
    }

    /// Takes a newer rule in place of one that is coming into force, or the same one again, after the change to that one was given up:
    /// parts of the engine may obey it. So the engine has to change even if the members are those of the rule in force, by way of a
    /// rule under which nothing is released. False if it is not newer than the one in force.
    pub fn replace(&mut self, rule: Rule) -> bool {
        let newest = self.coming.as_ref().map_or(self.in_force.version.next(), |coming| coming.version);
        let is_newer = rule.generation == self.in_force.generation && rule.version >= newest;
        if is_newer {
            self.coming = Some(rule);
        }
        is_newer
    }

    /// Something else than this was found to be applied: nothing is in force until the rule, or a newer one, was made again.
    pub fn doubt(&mut self) {
        if self.coming.is_none() {
            self.coming = Some(self.in_force.clone());
        }
    }

    /// Every part of the engine applies the rule of this version, the one that is coming. `end` is the end of the log at a
    /// moment after that.
    pub fn settle(&mut self, version: SetVersion, end: u64) {
        if let Some(rule) = self.coming.take_if(|rule| rule.version == version) {
            (self.in_force, self.point) = (rule, self.point.max(end));
        }
    }

    /// The word for the domain, once it is true. `flushed` is how far each archive has flushed this primary's log: what its
    /// server reported in this generation, over the connection that it has now, after its log was found to be a prefix.
    pub fn report(&self, flushed: &BTreeMap<ArchiveId, u64>) -> Option<InForce> {
        let Rule { generation, version, members } = &self.in_force;
        let holds = |member: &ArchiveId| flushed.get(member).is_some_and(|position| *position >= self.point);
        let is_true = self.coming.is_none() && members.iter().all(holds);
        is_true.then_some(InForce { generation: *generation, version: *version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(version: u64, members: &[u64]) -> Rule {
        let members = members.iter().copied().map(ArchiveId).collect();
        Rule { generation: Generation(2), version: SetVersion(version), members }
    }

    fn flushed(positions: &[(u64, u64)]) -> BTreeMap<ArchiveId, u64> {
        positions.iter().map(|(archive, position)| (ArchiveId(*archive), *position)).collect()
    }

    fn reported(ruling: &Ruling, positions: &[(u64, u64)]) -> Option<u64> {
        ruling.report(&flushed(positions)).map(|word| word.version.0)
    }

    #[test]
    fn a_rule_is_in_force_when_its_members_hold_all_that_an_older_rule_released() {
        let mut ruling = Ruling::begin(rule(4, &[2]), 100);
        assert_eq!(reported(&ruling, &[(2, 99)]), None);
        assert_eq!(reported(&ruling, &[(2, 100)]), Some(4));
        assert!(ruling.take(rule(5, &[2, 3]), 200));
        assert_eq!(reported(&ruling, &[(2, 500), (3, 500)]), None, "a part of the engine may have the older rule");
        ruling.settle(SetVersion(4), 250);
        assert!(ruling.coming.is_some(), "a late word about another version");
        ruling.settle(SetVersion(5), 300);
        assert_eq!(reported(&ruling, &[(2, 500)]), None);
        assert_eq!(reported(&ruling, &[(2, 500), (3, 299)]), None, "the older rule may have released what 3 lacks");
        assert_eq!(reported(&ruling, &[(2, 300), (3, 300)]), Some(5));
    }

    #[test]
    fn no_older_rule_is_obeyed_and_none_while_another_is_coming() {
        let mut ruling = Ruling::begin(rule(4, &[2]), 100);
        assert!(!ruling.take(rule(4, &[]), 100), "the same version");
        assert!(!ruling.take(rule(3, &[]), 100), "an older version");
        let other = Rule { generation: Generation(3), ..rule(9, &[]) };
        assert!(!ruling.take(other, 100), "another generation");
        assert_eq!((&ruling.in_force, &ruling.coming), (&rule(4, &[2]), &None));
        assert!(ruling.take(rule(5, &[3]), 100));
        assert!(!ruling.take(rule(6, &[]), 100), "another one is coming into force");
        assert_eq!((&ruling.in_force, &ruling.coming), (&rule(4, &[2]), &Some(rule(5, &[3]))));
    }

    #[test]
    fn a_change_that_was_given_up_is_not_forgotten_where_the_next_rule_is_the_one_before() {
        let mut ruling = Ruling::begin(rule(4, &[2]), 100);
        assert!(ruling.take(rule(5, &[2, 3]), 200));
        assert!(ruling.replace(rule(6, &[2])), "a part of the engine may obey version 5");
        assert_eq!(reported(&ruling, &[(2, 500), (3, 500)]), None);
        ruling.settle(SetVersion(6), 300);
        assert_eq!(reported(&ruling, &[(2, 300)]), Some(6));
        assert!(!ruling.replace(rule(6, &[2])), "it is in force");
        ruling.doubt();
        assert_eq!(reported(&ruling, &[(2, 300)]), None);
        assert!(ruling.replace(rule(6, &[2])), "it was changed from outside");
        assert!(!ruling.replace(rule(5, &[2, 3])), "an older one is never made again");
    }

    #[test]
    fn a_version_with_the_same_members_is_in_force_at_once() {
        let mut ruling = Ruling::begin(rule(4, &[2]), 100);
        assert!(!ruling.take(rule(5, &[2]), 200), "the engine does not change");
        assert_eq!(reported(&ruling, &[(2, 199)]), None);
        assert_eq!(reported(&ruling, &[(2, 200)]), Some(5));
    }

    #[test]
    fn a_primary_alone_in_its_set_waits_for_no_archive() {
        assert_eq!(reported(&Ruling::begin(rule(4, &[]), 100), &[]), Some(4));
    }
}
