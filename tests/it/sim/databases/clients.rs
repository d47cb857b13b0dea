//! Clients of the database: they write values that differ to whichever server lets them in, and read there. What counts, a
//! reader must see from then on at each server that lets clients in.

use super::postgres::{Admits, Entry, Postgres, Server};
use kaa::clock;
use std::collections::{BTreeMap, BTreeSet};

/// A commit whose client waits.
struct Pending {
    value: u64,
    container: u64,
    run: u64,
    position: usize,
    ended_sessions: u64,
}

#[derive(Default)]
pub struct Clients {
    last: u64,
    pending: Vec<Pending>,
    /// What was acknowledged or read at a server that let clients in, by its position.
    counts: BTreeMap<usize, Entry>,
    /// How much of the log of each run of a server was read.
    read: BTreeMap<u64, usize>,
    /// The runs of servers of which something wrong was told.
    told: BTreeSet<u64>,
    pub acknowledged: Vec<u64>,
    pub quiet: bool,
}

/// A server may take so long to close after a pause of its machine in which its lease has ended. What it shows meanwhile may be
/// old: `docs/replication.md` names this limit.
const CLOSES_WITHIN_MS: u64 = 600;

fn admits(server: &Server, now_ms: u64) -> bool {
    let is_here = !server.paused && now_ms >= server.resumed_ms + CLOSES_WITHIN_MS;
    server.admits == Admits::All && is_here
}

impl Clients {
    /// Reads at all servers that let clients in, takes the answers, and writes.
    pub fn step(&mut self, postgres: &mut Postgres, now_ms: u64) {
        let open: Vec<u64> = postgres
            .servers
            .iter()
            .filter(|(_, server)| admits(server, now_ms))
            .map(|(container, _)| *container)
            .collect();
        for container in &open {
            self.check(*container, postgres);
        }
        for container in &open {
            self.note(*container, postgres);
        }
        self.take_answers(postgres);
        if !open.is_empty() && !self.quiet && clock::random_below(3) == 0 {
            let at = usize::try_from(clock::random_below(open.len() as u64)).unwrap();
            self.last += 1;
            self.write(open[at], postgres);
        }
    }

    /// Checks that a reader sees all that counts.
    fn check(&mut self, container: u64, postgres: &mut Postgres) {
        let trace = postgres.trace.clone();
        let Some((server, volume)) = postgres.both(container) else { return };
        let seen = |(position, entry): &(&usize, &Entry)| {
            **position < server.visible && volume.log.get(**position) == Some(*entry)
        };
        if let Some((position, entry)) = self.counts.iter().find(|it| !seen(it))
            && self.told.insert(server.run)
        {
            let (host, role, visible) = (&server.host, server.role, server.visible);
            let at = volume.log.get(*position);
            let words = format!(
                "{host}, {role:?}, lets clients in, and {entry:?} at {position} counts: it has {at:?}, shows {visible}"
            );
            trace.wrong(&words);
        }
    }

    /// What a reader sees counts from now on.
    fn note(&mut self, container: u64, postgres: &mut Postgres) {
        let Some((server, volume)) = postgres.both(container) else { return };
        let read = self.read.entry(server.run).or_default();
        for (position, entry) in volume.log.iter().enumerate().take(server.visible).skip(*read) {
            self.counts.entry(position).or_insert(*entry);
        }
        *read = server.visible.max(*read);
    }

    fn take_answers(&mut self, postgres: &mut Postgres) {
        for pending in std::mem::take(&mut self.pending) {
            let Some((server, volume)) = postgres.both(pending.container) else { continue };
            let same = server.run == pending.run && server.ended_sessions == pending.ended_sessions;
            if !same {
                // Its client does not know what became of it.
                continue;
            }
            if server.released <= pending.position || server.paused {
                self.pending.push(pending);
                continue;
            }
            self.acknowledged.push(pending.value);
            let entry = volume.log[pending.position];
            if let Some(other) = self.counts.insert(pending.position, entry).filter(|other| *other != entry) {
                let words = format!("{entry:?} is acknowledged at {}, where {other:?} counts", pending.position);
                postgres.trace.wrong(&words);
            }
        }
    }

    fn write(&mut self, container: u64, postgres: &mut Postgres) {
        let value = self.last;
        let Some(position) = postgres.write(container, value) else { return };
        let server = &postgres.servers[&container];
        let (run, ended_sessions) = (server.run, server.ended_sessions);
        self.pending.push(Pending { value, container, run, position, ended_sessions });
    }

    /// What is missing in a log, or in it twice, of what was acknowledged.
    pub fn differences(&self, log: &[Entry]) -> Vec<String> {
        let mut times: BTreeMap<u64, usize> = BTreeMap::new();
        log.iter().filter(|entry| entry.value != 0).for_each(|entry| *times.entry(entry.value).or_default() += 1);
        let missing = self.acknowledged.iter().filter(|value| times.get(value) != Some(&1));
        let mut differences: Vec<String> = missing
            .map(|value| format!("{value} was acknowledged and is there {:?} times", times.get(value)))
            .collect();
        differences.truncate(3);
        differences
    }
}
