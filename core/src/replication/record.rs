//! The record of a database's replication in the domain.

use super::{InForce, Rule};
use crate::domain::ids::{ArchiveId, Generation, Permission, SetVersion};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Which archive is the primary's, and which ones hold every commit that counts. What a method refuses changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replication {
    /// The current generation. It grows with each grant.
    pub generation: Generation,
    /// The archive of the current primary.
    pub primary: ArchiveId,
    /// The archives that hold every commit that counts. The primary's is always one of them.
    pub sync_set: BTreeSet<ArchiveId>,
    /// The primary waits for this archive too, or will soon. It may still lack earlier commits, so it does not count.
    pub joining: Option<ArchiveId>,
    /// Grows with each change of what the primary has to require.
    pub version: SetVersion,
    /// Archives whose data may be replaced, by a rewind or a copy, and by which permission.
    pub overwriting: BTreeMap<ArchiveId, Permission>,
    /// The last permission that was given.
    pub permission: Permission,
}

/// Why the record does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    /// Another primary has been granted since.
    #[error("generation {named} is not the current one, which is {current}")]
    Generation {
        /// The generation that was named.
        named: Generation,
        /// The current one.
        current: Generation,
    },
    /// What the primary has to require has changed since.
    #[error("version {named} of the sync set is not the current one, which is {current}")]
    Version {
        /// The version that was named.
        named: SetVersion,
        /// The current one.
        current: SetVersion,
    },
    /// It may lack commits that count.
    #[error("archive {0} is not in the sync set")]
    NotInSyncSet(ArchiveId),
    /// A primary holds every commit that it acknowledges.
    #[error("the new sync set does not contain archive {0}, the new primary's")]
    WithoutPrimary(ArchiveId),
    /// Its data may be incomplete.
    #[error("the data of archive {0} is being overwritten")]
    Overwriting(ArchiveId),
    /// It is a member.
    #[error("archive {0} is in the sync set already")]
    InSyncSet(ArchiveId),
    /// One archive at a time.
    #[error("archive {0} is joining the sync set")]
    Joining(ArchiveId),
    /// The primary's archive stays in the set until another primary is granted.
    #[error("archive {0} is the primary's")]
    Primary(ArchiveId),
    /// What was given up is what an operator was shown.
    #[error("the sync set has changed: it is not the one whose commits were given up")]
    OtherSet,
    /// Its server reports the end of an earlier permission, or of none.
    #[error("archive {archive} is not being overwritten by permission {permission}")]
    NotOverwriting {
        /// The archive.
        archive: ArchiveId,
        /// The permission that was named.
        permission: Permission,
    },
}

impl Replication {
    /// The record of a database whose first data is in this archive: generation 1, and a sync set of this archive alone. To be
    /// done once for each database.
    pub fn begin(archive: ArchiveId) -> Self {
        Self::begin_at(archive, Generation(1))
    }

    /// The same for data that exists: no generation up to this one is granted.
    pub fn begin_at(archive: ArchiveId, generation: Generation) -> Self {
        Self {
            generation,
            primary: archive,
            sync_set: BTreeSet::from([archive]),
            joining: None,
            version: SetVersion(1),
            overwriting: BTreeMap::new(),
            permission: Permission(0),
        }
    }

    /// What the primary has to require.
    pub fn rule(&self) -> Rule {
        let members = self.sync_set.iter().copied().chain(self.joining).filter(|archive| *archive != self.primary);
        Rule { generation: self.generation, version: self.version, members: members.collect() }
    }

    /// Makes an archive of the sync set the primary's, in the next generation. The new sync set is a part of the current one.
    ///
    /// Safety does not need the current generation. It keeps a late or repeated request from moving the primary again. `known` is
    /// the highest generation that any volume names: no number is used twice.
    pub fn grant(
        &mut self,
        current: Generation,
        known: Generation,
        winner: ArchiveId,
        sync_set: &BTreeSet<ArchiveId>,
    ) -> Result<(), Refused> {
        self.is_current(current)?;
        if let Some(stranger) = sync_set.iter().chain([&winner]).find(|archive| !self.sync_set.contains(archive)) {
            return Err(Refused::NotInSyncSet(*stranger));
        }
        if !sync_set.contains(&winner) {
            return Err(Refused::WithoutPrimary(winner));
        }
        // A second line of defence: no archive of the set is being overwritten.
        self.is_whole(winner)?;
        self.granted(known, winner, sync_set.clone());
        Ok(())
    }

