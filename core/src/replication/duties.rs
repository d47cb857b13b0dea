//! What the agent that has the stream of a server proposes on the word of its wrapper. It compares what is said with what the domain
//! knows, so it does not matter what was said before.

use super::{Report, Stand, sync_set};
use crate::domain::Domain;
use crate::domain::change::{
    ChangeSyncSet, Command, ConfirmStart, Overwrite, OverwriteArchive, Progress, ReportData, ReportHandicap,
    ReportPrimary, ReportSilence, SetChange,
};
use crate::domain::ids::{ArchiveId, SessionNumber, StartId};
use crate::domain::process::{Process, SessionState};
use crate::domain::replicated::Replicated;

impl Domain {
    /// What is to be proposed on the word of a wrapper, in this order; the rest follows from what the domain says then.
    ///
    /// `session` is that of the stream by which it was said: what comes by an earlier one is outdated.
    pub fn duties(&self, process: StartId, session: SessionNumber, report: &Report) -> Vec<Command> {
        let Some(process) = self.processes.get(&process).filter(|process| process.session.number == session) else {
            return Vec::new();
        };
        let (Some(archive), SessionState::Live) = (process.archive, process.session.state) else { return Vec::new() };
        if process.data != Some(report.data) {
            let (process, data, start) = (process.id, report.data, report.start_before);
            return vec![Command::ReportData(ReportData { process, session, data, start })];
        }
        let Some(replicated) = self.replicated(&process.database) else { return Vec::new() };
        if report.start == process.id && replicated.starts.get(&archive) != Some(&process.id) {
            return vec![Command::ConfirmStart(ConfirmStart { process: process.id, session })];
        }
        if process.handicap != report.handicap {
            let (process, handicap) = (process.id, report.handicap);
            return vec![Command::ReportHandicap(ReportHandicap { process, session, handicap })];
        }
        let primary = self.of_primary(process, replicated, report);
        let silence = self.of_silence(process, archive, replicated, report);
        primary.into_iter().chain(silence).chain(self.of_standby(process, archive, replicated, report)).collect()
    }

    /// What a primary's wrapper says.
    fn of_primary(&self, process: &Process, replicated: &Replicated, report: &Report) -> Option<Command> {
        let (record, primary) = replicated.record.as_ref().zip(replicated.primary.as_ref())?;
        if primary.process != process.id || primary.ended.is_some() {
            return None;
        }
        let generation = record.generation;
        let progress = |what| {
            let (process, session) = (process.id, process.session.number);
            Some(Command::ReportPrimary(ReportPrimary { process, session, generation, what }))
        };
        if let Some((_, how)) = report.ended.filter(|(ended, _)| *ended == generation) {
            return progress(Progress::Ended(how));
        }
        let begins = report.begins().filter(|begins| begins.generation == generation)?;
        let keeps_lease = report.keeps_lease && primary.lease_ms > 0;
        if primary.begins.is_none() || (keeps_lease && !primary.keeps_lease) {
            let before = report.ancestors.clone();
            return progress(Progress::Promoted { begins, before, keeps_lease });
        }
        if primary.opened.is_none() && matches!(report.stand, Stand::Open(_)) {
            return progress(Progress::Opened);
        }
        let in_force = report.in_force.filter(|it| (it.generation, it.version) == (generation, record.version));
        let noted = replicated.uncertain.is_none();
        if noted && in_force.is_some() && (record.joining.is_some() || replicated.in_force != record.version) {
            let (database, version, what) = (process.database.clone(), record.version, SetChange::InForce);
            return Some(Command::ChangeSyncSet(ChangeSyncSet { database, generation, version, what }));
        }
        sync_set::next(self, &process.database, replicated, report)
    }

    /// That the server of a member of the sync set does not hear the primary, or hears it again. It says so while no agent hears that
    /// one either: before, it decides nothing.
    fn of_silence(
        &self,
        process: &Process,
        archive: ArchiveId,
        replicated: &Replicated,
        report: &Report,
    ) -> Option<Command> {
        let (record, primary) = replicated.record.as_ref().zip(replicated.primary.as_ref())?;
        if record.primary == archive || !record.sync_set.contains(&archive) {
            return None;
        }
        if !primary.keeps_lease || self.is_live(primary.process) {
            return None;
        }
        let (id, session, generation) = (process.id, process.session.number, record.generation);
        let known = primary.silent.get(&archive).is_some_and(|it| (it.process, it.session) == (id, session));
        let silent = (report.unheard == Some(generation)).then_some(report.end);
        // A word of an earlier session is void, and stays until there is a new one.
        let is_new = silent.is_some() != known;
        is_new.then_some(Command::ReportSilence(ReportSilence { process: id, session, generation, silent }))
    }

    /// What a standby's wrapper says.
    fn of_standby(
        &self,
        process: &Process,
        archive: ArchiveId,
        replicated: &Replicated,
        report: &Report,
    ) -> Option<Command> {
        let record = replicated.record.as_ref()?;
        let overwrite = |what| {
            let (process, session) = (process.id, process.session.number);
            Some(Command::OverwriteArchive(OverwriteArchive { process, session, what }))
        };
        if let Some(permission) = record.overwriting.get(&archive).filter(|given| report.returned >= **given) {
            return overwrite(Overwrite::Return(*permission));
        }
        let (generation, why) = report.needs_overwrite.clone()?;
        let overwritten = record.primary == archive || record.overwriting.contains_key(&archive);
        if generation != record.generation || overwritten || !replicated.is_promoted() || replicated.uncertain.is_some()
        {
            return None;
        }
        // A set must not shrink to a primary that may be dead: it holds every commit that counts, as it is. And what is to be replaced may
        // be the best that is left.
        if !self.is_live(replicated.primary.as_ref()?.process) {
            return None;
        }
        if replicated.counts(archive) {
            let (database, version) = (process.database.clone(), record.version);
            let what = SetChange::Leave { archive, why };
            return Some(Command::ChangeSyncSet(ChangeSyncSet { database, generation, version, what }));
        }
        overwrite(Overwrite::Permit { generation, why })
    }
}
