//! What operators create and delete by hand, and what must not be lost by that.

use super::leader::Truth;
use super::run::Run;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Outcome, Role};
use kaa_core::domain::evidence::Evidence;
use kaa_core::domain::ids::{ArchiveId, DatabaseName};
use std::collections::BTreeMap;

/// The databases with names: those of the StatefulSets, and one that nothing wants.
pub const DATABASES: [&str; 3] = ["demo", "other", "hand"];

/// An operator's command. Numbers select databases and archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByHand {
    CreateDatabase { database: usize },
    CreateArchive { database: usize, restored: bool },
    Resurrect { archive: usize },
    DropDatabase { database: usize, purge: bool },
}

impl Run {
    pub fn by_hand(&mut self, asked: ByHand) {
        let name = |database: usize| DatabaseName::from(DATABASES[database]);
        let command = match asked {
            ByHand::CreateDatabase { database } => Command::CreateDatabase(change::CreateDatabase {
                database: name(database),
                options: BTreeMap::new(),
                may_exist: false,
            }),
            ByHand::CreateArchive { database, restored } => Command::CreateArchive(change::CreateArchive {
                database: name(database),
                cluster: "c1".into(),
                path: "/archive".to_owned(),
                restored,
            }),
            ByHand::Resurrect { archive } => {
                let removed = self.domain.archives.values().filter(|archive| archive.removed.is_some());
                let removed: Vec<ArchiveId> = removed.map(|archive| archive.id).collect();
                let Some(archive) = removed.get(archive % removed.len().max(1)).copied() else { return };
                Command::ResurrectArchive(change::ResurrectArchive { archive })
            }
            ByHand::DropDatabase { database, purge } => return self.drop_database(&name(database), purge),
        };
        self.propose(Role::Operator, command);
    }

    fn drop_database(&mut self, database: &DatabaseName, purge: bool) {
        let needs = change::DropDatabase::reads(&self.domain, database);
        let facts = needs.iter().filter_map(|need| self.answer(need, None).ok()).flatten().collect();
        let evidence = Evidence { read_at: self.now(), facts };
        let truth = Truth { objects: self.kubernetes.is.clone(), anchor: self.anchor.clone(), alive: self.alive() };
        let before = self.domain.clone();
        let drop = change::DropDatabase { database: database.clone(), purge, cluster: "c1".into(), evidence };
        if self.propose(Role::Operator, Command::DropDatabase(drop)) == Outcome::Changed {
            for what in self.wrongly_dropped(&before, database, &truth) {
                self.violated(format!("{what}, when an operator deleted database {database}"));
            }
        }
    }

    /// Judges a deletion by rules that do not use the domain's checks. It must not delete an archive whose claim
    /// exists, nor one on which an engine ran and whose claim is not known. It must not delete a database that has
    /// processes or that something wants.
    fn wrongly_dropped(&self, before: &Domain, database: &DatabaseName, truth: &Truth) -> Vec<String> {
        let mut wrong = Vec::new();
        for archive in before.archives.values().filter(|archive| !self.domain.archives.contains_key(&archive.id)) {
            let lost = match &archive.claim {
                Some(claim) => truth.objects.claims.values().any(|there| there.uid == claim.uid),
                None => archive.ever_ran,
            };
            if lost || archive.database != *database {
                wrong.push(format!("archive {} was lost", archive.id));
            }
        }
        let was_there = before.databases.get(database).is_some_and(|it| it.state.to_string() != "TOMBSTONE");
        if was_there && (truth.wants_database(database) || truth.anchor != before.anchor) {
            wrong.push("it is wanted".to_owned());
        }
        if before.processes.values().any(|process| process.database == *database) {
            wrong.push("it has processes".to_owned());
        }
        wrong
    }
}
