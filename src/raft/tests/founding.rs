//! A founding, and a log that is being retired, with the power cut after each step of the disk.
//!
//! A start finds what was there before, whole, or what was to come, whole; and what was cut off is done by doing it again.

use super::power::Held;
use super::recorder::{Recorder, Unsynced};
use super::{Agent, anchor, found_domain, found_on, free_address, node, options, start, until};
use crate::raft::backend::{Engine, Op};
use crate::raft::types::{Entry, LogId, SnapshotMeta, TypeConfig, Vote, first_term};
use crate::raft::volume::{Parts, Stock, Volume, measure_retired, names, prune_retired, retired_logs};
use crate::raft::{Role, wire};
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{self, Actor, Request};
use kaa_core::domain::ids::{MembershipEpoch, Millis, RaftId};
use kaa_core::membership::Anchor;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;
use ring::digest::{Context, SHA256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use tempfile::{TempDir, tempdir};
use testkit::Chance;

/// Others that voted in the epoch before.
const OTHERS: [u64; 2] = [7, 8];

/// What lies on the volume at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// An empty log, of no domain.
    Empty,
    /// A log of epoch 1 whose voters are this one and two others, and a vote for one of those at a later term.
    Log,
    /// The same, with a snapshot and the log purged up to its end.
    Snapshot,
    /// The same as `Log`, with a snapshot that was sent and ends beyond the log, which is not purged yet.
    Installed,
    /// The same as `Log`, sealed for an override.
    Sealed,
}

impl Before {
    const ALL: [Self; 5] = [Self::Empty, Self::Log, Self::Snapshot, Self::Installed, Self::Sealed];

    async fn make(self) -> TempDir {
        let dir = tempdir().unwrap();
        let disk = Recorder::new(dir.path());
        if self == Self::Empty {
            drop(Volume::open(dir.path()).unwrap());
            return dir;
        }
        let agent = found_on(&disk, dir.path(), options("admin-0", &free_address())).await;
        for i in 0..5 {
            agent.set(&format!("k{i}")).await;
        }
        if self == Self::Snapshot {
            compact(&agent).await;
            agent.set("k5").await;
        }
        agent.stop().await;
        add_others(dir.path());
        if self == Self::Installed {
            install(dir.path());
        }
        if self == Self::Sealed {
            Volume::open(dir.path()).unwrap().seal().unwrap();
        }
        dir
    }

    fn keys(self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Log | Self::Sealed => 5,
            Self::Snapshot | Self::Installed => 6,
        }
    }
}

/// Makes a snapshot of all there is and purges what it covers.
async fn compact(agent: &Agent) {
    let last = agent.handle.status().applied_index;
    let raft = agent.handle.raft();
    raft.trigger().snapshot().await.unwrap();
    until("there is a snapshot", || agent.handle.metrics().snapshot.is_some_and(|it| it.index >= last)).await;
    raft.trigger().purge_log(last).await.unwrap();
    until("the log is purged", || agent.handle.metrics().purged.is_some_and(|it| it.index >= last)).await;
}

/// Appends a membership with two others, and a vote for one of them.
fn add_others(dir: &Path) {
    let Parts { lock, mut backend, log, local, .. } = Volume::open(dir).unwrap().into_parts();
    let last = log.entries.values().next_back().unwrap().log_id;
    let voters = BTreeSet::from([local.raft_id.0, OTHERS[0], OTHERS[1]]);
    let nodes: BTreeMap<_, _> = voters.iter().map(|id| (*id, node(&format!("of {id}"), "nowhere:1"))).collect();
    let membership = openraft::Membership::new(vec![voters], nodes).unwrap();
    let entry = Entry::new_membership(LogId { index: last.index + 1, ..last }, membership);
    let vote = Vote::new(first_term(1) + 9, OTHERS[0]);
    let put = Op::Put(entry.log_id.index, wire::encode(&entry).unwrap());
    backend.commit(&[put, Op::Set(names::VOTE, wire::encode(&vote).unwrap())]).unwrap();
    drop((lock, backend));
}

/// Notes a snapshot that another leader sent.
fn install(dir: &Path) {
    let Parts { lock, mut backend, shelf, log, .. } = Volume::open(dir).unwrap().into_parts();
    let leader = openraft::alias::LeaderIdOf::<TypeConfig>::new(first_term(1) + 3, OTHERS[0]).to_committed();
    let index = log.last().unwrap().index + 10;
    let mut domain = Domain { id: Some("d1".into()), index, ..Domain::default() };
    domain.values.extend((0..6).map(|i| (format!("k{i}"), "v".to_owned())));
    let meta = SnapshotMeta { last_log_id: Some(LogId::new(leader, index)), ..SnapshotMeta::default() };
    let pointer = shelf.write(&meta, &domain).unwrap();
    backend.commit(&[Op::Set(names::SNAPSHOT, wire::encode(&pointer).unwrap())]).unwrap();
    drop((lock, backend));
}

