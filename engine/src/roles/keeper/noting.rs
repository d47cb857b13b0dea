//! What the volume has to remember, and the steps that wait for that. Agents, signals and the lease are heard while it is written: a disk
//! that hangs holds up nothing else, and a winner whose disk hangs gives up its grant.

use super::{Action, Keeper};
use crate::Error;
use crate::roles::decide::{self, Run, Step};
use crate::roles::kept::Kept;
use crate::roles::outside::Outside;
use crate::roles::perform;
use kaa_core::domain::ids::StartId;
use kaa_core::replication::Memory;
use std::future::Future;
use std::pin::Pin;
use tokio::time::Instant;

/// A note that is being written, and what came of it.
type Writing = Pin<Box<dyn Future<Output = (Kept, Result<(), Error>)> + Send>>;

/// The note that is being written, if one is.
#[derive(Default)]
pub(super) struct Noting(Option<Writing>);

impl Noting {
    /// What came of it.
    pub async fn written(&mut self) -> Action {
        match &mut self.0 {
            Some(writing) => {
                let (kept, written) = writing.await;
                Action::Noted(kept, written)
            }
            None => std::future::pending().await,
        }
    }

    fn is_under_way(&self) -> bool {
        self.0.is_some()
    }
}

impl Keeper {
    /// Begins a step: first with the note that it needs, if it needs one.
    pub(super) fn begin_step(&mut self, step: Step) {
        let name = step.name();
        match perform::remembers(&step, self.state.memory) {
            None => {
                tracing::info!(step = name, "next");
                self.carry_out(step);
            }
            // It is written first: what follows has to know of it.
            Some(_) if self.noting.is_under_way() => {}
            Some(Err(why)) => self.failed(why),
            Some(Ok(memory)) => {
                tracing::info!(step = name, "next: noted first");
                self.write(memory, self.start);
                self.under = Some((step, None));
            }
        }
    }

    fn carry_out(&mut self, step: Step) {
        let Some(own) = self.member.as_ref().map(|member| member.archive) else { return };
        let work = perform::perform(step.clone(), self.server.clone(), own, self.state.clone());
        self.using.begins(&step);
        self.tending.give_up(Instant::now());
        self.under = Some((step, Some(Box::pin(work))));
    }

    /// Has the volume remember something, unless a note is under way.
    pub(super) fn write(&mut self, memory: Memory, start: StartId) {
        if self.noting.is_under_way() {
            return;
        }
        // From here on there is other data. That has its checkpoint noted when the wrapper starts again.
        self.checkpoint = self.checkpoint.filter(|_| !memory.overwriting);
        let (outside, checkpoint) = (self.state.outside != Outside::No, self.checkpoint);
        let kept = Kept { start, memory, outside, checkpoint };
        let written = self.notes.write(kept);
        self.noting = Noting(Some(Box::pin(async move { (kept, written.await) })));
    }

    /// Takes note of what came of a note.
    pub(super) fn noted(&mut self, kept: Kept, written: Result<(), Error>) {
        self.noting = Noting::default();
        let waits = self.under.take_if(|(_, work)| work.is_none());
        // It took a while: something else may be wanted by now.
        let is_wanted = |step: &Step| {
            self.wanted
                .as_ref()
                .is_some_and(|wanted| decide::next(&self.state, wanted).as_ref() == Ok(&Some(step.clone())))
        };
        let waits = waits.filter(|(step, _)| is_wanted(step));
        match written {
            Ok(()) => {
                (self.state.memory, self.start, self.outside) = (kept.memory, kept.start, kept.outside);
                if let Some((step, _)) = waits {
                    self.carry_out(step);
                }
            }
            Err(error) => self.failed(error.to_string()),
        }
    }

    /// Has the volume remember this start, once the domain has judged what it remembered before; and whether its server was promoted by
    /// other means than a grant. False if a server has to wait for that: only one that does not run does.
    pub(super) fn note(&mut self) -> bool {
        let start = self.member.as_ref().map_or(self.start, |member| StartId(member.start_id));
        let is_noted = start == self.start && self.outside == (self.state.outside != Outside::No);
        if !is_noted && !self.pauses() {
            self.write(self.state.memory, start);
        }
        start == self.start || self.state.run != Run::Down
    }
}
