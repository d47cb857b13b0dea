//! A model of PostgreSQL servers: a log of entries that is flushed late, timelines, streaming over the network, and
//! commits that wait for the standbys that a rule names.
//!
//! An entry is one unit of the log. A position is the number of entries before it. What is written below was found at real
//! servers (`engine/src/postgres`); tests of real servers have to show that it is so.

use crate::sim::network::Network;
use crate::sim::trace::Trace;
use kaa::clock;
use kaa_core::domain::ids::{ArchiveId, Generation, StartId};
use kaa_core::domain::replicated::{Begins, Position};
use kaa_core::replication::Memory;
use kaa_engine::postgres::Data;
use std::collections::{BTreeMap, BTreeSet};

/// How long one direction takes at most, between two servers.
const MOST_DELAY_MS: u64 = 30;
/// A sender or receiver that hears nothing for so long breaks the connection.
const TIMEOUT_MS: u64 = 3_000;
/// How often a standby that is not connected tries to connect, and how often each side says that it is there.
const PERIOD_MS: u64 = 200;
/// How long a process of a server may take to obey a new rule.
const OBEYS_WITHIN_MS: u64 = 120;

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The timeline on which it was written.
    pub generation: u64,
    /// What a client wrote; 0 if it is the server's own.
    pub value: u64,
}

/// What is on a volume.
#[derive(Clone, Default)]
pub struct Volume {
    /// The system identifier; 0 if there is no data.
    pub system: u64,
    pub log: Vec<Entry>,
    /// How much of the log a crash leaves.
    pub flushed: usize,
    /// The highest timeline that a file names.
    pub highest: u64,
    /// What the wrapper keeps there.
    pub start: StartId,
    pub memory: Memory,
    /// The container that has locked it.
    pub holder: Option<u64>,
    /// What was on it before its last container started, if there was data.
    pub earlier: Option<Box<Self>>,
}

impl Volume {
    /// A container starts: notes what is there before.
    pub fn note_start(&mut self, container: u64) {
        self.earlier = (self.system != 0).then(|| Box::new(Self { earlier: None, ..self.clone() }));
        self.holder = Some(container);
    }

    /// Puts a snapshot back that is from before the last start. False if there is none.
    pub fn set_back(&mut self) -> bool {
        let Some(earlier) = self.earlier.take() else { return false };
        let holder = self.holder;
        *self = Self { holder, ..*earlier };
        true
    }

    pub fn data(&self) -> Data {
        let timeline = |number: u64| u32::try_from(number).expect("few timelines");
        let last = self.log.last().map_or(0, |entry| entry.generation);
        match self.system {
            0 => Data::Empty,
            system => Data::Initialized {
                system,
                timeline: timeline(last),
                highest: timeline(self.highest.max(last)),
                major: 17,
                checkpoint: Position(0),
            },
        }
    }

    /// The timeline of its last entry, and where the timelines before that begin.
    pub fn timelines(&self) -> (Generation, Vec<Begins>) {
        let mut begins = Vec::new();
        let mut at = 0;
        for (position, entry) in self.log.iter().enumerate() {
            if entry.generation != at {
                let (generation, parent) = (Generation(entry.generation), Generation(at));
                begins.push(Begins { generation, parent, at: Position(position as u64) });
                at = entry.generation;
            }
        }
        // The first one continues none.
        begins.retain(|it| it.parent.0 != 0);
        (Generation(at), begins)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Fenced,
    Follows { generation: u64 },
    Primary { generation: u64 },
}

/// Whom a server lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admits {
    NoClient,
    Standbys,
    All,
}

/// What a process of a primary obeys: `None` if it releases nothing, else the members that have to confirm.
pub type Obeys = Option<BTreeSet<ArchiveId>>;

/// Some processes of a primary: a commit is released by whichever lets it go first.
#[derive(Clone, Debug, Default)]
struct Part {
    obeys: Obeys,
    /// What it is about to obey, and from when on.
    next: Option<(u64, Obeys)>,
}

/// A standby that is connected to a primary.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    run: u64,
    to: u64,
    sent: usize,
    pub flushed: usize,
    pub replied_ms: u64,
    said_ms: u64,
}

/// A standby's connection to its primary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receiver {
    /// The run of the server that it is connected to; 0 if to none.
    run: u64,
    tried_ms: u64,
    pub heard_ms: u64,
    said_ms: u64,
}