fn open(dir: &Path) -> Volume {
    Volume::open_on(Arc::new(Recorder::new(dir)), dir).unwrap()
}

fn held(volume: Volume) -> Held {
    Held::read(volume).unwrap().0
}

/// Each state that the power can leave behind while a volume is opened and `change` is made: what was cut, whether it was
/// acknowledged before, and the directory.
fn cuts(dir: &Path, change: impl FnOnce(&mut Volume)) -> Vec<(String, bool, TempDir)> {
    let disk = Recorder::new(dir);
    let mut volume = Volume::open_on(Arc::new(disk.clone()), dir).unwrap();
    change(&mut volume);
    let steps = disk.steps();
    let mut chance = Chance::new("founding");
    let (mut images, mut seen) = (Vec::new(), BTreeSet::new());
    for at in 0..=steps {
        for unsynced in [Unsynced::Lost, Unsynced::Torn, Unsynced::Kept] {
            let image = tempdir().unwrap();
            disk.cut(at, unsynced, &mut chance, image.path());
            if seen.insert(content(image.path())) || at == steps {
                images.push((format!("{at} of {steps} steps, {unsynced:?}"), at == steps, image));
            }
        }
    }
    images
}

/// A digest of the names and bytes in a directory and below it.
fn content(dir: &Path) -> Vec<u8> {
    let mut digest = Context::new(&SHA256);
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    for path in entries.collect::<BTreeSet<_>>() {
        digest.update(path.file_name().unwrap().as_encoded_bytes());
        digest.update(&if path.is_dir() { content(&path) } else { std::fs::read(path).unwrap() });
    }
    digest.finish().as_ref().to_vec()
}

/// What a founding is to make of what was held: its entry and vote, the epoch, and nothing less than before but what a
/// snapshot covers.
fn founded(before: &Held, anchor: &Anchor) -> Held {
    let mut after = before.clone();
    let last = before.entries.values().next_back().map(|entry| entry.log_id);
    let covered = before.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
    if covered > last {
        (after.entries, after.purged) = (BTreeMap::new(), covered);
    }
    let me = before.local.raft_id.0;
    let leader = openraft::alias::LeaderIdOf::<TypeConfig>::new(first_term(anchor.epoch.0), me);
    let index = last.max(covered).map_or(0, |last| last.index + 1);
    let nodes = BTreeMap::from([(me, node("admin-0", "nowhere:1"))]);
    let membership = openraft::Membership::new(vec![BTreeSet::from([me])], nodes).unwrap();
    after.entries.insert(index, Entry::new_membership(LogId::new(leader.to_committed(), index), membership));
    after.vote = Some(Vote::new(first_term(anchor.epoch.0), me));
    (after.local.epoch, after.local.domain) = (anchor.epoch, Some(anchor.domain.clone()));
    after.local.sealed = false;
    after
}

/// Starts Raft on what was founded: it leads in the new epoch, alone, with all that was there.
async fn leads(before: Before, dir: &Path, after: &Held) {
    let agent = start(Volume::open(dir).unwrap(), "admin-0", &free_address(), None).await;
    if before == Before::Empty {
        found_domain(&agent).await;
    }
    agent.set("after").await;
    let status = agent.handle.status();
    assert_eq!((status.role, status.epoch), (Role::Leader, after.local.epoch));
    assert_eq!(status.voters.keys().copied().collect::<Vec<_>>(), [after.local.raft_id]);
    assert!((0..before.keys()).all(|i| agent.has(&format!("k{i}"))));
    agent.stop().await;
}

