//! The decisions: kaa-core's, and what is done in their place where a safeguard is taken out.

use super::rules::Rules;
use super::state::{IDS, Record, Server, Set, bit, ids};
use kaa_core::domain::ids::{ArchiveId, Generation, Permission, SetVersion};
use kaa_core::replication::{InForce, Memory, Replication, Rule, Ruling};
use std::collections::BTreeSet;

fn archive(id: u8) -> ArchiveId {
    ArchiveId(id.into())
}

fn archives(set: Set) -> BTreeSet<ArchiveId> {
    ids(set).map(archive).collect()
}

fn set<'a>(archives: impl IntoIterator<Item = &'a ArchiveId>) -> Set {
    archives.into_iter().fold(0, |set, archive| set | bit(archive.0 as u8))
}

fn generation(number: u8) -> Generation {
    Generation(number.into())
}

fn version(number: u8) -> SetVersion {
    SetVersion(number.into())
}

fn permission(number: u8) -> Permission {
    Permission(number.into())
}

impl Record {
    /// The permission by which an archive may be overwritten; 0 if by none.
    pub fn overwriting(&self, id: u8) -> u8 {
        self.overwriting[usize::from(id)]
    }

    fn read(&self) -> Replication {
        Replication {
            generation: generation(self.generation),
            primary: archive(self.primary),
            sync_set: archives(self.sync_set),
            joining: ids(self.joining).next().map(archive),
            version: version(self.version),
            overwriting: (0..IDS as u8)
                .filter(|id| self.overwriting(*id) != 0)
                .map(|id| (archive(id), permission(self.overwriting(id))))
                .collect(),
            permission: permission(self.permission),
        }
    }

    fn write(&mut self, core: &Replication) {
        self.generation = core.generation.0 as u8;
        self.primary = core.primary.0 as u8;
        self.sync_set = set(&core.sync_set);
        self.joining = set(&core.joining);
        self.version = core.version.0 as u8;
        self.overwriting = [0; IDS];
        for (archive, permission) in &core.overwriting {
            self.overwriting[archive.0 as usize] = permission.0 as u8;
        }
        self.permission = core.permission.0 as u8;
    }

    /// Lets kaa-core decide; `None` if it refuses.
    fn decide<T, E>(&mut self, change: impl FnOnce(&mut Replication) -> Result<T, E>) -> Option<T> {
        let mut core = self.read();
        let outcome = change(&mut core).ok()?;
        self.write(&core);
        Some(outcome)
    }

    pub fn grant(&mut self, rules: &Rules, winner: u8, sync_set: Set) -> Option<()> {
        let current = generation(self.generation);
        if rules.winner_in_set && rules.part_at_grant && rules.winner_stays && rules.overwritten_not_granted {
            return self.decide(|core| core.grant(current, current, archive(winner), &archives(sync_set)));
        }
        (self.sync_set & bit(winner) != 0 || !rules.winner_in_set).then_some(())?;
        (sync_set & !self.sync_set & !bit(winner) == 0 || !rules.part_at_grant).then_some(())?;
        (sync_set & bit(winner) != 0 || !rules.winner_stays).then_some(())?;
        (self.overwriting(winner) == 0 || !rules.overwritten_not_granted).then_some(())?;
        (self.generation, self.primary, self.version) = (self.generation + 1, winner, self.version + 1);
        (self.sync_set, self.joining) = (sync_set, 0);
        Some(())
    }

    pub fn ask_to_join(&mut self, rules: &Rules, id: u8) -> Option<()> {
        let (current, at) = (generation(self.generation), version(self.version));
        if rules.overwritten_joins_not && rules.join_last {
            return self.decide(|core| core.ask_to_join(current, at, archive(id)));
        }
        (self.joining == 0 && self.sync_set & bit(id) == 0).then_some(())?;
        (self.overwriting(id) == 0 || !rules.overwritten_joins_not).then_some(())?;
        self.version += 1;
        if rules.join_last {
            self.joining = bit(id)
        } else {
            self.sync_set |= bit(id)
        }
        Some(())
    }

    pub fn note_in_force(&mut self, rules: &Rules, of: u8, at: u8) -> Option<()> {
        if rules.version_checked {
            let word = InForce { generation: generation(of), version: version(at) };
            // With none joining it changes nothing.
            return self.decide(|core| core.note_in_force(word)).flatten().map(drop);
        }
        (self.generation == of && self.joining != 0).then_some(())?;
        self.sync_set |= self.joining;
        self.joining = 0;
        Some(())
    }

    pub fn leave(&mut self, rules: &Rules, id: u8) -> Option<()> {
        if !rules.primary_stays && id == self.primary {
            (self.sync_set, self.version) = (self.sync_set & !bit(id), self.version + 1);
            return Some(());
        }
        let (current, at) = (generation(self.generation), version(self.version));
        self.decide(|core| core.leave(current, at, archive(id)))
    }

    /// The number of the permission.
    pub fn permit_overwrite(&mut self, rules: &Rules, id: u8) -> Option<u8> {
        let current = generation(self.generation);
        if rules.none_in_set_overwritten && rules.joining_not_overwritten {
            let permission = self.decide(|core| core.permit_overwrite(current, archive(id)))?;
            return Some(permission.0 as u8);
        }
        (self.sync_set & bit(id) == 0 || !rules.none_in_set_overwritten).then_some(())?;
        (self.joining & bit(id) == 0 || !rules.joining_not_overwritten).then_some(())?;
        (id != self.primary && self.overwriting(id) == 0).then_some(())?;
        self.permission += 1;
        self.overwriting[usize::from(id)] = self.permission;
        Some(self.permission)
    }

