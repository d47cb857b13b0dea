//! Loss of power at any moment, with what was not synced lost, kept or torn.
//!
//! Chance writes a history: votes, appends, truncations, snapshots, purges, foundings, retired logs, restarts. After
//! each step the test knows what was acknowledged and what was under way. Then the power is cut at many points of the
//! history, and what the next start finds has to be the one or the other. The history continues from one of the cuts.
//!
//! `KAA_SEED` replays a run, `KAA_POWER_ROUNDS` makes it longer (each round has 30 cuts).

use super::recorder::{Lie, Recorder, Unsynced};
use super::{anchor, node, request, value};
use crate::raft::handle::sentence;
use crate::raft::snapshot::{self, Pointer};
use crate::raft::state_machine::StateMachine;
use crate::raft::store::Store;
use crate::raft::types::{Entry, LogId, Proposal, SnapshotMeta, TypeConfig, Vote, first_term};
use crate::raft::volume::{Parts, Volume};
use futures::stream;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::ids::{Millis, RaftId};
use kaa_core::membership::LocalLog;
use openraft::EntryPayload;
use openraft::RaftSnapshotBuilder;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::vote::RaftLeaderId;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tempfile::{TempDir, tempdir};
use testkit::Chance;
use testkit::chance::number;

const CUTS: usize = 30;
const CHANGES: usize = 14;

/// What a volume holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) local: LocalLog,
    pub(super) vote: Option<Vote>,
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) purged: Option<LogId>,
    pub(super) snapshot: Option<(SnapshotMeta, Domain)>,
}

impl Held {
    pub(super) fn read(volume: Volume) -> Result<(Self, Parts), snapshot::Error> {
        let parts = volume.into_parts();
        let Parts { local, log, shelf, .. } = &parts;
        let read = |pointer: &Pointer| shelf.read(pointer).map(|domain| (pointer.meta.clone(), domain));
        let snapshot = log.snapshot.as_ref().map(read).transpose()?;
        let (local, entries) = (local.clone(), log.entries.clone());
        Ok((Self { local, vote: log.vote, entries, purged: log.purged, snapshot }, parts))
    }

    pub(super) fn is_fresh(&self) -> bool {
        let LocalLog { domain, epoch, .. } = &self.local;
        domain.is_none() && epoch.0 == 0 && self.entries.is_empty() && self.vote.is_none() && self.snapshot.is_none()
    }

    fn last(&self) -> u64 {
        let snapshot = self.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
        self.entries.keys().next_back().copied().max(snapshot.max(self.purged).map(|id| id.index)).unwrap_or(0)
    }
}

/// A change that took the disk's steps from one count to another, and what is held after it.
#[derive(Debug)]
struct Change {
    name: &'static str,
    began: usize,
    acknowledged: usize,
    after: Held,
}

/// A history under way.
struct History {
    disk: Recorder,
    dir: TempDir,
    held: Held,
    changes: Vec<Change>,
    running: Option<(Store, StateMachine)>,
}

fn run(parts: Parts) -> (Store, StateMachine) {
    let store = Store::start(parts.backend, parts.lock, parts.log).unwrap();
    let machine = StateMachine::open(store.clone(), parts.shelf).unwrap();
    (store, machine)
}

impl History {
    /// Begins on what is in a directory, of which `held` is known, if anything is.
    fn begin(dir: TempDir, held: Option<Held>) -> Self {
        let disk = Recorder::new(dir.path());
        let (opened, parts) = Held::read(Volume::open_on(Arc::new(disk.clone()), dir.path()).unwrap()).unwrap();
        let acknowledged = disk.steps();
        let mut changes = Vec::new();
        changes.extend(held.map(|after| Change { name: "nothing", began: 0, acknowledged: 0, after }));
        changes.push(Change { name: "open", began: 0, acknowledged, after: opened.clone() });
        Self { disk, dir, held: opened, changes, running: Some(run(parts)) }
    }

    fn open(&mut self) -> Volume {
        let (store, machine) = self.running.take().unwrap();
        drop(machine);
        store.close();
        Volume::open_on(Arc::new(self.disk.clone()), self.dir.path()).unwrap()
    }

    /// Makes a change that chance chooses.
    async fn change(&mut self, chance: &mut Chance) {
        let began = self.disk.steps();
        let name = match chance.below(14) {
            _ if self.held.vote.is_none() => self.found(),
            0..=4 => self.append(chance).await,
            5 | 6 => self.vote(chance).await,
            7 => self.truncate(chance).await,
            8 | 9 => self.snapshot().await,
            10 => self.purge(chance).await,
            11 => self.found(),
            12 => self.retired(),
            _ => {
                let (held, parts) = Held::read(self.open()).unwrap();
                assert_eq!(held, self.held, "an orderly restart changes nothing");
                self.running = Some(run(parts));
                "restart"
            }
        };
        let acknowledged = self.disk.steps();
        self.changes.push(Change { name, began, acknowledged, after: self.held.clone() });
    }

