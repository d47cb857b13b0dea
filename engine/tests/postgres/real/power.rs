//! What a member confirmed survives the loss of its power (obligation O7): the power of its volume is cut at random moments,
//! and it alone is granted then.

use super::device::{self, Device, apart};
use super::lab::{Lab, Member, kill};
use kaa_engine::postgres::{Error, Settings, Stop};
use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use testkit::{Chance, tier};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long a server may take to find that its volume is gone, and one to come back.
const PATIENCE: Duration = Duration::from_secs(60);
const WRITERS: usize = 3;
/// The member with the volume.
const NUMBER: u64 = 2;

/// A statement that writes this row: alone, with much log, or at the end of a file of the log.
fn statement(id: i64, chance: &mut Chance) -> String {
    let row = format!("INSERT INTO rows VALUES ({id}, 0)");
    match chance.below(12) {
        0 => format!("{row}; SELECT pg_logical_emit_message(true, 'test', repeat('x', {}))", chance.below(200_000)),
        1 => format!("BEGIN; {row}; SAVEPOINT s; UPDATE rows SET generation = 1 WHERE id = {id}; COMMIT"),
        _ => row,
    }
}

/// Inserts until its session ends, and gives what was acknowledged.
async fn write(member: &Member, ids: &Arc<AtomicI64>, mut chance: Chance) -> JoinHandle<Vec<i64>> {
    let (client, ids) = (member.client().await.unwrap(), ids.clone());
    tokio::spawn(async move {
        let mut done = Vec::new();
        loop {
            let id = ids.fetch_add(1, Ordering::Relaxed);
            if client.batch_execute(&statement(id, &mut chance)).await.is_err() {
                return done;
            }
            done.push(id);
        }
    })
}

/// Has a server run a statement at a random moment of the next half second, if it still runs then.
async fn disturb(member: &Member, statement: &'static str, chance: &mut Chance) {
    let (client, pause) = (member.superuser().await, Duration::from_millis(chance.below(500) as u64));
    tokio::spawn(async move {
        sleep(pause).await;
        let _ = client.batch_execute(statement).await;
    });
}

/// The member with the volume, and what it has confirmed.
struct Play<'a> {
    lab: &'a Lab,
    device: Device,
    change: fn(&Lab, &mut Settings),
    ids: Arc<AtomicI64>,
    confirmed: BTreeSet<i64>,
    generation: u32,
}

impl<'a> Play<'a> {
    fn new(lab: &'a Lab, change: fn(&Lab, &mut Settings)) -> Self {
        let device = Device::new(lab.file("device"), lab.volume(NUMBER));
        let ids = Arc::new(AtomicI64::new(1));
        Self { lab, device, change, ids, confirmed: BTreeSet::new(), generation: 2 }
    }

    fn member(&self) -> Member {
        self.lab.member_with(NUMBER, |settings| (self.change)(self.lab, settings))
    }

    /// Cuts the power after a random time.
    fn cut_within(&self, limit: usize, chance: &mut Chance) -> JoinHandle<()> {
        let (at, pause) = (self.device.at().to_owned(), Duration::from_millis(chance.below(limit) as u64));
        tokio::task::spawn_blocking(move || {
            std::thread::sleep(pause);
            device::cut(&at);
        })
    }

