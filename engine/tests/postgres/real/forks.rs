//! Winners in a row that never saw each other (obligation O3): what two servers hold of the same timeline at the same
//! positions are the same bytes, and all of them end up with the same rows.

use super::lab::{Lab, Member, kill};
use kaa_core::domain::ids::{ArchiveId, Generation};
use kaa_engine::postgres::{Begins, Follows, Position, Stop};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::{Chance, eventually_async, tier};

/// Bytes of a file of the log.
const SEGMENT: u64 = 16 << 20;
/// Bytes of a page of it, and of the page's header.
const PAGE: usize = 8192;
const PAGE_HEADER: usize = 24;

/// What servers held of the log.
#[derive(Default)]
struct Seen {
    /// The longest content of each file, by timeline and number, and at which server.
    files: BTreeMap<(u32, u64), (Vec<u8>, ArchiveId)>,
    /// The histories of timelines.
    histories: BTreeMap<u32, (String, ArchiveId)>,
    /// Bytes that were compared with those of another server.
    compared: usize,
}

/// Removes the pages without a record at the end of a file that was switched early. A server that has the record of the
/// switch has all of the file, and need not have received these.
fn without_padding(bytes: &mut Vec<u8>) {
    while bytes.chunks(PAGE).next_back().is_some_and(|page| page.iter().skip(PAGE_HEADER).all(|byte| *byte == 0)) {
        bytes.truncate((bytes.len() - 1) / PAGE * PAGE);
    }
}

/// The timeline and the number of a file of the log.
fn segment(name: &str) -> Option<(u32, u64)> {
    let number = |at: std::ops::Range<usize>| u64::from_str_radix(name.get(at)?, 16).ok();
    let (timeline, high, low) = (number(0..8)?, number(8..16)?, number(16..24)?);
    (name.len() == 24).then_some((u32::try_from(timeline).ok()?, high * ((1 << 32) / SEGMENT) + low))
}

impl Seen {
    /// Compares the log of a server with all that was seen. `lineage` is how its timelines began; its log ends at `end`,
    /// and the rest of the last file is of no meaning.
    fn look(&mut self, member: &Member, lineage: &[Begins], end: Position) -> Result<(), String> {
        let (wal, who) = (member.settings.directory.join("pgdata/pg_wal"), member.archive);
        for entry in std::fs::read_dir(&wal).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((timeline, number)) = segment(&name) else { continue };
            let of = Generation(timeline.into());
            let left = lineage.iter().find(|it| it.parent == of).map_or(end, |it| it.at.min(end));
            let is_own = timeline == 1 || lineage.iter().any(|it| it.generation == of);
            let length = left.0.saturating_sub(number * SEGMENT).min(SEGMENT);
            if !is_own || length == 0 {
                continue;
            }
            let mut bytes = std::fs::read(entry.path()).unwrap();
            bytes.truncate(usize::try_from(length).unwrap());
            if length == SEGMENT {
                without_padding(&mut bytes);
            }
            let (longest, at) = self.files.entry((timeline, number)).or_insert_with(|| (Vec::new(), who));
            let both = bytes.len().min(longest.len());
            if bytes[..both] != longest[..both] {
                let place = bytes.iter().zip(longest.iter()).position(|(one, other)| one != other).unwrap();
                let position = Position(number * SEGMENT + place as u64);
                return Err(format!("timeline {timeline} is another one at {who} than at {at} from {position}"));
            }
            if *at != who {
                self.compared += both;
            }
            if bytes.len() > longest.len() {
                (*longest, *at) = (bytes, who);
            }
        }
        for begins in lineage.iter().filter(|it| it.at < end) {
            let timeline = u32::try_from(begins.generation.0).unwrap();
            let text = std::fs::read_to_string(wal.join(format!("{timeline:08X}.history"))).unwrap();
            let (known, at) = self.histories.entry(timeline).or_insert_with(|| (text.clone(), who));
            if *known != text {
                return Err(format!("timeline {timeline} began as {text:?} at {who}, and as {known:?} at {at}"));
            }
        }
        Ok(())
    }
}

