//! The states that an engine reports: each one becomes a change of the domain, at a bounded rate, while its stream is served. One that
//! cannot be proposed, as during an election, is proposed again: a session does not end by that.

use super::report_state;
use crate::agent::Shared;
use crate::agent::connected::state_pace;
use crate::pace::Pace;
use crate::proto::engine::State;
use futures::future::BoxFuture;
use kaa_core::domain::command::Registered;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};

pub(super) struct States<'a> {
    shared: &'a Shared,
    registered: &'a Registered,
    pace: Pace,
    /// The last one that is not proposed yet.
    unsaid: Option<State>,
    under_way: Option<BoxFuture<'a, (State, Result<(), Status>)>>,
}

impl<'a> States<'a> {
    pub fn new(shared: &'a Shared, registered: &'a Registered) -> Self {
        Self { shared, registered, pace: state_pace(), unsaid: None, under_way: None }
    }

    /// What the engine says: it counts instead of what was not proposed yet.
    pub fn say(&mut self, state: State) {
        self.unsaid = Some(state);
        if self.under_way.is_none() && self.may() {
            self.begin();
        }
    }

    /// Whether one more may be proposed now, which is counted.
    pub fn may(&mut self) -> bool {
        self.pace.take(Instant::now().into_std()).is_ok()
    }

    fn begin(&mut self) {
        let (shared, registered) = (self.shared, self.registered);
        self.under_way = self.unsaid.take().map(|state| -> BoxFuture<'a, _> {
            Box::pin(async move { (state, report_state(shared, registered, &state).await) })
        });
    }

    /// Proposes what is not proposed yet; waits as long as there is nothing. It may be dropped, and called again.
    ///
    /// # Errors
    /// If the domain refuses one.
    pub async fn advance(&mut self) -> Result<(), Status> {
        if let Some(under_way) = &mut self.under_way {
            let (state, done) = under_way.await;
            self.under_way = None;
            return match done {
                Err(status) if status.code() == Code::Unavailable => {
                    self.unsaid.get_or_insert(state);
                    Ok(())
                }
                done => done,
            };
        }
        if self.unsaid.is_none() {
            std::future::pending::<()>().await;
        }
        sleep_until(self.pace.next().into()).await;
        if self.may() {
            self.begin();
        }
        Ok(())
    }

    /// Proposes the last one now, if it is not proposed yet.
    ///
    /// # Errors
    /// If that is not possible.
    pub async fn finish(mut self) -> Result<(), Status> {
        if let Some(under_way) = self.under_way.take() {
            under_way.await.1?;
        }
        match self.unsaid.take() {
            Some(state) => report_state(self.shared, self.registered, &state).await,
            None => Ok(()),
        }
    }
}
