//! What there is: servers with their logs, the domain's record, and what clients were promised.

/// Servers at most.
pub const SERVERS: usize = 4;
/// Archive ids at most: one for each server, and those of wiped volumes.
pub const IDS: usize = 6;
/// No archive.
pub const NONE: u8 = 15;
/// The wait of a winner that is over.
pub const OVER: u8 = 15;
/// More than one earlier primary.
pub const SEVERAL: u8 = 15;

/// A set of archive ids, as bits.
pub type Set = u8;

/// The set of one archive.
pub fn bit(id: u8) -> Set {
    1 << id
}

/// The archives of a set.
pub fn ids(set: Set) -> impl Iterator<Item = u8> {
    (0..IDS as u8).filter(move |id| set & bit(*id) != 0)
}

/// Each entry is the generation that wrote it, in four bits. As in Raft, generation and position name an entry and all
/// entries before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Log {
    pub len: u8,
    bits: u32,
}

impl Log {
    pub fn get(self, index: u8) -> u8 {
        (self.bits >> (4 * index) & 15) as u8
    }

    pub fn push(&mut self, generation: u8) {
        self.bits |= u32::from(generation) << (4 * self.len);
        self.len += 1;
    }

    pub fn cut(self, len: u8) -> Self {
        if len >= self.len { self } else { Self { len, bits: self.bits & ((1u32 << (4 * len)) - 1) } }
    }

    pub fn starts_with(self, prefix: Self) -> bool {
        self.len >= prefix.len && self.cut(prefix.len) == prefix
    }

    pub fn agrees(self, other: Self) -> bool {
        let len = self.len.min(other.len);
        self.cut(len) == other.cut(len)
    }

    /// The number of entries up to and including the first one of a generation.
    pub fn first_of(self, generation: u8) -> Option<u8> {
        (0..self.len).find(|index| self.get(*index) == generation).map(|index| index + 1)
    }
}

/// What a server does.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// A standby that takes entries from no server.
    #[default]
    Fenced,
    Standby,
    Primary,
}

/// A sign that a primary was the last one when it was begun. It is under way. `lease.rs` says what a moment is.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Sign {
    #[default]
    None,
    /// An own commit.
    Commit {
        begun: u8,
        /// Of the rule that was in force then.
        version: u8,
        /// The members that have flushed its record.
        flushed: Set,
        released: bool,
    },
    /// The domain's word that the generation is the current one.
    Word { asked: u8 },
}

/// A server with its volume. `rest` says what is left of it when it stops.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Server {
    /// Of its archive.
    pub id: u8,
    pub up: bool,
    // On its volume.
    pub log: Log,
    /// The four of `Memory`.
    pub taken_up: u8,
    pub followed: u8,
    pub overwriting: bool,
    pub returned: u8,
    /// The number of its last start.
    pub start: u8,
    // Lost when it stops.
    pub mode: Mode,
    pub generation: u8,
    /// The archive whose server it follows, plus 1; 0 if none.
    pub source: u8,
    /// The permission to overwrite its data of which it knows.
    pub permission: u8,
    /// Whether clients are let in.
    pub open: bool,
    /// So many entries are visible to readers.
    pub visible: u8,
    /// `Ruling`: the members of the rule in force, and of the one that is coming, if `changing`.
    pub rule: Set,
    pub coming: Set,
    pub changing: bool,
    /// Of the rule that was taken last.
    pub version: u8,
    pub point: u8,
    /// How far each archive has flushed the log, as it reported: four bits for each.
    pub heard: u32,
    /// When its lease ends at the latest, as a moment; 0 if it has none.
    pub lease: u8,
    pub sign: Sign,
    /// The moment at which it began to wait for the leases of earlier primaries, or [`OVER`]; 0 if it does not wait.
    pub wait: u8,
}

impl Server {
    pub fn heard_of(&self, id: u8) -> u8 {
        (self.heard >> (4 * id) & 15) as u8
    }

    pub fn hear(&mut self, id: u8, flushed: u8) {
        self.heard = self.heard & !(15 << (4 * id)) | u32::from(flushed) << (4 * id);
    }