    /// Makes an archive that is not in the sync set the primary's, alone, as [`Replication::grant`]. What is acknowledged and only on
    /// the archives of `lost` is lost: that is the sync set as the operator was shown it.
    pub fn grant_with_loss(
        &mut self,
        current: Generation,
        known: Generation,
        winner: ArchiveId,
        lost: &BTreeSet<ArchiveId>,
    ) -> Result<(), Refused> {
        self.is_current(current)?;
        if self.sync_set != *lost {
            return Err(Refused::OtherSet);
        }
        if lost.contains(&winner) {
            return Err(Refused::InSyncSet(winner));
        }
        // Nothing begins from data that is incomplete.
        self.is_whole(winner)?;
        self.granted(known, winner, BTreeSet::from([winner]));
        Ok(())
    }

    fn granted(&mut self, known: Generation, winner: ArchiveId, sync_set: BTreeSet<ArchiveId>) {
        self.generation = self.generation.max(known).next();
        self.version = self.version.next();
        (self.primary, self.sync_set, self.joining) = (winner, sync_set, None);
    }

    /// The primary has to wait for one more archive, which does not count yet.
    pub fn ask_to_join(&mut self, current: Generation, version: SetVersion, archive: ArchiveId) -> Result<(), Refused> {
        self.is_current(current)?;
        self.is_version(version)?;
        if self.sync_set.contains(&archive) {
            return Err(Refused::InSyncSet(archive));
        }
        if let Some(joining) = self.joining {
            return Err(Refused::Joining(joining));
        }
        self.is_whole(archive)?;
        self.version = self.version.next();
        self.joining = Some(archive);
        Ok(())
    }

    /// The primary's word that it waits for the joining archive, if one is joining, and that this archive holds all that counted
    /// before: it is in the sync set from now on, and is given. The version must be the current one: a late word may be about a rule
    /// that is gone.
    pub fn note_in_force(&mut self, InForce { generation, version }: InForce) -> Result<Option<ArchiveId>, Refused> {
        self.is_current(generation)?;
        self.is_version(version)?;
        let joined = self.joining.take();
        // The primary requires the same as before, so the version stays.
        self.sync_set.extend(joined);
        Ok(joined)
    }

    /// An archive leaves the sync set, or stops to join. No commit is lost by it, at any time. An agent proposes it only on the
    /// word of a living primary: from a set that has shrunk to the archive of a dead primary no other server can continue.
    pub fn leave(&mut self, current: Generation, version: SetVersion, archive: ArchiveId) -> Result<(), Refused> {
        self.is_current(current)?;
        self.is_version(version)?;
        if archive == self.primary {
            return Err(Refused::Primary(archive));
        }
        if self.joining == Some(archive) {
            self.joining = None;
        } else if !self.sync_set.remove(&archive) {
            return Err(Refused::NotInSyncSet(archive));
        }
        self.version = self.version.next();
        Ok(())
    }

    /// The data of an archive may be replaced, by a rewind or by a copy, until [`Replication::end_overwrite`]. The archive must
    /// have left the sync set: its data may be all that is left of a commit.
    pub fn permit_overwrite(&mut self, current: Generation, archive: ArchiveId) -> Result<Permission, Refused> {
        self.is_current(current)?;
        if archive == self.primary {
            return Err(Refused::Primary(archive));
        }
        if self.sync_set.contains(&archive) {
            return Err(Refused::InSyncSet(archive));
        }
        if self.joining == Some(archive) {
            return Err(Refused::Joining(archive));
        }
        self.is_whole(archive)?;
        self.permission = self.permission.next();
        self.overwriting.insert(archive, self.permission);
        Ok(self.permission)
    }

