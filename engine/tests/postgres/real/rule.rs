//! The rule of a primary: what it acknowledges is on all members that it was told to wait for.

use super::lab::{Lab, Member, hold, kill, signal, titled};
use kaa_core::domain::ids::ArchiveId;
use kaa_engine::postgres::{Begins, Error, Follows, Stop};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use testkit::{Chance, tier};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Inserts until its session ends, and gives what was acknowledged.
async fn write(member: &Member, ids: &Arc<AtomicI64>) -> JoinHandle<Vec<i64>> {
    let (client, ids) = (member.client().await.unwrap(), ids.clone());
    tokio::spawn(async move {
        let mut done = Vec::new();
        loop {
            let id = ids.fetch_add(1, Ordering::Relaxed);
            if client.batch_execute(&format!("INSERT INTO rows VALUES ({id}, 0)")).await.is_err() {
                return done;
            }
            done.push(id);
        }
    })
}

/// A program that ends with the test, however that ends.
struct Program(std::process::Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Trio {
    /// The first one is the primary.
    members: Vec<Member>,
    generation: u32,
    history: Vec<Begins>,
    recorded: BTreeSet<ArchiveId>,
}

impl Trio {
    async fn new(lab: &Lab) -> Self {
        let (members, begins) = lab.three().await;
        Self { members: members.into(), generation: 2, history: vec![begins], recorded: BTreeSet::new() }
    }

    /// Changes the rule as the domain would: the record shrinks before, and grows after.
    async fn require(&mut self, rule: &[ArchiveId]) -> Result<(), Error> {
        self.recorded.retain(|archive| rule.contains(archive));
        let point = self.members[0].server.require(rule, self.generation).await?;
        let standbys = self.members[0].server.read().await?.standbys;
        let holds = |archive| standbys.iter().any(|it| it.archive == archive && it.flushed >= point);
        self.recorded.extend(rule.iter().copied().filter(|archive| holds(*archive)));
        Ok(())
    }

    /// Kills the primary, grants the next generation to a member of the set, and has all others follow it.
    async fn fail_over(&mut self, chance: &mut Chance) {
        kill(self.members[0].postmaster());
        self.members[0].server.ended().await;
        let mut candidates: Vec<usize> =
            (1..3).filter(|it| self.recorded.contains(&self.members[*it].archive)).collect();
        // A primary that is alone in its set is the only one.
        if candidates.is_empty() || chance.below(4) == 0 {
            candidates = vec![0];
        }
        let winner = candidates[chance.below(candidates.len())];
        self.members.swap(0, winner);
        self.generation += 1 + u32::try_from(chance.below(3)).unwrap();
        let (primary, others) = self.members.split_first_mut().unwrap();
        primary.server.fence().await.unwrap();
        self.history.push(primary.lead(self.generation, &[]).await);
        self.recorded.clear();
        primary.server.provide_slots(&others.iter().map(|it| it.archive).collect::<Vec<_>>()).await.unwrap();
        primary.server.checkpoint().await.unwrap();
        for other in others {
            let source = primary.source();
            let follows = other.server.follow(other.archive, &source, self.generation, &self.history).await.unwrap();
            if let Follows::NeedsOverwrite { why } = follows {
                eprintln!("archive {} is overwritten: {why}", other.archive);
                other.server.overwrite(&source, chance.coin()).await.unwrap();
                other.server.start_fenced().await.unwrap();
                other.follow(primary, self.generation, &self.history).await;
            } else {
                other.streams(self.generation).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_row_is_on_the_member_that_is_granted() {
    let name = "every_acknowledged_row_is_on_the_member_that_is_granted";
    // Each has four changes of the primary.
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 125)) {
        let Some(lab) = Lab::new() else { return };
        play(&lab, &mut chance).await;
    }
}

async fn play(lab: &Lab, chance: &mut Chance) {
    let mut trio = Trio::new(lab).await;
    let ids = Arc::new(AtomicI64::new(1));
    let (mut acknowledged, mut changes) = (BTreeSet::new(), 0);
    for _ in 0..4 {
        let mut writers = Vec::new();
        for _ in 0..4 {
            writers.push(write(&trio.members[0], &ids).await);
        }
        let others = [trio.members[1].archive, trio.members[2].archive];
        for _ in 0..3 + chance.below(3) {
            let rules = [&others[..], &others[..1], &others[1..], &[]];
            let rule = rules[chance.below(4)];
            // Processes that are held up read their configuration late.
            let words = ["walsender", "checkpointer", "walreceiver"];
            let held: Vec<i32> = trio.members.iter().flat_map(|it| titled(it, words[chance.below(3)])).collect();
            let pause = Duration::from_millis(chance.below(150) as u64);
            hold(&held, Signal::SIGSTOP);
            let thaw = tokio::spawn(async move {
                sleep(pause).await;
                hold(&held, Signal::SIGCONT);
            });
            // In the middle of a change, now and then.
            let limit = if chance.below(3) == 0 { chance.below(60) as u64 } else { 60_000 };
            match timeout(Duration::from_millis(limit), trio.require(rule)).await {
                Ok(result) => result.unwrap(),
                Err(_) if limit < 60_000 => {}
                Err(_) => panic!("the rule {rule:?} does not come into force"),
            }
            thaw.await.unwrap();
            changes += 1;
        }
        sleep(Duration::from_millis(chance.below(80) as u64)).await;
        trio.fail_over(chance).await;
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        let shown: BTreeSet<i64> = trio.members[0].rows().await.into_iter().collect();
        let lost: Vec<&i64> = acknowledged.difference(&shown).collect();
        assert!(lost.is_empty(), "of {} rows {lost:?} were lost; history {:?}", acknowledged.len(), trio.history);
    }
    // All of them are on one history.
    let others = [trio.members[1].archive, trio.members[2].archive];
    trio.require(&others).await.unwrap();
    let expected = trio.members[0].rows().await;
    for member in &trio.members[1..] {
        testkit::eventually_async("the same rows", async || testkit::wait::is(member.rows().await == expected)).await;
    }
    eprintln!("{} rows, {changes} changes of the rule, {:?}", acknowledged.len(), trio.history);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_does_not_obey_keeps_the_rule_from_changing() {
    let Some(lab) = Lab::new() else { return };
    let mut trio = Trio::new(&lab).await;
    let (b, c) = (trio.members[1].archive, trio.members[2].archive);
    trio.require(&[b, c]).await.unwrap();
    let sender = titled(&trio.members[0], "walsender")[0];
    signal(sender, Signal::SIGSTOP);
    let client = trio.members[0].client().await.unwrap();
    let change = timeout(Duration::from_secs(30), trio.members[0].server.require(&[b], 2)).await;
    let error = change.expect("it is given up after a few seconds").unwrap_err();
    assert!(matches!(error, Error::Stuck(_)), "{error}");
    let write = client.batch_execute("INSERT INTO rows VALUES (1, 0)");
    assert!(timeout(Duration::from_millis(200), write).await.is_err(), "nothing is released");
    // As the caller does then: no process is left, not even the one that was held.
    trio.members[0].server.fence().await.unwrap();
}

/// The last statement of a change that was dropped runs on at the server, and may end the own commits of the next one.
#[tokio::test(flavor = "multi_thread")]
async fn own_commits_that_are_ended_do_not_fail_a_change_of_the_rule() {
    let Some(lab) = Lab::new() else { return };
    let mut trio = Trio::new(&lab).await;
    let b = trio.members[1].archive;
    let superuser = trio.members[0].superuser().await;
    let held = titled(&trio.members[1], "walreceiver");
    hold(&held, Signal::SIGSTOP);
    let end = async {
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
            WHERE application_name = 'kaa_proof' AND wait_event = 'SyncRep'";
        for _ in 0..3 {
            testkit::eventually_async("own commits wait, and are ended", async || {
                let ended: i64 = superuser.query_one(end, &[]).await.map_err(|error| error.to_string())?.get(0);
                if ended > 0 { Ok(()) } else { Err("none waits".to_owned()) }
            })
            .await;
            sleep(Duration::from_millis(250)).await;
        }
        hold(&held, Signal::SIGCONT);
    };
    let rule = [b];
    let mut required = Box::pin(trio.require(&rule));
    tokio::select! {
        ended = &mut required => panic!("ended while its member does not receive: {ended:?}"),
        () = end => {},
    }
    required.await.unwrap();
}

/// Who receives the log and is no member, or a member of another generation, or of another archive with a similar number; and copies.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_that_are_no_members_release_no_commit() {
    for mut chance in Chance::runs("receivers_that_are_no_members_release_no_commit", tier().of(1, 1, 2, 500)) {
        let Some(lab) = Lab::new() else { return };
        receive(&lab, &mut chance).await;
    }
}

async fn receive(lab: &Lab, chance: &mut Chance) {
    let (mut a, begins) = lab.primary(1).await;
    let (mut b, mut c) = (lab.member(2), lab.member(3));
    a.server.provide_slots(&[b.archive, c.archive]).await.unwrap();
    b.join(&a, 2, &[begins]).await;
    b.server.stop(Stop::Fast).await.unwrap();
    let mut names =
        vec!["kaa_2", "kaa_2_g1", "kaa_2_g22", "kaa_22_g2", "kaa_none", "copy_to_standby", "b", "kaa_2_g2x", "*"];
    for _ in 0..chance.below(5) {
        names.swap_remove(chance.below(names.len()));
    }
    let mut foreign: Vec<_> =
        names.iter().map(|name| Program(lab.receives(&a, "pg_receivewal", name, &["--synchronous"]))).collect();
    if chance.coin() {
        let options = ["-X", "stream", "-r", "100", "-c", "fast"];
        foreign.push(Program(lab.receives(&a, "pg_basebackup", "copy_to_standby", &options)));
    }
    // A member's own copy, at times given up.
    let copies = Duration::from_millis(chance.below(500) as u64);
    let _ = timeout(copies, c.server.overwrite(&a.source(), false)).await;
    let superuser = a.superuser().await;
    let streams =
        "SELECT application_name FROM pg_stat_replication WHERE state = 'streaming' AND flush_lsn IS NOT NULL";
    testkit::eventually_async("all of them stream", async || {
        let rows = superuser.query(streams, &[]).await.map_err(|error| error.to_string())?;
        let found: BTreeSet<&str> = rows.iter().map(|row| row.get(0)).collect();
        let missing: Vec<_> = names.iter().filter(|name| !found.contains(**name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not yet {missing:?}")) }
    })
    .await;
    let rule = if chance.coin() { vec![b.archive] } else { vec![b.archive, c.archive] };
    // On a busy machine it may be given up while nothing is released, which a receiver of that name would release.
    for tries in 0.. {
        let change = timeout(Duration::from_millis(1500), a.server.require(&rule, 2)).await;
        assert!(change.is_err() && tries < 10, "no member is there");
        let shown = superuser.query_one("SHOW synchronous_standby_names", &[]).await.unwrap();
        if shown.get::<_, &str>(0).contains("kaa_2_g2") {
            break;
        }
    }
    let client = a.client().await.unwrap();
    let waits = client.batch_execute("INSERT INTO rows VALUES (2, 0)");
    assert!(timeout(Duration::from_millis(500), waits).await.is_err(), "no member has confirmed it");
    assert_eq!(a.server.read().await.unwrap().standbys, []);
    drop(foreign);
    b.server.start_fenced().await.unwrap();
    b.follow(&a, 2, &[begins]).await;
    if rule.contains(&c.archive) {
        c.join(&a, 2, &[begins]).await;
    }
    a.server.require(&rule, 2).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_a_member_can_be_given_up_and_replaced() {
    let Some(lab) = Lab::new() else { return };
    let mut trio = Trio::new(&lab).await;
    let b = trio.members[1].archive;
    let rule = [b, ArchiveId(77)];
    for _ in 0..3 {
        let change = trio.members[0].server.require(&rule, 2);
        assert!(timeout(Duration::from_millis(700), change).await.is_err(), "a member is away");
    }
    let client = trio.members[0].client().await.unwrap();
    let write = client.batch_execute("INSERT INTO rows VALUES (1, 0)");
    assert!(timeout(Duration::from_millis(200), write).await.is_err(), "the rule is not weaker");
    trio.require(&[b]).await.unwrap();
    assert_eq!(trio.recorded, BTreeSet::from([b]));
    let client = trio.members[0].client().await.unwrap();
    client.batch_execute("INSERT INTO rows VALUES (2, 0)").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_not_in_force_before_the_checkpointer_has_commits_wait() {
    let Some(lab) = Lab::new() else { return };
    let mut trio = Trio::new(&lab).await;
    let b = trio.members[1].archive;
    let ids = Arc::new(AtomicI64::new(1));
    let writers = [write(&trio.members[0], &ids).await, write(&trio.members[0], &ids).await];
    let checkpointer = titled(&trio.members[0], "checkpointer");
    hold(&checkpointer, Signal::SIGSTOP);
    let rule = [b];
    let change = timeout(Duration::from_millis(1500), trio.require(&rule)).await;
    assert!(change.is_err(), "commits do not wait for the rule yet");
    assert!(trio.recorded.is_empty());
    hold(&checkpointer, Signal::SIGCONT);
    trio.require(&rule).await.unwrap();
    kill(trio.members[0].postmaster());
    trio.members[0].server.ended().await;
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    trio.members[1].server.fence().await.unwrap();
    let shown = trio.members[1].rows().await;
    let lost: Vec<i64> = acknowledged.into_iter().filter(|id| shown.binary_search(id).is_err()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// A checkpoint that is done at once may take minutes, and the checkpointer looks at nothing meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_without_members_is_not_in_force_while_commits_still_wait() {
    let Some(lab) = Lab::new() else { return };
    let mut trio = Trio::new(&lab).await;
    let b = trio.members[1].archive;
    trio.require(&[b]).await.unwrap();
    for standby in &mut trio.members[1..] {
        standby.server.stop(Stop::Immediate).await.unwrap();
    }
    let checkpointer = titled(&trio.members[0], "checkpointer");
    hold(&checkpointer, Signal::SIGSTOP);
    let change = timeout(Duration::from_millis(1000), trio.require(&[])).await;
    assert!(change.is_err(), "it has not looked");
    let client = trio.members[0].client().await.unwrap();
    let write = client.batch_execute("INSERT INTO rows VALUES (1, 0)");
    assert!(timeout(Duration::from_millis(200), write).await.is_err(), "commits wait");
    hold(&checkpointer, Signal::SIGCONT);
    trio.require(&[]).await.unwrap();
    let client = trio.members[0].client().await.unwrap();
    client.batch_execute("INSERT INTO rows VALUES (2, 0)").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_runs_on_completes_nothing_that_the_next_one_lacks() {
    let name = "a_primary_that_runs_on_completes_nothing_that_the_next_one_lacks";
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 500)) {
        let Some(lab) = Lab::new() else { return };
        runs_on(&lab, &mut chance).await;
    }
}

async fn runs_on(lab: &Lab, chance: &mut Chance) {
    let mut trio = Trio::new(lab).await;
    let rule = [trio.members[1].archive, trio.members[2].archive];
    trio.require(&rule).await.unwrap();
    let ids = Arc::new(AtomicI64::new(1));
    let mut writers = Vec::new();
    for _ in 0..1 + chance.below(4) {
        writers.push(write(&trio.members[0], &ids).await);
    }
    sleep(Duration::from_millis(100 + chance.below(200) as u64)).await;
    if chance.coin() {
        trio.members.swap(1, 2);
    }
    let (old, others) = trio.members.split_first_mut().unwrap();
    let (winner, third) = others.split_first_mut().unwrap();
    let third = &mut third[0];
    winner.server.fence().await.unwrap();
    let generation = 3 + u32::try_from(chance.below(3)).unwrap();
    trio.history.push(winner.lead(generation, &[]).await);
    winner.server.provide_slots(&[third.archive]).await.unwrap();
    // A receiver that was asked for just before it is told whom to follow; one that is held up; replay that stands still.
    if chance.coin() {
        third.superuser().await.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    }
    let receivers = titled(third, "walreceiver");
    if chance.coin() {
        hold(&receivers, Signal::SIGTERM);
        sleep(Duration::from_millis(chance.below(30) as u64)).await;
    }
    let held = titled(third, ["walreceiver", "startup"][chance.below(2)]);
    let pause = Duration::from_millis(chance.below(300) as u64);
    hold(&held, Signal::SIGSTOP);
    let thaw = tokio::spawn(async move {
        sleep(pause).await;
        hold(&held, Signal::SIGCONT);
    });
    // It confirms nothing to the old primary from here on.
    let follows = third.server.follow(third.archive, &winner.source(), generation, &trio.history).await.unwrap();
    thaw.await.unwrap();
    // The sender of the old connection ends a moment later.
    testkit::eventually_async("the old primary has no standby", async || {
        let standbys = old.server.read().await.map_err(|error| error.to_string())?.standbys;
        if standbys.is_empty() { Ok(()) } else { Err(format!("{standbys:?}")) }
    })
    .await;
    for _ in 0..4 {
        sleep(Duration::from_millis(chance.below(150) as u64)).await;
        let standbys = old.server.read().await.unwrap().standbys;
        assert!(standbys.is_empty(), "{standbys:?}");
    }
    old.server.stop(Stop::Immediate).await.unwrap();
    let shown = winner.rows().await;
    for writer in writers {
        let done = writer.await.unwrap();
        let lost: Vec<i64> = done.into_iter().filter(|id| shown.binary_search(id).is_err()).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
    eprintln!("the third one: {follows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_alone_holds_its_commits_until_its_rule_is_made_again() {
    let Some(lab) = Lab::new() else { return };
    let (mut member, _) = lab.primary(1).await;
    let (client, reader) = (member.client().await.unwrap(), member.client().await.unwrap());
    client.batch_execute("INSERT INTO rows VALUES (1, 2)").await.unwrap();
    member.server.release_nothing().await.unwrap();
    let waits = tokio::spawn(async move { client.batch_execute("INSERT INTO rows VALUES (2, 2)").await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "nothing is acknowledged");
    assert_eq!(reader.query("SELECT id FROM rows", &[]).await.unwrap().len(), 1, "nothing is shown");
    member.server.require(&[], 2).await.unwrap();
    waits.await.unwrap().unwrap();
    assert_eq!(member.rows().await, [1, 2]);
}