    async fn writers(&self, primary: &Member, chance: &mut Chance) -> Vec<JoinHandle<Vec<i64>>> {
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            writers.push(write(primary, &self.ids, Chance::of(chance.number())).await);
        }
        writers
    }

    async fn confirmed_by(&mut self, writers: Vec<JoinHandle<Vec<i64>>>) {
        for writer in writers {
            self.confirmed.extend(timeout(PATIENCE, writer).await.expect("its session ends").unwrap());
        }
    }

    /// The member confirms what another primary writes, until its power is cut.
    async fn as_standby(&mut self, chance: &mut Chance) {
        let (mut primary, begins) = self.lab.primary(1).await;
        let mut member = self.member();
        primary.server.provide_slots(&[member.archive]).await.unwrap();
        member.join(&primary, 2, &[begins]).await;
        primary.server.require(&[member.archive], 2).await.unwrap();
        let writers = self.writers(&primary, chance).await;
        for _ in 0..chance.below(3) {
            disturb(&member, "CHECKPOINT", chance).await;
            disturb(&primary, "SELECT pg_switch_wal()", chance).await;
            disturb(&primary, "CHECKPOINT", chance).await;
        }
        self.cut_within(600, chance).await.unwrap();
        // What the member has in memory stays there: nothing of it is confirmed any more.
        sleep(Duration::from_millis(chance.below(100) as u64)).await;
        kill(primary.postmaster());
        primary.server.ended().await;
        self.confirmed_by(writers).await;
        member.server.stop(Stop::Immediate).await.unwrap();
    }

    /// The member is the only primary, and its power is cut.
    async fn as_primary(&mut self, mut member: Member, chance: &mut Chance) {
        let writers = self.writers(&member, chance).await;
        for _ in 0..chance.below(3) {
            disturb(&member, ["CHECKPOINT", "SELECT pg_switch_wal()"][chance.below(2)], chance).await;
        }
        self.cut_within(400, chance).await.unwrap();
        timeout(PATIENCE, member.server.ended()).await.expect("a server without its volume ends");
        self.confirmed_by(writers).await;
        member.server.stop(Stop::Immediate).await.unwrap();
    }

    /// The power is cut while the member becomes the primary.
    async fn as_winner(&mut self, mut member: Member, chance: &mut Chance) {
        member.server.fence().await.unwrap();
        self.generation += 1 + u32::try_from(chance.below(3)).unwrap();
        let cut = self.cut_within(150, chance);
        let _ = timeout(Duration::from_secs(3), lead(&mut member, self.generation)).await;
        cut.await.unwrap();
        member.server.stop(Stop::Immediate).await.unwrap();
    }

    /// The power is back, and the member alone is granted. What it lacks, or why it does not come back.
    async fn come_back(&mut self, chance: &mut Chance) -> Result<Member, String> {
        self.device.restore();
        let mut member = self.member();
        self.generation += 1 + u32::try_from(chance.below(3)).unwrap();
        let back = async {
            member.server.start_fenced().await?;
            member.server.fence().await?;
            lead(&mut member, self.generation).await
        };
        let back = timeout(PATIENCE, back).await.map_err(|_| "it does not come back".to_owned())?;
        back.map_err(|error| error.to_string())?;
        let (mut shown, indexed) = stored(&member).await.map_err(|error| error.to_string())?;
        let count = shown.len();
        shown.sort_unstable();
        shown.dedup();
        let lost: Vec<&i64> = self.confirmed.iter().filter(|id| shown.binary_search(id).is_err()).collect();
        if !lost.is_empty() {
            return Err(format!("of {} confirmed rows {} are lost: {lost:?}", self.confirmed.len(), lost.len()));
        }
        if shown.len() != count || indexed != i64::try_from(count).unwrap() {
            return Err(format!("{count} rows, {} of them different, {indexed} in the index", shown.len()));
        }
        Ok(member)
    }
}

async fn lead(member: &mut Member, generation: u32) -> Result<(), Error> {
    member.server.promote(generation, &[]).await?;
    member.server.establish().await?;
    member.server.open().await
}

/// The rows in the table itself, and how many its index has.
async fn stored(member: &Member) -> Result<(Vec<i64>, i64), tokio_postgres::Error> {
    let client = member.superuser().await;
    client
        .batch_execute("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off")
        .await?;
    let rows = client.query("SELECT id FROM rows", &[]).await?;
    let by_index = "SET enable_seqscan = off; SET enable_indexscan = on; SET enable_indexonlyscan = on";
    client.batch_execute(by_index).await?;
    let indexed = client.query_one("SELECT count(*) FROM rows WHERE id > 0", &[]).await?.get(0);
    Ok((rows.iter().map(|row| row.get(0)).collect(), indexed))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_member_confirmed_survives_its_power_cut() {
    let name = "power::what_a_member_confirmed_survives_its_power_cut";
    if !apart(name) {
        return;
    }
    // Each has three cuts.
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 500)) {
        let Some(lab) = Lab::new() else { return };
        let mut play = Play::new(&lab, |_, _| {});
        play.as_standby(&mut chance).await;
        let mut cuts = vec![play.confirmed.len()];
        let mut member = play.come_back(&mut chance).await.unwrap();
        for _ in 0..2 {
            if chance.below(3) == 0 {
                // As after the grant of another generation to the same archive.
                play.as_winner(member, &mut chance).await;
            } else {
                play.as_primary(member, &mut chance).await;
            }
            cuts.push(play.confirmed.len());
            member = play.come_back(&mut chance).await.unwrap();
        }
        assert!(cuts[2] > 0, "the test needs rows");
        eprintln!("confirmed at the cuts: {cuts:?}, generation {}", play.generation);
    }
}

/// Programs of which the server does not sync.
fn unsynced(lab: &Lab) -> PathBuf {
    let bin = lab.file("unsynced");
    std::fs::create_dir_all(&bin).unwrap();
    for entry in std::fs::read_dir(lab.bin()).unwrap().flatten() {
        let place = bin.join(entry.file_name());
        if entry.file_name() == "postgres" && !place.exists() {
            let text = format!("#!/bin/sh\nexec {} \"$@\" -c fsync=off\n", entry.path().display());
            std::fs::write(&place, text).unwrap();
            std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        } else if !place.exists() {
            symlink(entry.path(), place).unwrap();
        }
    }
    bin
}

/// The other test could not fail if a cut lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_sync_loses_what_it_confirmed() {
    let name = "power::a_member_that_does_not_sync_loses_what_it_confirmed";
    if !apart(name) {
        return;
    }
    // The kernel may have written all of it by itself: somebody else on the machine syncs.
    for mut chance in Chance::runs(name, 5) {
        let Some(lab) = Lab::new() else { return };
        let mut play = Play::new(&lab, |lab, settings| settings.bin = unsynced(lab));
        play.as_standby(&mut chance).await;
        if let Err(why) = play.come_back(&mut chance).await {
            return eprintln!("as expected: {why}");
        }
    }
    panic!("nothing is lost without a sync: the power was not cut");
}
