//! What always holds of a domain, checked after every step of every test.

use super::Domain;
use super::archive::{Claim, RemovalReason};
use super::database::{Database, DatabaseState};
use super::ids::{ArchiveId, ResyncEpoch};
use super::process::{DurableState, EngineKind, ExitReason};
use super::protocol::serves;
use super::task::TaskState;
use std::collections::BTreeSet;

/// Everything that is wrong with the domain by itself, in words; empty if nothing is.
pub fn violations(domain: &Domain) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |holds: bool, what: &dyn Fn() -> String| {
        if !holds {
            wrong.push(what());
        }
    };
    let mut archives_in_use = BTreeSet::new();
    let mut containers = BTreeSet::new();
    let mut nodes = BTreeSet::new();
    for (id, process) in &domain.processes {
        check(process.id == *id && *id <= domain.last_start, &|| {
            format!("process {id} has an id that was never given")
        });
        check(!domain.tombstones.contains_key(id), &|| format!("process {id} lives and has exited"));
        check(domain.databases.contains_key(&process.database), &|| format!("process {id} has no database"));
        check((process.kind == EngineKind::Sm) == process.archive.is_some(), &|| {
            format!("process {id} is a {} with archive {:?}", process.kind, process.archive)
        });
        let identity = &process.identity;
        check(containers.insert((&identity.pod_uid, &identity.container)), &|| {
            format!("two processes are one container: {id}")
        });
        check(nodes.insert((&process.database, process.node)), &|| format!("process {id} shares its node id"));
        if let Some(archive) = process.archive {
            check(archives_in_use.insert(archive), &|| format!("two processes are on archive {archive}"));
            match domain.archives.get(&archive) {
                Some(known) => {
                    check(known.removed.is_none(), &|| format!("process {id} is on removed archive {archive}"));
                    check(known.database == process.database, &|| {
                        format!("process {id} is on another database's archive")
                    });
                }
                None => check(false, &|| format!("process {id} is on archive {archive}, which is not there")),
            }
        }
    }
    let mut claims = BTreeSet::new();
    for (id, archive) in &domain.archives {
        check(archive.id == *id && *id <= domain.last_archive, &|| {
            format!("archive {id} has an id that was never given")
        });
        check(domain.databases.contains_key(&archive.database), &|| format!("archive {id} has no database"));
        if let Some(claim) = &archive.claim {
            check(claims.insert(&claim.uid), &|| format!("two archives are on claim {}", claim.uid));
        }
    }
    for (name, database) in &domain.databases {
        let runs = domain.processes.values().any(|process| {
            process.database == *name && process.kind == EngineKind::Sm && process.durable != DurableState::Requested
        });
        check(runs == (database.state == DatabaseState::Running), &|| format!("database {name} is {}", database.state));
    }
    for (id, exited) in &domain.tombstones {
        check(*id <= domain.last_start, &|| format!("tombstone {id} has an id that was never given"));
        if let ExitReason::Restarted(by) = exited.reason {
            check(by > *id, &|| format!("tombstone {id} was restarted as an earlier start"));
        }
    }
    for (cluster, leader) in &domain.resync {
        check(leader.epoch <= ResyncEpoch(domain.index), &|| format!("cluster {cluster} has an epoch of the future"));
    }
    wrong.extend(strange_origins(domain).chain(strange_balancing(domain)).chain(strange_tasks(domain)));
    wrong.extend(strange_records(domain).into_iter().chain(left_of_deleted(domain)));
    wrong
}

/// What is left of deleted databases.
fn left_of_deleted(domain: &Domain) -> impl Iterator<Item = String> {
    let deleted = domain.databases.iter().filter(|(_, database)| database.state == DatabaseState::Tombstone);
    let left = deleted.filter(|(name, database)| {
        database.replicated.is_some()
            || domain.archives.values().any(|archive| archive.database == **name)
            || domain.processes.values().any(|process| process.database == **name)
    });
    left.map(|(name, database)| format!("database {name} is {} and something of it is left", database.state))
}