/// Three servers, each of them on some branch.
struct Branches {
    /// The first one is the primary.
    members: Vec<Member>,
    /// How the timelines of each one's log began.
    lineages: BTreeMap<ArchiveId, Vec<Begins>>,
    /// All grants that came into being.
    history: Vec<Begins>,
    generation: u32,
    next: i64,
    seen: Seen,
}

impl Branches {
    async fn new(lab: &Lab) -> Self {
        let (members, begins) = lab.three().await;
        let lineages = members.each_ref().map(|it| (it.archive, vec![begins])).into();
        Self { members: members.into(), lineages, history: vec![begins], generation: 2, next: 1, seen: Seen::default() }
    }

    /// Writes some rows at a server, and log that is no row.
    async fn write(&mut self, at: usize, chance: &mut Chance) {
        let client = self.members[at].client().await.unwrap();
        for _ in 0..=chance.below(30) {
            let (id, number) = (self.next, self.generation);
            self.next += 1;
            client.batch_execute(&format!("INSERT INTO rows VALUES ({id}, {number})")).await.unwrap();
            if chance.below(4) == 0 {
                let bytes = chance.below(60_000);
                let message = format!("SELECT pg_logical_emit_message(false, '{id}', repeat('{number}', {bytes}))");
                client.batch_execute(&message).await.unwrap();
            }
        }
        if chance.below(4) == 0 {
            self.members[at].superuser().await.batch_execute("SELECT pg_switch_wal()").await.unwrap();
        }
    }

    /// Has a server take no more log, compares what it has, and gives its end.
    async fn fence(&mut self, at: usize) -> Position {
        let member = &mut self.members[at];
        let end = member.server.fence().await.unwrap();
        self.seen.look(member, &self.lineages[&member.archive], end).unwrap();
        end
    }

    /// Makes a server the primary of a generation, whatever the others are.
    async fn grant(&mut self, at: usize, generation: u32) {
        let end = self.fence(at).await;
        let begins = self.members[at].lead(generation, &[]).await;
        assert_eq!((begins.generation, begins.at), (Generation(generation.into()), end));
        self.history.push(begins);
        let lineage = self.lineages.get_mut(&self.members[at].archive).unwrap();
        lineage.retain(|it| it.generation <= begins.parent);
        assert!(lineage.last().is_some_and(|it| it.generation == begins.parent), "{begins:?} after {lineage:?}");
        lineage.push(begins);
        self.generation = generation;
    }

    /// A server follows the primary, and is overwritten if it has to be.
    async fn follow(&mut self, at: usize, chance: &mut Chance) {
        self.fence(at).await;
        let (primary, others) = self.members.split_first_mut().unwrap();
        let (member, source, generation) = (&mut others[at - 1], primary.source(), self.generation);
        let follows = member.server.follow(member.archive, &source, generation, &self.history).await.unwrap();
        let overwritten = match follows {
            Follows::NeedsOverwrite { why } => Some((why, chance.coin())),
            Follows::Streams if member.lacks_log(generation).await => Some(("it lacks log".to_owned(), false)),
            Follows::Streams => None,
            Follows::Outside { why } => panic!("each was granted: {why}"),
        };
        if let Some((why, rewind)) = overwritten {
            eprintln!("archive {} is {}: {why}", member.archive, if rewind { "rewound" } else { "copied" });
            member.server.overwrite(&source, rewind).await.unwrap();
            member.server.start_fenced().await.unwrap();
            member.follow(primary, generation, &self.history).await;
        }
        let lineage = self.lineages[&primary.archive].clone();
        self.lineages.insert(member.archive, lineage);
    }

