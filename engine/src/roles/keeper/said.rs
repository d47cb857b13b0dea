//! What the wrapper says of its server, from what it knows now.

use super::Keeper;
use crate::postgres::Data;
use crate::proto::{self as wire, EngineState};
use crate::roles::decide::{self, Primary, Run, Step};
use crate::roles::words;
use kaa_core::domain::ids::Generation;
use kaa_core::domain::replicated::Ended;
use kaa_core::replication::Wanted;

impl Keeper {
    /// Says to agents what the server does.
    pub(super) fn say(&self) {
        let engine = match &self.state.run {
            _ if self.stopping.is_some() => EngineState::ShuttingDown,
            Run::Primary(primary) if primary.open => EngineState::Running,
            Run::Follows { .. } => EngineState::Running,
            Run::Down | Run::Fenced | Run::Primary(_) => EngineState::Syncing,
        };
        // Until it is registered it is no process of the domain: then it stays that one.
        let pid = self.member.as_ref().map_or(0, |_| std::process::id());
        let state = wire::State { engine: engine.into(), pid };
        let replica = self.replica();
        self.report.send_if_modified(|report| {
            let changed = report.state != state || report.replica.as_ref() != Some(&replica);
            if changed {
                (report.state, report.replica) = (state, Some(replica));
            }
            changed
        });
    }

    fn replica(&self) -> wire::Replica {
        let mut said = wire::Replica {
            volume: words::known(&self.state.data, &self.state.memory),
            start_before: self.start_before.0,
            start: self.start.0,
            returned: self.state.memory.returned.0,
            end: self.reading.as_ref().map_or(0, |reading| reading.end.0),
            trouble: self.trouble.clone(),
            ..wire::Replica::default()
        };
        let declined = self.declined();
        if let Some((generation, how)) = decide::ended(self.ended, declined) {
            (said.ended, said.stood_down) = (generation.0, how == Ended::StoodDown);
        }
        if let Some((generation, why)) = self.needed() {
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

    /// For which primary the data has to be overwritten, and why.
    fn needed(&self) -> Option<(Generation, String)> {
        let Wanted::Follow { generation, discard, .. } = &self.wanted.as_ref()?.what else { return None };
        if *discard {
            return Some((*generation, "an operator gave up its data".to_owned()));
        }
        if self.state.data == Data::Empty {
            return Some((*generation, "its volume is empty".to_owned()));
        }
        let follows = matches!(self.state.run, Run::Follows { .. });
        if self.state.memory.overwriting && !follows {
            return Some((*generation, "the overwrite of its data was interrupted".to_owned()));
        }
        self.state.needs_overwrite.clone()
    }

    fn of_primary(&self, primary: &Primary, said: &mut wire::Replica) {
        let begins = primary.begins;
        (said.generation, said.parent, said.begins_at) = (begins.generation.0, begins.parent.0, begins.at.0);
        if primary.established {
            let flushed = self.standbys.flushed();
            said.in_force = primary.ruling.report(&flushed).map_or(0, |word| word.version.0);
        }
        said.standbys = self.standbys.said();
        said.ancestors = primary.ancestors.iter().map(words::said).collect();
    }

    /// A generation that was granted to this server and comes to nothing here: it may have been taken up before, or is not any more.
    fn declined(&self) -> Option<Generation> {
        let Wanted::Primary { rule, .. } = &self.wanted.as_ref()?.what else { return None };
        let is_it = |run: &Run| matches!(run, Run::Primary(primary) if primary.begins.generation == rule.generation);
        let promotes = self.under.as_ref().is_some_and(|(step, _)| matches!(step, Step::Promote(_)));
        let declines = self.state.memory.taken_up >= rule.generation || self.stopping.is_some();
        (declines && !promotes && !is_it(&self.state.run)).then_some(rule.generation)
    }
}