/// A server that runs.
pub struct Server {
    /// Differs in each start of a server.
    pub run: u64,
    pub host: String,
    /// The UID of its pod, which stands for its IP address.
    pub address: String,
    pub claim: String,
    pub archive: ArchiveId,
    pub role: Role,
    parts: [Part; 2],
    pub admits: Admits,
    pub slots: BTreeSet<ArchiveId>,
    pub senders: BTreeMap<ArchiveId, Sender>,
    /// The address of the server that it follows.
    pub source: String,
    pub receiver: Receiver,
    /// How much of its log the rule has released.
    pub released: usize,
    /// How much of its log readers see.
    pub visible: usize,
    /// How often the sessions of its clients were ended.
    pub ended_sessions: u64,
    /// Whether it is stopped, as by SIGSTOP.
    pub paused: bool,
    /// When that ended last.
    pub resumed_ms: u64,
}

impl Server {
    pub fn is_connected(&self) -> bool {
        self.receiver.run != 0
    }

    /// Has all processes of a primary obey a rule, each in its own time, or at once.
    pub fn obey(&mut self, obeys: &Obeys, now_ms: u64, at_once: bool) {
        for part in &mut self.parts {
            let delay = if at_once { 0 } else { clock::random_below(OBEYS_WITHIN_MS) };
            part.next = Some((now_ms + delay, obeys.clone()));
            part.obey(now_ms);
        }
    }

    /// Whether all processes obey this.
    pub fn all_obey(&self, obeys: &Obeys) -> bool {
        self.parts.iter().all(|part| part.next.is_none() && part.obeys == *obeys)
    }

    /// Up to where commits are released.
    fn confirmed(&self, flushed: usize) -> usize {
        let confirmed = |member: &ArchiveId| self.senders.get(member).map_or(0, |sender| sender.flushed);
        let by = |members: &BTreeSet<ArchiveId>| members.iter().map(confirmed).min().unwrap_or(usize::MAX).min(flushed);
        self.parts.iter().filter_map(|part| part.obeys.as_ref().map(by)).max().unwrap_or(0)
    }
}

impl Part {
    fn obey(&mut self, now_ms: u64) {
        if let Some((_, obeys)) = self.next.take_if(|(due_ms, _)| *due_ms <= now_ms) {
            self.obeys = obeys;
        }
    }
}

enum Word {
    Connect { archive: ArchiveId, generation: u64, position: usize },
    Log { from: usize, entries: Vec<Entry> },
    Flushed(usize),
}

struct Message {
    from: (String, u64, u64),
    to: u64,
    word: Word,
}

/// All servers, their volumes by the UIDs of the claims, and what is on its way between servers.
pub struct Postgres {
    pub volumes: BTreeMap<String, Volume>,
    /// The servers that run, by the containers they are in.
    pub servers: BTreeMap<u64, Server>,
    /// In the order of arrival.
    wires: BTreeMap<(u64, u64), Message>,
    /// When the last message between two runs arrives: they do not overtake each other.
    last: BTreeMap<(u64, u64), u64>,
    number: u64,
    /// Who wrote what where: no timeline has two histories.
    written: BTreeMap<(u64, usize), u64>,
    pub network: Network,
    pub trace: Trace,
}

impl Postgres {
    pub fn new(network: Network, trace: Trace) -> Self {
        let (volumes, servers, wires) = Default::default();
        let (last, written) = Default::default();
        Self { volumes, servers, wires, last, number: 0, written, network, trace }
    }

    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub fn volume(&mut self, claim: &str) -> &mut Volume {
        self.volumes.entry(claim.to_owned()).or_default()
    }

    /// The server of a container and its volume.
    pub fn both(&mut self, container: u64) -> Option<(&mut Server, &mut Volume)> {
        let server = self.servers.get_mut(&container)?;
        let volume = self.volumes.get_mut(&server.claim)?;
        Some((server, volume))
    }

    /// Makes the first data.
    pub fn initialize(&mut self, claim: &str) {
        let system = 1 + clock::random_u64() / 2;
        let volume = self.volume(claim);
        (volume.system, volume.log, volume.flushed) = (system, vec![Entry { generation: 1, value: 0 }], 1);
        volume.highest = 1;
    }

    /// Starts a server as a standby that follows no other.
    pub fn start(&mut self, container: u64, host: &str, address: &str, claim: &str, archive: ArchiveId) {
        let run = self.next_number();
        let server = Server {
            run,
            host: host.to_owned(),
            address: address.to_owned(),
            claim: claim.to_owned(),
            archive,
            role: Role::Fenced,
            parts: Default::default(),
            admits: Admits::NoClient,
            slots: BTreeSet::new(),
            senders: BTreeMap::new(),
            source: String::new(),
            receiver: Receiver::default(),
            released: 0,
            visible: 0,
            ended_sessions: 0,
            paused: false,
            resumed_ms: 0,
        };
        self.servers.insert(container, server);
    }

