//! What the annotations and the size of a StatefulSet ask for is noted in the database that it runs, if that has one primary.
//!
//! An annotation that cannot be followed changes nothing: what it set last stays, and the others count.

use super::View;
use super::plan::{Finding, Kind, Plan, Waiting, WaitingReason};
use crate::domain::audit::Subject;
use crate::domain::balancing::Object;
use crate::domain::change::{Command, NoteReplication};
use crate::domain::command::Fence;
use crate::domain::evidence::Evidence;
use crate::domain::ids::DatabaseName;
use crate::domain::replicated::{Replicated, Settings};
use crate::observed::Observed;
use crate::observed::objects::{ARCHIVE_TEMPLATE, StatefulSet};
use crate::observed::replication::Broken;
use crate::replication::waits;
use std::collections::BTreeMap;

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

/// The annotations that are to configure the replication of a database, and cannot be followed.
pub(super) fn broken_settings(observed: &Observed, name: &DatabaseName, last: Option<&Settings>) -> Vec<WaitingReason> {
    let set = observed.stateful_sets.known().ok().and_then(|sets| runs(sets, name));
    set.map_or_else(Vec::new, |set| reasons(set, set.replication(last).1))
}

fn reasons(set: &StatefulSet, broken: Vec<Broken>) -> Vec<WaitingReason> {
    let object = || Object::StatefulSet(set.name.clone());
    broken.into_iter().map(|why| WaitingReason::SettingBroken { object: object(), why }).collect()
}

/// The StatefulSet that runs a database.
fn runs<'a>(sets: &'a BTreeMap<String, StatefulSet>, name: &DatabaseName) -> Option<&'a StatefulSet> {
    let runs_it = |set: &&StatefulSet| {
        set.database.as_ref() == Some(name) && set.templates.iter().any(|template| template == ARCHIVE_TEMPLATE)
    };
    // Of two the first by name counts.
    sets.values().find(runs_it)
}

fn settings(view: &View, plan: &mut Plan, name: &DatabaseName, replicated: &Replicated) {
    let Some(sets) = View::known(plan, Kind::StatefulSets, view.observed.stateful_sets.known()) else { return };
    let Some(set) = runs(sets, name) else { return };
    let (settings, broken) = set.replication(replicated.settings.as_ref());
    let subject = || Subject::Database(name.clone());
    plan.waiting.extend(reasons(set, broken).into_iter().map(|reason| Waiting { subject: subject(), reason }));
    if replicated.settings.as_ref() == Some(&settings) {
        return;
    }
    let (fence, evidence) = (Fence::default(), Evidence::default());
    let command = Command::NoteReplication(NoteReplication { fence, database: name.clone(), settings, evidence });
    plan.findings.push(Finding::new(view.domain, subject(), command, Vec::new()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Domain;
    use crate::domain::change::{BeginResync, CreateDatabase, FoundDomain};
    use crate::domain::command::{Actor, Entry, Outcome, Request, Role};
    use crate::domain::evidence::{Fact, Need};
    use crate::domain::ids::{Millis, ResyncEpoch};
    use crate::observed::replication::Annotated;
    use crate::resync::{self, Moment, Policy, Readings};

    /// A domain with a database that has one primary, and a StatefulSet that runs it.
    fn shop() -> Domain {
        let mut domain = Domain::default();
        let begin = BeginResync {
            cluster: "c1".into(),
            lease: "L1".into(),
            transitions: 1,
            holder: "admin-0".into(),
            evidence: Evidence::default(),
        };
        let found = FoundDomain { domain: "D1".into(), name: "kaa".to_owned(), anchor: "A1".into() };
        let create = CreateDatabase { database: "shop".into(), options: BTreeMap::new(), may_exist: false };
        does(&mut domain, Role::Agent, Command::FoundDomain(found));
        does(&mut domain, Role::Agent, Command::BeginResync(begin));
        does(&mut domain, Role::Operator, Command::CreateDatabase(create));
        domain.databases.get_mut(&"shop".into()).unwrap().replicated = Some(Box::default());
        domain
    }

    fn does(domain: &mut Domain, role: Role, command: Command) {
        let (index, request) = (domain.index + 1, Request { actor: Actor { role, name: "ann".to_owned() }, command });
        let outcome = domain.apply(Entry { index, time: Millis(index), request });
        assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    }

    /// A pass of the resync leader: what is set after it, and what waits.
    fn pass(domain: &mut Domain, annotations: &[(&str, &str)]) -> (String, Vec<String>) {
        let set = StatefulSet {
            name: "shop".to_owned(),
            uid: "S1".into(),
            replicas: 3,
            database: Some("shop".into()),
            templates: vec![ARCHIVE_TEMPLATE.to_owned()],
            replication: Annotated::read(annotations.iter().copied(), "nuodb.com/"),
            ..StatefulSet::default()
        };
        let mut observed = Observed::default();
        observed.stateful_sets.complete();
        observed.stateful_sets.apply(set.clone());
        let policy = Policy::new("c1".into(), "ns".to_owned());
        let plan = resync::plan(domain, &observed, &policy, &Moment::default());
        let fence = Fence { cluster: "c1".into(), epoch: ResyncEpoch(2) };
        let of_settings = |finding: &&Finding| matches!(finding.command, Command::NoteReplication(_));
        for finding in plan.findings.iter().filter(of_settings) {
            let answer = |need: &Need| match need {
                Need::Anchor => vec![Fact::AnchorIs { uid: "A1".into() }],
                Need::Replication { last, .. } => set.facts_after(last.as_deref()),
                other => panic!("{other}"),
            };
            let answers = finding.needs.iter().map(|need| (need.clone(), Ok(answer(need)))).collect();
            let readings = Readings { at: Millis(1), answers };
            let command = resync::confirm(finding, &readings, &fence, domain).unwrap();
            does(domain, Role::ResyncLeader, command);
        }
        let broken =
            plan.waiting.iter().filter(|waiting| matches!(waiting.reason, WaitingReason::SettingBroken { .. }));
        let set = domain.replicated(&"shop".into()).unwrap().settings.as_ref().map(Settings::asked);
        (set.unwrap_or_default(), broken.map(|waiting| waiting.reason.to_string()).collect())
    }

    #[test]
    fn a_slip_in_one_annotation_keeps_no_other_back_not_even_at_the_installation() {
        let mut domain = shop();
        let (set, broken) = pass(&mut domain, &[("kaa.dev/synchronous", "two"), ("kaa.dev/failover", "manual")]);
        assert_eq!(set, "3 pods, synchronous: 1, when-alone: degrade, failover: manual");
        let expected = "statefulset shop: annotation kaa.dev/synchronous says \"two\", and may say a number from 0 to 16; until it does, it \
                        counts as 1";
        assert_eq!(broken, [expected]);
        let (set, broken) = pass(&mut domain, &[("kaa.dev/synchronous", "2"), ("kaa.dev/failover", "manual")]);
        assert_eq!((set.as_str(), broken.len()), ("3 pods, synchronous: 2, when-alone: degrade, failover: manual", 0));
        let slips = [("kaa.dev/synchronous", "2."), ("kaa.dev/when-alone", "block"), ("kaa.dev/failovr", "paused")];
        let (set, broken) = pass(&mut domain, &slips);
        assert_eq!(set, "3 pods, synchronous: 2, when-alone: block, failover: automatic");
        assert_eq!(broken.len(), 2, "{broken:?}");
        let index = domain.index;
        pass(&mut domain, &slips);
        assert_eq!(domain.index, index, "it is set as it is asked for");
    }
}
