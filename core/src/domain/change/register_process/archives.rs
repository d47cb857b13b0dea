//! What a registration does to archives: it makes one, or brings one back, and others give way to it.

use super::Found;
use crate::domain::archive::{Archive, Claim};
use crate::domain::command::Actor;
use crate::domain::event::{ArchiveEvent, ClaimName};
use crate::domain::ids::ArchiveId;
use crate::domain::process::Registration;
use crate::domain::{Domain, Subject};

impl Domain {
    pub(super) fn settle_archive(&mut self, actor: &Actor, found: Found, asked: &Registration) -> ArchiveId {
        let id = match found {
            Found::Known(id) => {
                self.resurrect(actor, id, asked);
                id
            }
            Found::Instead { known, unused } => {
                self.resurrect(actor, known, asked);
                self.archives.remove(&unused);
                let displaced = ArchiveEvent::Displaced { archive: unused, by: known, kept: false };
                self.note(actor, [Subject::Archive(unused), Subject::Archive(known)], displaced, None);
                known
            }
            Found::New { superseded } => self.create_archive(actor, &superseded, asked),
        };
        if let Some(claim) = &asked.claim {
            self.values.insert(self.claim_key(&asked.cluster, &claim.name), id.to_string());
        }
        id
    }

    /// The volume says which archive it holds, so no other is on its claim. One that never ran holds nothing and goes; one
    /// that ran is kept without a claim, and so is never judged: an operator has to look where its data is.
    fn displace(&mut self, actor: &Actor, id: ArchiveId, claim: Option<&Claim>) {
        for other in self.others_on(id, claim) {
            let Some(archive) = self.archives.get_mut(&other) else { continue };
            let kept = archive.ever_ran;
            if kept {
                archive.claim = None;
            } else {
                self.archives.remove(&other);
            }
            let displaced = ArchiveEvent::Displaced { archive: other, by: id, kept };
            self.note(actor, [Subject::Archive(other), Subject::Archive(id)], displaced, None);
        }
    }

    fn resurrect(&mut self, actor: &Actor, id: ArchiveId, asked: &Registration) {
        let claim = asked.claim.as_ref();
        self.displace(actor, id, claim);
        let Some(archive) = self.archives.get(&id) else { return };
        if let (None, Some(claim)) = (&archive.claim, claim)
            && !self.came_along(id)
        {
            // Its volume was empty when it was made, only that its claim could not be read then.
            self.supersede(actor, &self.replaced_by(&asked.cluster, claim), id);
        }
        let key_of = self.archives.get(&id).map(|archive| archive.cluster.clone()).unwrap_or_default();
        let Some(archive) = self.archives.get_mut(&id) else { return };
        // The wrapper that registers holds the lock of the archive's directory, so no other engine writes to it.
        archive.written_to.get_or_insert(self.index);
        archive.by_hand = false;
        let resurrected = archive.removed.take().is_some();
        let (mut bound, mut owned) = (None, None);
        if let Some(claim) = claim
            && archive.claim.as_ref() != Some(claim)
        {
            let is_another = archive.claim.as_ref().is_none_or(|known| known.uid != claim.uid);
            if is_another {
                // It may have been restored from a backup: what was proven of the volume before says nothing of this one.
                archive.holds_to = 0;
                archive.bound = self.index;
                // Until now it was on another claim, or on an unknown one. No claim is in two clusters.
                (archive.cluster, archive.path) = (asked.cluster.clone(), asked.path.clone());
                bound = Some(ClaimName::from(claim));
            } else {
                owned = Some(ArchiveEvent::Owned { archive: id, owner: claim.owner.clone() });
            }
            let left = archive.claim.replace(claim.clone()).filter(|left| left.name != claim.name);
            let key = left.map(|left| self.claim_key(&key_of, &left.name));
            if let Some(key) = key.filter(|key| self.values.get(key) == Some(&id.to_string())) {
                self.values.remove(&key);
            }
        }
        if resurrected || bound.is_some() {
            let event = ArchiveEvent::Bound { archive: id, resurrected, claim: bound };
            self.note(actor, [Subject::Archive(id)], event, None);
        }
        if let Some(owned) = owned {
            self.note(actor, [Subject::Archive(id)], owned, None);
        }
    }

    fn supersede(&mut self, actor: &Actor, superseded: &[ArchiveId], id: ArchiveId) {
        for old in superseded {
            let before = self.archives.remove(old);
            let was_removed = before.is_some_and(|old| old.removed.is_some());
            let superseded = ArchiveEvent::Superseded { archive: *old, by: id, was_removed };
            self.note(actor, [Subject::Archive(*old), Subject::Archive(id)], superseded, None);
        }
    }

    fn create_archive(&mut self, actor: &Actor, superseded: &[ArchiveId], asked: &Registration) -> ArchiveId {
        let id = self.last_archive.next();
        self.last_archive = id;
        self.supersede(actor, superseded, id);
        self.archives.insert(
            id,
            Archive {
                id,
                database: asked.database.clone(),
                cluster: asked.cluster.clone(),
                claim: asked.claim.clone(),
                bound: self.index,
                path: asked.path.clone(),
                // The volume was an archive before, whose record is purged: its data is back.
                ever_ran: asked.marker.is_some(),
                holds_to: 0,
                written_to: None,
                removed: None,
                created: self.time,
                by_hand: false,
            },
        );
        let (database, claim) = (asked.database.clone(), asked.claim.as_ref().map(ClaimName::from));
        let created = ArchiveEvent::Created { archive: id, database: database.clone(), claim };
        self.note(actor, [Subject::Archive(id), Subject::Database(database)], created, None);
        id
    }
}