#[tokio::test]
async fn a_founding_that_is_cut_off_anywhere_is_done_or_not_and_can_be_repeated() {
    for before in Before::ALL {
        let dir = before.make().await;
        let old = held(open(dir.path()));
        assert_eq!(old.entries.is_empty(), before == Before::Empty);
        assert_eq!(old.snapshot.is_some(), matches!(before, Before::Snapshot | Before::Installed));
        assert_eq!(old.purged.is_some(), before == Before::Snapshot);
        let anchor = anchor(old.local.epoch.0 + 1, old.local.raft_id);
        let new = founded(&old, &anchor);
        let (mut kept, mut done) = (0, 0);
        for (cut, complete, image) in cuts(dir.path(), |volume| volume.found(&anchor, &me(), None).unwrap()) {
            let found = held(open(image.path()));
            let is_new = found == new;
            assert!(is_new || found == old && !complete, "{before:?}, {cut}: {found:?}\nand not {new:?}");
            let count = if is_new { &mut done } else { &mut kept };
            *count += 1;
            if !is_new || *count == 1 {
                let mut volume = open(image.path());
                volume.found(&anchor, &me(), None).unwrap();
                assert!(held(volume) == new, "{before:?}, {cut}: founded again");
            }
            if *count == 1 {
                leads(before, image.path(), &new).await;
            }
        }
        eprintln!("{before:?}: {kept} cuts before, {done} after");
        assert!(kept > 0 && done > 0);
    }
}

/// What the epoch's leader decides rests on it, so no founding leaves it for later.
#[tokio::test]
async fn an_accepted_loss_is_founded_with_its_epoch_or_neither_is() {
    let dir = Before::Log.make().await;
    let old = held(open(dir.path()));
    let anchor = anchor(old.local.epoch.0 + 1, old.local.raft_id);
    let loss = || {
        let (founder, lost) = ("admin-0".into(), "entries after 9".to_owned());
        let command = Command::AcceptLoss(change::AcceptLoss { epoch: anchor.epoch, founder, at: Millis(5), lost });
        Some(Request { actor: Actor { role: command::Role::Operator, name: "user ann".to_owned() }, command })
    };
    let (mut kept, mut done) = (0, 0);
    for (cut, complete, image) in cuts(dir.path(), |volume| volume.found(&anchor, &me(), loss()).unwrap()) {
        let found = held(open(image.path()));
        if found == old {
            assert!(!complete, "{cut}");
            kept += 1;
            continue;
        }
        let new: Vec<_> = found.entries.iter().filter(|(index, _)| !old.entries.contains_key(index)).collect();
        assert!(
            matches!(new[..], [(_, first), (_, second)]
            if matches!(first.payload, EntryPayload::Membership(_)) && matches!(second.payload, EntryPayload::Normal(_))),
            "{cut}: {new:?}"
        );
        done += 1;
        if done == 1 {
            let agent = start(open(image.path()), "admin-0", &free_address(), None).await;
            agent.handle.linearize().await.unwrap();
            assert_eq!(agent.handle.read(|domain| domain.lossy_epoch), anchor.epoch);
            agent.stop().await;
        }
    }
    assert!(kept > 0 && done > 0);
}

fn me() -> crate::raft::Node {
    node("admin-0", "nowhere:1")
}

fn is_empty_in(held: &Held, anchor: &Anchor) -> bool {
    let mut fresh = held.clone();
    (fresh.local.epoch, fresh.local.domain) = (MembershipEpoch(0), None);
    fresh.is_fresh() && held.local.epoch == anchor.epoch && held.local.domain.as_ref() == Some(&anchor.domain)
}

#[tokio::test]
async fn a_log_whose_retirement_is_cut_off_anywhere_is_in_place_or_kept_whole() {
    for before in [Before::Log, Before::Snapshot] {
        let dir = before.make().await;
        let old = held(open(dir.path()));
        let anchor = anchor(2, RaftId(OTHERS[0]));
        let retired = format!("retired-1-{}", old.local.raft_id);
        let (mut kept, mut moved, mut done) = (0, 0, 0);
        for (cut, complete, image) in cuts(dir.path(), |volume| volume.retire_log(&anchor).unwrap()) {
            let is_retired = image.path().join(&retired).exists();
            let found = held(open(image.path()));
            let what = format!("{before:?}, {cut}: {found:?}");
            if !is_retired {
                assert!(found == old && !complete, "{what}");
                kept += 1;
            } else if found.is_fresh() {
                assert!(!complete, "{what}");
                moved += 1;
            } else {
                assert!(is_empty_in(&found, &anchor), "{what}");
                done += 1;
            }
            assert_eq!(is_retired, found.local.raft_id != old.local.raft_id, "{what}");
            if found.local.epoch != anchor.epoch {
                let mut volume = open(image.path());
                volume.retire_log(&anchor).unwrap();
                let again = held(volume);
                assert!(is_empty_in(&again, &anchor), "{what}\nand then {again:?}");
                assert_ne!(again.local.raft_id, old.local.raft_id, "{what}");
                assert!(!is_retired || again.local.raft_id == found.local.raft_id, "{what}");
            }
            // As an operator would look at it.
            let looked_at = tempdir().unwrap();
            std::fs::rename(image.path().join(&retired), looked_at.path().join("log")).unwrap();
            assert!(held(open(looked_at.path())) == old, "{what}");
        }
        eprintln!("{before:?}: {kept} cuts before, {moved} with an empty log, {done} after");
        assert!(kept > 0 && moved > 0 && done > 0);
    }
}

