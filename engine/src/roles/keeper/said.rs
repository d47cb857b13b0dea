//! What the wrapper says of its server, from what it knows now.

use super::Keeper;
use crate::proto::{self as wire, EngineState};
use crate::roles::decide::{self, Primary, Run};
use crate::roles::words;
use kaa_core::domain::replicated::Ended;
use tokio::time::Instant;

impl Keeper {
    /// Says to agents what the server does.
    pub(super) fn say(&mut self) {
        let engine = match &self.state.run {
            _ if self.state.stopping => EngineState::ShuttingDown,
            Run::Primary(primary) if primary.open => EngineState::Running,
            Run::Follows { .. } => EngineState::Running,
            Run::Down | Run::Fenced | Run::Primary(_) => EngineState::Syncing,
        };
        // Until it is registered it is no process of the domain: then it stays that one.
        let pid = self.member.as_ref().map_or(0, |_| std::process::id());
        let state = wire::State { engine: engine.into(), pid };
        let short_of_room = self.vitals.is_short_of_room(Instant::now());
        let replica = wire::Replica { short_of_room, ..self.replica() };
        let (replica, vitals) = (Some(replica), self.vitals.told(Instant::now()));
        self.report.send_if_modified(|report| {
            let changed = report.state != state || report.replica != replica || report.vitals != vitals;
            if changed {
                (report.state, report.replica, report.vitals) = (state, replica, vitals);
            }
            changed
        });
    }

    fn replica(&self) -> wire::Replica {
        let mut said = wire::Replica {
            volume: words::volume(&self.state.data, &self.state.memory),
            start_before: self.start_before.0,
            start: self.start.0,
            returned: self.state.memory.returned.0,
            end: self.reading.as_ref().map_or(0, |reading| reading.end.max(reading.received).0),
            trouble: self.trouble(),
            unheard: self.hearing.unheard().map_or(0, |unheard| unheard.0),
            ..wire::Replica::default()
        };
        let wanted = self.wanted.as_ref();
        let under = self.under.as_ref().map(|(step, _)| step);
        let declined = wanted.and_then(|wanted| decide::declined(&self.state, wanted, under));
        if let Some((generation, how)) = decide::ended(self.ended, declined) {
            (said.ended, said.stood_down) = (generation.0, how == Ended::StoodDown);
        }
        if let Some((generation, why)) = wanted.and_then(|wanted| decide::needed(&self.state, wanted)) {
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

    /// What keeps the server from doing what is wanted, or from using what is mounted.
    fn trouble(&self) -> String {
        let receiver = self.reading.as_ref().and_then(|reading| reading.receiver_failure.clone());
        match receiver {
            _ if !self.trouble.is_empty() => self.trouble.clone(),
            Some(failure) => format!("it does not stream: {failure}"),
            None => self.using.complaints(),
        }
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
        said.ancestors = primary.ancestors.iter().map(words::said).collect();
    }
}