    /// Some standbys miss what the primary writes last; it is killed, another one is granted, and some of the others do
    /// not hear of it.
    async fn round(&mut self, chance: &mut Chance) {
        self.write(0, chance).await;
        // One that does not follow was stopped in the last round.
        let (mut connected, generation) = (Vec::new(), Generation(self.generation.into()));
        for at in 1..3 {
            tokio::time::sleep(Duration::from_millis(chance.below(30) as u64)).await;
            if chance.coin() {
                self.members[at].server.stop(Stop::Immediate).await.unwrap();
                self.write(0, chance).await;
            } else if self.lineages[&self.members[at].archive].last().map(|it| it.generation) == Some(generation) {
                connected.push(self.members[at].archive);
            }
        }
        kill(self.members[0].postmaster());
        self.members[0].server.ended().await;
        // Rarely the one that was the primary, since nothing forks then.
        let winner = if chance.below(6) == 0 { 0 } else { 1 + chance.below(2) };
        self.members.swap(0, winner);
        self.grant(0, self.generation + 1 + u32::try_from(chance.below(3)).unwrap()).await;
        if winner == 0 {
            // Standbys that were connected to it reconnect by themselves, and receive the log of the new generation.
            let lineage = self.lineages[&self.members[0].archive].clone();
            self.lineages.extend(connected.into_iter().map(|archive| (archive, lineage.clone())));
        }
        let others = [self.members[1].archive, self.members[2].archive];
        self.members[0].server.provide_slots(&others).await.unwrap();
        self.members[0].server.checkpoint().await.unwrap();
        self.write(0, chance).await;
        for at in 1..3 {
            if chance.below(3) == 0 {
                self.follow(at, chance).await;
            } else {
                self.members[at].server.stop(Stop::Immediate).await.unwrap();
            }
        }
    }

    /// All servers follow the last primary, and are the same.
    async fn unite(&mut self, chance: &mut Chance) {
        for at in 1..3 {
            self.follow(at, chance).await;
        }
        let others = [self.members[1].archive, self.members[2].archive];
        self.members[0].server.require(&others, self.generation).await.unwrap();
        self.write(0, chance).await;
        let hash = hash(&self.members[0]).await;
        for member in &self.members[1..] {
            eventually_async("the same rows", async || testkit::wait::is(self::hash(member).await == hash)).await;
        }
        let end = self.members[0].server.read().await.unwrap().end;
        self.seen.look(&self.members[0], &self.lineages[&self.members[0].archive], end).unwrap();
        for at in 1..3 {
            assert!(self.fence(at).await >= end);
        }
    }
}

/// A hash of all rows, and how many there are.
async fn hash(member: &Member) -> (String, i64) {
    let text = "SELECT md5(string_agg(id || ' ' || generation, ',' ORDER BY id)), count(*) FROM rows";
    let row = member.superuser().await.query_one(text, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_positions_of_a_timeline_are_equal_bytes_whoever_is_granted() {
    let name = "equal_positions_of_a_timeline_are_equal_bytes_whoever_is_granted";
    for mut chance in Chance::runs(name, tier().of(1, 1, 2, 100)) {
        let Some(lab) = Lab::new() else { return };
        let mut branches = Branches::new(&lab).await;
        for _ in 0..tier().of(3, 3, 4, 5) {
            branches.round(&mut chance).await;
        }
        branches.unite(&mut chance).await;
        let Seen { compared, files, .. } = &branches.seen;
        assert!(*compared > 0);
        eprintln!("{compared} bytes of {} files compared, {:?}", files.len(), branches.history);
    }
}

/// The other test could not fail if this one could not.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_took_the_same_generation_are_found() {
    let mut chance = Chance::new("two_servers_that_took_the_same_generation_are_found");
    let Some(lab) = Lab::new() else { return };
    let mut branches = Branches::new(&lab).await;
    branches.write(0, &mut chance).await;
    branches.fence(1).await;
    branches.fence(2).await;
    for at in 1..3 {
        branches.grant(at, 3).await;
        branches.write(at, &mut chance).await;
    }
    let mut looked = Vec::new();
    for member in &mut branches.members[1..] {
        let end = member.server.read().await.unwrap().end;
        looked.push(branches.seen.look(member, &branches.lineages[&member.archive], end));
    }
    assert_eq!(looked[0], Ok(()));
    assert!(looked[1].as_ref().is_err_and(|why| why.contains("timeline 3")), "{looked:?}");
}

/// A receiver fetches the history of a timeline before any log of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_was_fetched_and_not_reached_is_no_part_of_a_log() {
    let mut chance = Chance::new("a_history_that_was_fetched_and_not_reached_is_no_part_of_a_log");
    let Some(lab) = Lab::new() else { return };
    let mut branches = Branches::new(&lab).await;
    // b ends before c, and c before the primary, which is granted again.
    for at in 1..3 {
        branches.write(0, &mut chance).await;
        let end = branches.fence(at).await;
        branches.members[at].server.stop(Stop::Fast).await.unwrap();
        assert!(end > branches.history[0].at);
    }
    branches.write(0, &mut chance).await;
    kill(branches.members[0].postmaster());
    branches.members[0].server.ended().await;
    branches.grant(0, 4).await;
    branches.write(0, &mut chance).await;
    let history = "pgdata/pg_wal/00000004.history";
    let [from, to] = [0, 1].map(|at| branches.members[at].settings.directory.join(history));
    std::fs::copy(from, &to).unwrap();
    let user = branches.members[1].settings.user;
    user.map_or(Ok(()), |(user, group)| std::os::unix::fs::chown(&to, Some(user), Some(group))).unwrap();
    branches.members[0].server.stop(Stop::Immediate).await.unwrap();
    branches.grant(1, 6).await;
    assert_eq!(branches.history.last().unwrap().parent, Generation(2));
    branches.members.swap(0, 1);
    let archives = [branches.members[1].archive, branches.members[2].archive];
    branches.members[0].server.provide_slots(&archives).await.unwrap();
    branches.members[0].server.checkpoint().await.unwrap();
    branches.members[2].server.start_fenced().await.unwrap();
    branches.unite(&mut chance).await;
}

