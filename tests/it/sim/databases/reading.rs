//! What a wrapper reads of its server, how it keeps the lease, and what it says: `engine/src/roles/keeper`.

use super::postgres::{Postgres, Role};
use super::wrapper::{Leased, Wrapper, instant};
use kaa::proto::engine as wire;
use kaa_core::domain::ids::{ArchiveId, Generation};
use kaa_core::domain::replicated::Position;
use kaa_core::replication::Released;
use kaa_engine::postgres::{Reading, Standby};
use kaa_engine::roles::decisions::{self, Admission, Ear, Heard, Held, Known, Run};

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
            behind: None,
            standbys: standbys.collect(),
            replay_lag_ms: None,
            restart_pending: Vec::new(),
            connections: 0,
            oldest_xid_age: 0,
            retained_wal_bytes: 0,
            receiver_failure: None,
            lacks_log: false,
            prepared_for_minutes: 0,
            cancelled_waits: 0,
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
        let Heard { ear, whole } =
            decisions::note_reading(&mut self.state, &reading, self.under.as_ref().map(|it| &it.step));
        if whole {
            let mut memory = self.state.memory;
            memory.end_overwrite();
            self.remember(memory, postgres);
        }
        self.hears(ear, now_ms);
        self.reading = Some(reading);
    }

    fn hears(&mut self, ear: Ear, now_ms: u64) {
        self.hearing.look(&self.state.run, self.wanted.as_ref(), ear, instant(now_ms));
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
        let begins = self.leased.as_ref().is_none_or(|leased| !leased.admission.is_of(primary));
        if let (true, Some((lease_ms, wait_ms))) = (begins, decisions::granted(self.wanted.as_ref())) {
            let admission = Admission::begin(primary, lease_ms, wait_ms);
            self.leased = Some(Leased { admission, commit: None, commits_at: now_ms, answered: now_ms });
        }
        let Some(leased) = &mut self.leased else {
            self.state.lease = Held::default();
            return 0;
        };
        self.state.lease = leased.admission.held(&primary.ruling, leased.answered, now_ms);
        leased.admission.asks(now_ms)
    }

    /// Takes note of how long the domain has the primary wait now.
    pub fn note_wait(&mut self) {
        let granted = decisions::granted(self.wanted.as_ref());
        if let (Some(leased), Run::Primary(primary), Some((_, wait_ms))) = (&mut self.leased, &self.state.run, granted)
        {
            leased.admission.waits(primary, wait_ms);
        }
    }

    /// Commits again and again at a primary: each commit that is released renews the lease.
    pub fn commit(&mut self, postgres: &mut Postgres, now_ms: u64) {
        let (Some(leased), Run::Primary(primary)) = (&mut self.leased, &self.state.run) else { return };
        let Some(server) = postgres.servers.get(&self.nonce).filter(|server| !server.paused) else { return };
        // A server that runs takes what only its own disk has to take.
        leased.answered = now_ms;
        if let Some((released, position)) = leased.commit {
            if server.released > position {
                leased.admission.released(released, &primary.ruling);
                leased.commit = None;
            }
        } else if leased.commits_at <= now_ms {
            let version = decisions::version(&primary.ruling);
            let position = postgres.write(self.nonce, 0);
            leased.commit = position.map(|position| (Released { begun: now_ms, version }, position));
            leased.commits_at = now_ms + leased.admission.period_ms();
        }
    }

    /// Says to agents what the server does.
    pub fn say(&mut self) {
        let known = Known {
            state: &self.state,
            start_before: self.start_before,
            start: self.start,
            wanted: self.wanted.as_ref(),
            under: self.under.as_ref().map(|under| &under.step),
            ended: self.ended,
            reading: self.reading.as_ref(),
            hearing: &self.hearing,
            standbys: &self.standbys,
        };
        let pid = self.member.as_ref().map_or(0, |_| 7);
        let mut line = self.line.lock().unwrap();
        line.said.state = wire::State { engine: known.engine().into(), pid };
        line.said.replica = wire::Replica { trouble: self.trouble.clone(), ..known.replica() };
    }

    /// The archive and the generation of which its server is an open primary, as far as the wrapper knows.
    pub fn opened(&self) -> Option<(ArchiveId, Generation)> {
        let Run::Primary(primary) = &self.state.run else { return None };
        let (_, _, archive) = self.member.as_ref().filter(|_| primary.open)?;
        Some((*archive, primary.begins.generation))
    }
}