#[tokio::test]
async fn what_came_before_a_founding_is_purged_also_after_a_kill_in_its_midst() {
    let dir = Before::Log.make().await;
    let mut volume = open(dir.path());
    let local = volume.local_log();
    volume.found(&anchor(local.epoch.0 + 1, local.raft_id), &me(), None).unwrap();
    let Parts { lock, mut backend, log, .. } = volume.into_parts();
    let founding = log.last().unwrap();
    // It led, and died before there was a snapshot.
    let entry = Entry::new_blank(LogId { index: founding.index + 1, ..founding });
    backend.commit(&[Op::Put(entry.log_id.index, wire::encode(&entry).unwrap())]).unwrap();
    drop((lock, backend));
    let agent = start(Volume::open(dir.path()).unwrap(), "admin-0", &free_address(), None).await;
    until("the epochs before are purged", || {
        agent.handle.metrics().purged.is_some_and(|purged| purged.index == founding.index)
    })
    .await;
    agent.stop().await;
}

/// What lies in the directory of a log, of those whose id it is: in its place, or retired.
fn with_id(dir: &Path, log: RaftId) -> Held {
    let retired = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let retired = retired.filter(|entry| entry.file_name().to_string_lossy().ends_with(&format!("-{log}")));
    let found: Vec<_> = retired.map(|entry| entry.path()).collect();
    let looked_at = tempdir().unwrap();
    let from = if found.is_empty() { dir.join("log") } else { found[0].clone() };
    assert!(found.len() < 2, "{found:?}");
    std::fs::create_dir_all(looked_at.path().join("log/snapshots")).unwrap();
    for below in ["", "snapshots"] {
        for file in std::fs::read_dir(from.join(below)).unwrap().map(|entry| entry.unwrap()) {
            if file.path().is_file() {
                let copy = looked_at.path().join("log").join(below).join(file.file_name());
                std::fs::copy(file.path(), copy).unwrap();
            }
        }
    }
    held(open(looked_at.path()))
}

/// A retired log comes back and founds; whatever was cut off, the gate's steps said again lead there, no log is
/// lost, and none starts in its own epoch, though the pod that passed the gate with it is the same.
#[tokio::test]
async fn a_log_that_is_brought_back_comes_whole_or_stays_retired() {
    for before in [Before::Log, Before::Snapshot, Before::Sealed] {
        let dir = before.make().await;
        let mut volume = open(dir.path());
        volume.set_gate_passed("pod-1").unwrap();
        let (mut old, joined) = (held(volume), anchor(2, RaftId(OTHERS[0])));
        let mut volume = open(dir.path());
        volume.retire_log(&joined).unwrap();
        volume.set_gate_passed("pod-1").unwrap();
        let today = held(volume);
        let next = anchor(3, old.local.raft_id);
        assert!(!open(dir.path()).bring_back(&anchor(3, RaftId(99))).unwrap(), "it is not this one's to found");
        let (mut kept, mut between, mut back) = (0, 0, 0);
        old.local.sealed = true;
        for (cut, complete, image) in cuts(dir.path(), |volume| assert!(volume.bring_back(&next).unwrap())) {
            let mut volume = open(image.path());
            let found = volume.local_log();
            let what = format!("{before:?}, {cut}: {found:?}");
            if found.raft_id == old.local.raft_id {
                assert!(found.sealed && volume.gate_passed().is_none(), "{what}: it would start in its own epoch");
                back += 1;
            } else {
                assert!(!complete, "{what}");
                let count = if found == today.local { &mut kept } else { &mut between };
                *count += 1;
                assert!(volume.bring_back(&next).unwrap(), "{what}");
            }
            assert!(!volume.bring_back(&next).unwrap(), "{what}: it is in its place");
            assert_eq!(volume.local_log(), old.local, "{what}");
            volume.found(&next, &me(), None).unwrap();
            assert!(held(volume) == founded(&old, &next), "{what}");
            assert!(with_id(image.path(), today.local.raft_id) == today, "{what}: what there was till then is kept");
            if back + between + kept == 1 || complete {
                leads(before, image.path(), &founded(&old, &next)).await;
            }
        }
        eprintln!("{before:?}: {kept} cuts before, {between} with neither in its place, {back} after");
        assert!(kept > 0 && between > 0 && back > 0);
    }
}