/// What is wrong with the tasks.
fn strange_tasks(domain: &Domain) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut scopes = Vec::new();
    for (id, task) in &domain.tasks {
        if task.id != *id || *id > domain.last_task {
            wrong.push(format!("task {id} has an id that was never given"));
        }
        let kinds: Vec<_> = task.steps.iter().map(|step| step.what).collect();
        let open = task.steps.iter().filter(|step| step.ended.is_none()).count();
        if !task.kind.steps().starts_with(&kinds) || open > 1 {
            wrong.push(format!("task {id} has the steps {kinds:?}, {open} of them not done"));
        }
        if task.runs() == task.ended.is_some()
            || (task.state == TaskState::Done) != (kinds.len() - open == task.kind.steps().len())
        {
            wrong.push(format!("task {id} is {} after {} steps", task.state, task.done()));
        }
        if task.runs() {
            let scope = task.kind.scope();
            if scopes.contains(&scope) {
                wrong.push(format!("two tasks run on {scope}"));
            }
            scopes.push(scope);
        }
    }
    let ended = domain.tasks.values().filter(|task| !task.runs()).count();
    if ended > domain.bounds.tasks {
        wrong.push(format!("{ended} tasks that have ended are kept"));
    }
    wrong
}

/// What is wrong with a step in what tasks and upgrades do.
fn strange_upgrades(before: &Domain, after: &Domain) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, database) in &before.databases {
        let version = |of: &Database| of.protocol.as_ref().map(|known| known.effective.id);
        let same = after.databases.get(name).filter(|_| database.state != DatabaseState::Tombstone);
        if same.is_some_and(|after| version(after) < version(database)) {
            wrong.push(format!("the protocol version of {name} went back"));
        }
        let raised = same.is_some_and(|after| version(database).is_some() && version(after) > version(database));
        let releases: BTreeSet<_> = before.processes_of(name).map(|process| &process.about.version).collect();
        let unfit = before.processes_of(name).find(|process| !serves(process));
        if let Some(unfit) = unfit.filter(|_| raised) {
            wrong.push(format!("{name} was upgraded while process {} does not run", unfit.id));
        }
        if raised && releases.len() != 1 {
            wrong.push(format!("{name} was upgraded while its processes run {releases:?}"));
        }
    }
    for (id, task) in &before.tasks {
        let Some(later) = after.tasks.get(id) else { continue };
        if later.done() < task.done() || later.done() > task.done() + 1 || (!task.runs() && later != task) {
            wrong.push(format!("task {id} went from {} to {} steps", task.done(), later.done()));
        }
    }
    wrong
}

/// What is wrong with the records of databases with one primary.
fn strange_records(domain: &Domain) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    for (name, replicated) in domain.databases.iter().filter_map(|(name, it)| Some((name, it.replicated.as_deref()?))) {
        let Some(record) = &replicated.record else {
            check(replicated.primary.is_none(), format!("{name} has a primary and no record"));
            continue;
        };
        check(record.sync_set.contains(&record.primary), format!("the primary of {name} is not in its sync set"));
        let counts = record.sync_set.iter().chain(&record.joining);
        let spoiled = counts.filter(|archive| record.overwriting.contains_key(archive)).count();
        check(spoiled == 0, format!("an archive of {name} counts and is being overwritten"));
        let joined = record.joining.is_some_and(|joining| record.sync_set.contains(&joining));
        check(!joined, format!("an archive of {name} joins the sync set that it is in"));
        let grows = replicated.history.is_sorted_by(|one, next| one.generation < next.generation);
        check(grows, format!("the history of {name} does not grow"));
        let last = replicated.history.last().is_none_or(|last| last.generation <= record.generation);
        check(last, format!("{name} has a history of generations that were not granted"));
    }
    wrong
}

/// What is wrong with a step in the records of databases with one primary.
fn strange_grants(before: &Domain, after: &Domain) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, database) in &before.databases {
        let record = |database: &Database| database.replicated.as_ref().and_then(|it| it.record.clone());
        let (Some(old), Some(new)) = (record(database), after.databases.get(name).and_then(record)) else { continue };
        let granted = new.generation > old.generation;
        let grew = new.sync_set.iter().filter(|archive| !old.sync_set.contains(archive));
        let by_joining = grew.clone().all(|archive| old.joining == Some(*archive));
        if new.generation < old.generation || new.version < old.version || new.permission < old.permission {
            wrong.push(format!("a number of {name} went back"));
        }
        // An operator gave up what only the old set holds: what is left of it is not overwritten.
        let owns = |archive: &ArchiveId| after.replicated(name).is_some_and(|it| it.own.contains(archive));
        let has_rest = |archive: &ArchiveId| owns(archive) && !after.is_empty(*archive);
        let given_up =
            new.sync_set.len() == 1 && !old.sync_set.contains(&new.primary) && !old.sync_set.iter().any(has_rest);
        let outside = grew.count() > 0 || !old.sync_set.contains(&new.primary);
        if granted && ((outside && !given_up) || new.version == old.version) {
            wrong.push(format!("generation {} of {name} was granted outside its sync set", new.generation));
        }
        if !granted && (new.primary != old.primary || !by_joining) {
            wrong.push(format!("the sync set of {name} grew without a join, or its primary moved without a grant"));
        }
    }
    wrong
}

