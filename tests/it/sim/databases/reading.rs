//! What a wrapper reads of its server, how it keeps the lease, and what it says: `engine/src/roles/keeper`.

use super::postgres::{Postgres, Role};
use super::wrapper::{Leased, Wrapper, instant};
use kaa::proto::engine as wire;
use kaa_core::domain::ids::{ArchiveId, Generation};
use kaa_core::domain::replicated::{Ended, Position};
use kaa_core::replication::{Lease, Released, Wanted};
use kaa_engine::postgres::{Reading, Standby};
use kaa_engine::roles::decisions::{self, Ear, Held, Primary, Readers, Run};

/// The same as in the wrapper.
const COMMITS_IN_A_LEASE: u64 = 5;
const PERIOD_MAX_MS: u64 = 500;
const CLOSING_MS: u64 = 600;

impl Postgres {
    /// Whether every standby that is connected to a primary has flushed all of its log.
    pub fn has_sent_all(&mut self, container: u64) -> bool {
        let Some((server, volume)) = self.both(container) else { return false };
        server.senders.values().all(|sender| sender.flushed >= volume.log.len())
    }

    /// What a server says of itself; `None` if it does not answer.
    fn read(&mut self, container: u64) -> Option<Reading> {
        let (server, volume) = self.both(container)?;
        let micros = |ms: u64| i64::try_from(ms).expect("it is not late") * 1000;
        let timeline = |number: u64| u32::try_from(number).expect("few timelines");
        let connected = server.is_connected();
        let standbys = server.senders.iter().map(|(archive, sender)| {
            let flushed = Position(sender.flushed as u64);
            let replied = micros(sender.replied_ms);
            Standby { archive: *archive, flushed, replayed: flushed, streaming: true, replied }
        });
        let follows = match server.role {
            Role::Follows { generation } if connected => Some(timeline(generation)),
            _ => None,
        };
        (!server.paused).then(|| Reading {
            in_recovery: !matches!(server.role, Role::Primary { .. }),
            timeline: timeline(volume.log.last().map_or(0, |entry| entry.generation)),
            end: Position(volume.flushed as u64),
            streams_from: follows,
            heard: connected.then(|| micros(server.receiver.heard_ms)),
            received: Position(volume.log.len() as u64),
            standbys: standbys.collect(),
            replay_lag_ms: None,
            restart_pending: Vec::new(),
            connections: 0,
            oldest_xid_age: 0,
            retained_wal_bytes: 0,
            receiver_failure: None,
            overridden: Vec::new(),
        })
    }
}

impl Wrapper {
    /// Reads the server, and takes note of it.
    pub fn read(&mut self, postgres: &mut Postgres, now_ms: u64) {
        if !postgres.servers.contains_key(&self.nonce) {
            return self.hears(Ear::Deaf, now_ms);
        }
        let Some(reading) = postgres.read(self.nonce) else { return self.hears(Ear::Unknown, now_ms) };
        if let Run::Primary(primary) = &self.state.run {
            self.standbys.note(&reading, &primary.ruling, instant(now_ms));
        }
        let mut ear = Ear::Deaf;
        if let Run::Follows { generation, readers, .. } = &mut self.state.run {
            ear = Ear::Last(reading.heard);
            let timeline = u32::try_from(generation.0).ok();
            let streams = reading.streams_from.is_some() && reading.streams_from == timeline;
            if streams && Some(reading.timeline) == timeline && *readers == Readers::No {
                *readers = Readers::May;
            }
            if streams && self.state.memory.overwriting {
                let mut memory = self.state.memory;
                memory.end_overwrite();
                self.remember(memory, postgres);
            }
        }
        self.hears(ear, now_ms);
        self.reading = Some(reading);
    }

    fn hears(&mut self, ear: Ear, now_ms: u64) {
        let wanted = match self.wanted.as_ref().map(|wanted| &wanted.what) {
            Some(Wanted::Follow { generation, .. } | Wanted::Hold(generation)) => Some(*generation),
            _ => None,
        };
        let followed = match &self.state.run {
            Run::Follows { generation, .. } => Some(*generation),
            _ => None,
        };
        match wanted {
            Some(generation) if followed == Some(generation) => self.hearing.note(generation, ear, instant(now_ms)),
            Some(generation) => self.hearing.note(generation, Ear::Deaf, instant(now_ms)),
            None => self.hearing.clear(),
        }
    }

    /// Begins or ends the lease with the role of the server, and notes what of it decides about the next step.
    pub fn look_at_the_lease(&mut self, now_ms: u64) {
        let asks = self.held(now_ms);
        self.line.lock().unwrap().said.asks = asks;
    }