    pub fn end_overwrite(&mut self, rules: &Rules, id: u8, number: u8) -> Option<()> {
        let number = if rules.permission_checked { number } else { self.overwriting(id) };
        self.decide(|core| core.end_overwrite(archive(id), permission(number)))
    }

    /// The members of the rule that the primary is told.
    pub fn rule(&self) -> Set {
        set(&self.read().rule().members)
    }
}

impl Server {
    fn memory(&self, rules: &Rules) -> Memory {
        Memory {
            taken_up: generation(self.taken_up),
            followed: generation(self.followed),
            overwriting: self.overwriting && rules.overwritten_leads_not,
            returned: permission(self.returned),
        }
    }

    pub fn take_up(&mut self, rules: &Rules, of: u8) -> Option<()> {
        let mut memory = self.memory(rules);
        memory.take_up(generation(of)).ok()?;
        if rules.one_promotion {
            self.taken_up = memory.taken_up.0 as u8;
        }
        Some(())
    }

    pub fn remember(&mut self, rules: &Rules, of: u8) -> Option<()> {
        if !rules.older_refused {
            self.followed = self.followed.max(of);
            return Some(());
        }
        let mut memory = self.memory(rules);
        memory.follow(generation(of)).ok()?;
        self.followed = memory.followed.0 as u8;
        Some(())
    }

    pub fn begin_overwrite(&mut self, rules: &Rules) -> Option<()> {
        if rules.returned_unused {
            self.memory(rules).begin_overwrite(permission(self.permission)).ok()?;
        }
        self.overwriting = true;
        Some(())
    }

    pub fn end_overwrite(&mut self, rules: &Rules) {
        let mut memory = self.memory(rules);
        memory.end_overwrite();
        self.overwriting = memory.overwriting;
    }

    pub fn return_permission(&mut self, rules: &Rules, number: u8) -> Option<()> {
        let overwriting = self.overwriting && rules.returned_whole;
        let mut memory = Memory { overwriting, ..self.memory(rules) };
        memory.return_permission(permission(number)).ok()?;
        (self.returned, self.permission) = (memory.returned.0 as u8, 0);
        Some(())
    }

    pub fn rule_of(&self, at: u8, members: Set) -> Rule {
        Rule { generation: generation(self.generation), version: version(at), members: archives(members) }
    }

    pub fn ruling(&self) -> Ruling {
        let (in_force, coming) = match self.changing {
            // Which version the older rule had decides nothing.
            true => (self.rule_of(0, self.rule), Some(self.rule_of(self.version, self.coming))),
            false => (self.rule_of(self.version, self.rule), None),
        };
        Ruling { in_force, coming, point: self.point.into() }
    }

    fn obey(&mut self, ruling: &Ruling) {
        let latest = ruling.coming.as_ref().unwrap_or(&ruling.in_force);
        self.version = latest.version.0 as u8;
        self.rule = set(&ruling.in_force.members);
        self.coming = ruling.coming.as_ref().map_or(0, |rule| set(&rule.members));
        self.changing = ruling.coming.is_some();
        self.point = ruling.point as u8;
    }

    pub fn begin(&mut self, at: u8, rule: Set) {
        self.obey(&Ruling::begin(self.rule_of(at, rule), self.log.len.into()));
    }

    /// Takes a rule of this generation and version.
    pub fn take(&mut self, rules: &Rules, of: u8, at: u8, rule: Set) {
        let mut ruling = self.ruling();
        let rule = Rule { generation: generation(of), ..self.rule_of(at, rule) };
        if !rules.newer_only && at < self.version && !self.changing {
            ruling.in_force.version = version(0); // An older version looks newer than this one.
        }
        ruling.take(rule, self.log.len.into());
        self.obey(&ruling);
        if !rules.settled {
            self.point = self.log.len;
        }
    }

    pub fn settle(&mut self) {
        let mut ruling = self.ruling();
        ruling.settle(version(self.version), self.log.len.into());
        self.obey(&ruling);
    }

    /// Generation and version of the word that the latest rule is in force.
    pub fn report(&self, rules: &Rules) -> Option<(u8, u8)> {
        let mut ruling = self.ruling();
        if !rules.settled && self.changing {
            // A part of the engine may still release by the older rule.
            ruling.in_force = ruling.coming.take()?;
        }
        if !rules.point_passed {
            ruling.point = 0;
        }
        let flushed = (0..IDS as u8).map(|id| (archive(id), self.heard_of(id).into())).collect();
        let word = ruling.report(&flushed)?;
        Some((word.generation.0 as u8, word.version.0 as u8))
    }

    /// How far the log is confirmed under a rule.
    pub fn confirmed(&self, rules: &Rules, rule: Set) -> u8 {
        let positions = ids(rule).map(|id| self.heard_of(id));
        let confirmed = if rules.all_confirm { positions.min() } else { positions.max() };
        confirmed.map_or(self.log.len, |position| position.min(self.log.len))
    }
}
