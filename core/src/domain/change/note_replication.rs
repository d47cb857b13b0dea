//! What the StatefulSet of a database with one primary asks for: how many pods, how many standbys that confirm each commit.

use super::{Change, Command, Planned, Work};
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::{Actor, Fence};
use crate::domain::event::ReplicationEvent;
use crate::domain::evidence::{Evidence, Need};
use crate::domain::ids::DatabaseName;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::replicated::Settings;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes what the StatefulSet of a database with one primary asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteReplication {
    /// Binds it to its resync leader.
    pub fence: Fence,
    /// The database.
    pub database: DatabaseName,
    /// What is asked for.
    pub settings: Settings,
    /// The proof that it is.
    pub evidence: Evidence,
}

impl Change for NoteReplication {
    fn planned(&self) -> Option<&dyn Planned> {
        Some(self)
    }

    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { fence: _, database, settings, evidence } = self;
        bounds.name("the name of a database", database)?;
        bounds.names([
            ("the name of a StatefulSet", &settings.stateful_set),
            ("the UID of a StatefulSet", settings.uid.as_str()),
        ])?;
        bounds.evidence(evidence)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        if self.check(domain)? == Work::Done {
            return Ok(Outcome::Unchanged);
        }
        let Self { fence: _, database: name, settings, evidence } = self;
        domain.replicated_mut(&name)?.settings = Some(settings.clone());
        let event = ReplicationEvent::Set { settings };
        domain.note(actor, [Subject::Database(name)], event, Some(evidence));
        Ok(Outcome::Changed)
    }
}

impl Planned for NoteReplication {
    fn reads(&self, domain: &Domain) -> Vec<Need> {
        let last = domain.replicated(&self.database).and_then(|replicated| replicated.settings.clone());
        let stateful_set = self.settings.stateful_set.clone();
        vec![Need::Replication { stateful_set, last: last.map(Box::new) }, Need::Anchor]
    }

    fn check(&self, domain: &Domain) -> Result<Work, Refusal> {
        let Self { fence, database: name, settings, evidence } = self;
        domain.led_by(fence)?;
        let replicated = domain.replicated(name).ok_or_else(|| Refusal::NotReplicated(name.clone()))?;
        if replicated.settings.as_ref() == Some(settings) {
            return Ok(Work::Done);
        }
        domain.anchored(&fence.cluster, evidence)?;
        if !evidence.asks_for_replication(settings) {
            return Err(Refusal::Unproven(format!("StatefulSet {} asks for that", settings.stateful_set)));
        }
        Ok(Work::ToDo)
    }

    fn text(&self, _: &Domain) -> String {
        let Self { database, settings, .. } = self;
        format!("note that StatefulSet {} of database {database} wants {}", settings.stateful_set, settings.asked())
    }

    fn bound(&self, fence: Fence, evidence: Evidence) -> Command {
        Command::NoteReplication(Self { fence, evidence, ..self.clone() })
    }

    fn removes(&self) -> bool {
        false
    }
}
