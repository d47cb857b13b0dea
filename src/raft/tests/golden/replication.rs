//! The commands of databases with one primary.

use super::with_zone;
use kaa_core::domain::change::{
    self, Asked, ChangeSyncSet, Command, GrantPrimary, GrantReason, Overwrite, OverwriteArchive, Progress, ReportData,
    ReportPrimary, RequestSwitchover, SetChange,
};
use kaa_core::domain::command::Fence;
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{
    ArchiveId, DatabaseName, Generation, Millis, Permission, ResyncEpoch, SessionNumber, SetVersion, StartId, SystemId,
};
use kaa_core::domain::process::Handicap;
use kaa_core::domain::replicated::{Begins, Data, Ended, FailoverMode, Position, Settings, WhenAlone};
use std::collections::BTreeSet;

pub(super) fn settings(when_alone: WhenAlone) -> Settings {
    let failover = FailoverMode::Manual;
    Settings {
        stateful_set: "shop".to_owned(),
        uid: "uid".into(),
        replicas: 3,
        synchronous: 1,
        when_alone,
        failover,
        preferred_zone: None,
    }
}

fn database() -> DatabaseName {
    "shop".into()
}

fn why() -> String {
    "because".to_owned()
}

const ARCHIVE: ArchiveId = ArchiveId(2);
const PROCESS: StartId = StartId(300);
const SESSION: SessionNumber = SessionNumber(1);
const GENERATION: Generation = Generation(7);

fn change_sync_set(what: SetChange) -> Command {
    let (generation, version) = (GENERATION, SetVersion(23));
    Command::ChangeSyncSet(ChangeSyncSet { database: database(), generation, version, what })
}

fn grant(reason: GrantReason) -> Command {
    leased(reason, 0)
}

fn leased(reason: GrantReason, lease_ms: u64) -> Command {
    let sync_set = BTreeSet::from([ARCHIVE, ArchiveId(300)]);
    let (current, winner, process) = (GENERATION, ARCHIVE, PROCESS);
    Command::GrantPrimary(GrantPrimary { database: database(), current, winner, process, sync_set, reason, lease_ms })
}

fn report_silence(silent: Option<Position>) -> Command {
    let (process, session, generation) = (PROCESS, SESSION, GENERATION);
    Command::ReportSilence(change::ReportSilence { process, session, generation, silent })
}

fn report_handicap(short_of_room: bool, replays_late: bool) -> Command {
    let handicap = Handicap { short_of_room, replays_late };
    Command::ReportHandicap(change::ReportHandicap { process: PROCESS, session: SESSION, handicap })
}

fn note(when_alone: WhenAlone) -> Command {
    note_settings(settings(when_alone))
}

fn note_settings(settings: Settings) -> Command {
    let fence = Fence { cluster: "c1".into(), epoch: ResyncEpoch(17) };
    let facts = vec![Fact::AsksForReplication(Box::new(settings.clone()))];
    let evidence = Evidence { read_at: Millis(1), facts };
    Command::NoteReplication(change::NoteReplication { fence, database: database(), settings, evidence })
}

fn overwrite(what: Overwrite) -> Command {
    Command::OverwriteArchive(OverwriteArchive { process: PROCESS, session: SESSION, what })
}

fn report_data(data: Data) -> Command {
    Command::ReportData(ReportData { process: PROCESS, session: SESSION, data, start: StartId(299) })
}

fn report_primary(what: Progress) -> Command {
    Command::ReportPrimary(ReportPrimary { process: PROCESS, session: SESSION, generation: GENERATION, what })
}

fn switchover(what: Asked) -> Command {
    Command::RequestSwitchover(RequestSwitchover { database: database(), generation: GENERATION, what, why: why() })
}

/// Each command, in all its forms.
pub(super) fn commands() -> Vec<Command> {
    let begins = Begins { generation: GENERATION, parent: Generation(6), at: Position(0x7_3A01_48B8) };
    let earlier = Begins { generation: Generation(6), parent: Generation(2), at: Position(0x3A01_48B8) };
    let system = SystemId(7_451_234_567_890_123_456);
    vec![
        Command::AdoptData(change::AdoptData { database: database(), archive: ARCHIVE, why: why() }),
        change_sync_set(SetChange::Join(ARCHIVE)),
        change_sync_set(SetChange::InForce),
        change_sync_set(SetChange::Leave { archive: ARCHIVE, why: why() }),
        grant(GrantReason::First),
        grant(GrantReason::Returned),
        grant(GrantReason::Switchover(why())),
        grant(GrantReason::HandedOver),
        grant(GrantReason::Failover { why: why(), may_run: false }),
        grant(GrantReason::Failover { why: why(), may_run: true }),
        grant(GrantReason::LossAccepted { why: why(), lost: BTreeSet::from([ArchiveId(2), ARCHIVE]), is_off: false }),
        grant(GrantReason::LossAccepted { why: why(), lost: BTreeSet::from([ARCHIVE]), is_off: true }),
        Command::InitializeDatabase(change::InitializeDatabase { database: database(), archive: ARCHIVE }),
        note(WhenAlone::Degrade),
        note(WhenAlone::Block),
        overwrite(Overwrite::Permit { generation: GENERATION, why: why() }),
        overwrite(Overwrite::Return(Permission(4))),
        report_data(Data::Empty),
        report_data(Data::Initialized { system, highest: GENERATION }),
        report_primary(Progress::Promoted { begins, before: vec![earlier], keeps_lease: false }),
        report_primary(Progress::Opened),
        report_primary(Progress::Ended(Ended::StoodDown)),
        report_primary(Progress::Ended(Ended::Failed)),
        switchover(Asked::Move(Some(ARCHIVE))),
        switchover(Asked::Move(None)),
        switchover(Asked::Cancel),
        Command::ConfirmStart(change::ConfirmStart { process: PROCESS, session: SESSION }),
        Command::DiscardData(change::DiscardData { database: database(), archive: ARCHIVE, why: why() }),
        leased(GrantReason::Ended, 2_500),
        leased(GrantReason::Silent { by: BTreeSet::from([ARCHIVE]), held_back_ms: 60_000 }, 2_500),
        note_settings(Settings { failover: FailoverMode::Automatic, ..settings(WhenAlone::Degrade) }),
        note_settings(Settings { failover: FailoverMode::Paused, ..settings(WhenAlone::Degrade) }),
        report_primary(Progress::Promoted { begins, before: vec![earlier], keeps_lease: true }),
        report_silence(Some(Position(0x7_3A01_48B8))),
        report_silence(None),
        report_handicap(true, false),
        report_handicap(false, true),
        note_settings(Settings { preferred_zone: Some("eu-west-1a".to_owned()), ..settings(WhenAlone::Degrade) }),
        Command::RegisterProcess(Box::new(with_zone())),
    ]
}