/// What is wrong with what is set for load balancing.
fn strange_balancing(domain: &Domain) -> impl Iterator<Item = String> {
    let known = |name| domain.databases.get(name).is_some_and(|it| it.state != DatabaseState::Tombstone);
    let strange = domain.balancing.entries.iter().filter(move |(item, entry)| {
        let empty = entry.manual.is_none() && entry.annotated.is_none();
        empty || item.database().is_some_and(|name| !known(name))
    });
    strange.map(|(item, _)| format!("load balancer {item} is empty, or of a database that is not there"))
}

/// What is wrong with what the domain remembers of others that its archives came from.
fn strange_origins(domain: &Domain) -> impl Iterator<Item = String> {
    let origins = domain.restored.iter().flat_map(|restored| &restored.origins);
    let strange = origins.filter(|(_, archives)| archives.iter().any(|id| *id > domain.last_archive));
    strange.map(|(from, _)| format!("an archive that came from domain {from} has an id that was never given"))
}

/// Everything that is wrong with the step from one domain to a later one; empty if nothing is.
pub fn step_violations(before: &Domain, after: &Domain) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |holds: bool, what: &dyn Fn() -> String| {
        if !holds {
            wrong.push(what());
        }
    };
    check(before.id.is_none() || before.id == after.id, &|| "the domain changed its id".to_owned());
    check(before.time <= after.time, &|| "time went back".to_owned());
    check(before.last_start <= after.last_start, &|| "start ids went back".to_owned());
    check(before.last_archive <= after.last_archive, &|| "archive ids went back".to_owned());
    for (id, archive) in &before.archives {
        if !after.archives.contains_key(id) && archive.removed.is_none() {
            // Its claim is gone, since another of its name holds another archive.
            let superseded = archive.claim.as_ref().is_some_and(|old| {
                let there = after.archives.values().filter(|other| other.cluster == archive.cluster);
                let replaces =
                    |new: &Claim| (&new.namespace, &new.name) == (&old.namespace, &old.name) && new.uid != old.uid;
                there.filter_map(|other| other.claim.as_ref()).any(replaces)
            });
            // An operator said that its cluster is lost.
            let lost = before.anchors.contains_key(&archive.cluster) && !after.anchors.contains_key(&archive.cluster);
            check(superseded || lost || !archive.ever_ran, &|| {
                format!("archive {id} was purged before it was removed")
            });
        }
    }
    for (id, archive) in &after.archives {
        let removed_now = before.archives.get(id).is_some_and(|before| before.removed.is_none());
        if removed_now && archive.removed.as_ref().is_some_and(|removal| removal.because == RemovalReason::ScaledDown) {
            let others = after.active_archives(&archive.database).any(|other| !other.by_hand);
            check(others, &|| format!("the last archive of database {} was scaled down", archive.database));
        }
    }
    for id in before.processes.keys() {
        let accounted = after.processes.contains_key(id) || after.tombstones.contains_key(id);
        check(accounted, &|| format!("process {id} vanished without a tombstone"));
    }
    for id in before.tombstones.keys() {
        check(!after.processes.contains_key(id), &|| format!("process {id} rose from the dead"));
    }
    for (name, database) in &before.databases {
        let later = after.databases.get(name);
        check(later.is_none_or(|later| later.next_node >= database.next_node), &|| {
            format!("node ids of {name} went back")
        });
        check(later.is_none_or(|later| later.incarnation >= database.incarnation), &|| {
            format!("the incarnation of {name} went back")
        });
    }
    for (cluster, leader) in &before.resync {
        let later = after.resync.get(cluster);
        check(later.is_some_and(|later| later.epoch >= leader.epoch), &|| {
            format!("the resync epoch of {cluster} went back")
        });
    }
    wrong.extend(strange_upgrades(before, after));
    wrong.extend(strange_grants(before, after));
    wrong
}
