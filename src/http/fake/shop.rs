//! A database with one primary: three pods, made by the commands that the agents propose. The other databases of the fake stay.

use super::{Fake, Log, START, source};
use crate::http::source::{Heard, Reached};
use kaa_core::domain::change::{
    self, ChangeSyncSet, Command, GrantPrimary, GrantReason, Overwrite, OverwriteArchive, Progress, ReportData,
    ReportPrimary, SetChange,
};
use kaa_core::domain::command::{Fence, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{ArchiveId, Generation, Millis, ResyncEpoch, SessionNumber, StartId, SystemId};
use kaa_core::domain::process::{EngineKind, ExitReason};
use kaa_core::domain::replicated::{Begins, Data, FailoverMode, Position, Replicated, Settings, WhenAlone};
use kaa_core::replication::Timing;
use kaa_core::replication::Vitals;
use kaa_core::replication::vitals::{Application, Connection, Expiry, Volume};
use std::collections::BTreeMap;
use std::sync::Mutex;

const NAME: &str = "shop";

/// What a test does to the database.
pub(crate) struct Shop {
    log: Log,
}

/// Three pods: shop-0 is the primary, shop-1 in the sync set, shop-2 follows outside of it.
pub(crate) fn shop() -> Shop {
    let mut shop = Shop { log: Log { domain: super::domain() } };
    for ordinal in 0..3 {
        shop.log.register_for(NAME, &format!("shop-{ordinal}"), EngineKind::Sm, "admin-1");
    }
    shop.settings();
    (0..3).for_each(|ordinal| shop.data(ordinal, Data::Empty));
    let (database, archive) = (NAME.into(), shop.archive(0));
    let first = Command::InitializeDatabase(change::InitializeDatabase { database, archive });
    shop.log.apply(Role::RaftLeader, "admin-0", first);
    shop.data(0, data(1));
    shop.grant(0, GrantReason::First, &[0]);
    shop.data(0, data(2));
    shop.opens(0);
    for ordinal in 1..3 {
        let generation = shop.generation();
        shop.overwrite(ordinal, Overwrite::Permit { generation, why: "it is empty".to_owned() });
        let permission = shop.replicated().record.as_ref().unwrap().permission;
        shop.overwrite(ordinal, Overwrite::Return(permission));
        shop.data(ordinal, data(2));
    }
    shop.join(1);
    shop
}

fn vitals_of_a_server() -> Vitals {
    let volume = Some(Volume { free: 61 << 30, size: 100 << 30 });
    let year_3000 = Some(Millis(32_503_680_000_000));
    let expiry = Expiry { certificate: year_3000, authority: year_3000 };
    let application = Some(Application { user: "shop app".to_owned(), database: "orders".to_owned() });
    Vitals { answers: true, end: Position(0x7_3A01_48B8), volume, expiry, application, ..Vitals::default() }
}

fn connection(archive: ArchiveId) -> Connection {
    let end = Position(0x7_3A01_48B8);
    Connection { archive, flushed: end, replayed: end, streams: true }
}

fn data(highest: u64) -> Data {
    Data::Initialized { system: SystemId(7_451_234_567_890_123_456), highest: Generation(highest) }
}

/// Two pods with data that the domain knows nothing of.
pub(crate) fn stranger() -> Fake {
    let mut shop = Shop { log: Log { domain: super::domain() } };
    for ordinal in 0..2 {
        shop.log.register_for(NAME, &format!("shop-{ordinal}"), EngineKind::Sm, "admin-1");
        shop.data(ordinal, data(5));
    }
    shop.source()
}

impl Shop {
    /// A source with it.
    pub(crate) fn source(self) -> Fake {
        let mut source = source();
        let peer = source.peers.iter_mut().find(|peer| peer.id.as_str() == "admin-1").unwrap();
        let status = peer.status.as_mut().unwrap();
        status.hears = self.hears();
        let reached = Reached { end: Position(0x7_3A01_48B8), at: Millis(START + 90_000) };
        let domain = &self.log.domain;
        status.reached = domain.processes.keys().chain(domain.tombstones.keys()).map(|it| (*it, reached)).collect();
        Fake { domain: Mutex::new(self.log.domain), ..source }
    }

    /// What admin-1 hears: of shop-0 as a primary to which the two others are connected.
    fn hears(&self) -> BTreeMap<StartId, Heard> {
        let of_it = self.log.domain.processes.values().filter(|process| process.database == NAME.into());
        let of_it: Vec<_> = of_it.filter_map(|process| Some((process.id, process.archive?))).collect();
        let connections = of_it.iter().skip(1).map(|(_, archive)| connection(*archive)).collect();
        let mut vitals = Vitals { connections, clients: 3, retained_log_bytes: 24 << 20, ..vitals_of_a_server() };
        let mut hears = BTreeMap::new();
        for (process, _) in of_it {
            let heard = Heard { session: SessionNumber(1), trouble: None, vitals: Some(vitals) };
            hears.insert(process, heard);
            vitals = Vitals { replay_lag_ms: Some(0), ..vitals_of_a_server() };
        }
        hears
    }

    /// Changes what is heard of the server of a pod.
    pub(crate) fn fares(source: &mut Fake, pod: &str, change: impl FnOnce(&mut Heard)) {
        let process = source.domain.lock().unwrap().processes.values().find(|it| it.identity.pod == pod).unwrap().id;
        let hears = source.peers.iter_mut().filter_map(|peer| peer.status.as_mut()?.hears.get_mut(&process));
        let mut change = Some(change);
        hears.for_each(|heard| change.take().into_iter().for_each(|change| change(heard)));
    }

    /// Changes the database of a source that is being asked.
    pub(crate) fn change(source: &Fake, change: impl FnOnce(&mut Self)) {
        let mut domain = source.domain.lock().unwrap();
        let mut shop = Self { log: Log { domain: std::mem::take(&mut *domain) } };
        change(&mut shop);
        *domain = shop.log.domain;
    }

    fn replicated(&self) -> &Replicated {
        self.log.domain.replicated(&NAME.into()).unwrap()
    }

    fn generation(&self) -> Generation {
        self.replicated().record.as_ref().unwrap().generation
    }

    fn process(&self, ordinal: u64) -> StartId {
        let pod = format!("shop-{ordinal}");
        self.log.domain.processes.values().find(|process| process.identity.pod == pod).unwrap().id
    }

    fn archive(&self, ordinal: u64) -> ArchiveId {
        self.log.domain.processes[&self.process(ordinal)].archive.unwrap()
    }

    fn settings(&mut self) {
        let (stateful_set, uid) = ("shop".to_owned(), "set-shop".into());
        let failover = FailoverMode::Automatic;
        let settings = Settings {
            stateful_set,
            uid,
            replicas: 3,
            synchronous: 1,
            when_alone: WhenAlone::Degrade,
            failover,
            preferred_zone: Some("z1".to_owned()),
        };
        let facts =
            vec![Fact::AnchorIs { uid: "anchor-1".into() }, Fact::AsksForReplication(Box::new(settings.clone()))];
        // Evidence is read after the resync leader has begun.
        let evidence = Evidence { read_at: Millis(START + 60_000), facts };
        let fence = Fence { cluster: "main".into(), epoch: ResyncEpoch(5) };
        let note = change::NoteReplication { fence, database: NAME.into(), settings, evidence };
        // The engines make the database one with a primary.
        self.data(0, Data::Empty);
        self.log.apply(Role::ResyncLeader, "admin-0", Command::NoteReplication(note));
    }

    /// Its server reports data up to this generation.
    pub(crate) fn has(&mut self, ordinal: u64, highest: u64) {
        self.data(ordinal, data(highest));
    }

    fn data(&mut self, ordinal: u64, data: Data) {
        let (process, session) = (self.process(ordinal), SessionNumber(1));
        let start = StartId(0);
        self.agent(Command::ReportData(ReportData { process, session, data, start }));
    }

    fn overwrite(&mut self, ordinal: u64, what: Overwrite) {
        let (process, session) = (self.process(ordinal), SessionNumber(1));
        self.agent(Command::OverwriteArchive(OverwriteArchive { process, session, what }));
    }

    fn agent(&mut self, command: Command) {
        self.log.apply(Role::Agent, "admin-1", command);
    }

    /// The Raft leader grants the next generation.
    pub(crate) fn grant(&mut self, ordinal: u64, reason: GrantReason, set: &[u64]) {
        let (winner, process) = (self.archive(ordinal), self.process(ordinal));
        let sync_set = set.iter().map(|ordinal| self.archive(*ordinal)).collect();
        let current = self.generation();
        let lease_ms = Timing::default().lease_ms;
        let grant = GrantPrimary { database: NAME.into(), current, winner, process, sync_set, reason, lease_ms };
        self.log.apply(Role::RaftLeader, "admin-0", Command::GrantPrimary(grant));
    }

    /// The server that was granted the generation is promoted and lets clients in; its rule is in force.
    pub(crate) fn opens(&mut self, ordinal: u64) {
        let generation = self.generation();
        let begins = Begins { generation, parent: Generation(generation.0 - 1), at: Position(0x7_3A01_48B8) };
        self.progress(ordinal, Progress::Promoted { begins, before: Vec::new(), keeps_lease: true });
        self.progress(ordinal, Progress::Opened);
        self.sync_set(SetChange::InForce);
    }

    /// What the primary's wrapper says of its server.
    pub(crate) fn progress(&mut self, ordinal: u64, what: Progress) {
        let (process, session, generation) = (self.process(ordinal), SessionNumber(1), self.generation());
        self.agent(Command::ReportPrimary(ReportPrimary { process, session, generation, what }));
    }

    fn sync_set(&mut self, what: SetChange) {
        let record = self.replicated().record.as_ref().unwrap();
        let (generation, version) = (record.generation, record.version);
        self.agent(Command::ChangeSyncSet(ChangeSyncSet { database: NAME.into(), generation, version, what }));
    }

    fn join(&mut self, ordinal: u64) {
        self.sync_set(SetChange::Join(self.archive(ordinal)));
        self.sync_set(SetChange::InForce);
    }

    /// The Raft leader gives up a switchover.
    pub(crate) fn gives_up(&mut self) {
        let (database, generation, what) = (NAME.into(), self.generation(), change::Asked::Cancel);
        let why = "its target is away".to_owned();
        let cancel = change::RequestSwitchover { database, generation, what, why };
        self.log.apply(Role::RaftLeader, "admin-0", Command::RequestSwitchover(cancel));
    }

    /// No agent has the session of a pod any more.
    pub(crate) fn lose(mut self, ordinal: u64) -> Self {
        let (process, session, why) = (self.process(ordinal), SessionNumber(1), "it is silent".to_owned());
        let lose = Command::LoseSession(change::LoseSession { process, session, why });
        self.log.apply(Role::RaftLeader, "admin-0", lose);
        self
    }

    /// The process of a pod has ended, by its wrapper's word.
    pub(crate) fn exit(mut self, ordinal: u64) -> Self {
        self.exits(ordinal);
        self
    }

    /// The same.
    pub(crate) fn exits(&mut self, ordinal: u64) {
        let (process, session) = (self.process(ordinal), SessionNumber(1));
        let (exit_code, reason) = (Some(1), ExitReason::Exited("out of memory".to_owned()));
        self.agent(Command::ReportExit(change::ReportExit { process, session, exit_code, reason }));
    }
}
