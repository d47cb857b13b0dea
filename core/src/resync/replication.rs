//! What the annotations and the size of a StatefulSet ask for is noted in the database that it runs, if that has one primary.
//!
//! An annotation that does not parse changes nothing: the last good settings stay.

use super::View;
use super::plan::{Finding, Kind, Plan, Waiting, WaitingReason};
use crate::domain::audit::Subject;
use crate::domain::balancing::Object;
use crate::domain::change::{Command, NoteReplication};
use crate::domain::command::Fence;
use crate::domain::evidence::Evidence;
use crate::domain::ids::DatabaseName;
use crate::domain::replicated::Replicated;
use crate::observed::objects::{ARCHIVE_TEMPLATE, StatefulSet};
use crate::replication::waits;

pub(super) fn plan(view: &View, plan: &mut Plan) {
    for (name, database) in &view.domain.databases {
        let Some(replicated) = &database.replicated else { continue };
        settings(view, plan, name, replicated);
        // The domain's time may be ahead of this clock.
        let now = view.now.max(view.domain.time);
        for wait in waits::of(view.domain, name, replicated, now) {
            let reason = WaitingReason::Replication(wait);
            plan.waiting.push(Waiting { subject: Subject::Database(name.clone()), reason });
        }
    }
}

fn settings(view: &View, plan: &mut Plan, name: &DatabaseName, replicated: &Replicated) {
    let Some(sets) = View::known(plan, Kind::StatefulSets, view.observed.stateful_sets.known()) else { return };
    let runs_it = |set: &&StatefulSet| {
        set.database.as_ref() == Some(name) && set.templates.iter().any(|template| template == ARCHIVE_TEMPLATE)
    };
    // Of two the first by name counts.
    let Some(set) = sets.values().find(runs_it) else { return };
    let settings = match set.replication() {
        Ok(settings) => settings,
        Err(why) => {
            let object = Object::StatefulSet(set.name.clone());
            let reason = WaitingReason::SettingBroken { object, why };
            plan.waiting.push(Waiting { subject: Subject::Database(name.clone()), reason });
            return;
        }
    };
    if replicated.settings.as_ref() == Some(&settings) {
        return;
    }
    let (fence, evidence) = (Fence::default(), Evidence::default());
    let command = Command::NoteReplication(NoteReplication { fence, database: name.clone(), settings, evidence });
    plan.findings.push(Finding::new(view.domain, Subject::Database(name.clone()), command, Vec::new()));
}