    async fn append(&mut self, chance: &mut Chance) -> &'static str {
        let (store, _) = self.running.as_mut().unwrap();
        let term = self.held.vote.unwrap().leader_id.term;
        let me = self.held.local.raft_id.0;
        let leader = openraft::alias::LeaderIdOf::<TypeConfig>::new(term, me).to_committed();
        let first = self.held.last() + 1;
        let entries: Vec<Entry> = (first..=first + chance.below(6) as u64)
            .map(|index| {
                let founding = Command::FoundDomain(change::FoundDomain {
                    domain: "d1".into(),
                    name: "n".into(),
                    anchor: "uid".into(),
                });
                let text = "x".repeat(chance.below(4000));
                let request = if index == 1 { request(founding) } else { value(&format!("k{index}"), &text) };
                let payload = EntryPayload::Normal(Proposal { time: Millis(index), request });
                Entry { log_id: LogId::new(leader, index), payload }
            })
            .collect();
        store.blocking_append(entries.clone()).await.unwrap();
        self.held.entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        "append"
    }

    async fn vote(&mut self, chance: &mut Chance) -> &'static str {
        let (store, _) = self.running.as_mut().unwrap();
        let term = self.held.vote.unwrap().leader_id.term + 1 + chance.below(3) as u64;
        let vote = Vote::new(term, self.held.local.raft_id.0);
        store.save_vote(&vote).await.unwrap();
        self.held.vote = Some(vote);
        "vote"
    }

    /// Takes back the last entries, which no snapshot holds.
    async fn truncate(&mut self, chance: &mut Chance) -> &'static str {
        let (store, _) = self.running.as_mut().unwrap();
        let covered = self.held.snapshot.as_ref().and_then(|(meta, _)| meta.last_log_id);
        let ids: Vec<LogId> = self.held.entries.values().map(|entry| entry.log_id).collect();
        let ids: Vec<LogId> = ids.into_iter().filter(|id| Some(*id) > covered).collect();
        if ids.len() > 1 {
            let last = ids[chance.below(ids.len() - 1)];
            store.truncate_after(Some(last)).await.unwrap();
            self.held.entries.split_off(&(last.index + 1));
        }
        "truncate"
    }

    async fn snapshot(&mut self) -> &'static str {
        let (_, machine) = self.running.as_mut().unwrap();
        let (applied, _) = machine.applied_state().await.unwrap();
        let rest = self.held.entries.values().filter(|entry| Some(entry.log_id) > applied).cloned();
        let rest: Vec<_> = rest.map(|entry| Ok((entry, None))).collect();
        machine.apply(stream::iter(rest)).await.unwrap();
        let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        let domain = machine.domain().read().unwrap().clone();
        assert_eq!(built.meta.last_log_id.unwrap().index, self.held.last());
        self.held.snapshot = Some((built.meta.clone(), domain));
        "snapshot"
    }

    async fn purge(&mut self, chance: &mut Chance) -> &'static str {
        let (store, _) = self.running.as_mut().unwrap();
        let Some((meta, _)) = &self.held.snapshot else { return "purge" };
        let ids = self.held.entries.values().map(|entry| entry.log_id).filter(|id| Some(*id) <= meta.last_log_id);
        let ids: Vec<LogId> = ids.collect();
        if !ids.is_empty() {
            let upto = ids[chance.below(ids.len())];
            store.purge(upto).await.unwrap();
            self.held.entries = self.held.entries.split_off(&(upto.index + 1));
            self.held.purged = Some(upto);
        }
        "purge"
    }

    /// Founds the next epoch, as an override does.
    fn found(&mut self) -> &'static str {
        let mut volume = self.open();
        let LocalLog { epoch, raft_id, .. } = volume.local_log();
        volume.found(&anchor(epoch.0 + 1, raft_id), &node("admin-0", "a:1"), None).unwrap();
        let (held, parts) = Held::read(volume).unwrap();
        let last = held.entries.values().next_back().unwrap();
        assert!(
            matches!(last.payload, EntryPayload::Membership(_))
                && held.vote.unwrap().leader_id.term == first_term(epoch.0 + 1)
        );
        (self.held, self.running) = (held, Some(run(parts)));
        "found"
    }

    /// Gives way to an epoch that another founded, and founds the one after on the empty log.
    fn retired(&mut self) -> &'static str {
        let mut volume = self.open();
        let epoch = volume.local_log().epoch.0;
        volume.retire_log(&anchor(epoch + 1, RaftId(1))).unwrap();
        let (held, parts) = Held::read(volume).unwrap();
        assert!(held.entries.is_empty() && held.vote.is_none());
        (self.held, self.running) = (held, Some(run(parts)));
        let began = self.changes.last().unwrap().acknowledged;
        let acknowledged = self.disk.steps();
        self.changes.push(Change { name: "retired", began, acknowledged, after: self.held.clone() });
        self.found()
    }

    /// What is wrong with what a start finds after a cut; and what it finds.
    fn judge(&self, steps: usize, image: &Path) -> (Option<Held>, Option<String>) {
        let disk = Arc::new(Recorder::new(image));
        let opened = Volume::open_on(disk, image).and_then(|volume| Ok(Held::read(volume)?));
        let found = match opened {
            Ok((found, _)) => found,
            Err(error) => return (None, Some(format!("does not open: {}", sentence(&error)))),
        };
        let acknowledged = self.changes.iter().rev().find(|change| change.acknowledged <= steps);
        let mut under_way = self.changes.iter().filter(|change| change.began <= steps && steps < change.acknowledged);
        let fits = |change: &Change| change.after == found || change.name == "retired" && found.is_fresh();
        let fits = acknowledged.is_none_or(|change| change.after == found) || under_way.any(fits);
        if fits {
            return (Some(found), None);
        }
        let names: Vec<_> = acknowledged.into_iter().chain(under_way).map(|change| change.name).collect();
        let wrong = format!("after {names:?} there should be {:?}", acknowledged.map(|change| &change.after));
        (Some(found.clone()), Some(format!("{wrong}\nand there is {found:?}")))
    }
}