/// A rewind needs the log since the divergence. A source that was copied after it has none of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_from_a_source_without_the_log_becomes_a_copy() {
    let mut chance = Chance::new("a_rewind_from_a_source_without_the_log_becomes_a_copy");
    let Some(lab) = Lab::new() else { return };
    let mut branches = Branches::new(&lab).await;
    // c has all that a wrote, with a switch to the next file, and b only the beginning of that file.
    branches.fence(1).await;
    branches.write(0, &mut chance).await;
    branches.members[0].superuser().await.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    let end = branches.members[0].server.read().await.unwrap().end;
    eventually_async("c has the switch", async || {
        let reading = branches.members[2].server.read().await.map_err(|error| error.to_string())?;
        if reading.end >= end { Ok(()) } else { Err(reading.end.to_string()) }
    })
    .await;
    branches.fence(2).await;
    branches.members[0].server.stop(Stop::Immediate).await.unwrap();
    branches.members.swap(0, 1);
    branches.grant(0, 4).await;
    let old = branches.members[1].archive;
    branches.members[0].server.provide_slots(&[old]).await.unwrap();
    branches.write(0, &mut chance).await;
    branches.members[0].superuser().await.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    // a is a copy of b, and c is to be rewound from a.
    let source = branches.members[0].source();
    branches.members[1].server.overwrite(&source, false).await.unwrap();
    branches.members[1].server.start_fenced().await.unwrap();
    let (primary, others) = branches.members.split_first_mut().unwrap();
    others[0].follow(primary, 4, &branches.history).await;
    let lineage = branches.lineages[&primary.archive].clone();
    branches.lineages.insert(others[0].archive, lineage);
    branches.members.swap(0, 1);
    branches.grant(0, 6).await;
    let archives = [branches.members[1].archive, branches.members[2].archive];
    branches.members[0].server.provide_slots(&archives).await.unwrap();
    branches.members[0].server.checkpoint().await.unwrap();
    let source = branches.members[0].source();
    let generation = branches.generation;
    branches.members[2].server.overwrite(&source, true).await.unwrap();
    assert!(branches.members[2].settings.directory.join("pgdata.old").exists(), "it was copied");
    branches.members[2].server.start_fenced().await.unwrap();
    let (primary, others) = branches.members.split_first_mut().unwrap();
    others[1].follow(primary, generation, &branches.history).await;
}