/// An operator can see what is wrong with one, by its name and by what it holds.
#[tokio::test]
async fn a_log_that_was_retired_and_is_damaged_says_what_is_wrong() {
    let dir = Before::Snapshot.make().await;
    let old = held(open(dir.path())).local;
    open(dir.path()).retire_log(&anchor(2, RaftId(OTHERS[0]))).unwrap();
    let name = format!("retired-1-{}", old.raft_id);
    let (retired, file) = (dir.path().join(&name), |log: &Path| log.join("raft.redb"));
    let wrong = || {
        let listed = retired_logs(dir.path(), Engine::Redb).unwrap();
        listed.into_iter().find(|log| log.name == name).unwrap().holds.map(|holds| holds.domain)
    };
    assert_eq!(wrong(), Ok(Some("d1".into())));
    let snapshots = std::fs::read_dir(retired.join("snapshots")).unwrap().map(|entry| entry.unwrap().path());
    let snapshot = snapshots.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "snapshot")).unwrap();
    let mut bytes = std::fs::read(&snapshot).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&snapshot, &bytes).unwrap();
    assert_eq!(wrong(), Err(format!("its snapshot {} is damaged", snapshot.display())));
    std::fs::remove_file(&snapshot).unwrap();
    assert!(wrong().unwrap_err().starts_with(&format!("its snapshot {}: No such file", snapshot.display())));
    let whole = std::fs::read(file(&retired)).unwrap();
    std::fs::write(file(&retired), &whole[..whole.len() / 2]).unwrap();
    assert!(wrong().unwrap_err().starts_with(&file(&retired).display().to_string()), "{:?}", wrong());
    std::fs::remove_file(file(&retired)).unwrap();
    assert_eq!(wrong(), Err("it holds no file of this kind of store".to_owned()));
    // An operator copied another log there.
    std::fs::copy(file(&dir.path().join("log")), file(&retired)).unwrap();
    assert!(wrong().unwrap_err().ends_with("of epoch 2, and not what its name says"), "{:?}", wrong());
}

/// Logs of five epochs are retired, one of which an operator may still want to found from, and one that is damaged.
#[tokio::test]
async fn logs_that_were_retired_are_pruned_and_what_can_be_founded_from_stays() {
    let dir = Before::Snapshot.make().await;
    let mut volume = open(dir.path());
    let old = volume.local_log().raft_id;
    (2..7).for_each(|epoch| volume.retire_log(&anchor(epoch, RaftId(OTHERS[0]))).unwrap());
    let today = volume.local_log();
    drop(volume);
    let damaged = dir.path().join("retired-1-99");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("raft.redb"), "not a database").unwrap();
    // As a process leaves one behind that ends while it deletes it.
    std::fs::create_dir(dir.path().join("pruned-retired-1-98")).unwrap();
    let Stock { logs, bytes } = measure_retired(dir.path()).unwrap();
    assert!(logs == 6 && bytes > 5 * 4096, "{logs} logs, {bytes} bytes");
    let pruned = prune_retired(dir.path(), Engine::Redb, MembershipEpoch(6)).unwrap();
    let epochs: Vec<&str> = pruned.iter().filter_map(|name| name.split('-').nth(1)).collect();
    assert_eq!(epochs, ["3", "2"], "empty ones of the earliest epochs");
    let left = retired_logs(dir.path(), Engine::Redb).unwrap();
    let names: Vec<_> = left.iter().map(|log| (log.epoch.0, log.holds.is_ok())).collect();
    assert_eq!(names, [(5, true), (4, true), (1, false), (1, true)], "{left:?}");
    assert!(left.iter().any(|log| log.raft_id == old && log.holds.as_ref().is_ok_and(|it| it.last_term > 0)));
    assert!(
        std::fs::read_dir(dir.path()).unwrap().all(|it| !it.unwrap().file_name().to_string_lossy().contains("pruned"))
    );
    assert_eq!(
        prune_retired(dir.path(), Engine::Redb, MembershipEpoch(6)).unwrap(),
        [""; 0],
        "there is no more to prune"
    );
    assert_eq!(open(dir.path()).local_log(), today, "the log in its place is not touched");
}