    /// Ends a server as a kernel would: what was not flushed is lost.
    pub fn crash(&mut self, container: u64) {
        if let Some(server) = self.servers.remove(&container) {
            let volume = self.volume(&server.claim);
            volume.log.truncate(volume.flushed);
        }
    }

    /// Stops a standby following. What it received is flushed.
    pub fn fence(&mut self, container: u64) {
        if let Some((server, volume)) = self.both(container) {
            (server.role, server.receiver, volume.flushed) = (Role::Fenced, Receiver::default(), volume.log.len());
        }
    }

    /// A primary writes an entry. Gives its position.
    pub fn write(&mut self, container: u64, value: u64) -> Option<usize> {
        let (server, volume) = self.both(container)?;
        let Role::Primary { generation } = server.role else { return None };
        let position = volume.log.len();
        volume.log.push(Entry { generation, value });
        let other = self.written.insert((generation, position), value).filter(|other| *other != value);
        if let Some(other) = other {
            let words = format!("timeline {generation} has {other} and {value} at position {position}");
            self.trace.wrong(&words);
        }
        Some(position)
    }

    /// Makes a fenced server the primary of a generation.
    pub fn promote(
        &mut self,
        container: u64,
        generation: u64,
        members: &BTreeSet<ArchiveId>,
        now_ms: u64,
    ) -> Option<Begins> {
        let (server, volume) = self.both(container)?;
        server.role = Role::Primary { generation };
        server.obey(&Some(members.clone()), now_ms, true);
        server.slots.extend(members.iter().copied());
        server.admits = Admits::Standbys;
        // What was there before shows.
        (server.released, server.visible) = (volume.log.len(), volume.log.len());
        let (parent, _) = volume.timelines();
        volume.highest = volume.highest.max(generation);
        let at = self.write(container, 0)?;
        Some(Begins { generation: Generation(generation), parent, at: Position(at as u64) })
    }

    /// Ends the sessions of clients: a commit that waits shows.
    pub fn end_sessions(&mut self, container: u64) {
        if let Some((server, volume)) = self.both(container) {
            server.admits = server.admits.min(Admits::Standbys);
            (server.visible, server.ended_sessions) = (volume.log.len(), server.ended_sessions + 1);
        }
    }

    /// Begins to replace the data on a volume: what is not the primary's too is gone, or all of it.
    pub fn discard(&mut self, claim: &str, source: Option<u64>) {
        let other = source.map(|source| self.volumes[&self.servers[&source].claim].log.clone()).unwrap_or_default();
        let volume = self.volume(claim);
        let common = volume.log.iter().zip(&other).take_while(|(own, other)| own == other).count();
        volume.log.truncate(common);
        volume.flushed = volume.log.len();
    }

    /// The container of the server at an address, if it is the primary of a generation.
    pub fn primary_at(&self, address: &str, generation: u64) -> Option<u64> {
        let is_it = |server: &Server| server.address == address && server.role == Role::Primary { generation };
        self.servers.iter().find(|(_, server)| is_it(server)).map(|(container, _)| *container)
    }

    fn send(&mut self, container: u64, to: u64, word: Word, now_ms: u64) {
        let (Some(from), Some(receiver)) = (self.servers.get(&container), self.servers.get(&to)) else { return };
        let (host, run, other) = (from.host.clone(), from.run, receiver.run);
        if self.network.is_cut(&host, &receiver.host) {
            return;
        }
        let due_ms = now_ms + 1 + clock::random_below(MOST_DELAY_MS);
        let due_ms = self.last.get(&(run, other)).map_or(due_ms, |last| due_ms.max(*last));
        self.last.insert((run, other), due_ms);
        let number = self.next_number();
        self.wires.insert((due_ms, number), Message { from: (host, container, run), to: other, word });
    }

    /// Does what is due.
    pub fn step(&mut self, now_ms: u64) {
        self.deliver(now_ms);
        let running = self.servers.iter().filter(|(_, server)| !server.paused);
        let running: Vec<(u64, Role)> = running.map(|(container, server)| (*container, server.role)).collect();
        for (container, role) in running {
            match role {
                Role::Fenced => {}
                Role::Follows { generation } => self.receive(container, generation, now_ms),
                Role::Primary { .. } => self.send_log(container, now_ms),
            }
        }
    }