    /// The word of an archive's own server that its data is whole, and that it makes no more use of this permission. A late
    /// word about an earlier one must not end a later one.
    pub fn end_overwrite(&mut self, archive: ArchiveId, permission: Permission) -> Result<(), Refused> {
        if self.overwriting.get(&archive) != Some(&permission) {
            return Err(Refused::NotOverwriting { archive, permission });
        }
        self.overwriting.remove(&archive);
        Ok(())
    }

    /// Nothing more is known of an archive that was purged. One of the sync set stays in it until it leaves.
    pub fn forget(&mut self, archive: ArchiveId) {
        self.overwriting.remove(&archive);
    }

    fn is_whole(&self, archive: ArchiveId) -> Result<(), Refused> {
        if self.overwriting.contains_key(&archive) { Err(Refused::Overwriting(archive)) } else { Ok(()) }
    }

    fn is_current(&self, named: Generation) -> Result<(), Refused> {
        let current = self.generation;
        if named == current { Ok(()) } else { Err(Refused::Generation { named, current }) }
    }

    fn is_version(&self, named: SetVersion) -> Result<(), Refused> {
        let current = self.version;
        if named == current { Ok(()) } else { Err(Refused::Version { named, current }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURRENT: Generation = Generation(1);

    fn set(archives: &[u64]) -> BTreeSet<ArchiveId> {
        archives.iter().copied().map(ArchiveId).collect()
    }

    fn in_force(generation: u64, version: u64) -> InForce {
        InForce { generation: Generation(generation), version: SetVersion(version) }
    }

    /// Archive 1 is the primary's; 2 has joined, and 3 is joining with version 3.
    fn joining() -> Replication {
        let mut record = Replication::begin(ArchiveId(1));
        record.ask_to_join(CURRENT, SetVersion(1), ArchiveId(2)).unwrap();
        record.note_in_force(in_force(1, 2)).unwrap();
        record.ask_to_join(CURRENT, SetVersion(2), ArchiveId(3)).unwrap();
        record
    }

    fn shown(record: &Replication) -> String {
        let Replication { generation, primary, sync_set, joining, version, overwriting, permission: _ } = record;
        let set: String = sync_set.iter().map(|id| format!(" {id}")).collect();
        let overwriting: String = overwriting.iter().map(|(id, by)| format!(" {id} by {by}")).collect();
        let joining = joining.map_or(String::new(), |id| format!(" joining {id}"));
        format!("generation {generation} of {primary}, set{set}{joining}, version {version}, overwriting{overwriting}")
    }

    /// What is refused changes nothing.
    #[track_caller]
    fn refused(change: impl FnOnce(&mut Replication) -> Result<(), Refused>, why: &str) {
        let mut record = joining();
        assert_eq!(change(&mut record).unwrap_err().to_string(), why);
        assert_eq!(record, joining());
    }

    #[test]
    fn an_archive_counts_once_the_primary_waits_for_it() {
        let mut record = joining();
        assert_eq!(shown(&record), "generation 1 of 1, set 1 2 joining 3, version 3, overwriting");
        assert_eq!(record.rule().members, set(&[2, 3]));
        record.note_in_force(in_force(1, 3)).unwrap();
        assert_eq!(shown(&record), "generation 1 of 1, set 1 2 3, version 3, overwriting");
        assert_eq!(record.rule().members, set(&[2, 3]), "the primary requires the same as before");
        assert_eq!(record.note_in_force(in_force(1, 3)), Ok(None), "nothing more joins");
    }

    #[test]
    fn a_word_about_another_rule_is_refused() {
        refused(
            |record| record.note_in_force(in_force(1, 2)).map(drop),
            "version 2 of the sync set is not the current one, which is 3",
        );
        refused(
            |record| record.note_in_force(in_force(2, 3)).map(drop),
            "generation 2 is not the current one, which is 1",
        );
    }

    #[test]
    fn a_grant_takes_a_part_of_the_set() {
        let mut record = joining();
        record.grant(CURRENT, CURRENT, ArchiveId(2), &set(&[2])).unwrap();
        assert_eq!(shown(&record), "generation 2 of 2, set 2, version 4, overwriting");
        assert_eq!(record.rule().members, set(&[]));
        let again = record.grant(CURRENT, CURRENT, ArchiveId(2), &set(&[2]));
        assert_eq!(again.unwrap_err().to_string(), "generation 1 is not the current one, which is 2");
        let mut record = joining();
        record.grant(CURRENT, Generation(6), ArchiveId(1), &set(&[1, 2])).unwrap();
        assert_eq!(shown(&record), "generation 7 of 1, set 1 2, version 4, overwriting", "a volume names generation 6");
    }

    #[test]
    fn a_grant_adds_no_archive() {
        let lacks = "archive 3 is not in the sync set";
        refused(|record| record.grant(CURRENT, CURRENT, ArchiveId(3), &set(&[3])), lacks);
        refused(|record| record.grant(CURRENT, CURRENT, ArchiveId(2), &set(&[2, 3])), lacks);
        refused(
            |record| record.grant(CURRENT, CURRENT, ArchiveId(2), &set(&[1])),
            "the new sync set does not contain archive 2, the new primary's",
        );
    }

    #[test]
    fn one_archive_joins_at_a_time() {
        let join = |archive| move |record: &mut Replication| record.ask_to_join(CURRENT, SetVersion(3), archive);
        refused(join(ArchiveId(2)), "archive 2 is in the sync set already");
        refused(join(ArchiveId(3)), "archive 3 is joining the sync set");
        refused(join(ArchiveId(4)), "archive 3 is joining the sync set");
    }

    #[test]
    fn every_archive_but_the_primarys_may_leave() {
        let mut record = joining();
        record.leave(CURRENT, SetVersion(3), ArchiveId(3)).unwrap();
        assert_eq!(shown(&record), "generation 1 of 1, set 1 2, version 4, overwriting");
        record.leave(CURRENT, SetVersion(4), ArchiveId(2)).unwrap();
        assert_eq!(shown(&record), "generation 1 of 1, set 1, version 5, overwriting");
        let leave = |archive| move |record: &mut Replication| record.leave(CURRENT, SetVersion(3), archive);
        refused(leave(ArchiveId(1)), "archive 1 is the primary's");
        refused(leave(ArchiveId(9)), "archive 9 is not in the sync set");
    }

    #[test]
    fn only_an_archive_outside_the_set_is_overwritten_and_it_does_not_join_meanwhile() {
        let overwrite = |archive| move |record: &mut Replication| record.permit_overwrite(CURRENT, archive).map(drop);
        refused(overwrite(ArchiveId(1)), "archive 1 is the primary's");
        refused(overwrite(ArchiveId(2)), "archive 2 is in the sync set already");
        refused(overwrite(ArchiveId(3)), "archive 3 is joining the sync set");
        let mut record = joining();
        record.leave(CURRENT, SetVersion(3), ArchiveId(3)).unwrap();
        assert_eq!(record.permit_overwrite(CURRENT, ArchiveId(3)), Ok(Permission(1)));
        assert_eq!(shown(&record), "generation 1 of 1, set 1 2, version 4, overwriting 3 by 1");
        assert_eq!(record.permit_overwrite(CURRENT, ArchiveId(3)), Err(Refused::Overwriting(ArchiveId(3))));
        let early = record.ask_to_join(CURRENT, SetVersion(4), ArchiveId(3));
        assert_eq!(early.unwrap_err().to_string(), "the data of archive 3 is being overwritten");
        record.end_overwrite(ArchiveId(3), Permission(1)).unwrap();
        record.ask_to_join(CURRENT, SetVersion(4), ArchiveId(3)).unwrap();
    }

    #[test]
    fn a_late_word_ends_no_later_permission() {
        let mut record = joining();
        record.leave(CURRENT, SetVersion(3), ArchiveId(3)).unwrap();
        record.permit_overwrite(CURRENT, ArchiveId(3)).unwrap();
        record.end_overwrite(ArchiveId(3), Permission(1)).unwrap();
        assert_eq!(record.permit_overwrite(CURRENT, ArchiveId(3)), Ok(Permission(2)));
        let late = record.end_overwrite(ArchiveId(3), Permission(1));
        assert_eq!(late.unwrap_err().to_string(), "archive 3 is not being overwritten by permission 1");
        assert_eq!(shown(&record), "generation 1 of 1, set 1 2, version 4, overwriting 3 by 2");
    }
}