    pub fn leads(&self) -> bool {
        self.up && self.mode == Mode::Primary
    }

    /// Whether it waits for the leases of earlier primaries.
    pub fn waits(&self) -> bool {
        !matches!(self.wait, 0 | OVER)
    }

    /// As after a stop.
    pub fn rest(&mut self) {
        let Self { id, up, log, taken_up, followed, overwriting, returned, start, .. } = *self;
        *self = Self { id, up, log, taken_up, followed, overwriting, returned, start, ..Self::default() };
    }
}

/// `kaa_core::replication::Replication`, and the starts.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Record {
    pub generation: u8,
    pub primary: u8,
    pub sync_set: Set,
    /// One archive, or none.
    pub joining: Set,
    pub version: u8,
    /// The permission by which each archive may be overwritten; 0 if by none.
    pub overwriting: [u8; IDS],
    pub permission: u8,
    /// The number of the last start of each archive.
    pub starts: [u8; IDS],
    /// Whether the server that has the current generation lets clients in, and whether it has ended.
    pub opened: bool,
    pub ended: bool,
    /// The archive, plus 1, of the earlier primary whose lease may last; 0 if there is none.
    pub earlier: u8,
}

/// A message that is under way, and may arrive at any later time.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Late {
    #[default]
    None,
    /// To the domain.
    InForce {
        generation: u8,
        version: u8,
    },
    Returned {
        id: u8,
        permission: u8,
    },
    /// To the server of an archive.
    Promote {
        id: u8,
        generation: u8,
        version: u8,
        rule: Set,
        /// Whether it has to wait for the lease of an earlier primary.
        waits: bool,
    },
    Follow {
        id: u8,
        generation: u8,
        source: u8,
    },
    Tell {
        id: u8,
        generation: u8,
        version: u8,
        rule: Set,
    },
    Permitted {
        id: u8,
        permission: u8,
    },
}

/// How often each of these may happen.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Budget {
    pub writes: u8,
    pub crashes: u8,
    pub wipes: u8,
    pub late: u8,
    pub joins: u8,
    pub leaves: u8,
    pub snapshots: u8,
    pub copies: u8,
    /// Own commits and questions to the domain, that renew a lease.
    pub signs: u8,
}

/// What clients were promised.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Promised {
    /// What counts: acknowledged, or read at an open primary.
    pub counts: Log,
    /// So many of these entries were acknowledged.
    pub acknowledged: u8,
    /// The generation of the newest acknowledgement.
    pub generation: u8,
}

/// Of a volume.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Snapshot {
    pub is_taken: bool,
    pub id: u8,
    pub log: Log,
    pub taken_up: u8,
    pub followed: u8,
    pub returned: u8,
    pub start: u8,
}

/// A property that failed.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Broken {
    #[default]
    Nothing,
    AcknowledgedKept,
    OlderBehindNewer,
    OnePrimary,
    ReadKept,
    AllConfirmed,
    OneHistory,
    SetHolds,
    Stale,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct State {
    pub servers: [Server; SERVERS],
    pub record: Record,
    pub late: Late,
    pub promised: Promised,
    pub budget: Budget,
    pub snapshot: Snapshot,
    pub next_id: u8,
    pub broken: Broken,
}

impl State {
    /// The server that has an archive.
    pub fn server_of(&self, id: u8) -> Option<u8> {
        (0..SERVERS as u8).zip(&self.servers).find(|(_, server)| server.id == id).map(|(number, _)| number)
    }