    fn held(&mut self, now_ms: u64) -> u64 {
        let Run::Primary(primary) = &self.state.run else {
            (self.leased, self.state.lease) = (None, Held::default());
            return 0;
        };
        let begins = self.leased.as_ref().is_none_or(|it| it.generation != primary.begins.generation);
        if let (true, Some((lease_ms, wait_ms))) = (begins, self.granted()) {
            self.leased = Some(Leased {
                generation: primary.begins.generation,
                lease: Lease::new(lease_ms),
                length_ms: lease_ms,
                opens_at: primary.stopped_ms.saturating_add(wait_ms),
                commit: None,
                commits_at: now_ms,
            });
        }
        let Some(leased) = &self.leased else {
            self.state.lease = Held::default();
            return 0;
        };
        self.state.lease = Held {
            holds: leased.lease.holds(&primary.ruling, now_ms.saturating_add(CLOSING_MS)),
            may_open: now_ms >= leased.opens_at,
            // A model of PostgreSQL always answers its wrapper.
            stalled: false,
        };
        let asks = leased.lease.until() < now_ms.saturating_add(leased.length_ms * 7 / 10);
        if asks { leased.generation.0 } else { 0 }
    }

    /// The domain may have learned that an earlier primary has ended: it is not waited for any longer.
    pub fn note_wait(&mut self) {
        let granted = self.granted();
        if let (Some(leased), Run::Primary(primary), Some((_, wait_ms))) = (&mut self.leased, &self.state.run, granted)
        {
            leased.opens_at = leased.opens_at.min(primary.stopped_ms.saturating_add(wait_ms));
        }
    }

    /// Commits again and again at a primary: each commit that is released renews the lease.
    pub fn commit(&mut self, postgres: &mut Postgres, now_ms: u64) {
        let (Some(leased), Run::Primary(primary)) = (&mut self.leased, &self.state.run) else { return };
        let Some(server) = postgres.servers.get(&self.nonce).filter(|server| !server.paused) else { return };
        if let Some((released, position)) = leased.commit {
            if server.released > position {
                leased.lease.released(released, &primary.ruling);
                leased.commit = None;
            }
        } else if leased.commits_at <= now_ms {
            let version = match &primary.ruling.coming {
                None => primary.ruling.in_force.version,
                Some(_) => Default::default(),
            };
            let position = postgres.write(self.nonce, 0);
            leased.commit = position.map(|position| (Released { begun: now_ms, version }, position));
            leased.commits_at = now_ms + (leased.length_ms / COMMITS_IN_A_LEASE).clamp(1, PERIOD_MAX_MS);
        }
    }

    /// Says to agents what the server does.
    pub fn say(&mut self) {
        let (replica, engine) = (self.replica(), self.engine_state());
        let pid = self.member.as_ref().map_or(0, |_| 7);
        let mut line = self.line.lock().unwrap();
        line.said.state = wire::State { engine: engine.into(), pid };
        line.said.replica = replica;
    }

    fn replica(&self) -> wire::Replica {
        let mut said = wire::Replica {
            volume: decisions::volume(&self.state.data, &self.state.memory),
            start_before: self.start_before.0,
            start: self.start.0,
            returned: self.state.memory.returned.0,
            end: self.reading.as_ref().map_or(0, |reading| reading.end.max(reading.received).0),
            trouble: self.trouble.clone(),
            unheard: self.hearing.unheard().map_or(0, |unheard| unheard.0),
            ..wire::Replica::default()
        };
        let wanted = self.wanted.as_ref();
        let under = self.under.as_ref().map(|under| &under.step);
        let declined = wanted.and_then(|wanted| decisions::declined(&self.state, wanted, under));
        if let Some((generation, how)) = decisions::ended(self.ended, declined) {
            (said.ended, said.stood_down) = (generation.0, how == Ended::StoodDown);
        }
        if let Some((generation, why)) = wanted.and_then(|wanted| decisions::needed(&self.state, wanted)) {
            (said.needs_overwrite, said.needs_overwrite_why) = (generation.0, why);
        }
        let stand = match &self.state.run {
            Run::Down => wire::Stand::Down,
            Run::Fenced => wire::Stand::Fenced,
            Run::Follows { generation, .. } => {
                said.generation = generation.0;
                wire::Stand::Follows
            }
            Run::Primary(primary) => {
                self.of_primary(primary, &mut said);
                if primary.open { wire::Stand::Open } else { wire::Stand::Promoted }
            }
        };
        said.stand = stand.into();
        said
    }

    fn of_primary(&self, primary: &Primary, said: &mut wire::Replica) {
        let begins = primary.begins;
        (said.generation, said.parent, said.begins_at) = (begins.generation.0, begins.parent.0, begins.at.0);
        if primary.established {
            let flushed = self.standbys.flushed();
            said.in_force = primary.ruling.report(&flushed).map_or(0, |word| word.version.0);
        }
        said.keeps_lease = self.granted().is_some_and(|(lease_ms, _)| lease_ms > 0);
        said.standbys = self.standbys.said();
        said.ancestors = primary.ancestors.iter().map(decisions::said).collect();
    }

    /// The archive and the generation of which its server is an open primary, as far as the wrapper knows.
    pub fn opened(&self) -> Option<(ArchiveId, Generation)> {
        let Run::Primary(primary) = &self.state.run else { return None };
        let (_, _, archive) = self.member.as_ref().filter(|_| primary.open)?;
        Some((*archive, primary.begins.generation))
    }
}