    fn deliver(&mut self, now_ms: u64) {
        let due: Vec<(u64, u64)> = self.wires.range(..(now_ms + 1, 0)).map(|(key, _)| *key).collect();
        for key in due {
            let to = self.wires[&key].to;
            let found = self.servers.iter().find(|(_, server)| server.run == to);
            let found = found.map(|(container, server)| (*container, server.paused, server.host.clone()));
            if found.as_ref().is_some_and(|(_, paused, _)| *paused) {
                continue;
            }
            let Some(Message { from: (host, from, run), word, .. }) = self.wires.remove(&key) else { continue };
            if let Some((container, _, own)) = found
                && !self.network.is_cut(&host, &own)
            {
                self.hear(container, from, run, word, now_ms);
            }
        }
    }

    fn hear(&mut self, container: u64, from: u64, run: u64, word: Word, now_ms: u64) {
        let Some((server, volume)) = self.both(container) else { return };
        match word {
            Word::Connect { archive, generation, position } => {
                let serves = server.role == Role::Primary { generation } && server.admits != Admits::NoClient;
                if serves && server.slots.contains(&archive) && position <= volume.log.len() {
                    let sender = Sender { run, to: from, sent: position, flushed: 0, replied_ms: now_ms, said_ms: 0 };
                    server.senders.insert(archive, sender);
                }
            }
            Word::Log { from: position, entries } => {
                let follows = matches!(server.role, Role::Follows { .. });
                // The first words of a connection make it one.
                if !follows || (server.receiver.run != run && server.receiver.run != 0) {
                    return;
                }
                if position != volume.log.len() {
                    // Something was lost on the way.
                    server.receiver = Receiver { tried_ms: now_ms, ..Receiver::default() };
                    return;
                }
                (server.receiver.run, server.receiver.heard_ms) = (run, now_ms);
                let highest = entries.iter().map(|entry| entry.generation).max().unwrap_or(0);
                volume.highest = volume.highest.max(highest);
                volume.log.extend(entries);
            }
            Word::Flushed(flushed) => {
                if let Some(sender) = server.senders.values_mut().find(|sender| sender.run == run) {
                    (sender.flushed, sender.replied_ms) = (sender.flushed.max(flushed), now_ms);
                }
            }
        }
    }

    /// What a standby does.
    fn receive(&mut self, container: u64, generation: u64, now_ms: u64) {
        let source = self.servers[&container].source.clone();
        let primary = self.primary_at(&source, generation);
        let run = primary.map_or(0, |primary| self.servers[&primary].run);
        let Some((server, volume)) = self.both(container) else { return };
        let receiver = &mut server.receiver;
        if receiver.run != 0 && (receiver.run != run || receiver.heard_ms + TIMEOUT_MS <= now_ms) {
            *receiver = Receiver { tried_ms: now_ms, ..Receiver::default() };
        }
        let (archive, position) = (server.archive, volume.log.len());
        let Some(primary) = primary else { return };
        if receiver.run == 0 {
            if receiver.tried_ms + PERIOD_MS * 3 <= now_ms {
                receiver.tried_ms = now_ms;
                self.send(container, primary, Word::Connect { archive, generation, position }, now_ms);
            }
            return;
        }
        let flushes = volume.flushed < position && clock::random_below(2) == 0;
        if flushes || receiver.said_ms + PERIOD_MS <= now_ms {
            receiver.said_ms = now_ms;
            if flushes {
                volume.flushed = position;
            }
            let word = Word::Flushed(volume.flushed);
            self.send(container, primary, word, now_ms);
        }
    }

    /// What a primary does.
    fn send_log(&mut self, container: u64, now_ms: u64) {
        let runs: BTreeSet<u64> = self.servers.values().map(|server| server.run).collect();
        let Some((server, volume)) = self.both(container) else { return };
        server.parts.iter_mut().for_each(|part| part.obey(now_ms));
        if clock::random_below(3) != 0 {
            volume.flushed = volume.log.len();
        }
        server.released = server.released.max(server.confirmed(volume.flushed));
        server.visible = server.visible.max(server.released);
        server.senders.retain(|_, sender| runs.contains(&sender.run) && now_ms < sender.replied_ms + TIMEOUT_MS);
        let mut words = Vec::new();
        for sender in server.senders.values_mut() {
            if sender.sent < volume.flushed || sender.said_ms + PERIOD_MS <= now_ms {
                let entries = volume.log[sender.sent..volume.flushed.max(sender.sent)].to_vec();
                words.push((sender.to, Word::Log { from: sender.sent, entries }));
                (sender.sent, sender.said_ms) = (volume.flushed.max(sender.sent), now_ms);
            }
        }
        for (to, word) in words {
            self.send(container, to, word, now_ms);
        }
    }
}