/// Plays rounds, and tells how many cuts there were and what was wrong after them.
async fn play(chance: &mut Chance, rounds: usize, lie: Lie) -> (usize, Vec<String>) {
    let (mut dir, mut held) = (tempdir().unwrap(), None);
    let (mut cuts, mut wrong) = (0, Vec::new());
    for round in 0..rounds {
        let mut history = History::begin(dir, held);
        history.disk.lie = lie;
        for _ in 0..CHANGES {
            history.change(chance).await;
        }
        let steps = history.disk.steps();
        let continued = chance.below(CUTS);
        (dir, held) = (tempdir().unwrap(), None);
        for cut in 0..CUTS {
            let unsynced = [Unsynced::Torn, Unsynced::Lost, Unsynced::Torn, Unsynced::Kept][cut % 4];
            let at = chance.below(steps + 1);
            let image = tempdir().unwrap();
            history.disk.cut(at, unsynced, chance, image.path());
            let copy = tempdir().unwrap();
            if cut == continued {
                // Before anything is recovered: the recovery is part of the next round.
                copy_tree(image.path(), copy.path());
            }
            let (found, error) = history.judge(at, image.path());
            cuts += 1;
            wrong.extend(error.map(|why| format!("round {round}, {at} of {steps} steps, {unsynced:?}: {why}")));
            if cut == continued {
                // A raft id that was never synced is recreated at the next start.
                held = found.filter(|found| !found.is_fresh());
                dir = copy;
            }
        }
        if !wrong.is_empty() {
            break;
        }
    }
    (cuts, wrong)
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&to).unwrap();
            copy_tree(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test]
async fn a_loss_of_power_takes_nothing_that_was_acknowledged() {
    let rounds = number("KAA_POWER_ROUNDS").unwrap_or(8) as usize;
    let (cuts, wrong) = play(&mut Chance::new("power"), rounds, Lie::None).await;
    assert!(wrong.is_empty(), "{} of {cuts} cuts: {}", wrong.len(), wrong[0]);
    assert!(cuts >= 100);
    eprintln!("{cuts} cuts");
}

/// Each step of the very first start, which leaves a file that is half made behind.
#[test]
fn a_first_start_that_is_cut_off_anywhere_is_followed_by_another() {
    let mut chance = Chance::new("first start");
    let dir = tempdir().unwrap();
    let disk = Recorder::new(dir.path());
    drop(Volume::open_on(Arc::new(disk.clone()), dir.path()).unwrap());
    for at in 0..disk.steps() {
        for unsynced in [Unsynced::Lost, Unsynced::Torn, Unsynced::Kept] {
            let image = tempdir().unwrap();
            disk.cut(at, unsynced, &mut chance, image.path());
            let opened = Volume::open_on(Arc::new(Recorder::new(image.path())), image.path());
            let why = opened.err().map(|error| sentence(&error));
            assert_eq!(why, None, "after {at} of {} steps, {unsynced:?}", disk.steps());
        }
    }
}

/// What shows that the test above can fail.
#[tokio::test]
async fn a_disk_that_only_says_that_it_synced_is_found_out() {
    for lie in [Lie::Files, Lie::Directories] {
        let (_, wrong) = play(&mut Chance::new("power on a disk that lies"), 8, lie).await;
        assert!(!wrong.is_empty(), "{lie:?}");
    }
}