    /// The same with servers and archives named in another order: the new server `i` is the old one `order[i]`. Archives that
    /// no server has follow in their old order.
    pub fn renamed(&self, order: &[u8]) -> Self {
        let mut to = [NONE; 16];
        let mut next = 0;
        for old in order {
            to[usize::from(self.servers[usize::from(*old)].id)] = next;
            next += 1;
        }
        for id in to.iter_mut().take(IDS).filter(|id| **id == NONE) {
            *id = next;
            next += 1;
        }
        let id = |id: u8| to[usize::from(id)];
        let source = |source: u8| source.checked_sub(1).map_or(0, |old| id(old) + 1);
        let set = |set: Set| ids(set).fold(0, |all, one| all | bit(id(one)));
        let mut renamed = *self;
        for (new, old) in renamed.servers.iter_mut().zip(order) {
            let old = &self.servers[usize::from(*old)];
            *new = Server {
                id: id(old.id),
                source: source(old.source),
                rule: set(old.rule),
                coming: set(old.coming),
                ..*old
            };
            if let Sign::Commit { flushed, .. } = &mut new.sign {
                *flushed = set(*flushed);
            }
            new.heard = 0;
            for archive in 0..IDS as u8 {
                new.hear(id(archive), old.heard_of(archive));
            }
        }
        let record = &mut renamed.record;
        (record.primary, record.sync_set) = (id(record.primary), set(record.sync_set));
        record.joining = set(record.joining);
        if record.earlier != SEVERAL {
            record.earlier = source(record.earlier);
        }
        for archive in 0..IDS as u8 {
            let (new, old) = (usize::from(id(archive)), usize::from(archive));
            record.starts[new] = self.record.starts[old];
            record.overwriting[new] = self.record.overwriting[old];
        }
        match &mut renamed.late {
            Late::None | Late::InForce { .. } => {}
            Late::Follow { id: of, source, .. } => (*of, *source) = (id(*of), id(*source)),
            Late::Returned { id: of, .. } | Late::Permitted { id: of, .. } => *of = id(*of),
            Late::Promote { id: of, rule, .. } | Late::Tell { id: of, rule, .. } => {
                (*of, *rule) = (id(*of), set(*rule))
            }
        }
        if renamed.snapshot.is_taken {
            renamed.snapshot.id = id(renamed.snapshot.id);
        }
        renamed
    }

    /// Of the states that differ in names only, the least, and the order that leads to it.
    pub fn canonical(&self, servers: usize) -> (Self, &'static [u8]) {
        let orders: &'static [&'static [u8]] = match servers {
            2 => &[&[0, 1], &[1, 0]],
            3 => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
            _ => &FOUR,
        };
        let named = orders.iter().map(|order| (self.renamed(order), *order));
        named.min().unwrap_or((*self, &[]))
    }
}

const FOUR: [&[u8]; 24] = [
    &[0, 1, 2, 3],
    &[0, 1, 3, 2],
    &[0, 2, 1, 3],
    &[0, 2, 3, 1],
    &[0, 3, 1, 2],
    &[0, 3, 2, 1],
    &[1, 0, 2, 3],
    &[1, 0, 3, 2],
    &[1, 2, 0, 3],
    &[1, 2, 3, 0],
    &[1, 3, 0, 2],
    &[1, 3, 2, 0],
    &[2, 0, 1, 3],
    &[2, 0, 3, 1],
    &[2, 1, 0, 3],
    &[2, 1, 3, 0],
    &[2, 3, 0, 1],
    &[2, 3, 1, 0],
    &[3, 0, 1, 2],
    &[3, 0, 2, 1],
    &[3, 1, 0, 2],
    &[3, 1, 2, 0],
    &[3, 2, 0, 1],
    &[3, 2, 1, 0],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_differ_in_names_only_are_one() {
        let mut state = State { next_id: 3, ..State::default() };
        for (id, server) in (0..3).zip(&mut state.servers) {
            *server = Server { id, log: Log { len: 1, bits: 1 }, source: (id + 1) % 3 + 1, ..Server::default() };
            server.hear((id + 2) % 3, id + 4);
        }
        state.record = Record { primary: 2, sync_set: 0b110, starts: [7, 8, 9, 0, 0, 0], ..Record::default() };
        let (canonical, order) = state.canonical(3);
        assert_eq!(state.renamed(order), canonical);
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let renamed = state.renamed(&order);
            assert_eq!(renamed.canonical(3).0, canonical, "{order:?}");
            let primary = renamed.server_of(renamed.record.primary).unwrap();
            assert_eq!(order[usize::from(primary)], 2, "the same server");
            assert_eq!(renamed.record.starts[usize::from(renamed.record.primary)], 9);
        }
    }
}
