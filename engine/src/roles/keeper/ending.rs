//! The end of the server: since the pod is to end, or by itself.

use super::{AT_ONCE, EXIT_REPORT_LIMIT, FOR_THE_STOP, Keeper};
use crate::postgres::Stop;
use crate::proto::Exit;
use crate::roles::decide::Run;
use kaa_core::domain::replicated::Ended;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long sessions of clients may take to end before the server is stopped.
const TO_CLOSE: Duration = Duration::from_secs(2);

impl Keeper {
    /// Whether the wrapper may end.
    pub(super) fn may_end(&self, now: Instant) -> bool {
        let Some(until) = self.stopping else { return false };
        let may = self.wanted.as_ref().is_none_or(|wanted| wanted.may_stop);
        now >= until || may
    }

    /// Stops the server for good.
    pub(super) async fn end(&mut self) {
        // The order to stand down may be under way: its end is the end of the server.
        self.under = None;
        self.tending.give_up(Instant::now());
        let stopped = {
            let mut server = self.server.lock().await;
            let open = matches!(&self.state.run, Run::Primary(primary) if primary.admits);
            let mut how = if self.at_once { Stop::Immediate } else { Stop::Fast };
            // A stop ends all sessions at once: some would see the commits of others that wait for members.
            if open && !self.at_once && !matches!(timeout(TO_CLOSE, server.close()).await, Ok(Ok(()))) {
                tracing::warn!("the sessions of clients do not end: the server is stopped at once");
                how = Stop::Immediate;
            }
            match timeout(FOR_THE_STOP, server.stop(how)).await {
                Ok(stopped) => stopped,
                Err(_) => {
                    tracing::warn!("the server does not stop: it is stopped at once");
                    server.stop(Stop::Immediate).await
                }
            }
        };
        let failed = stopped.as_ref().err().map(ToString::to_string);
        if let Some(why) = &failed {
            tracing::error!(why, "the server did not stop cleanly");
        }
        if let Run::Primary(primary) = &self.state.run {
            let how = if matches!(stopped, Ok(Some(_))) { Ended::StoodDown } else { Ended::Failed };
            self.ended = Some((primary.begins.generation, how));
        }
        self.state.run = Run::Down;
        self.over = Some(Instant::now() + EXIT_REPORT_LIMIT);
        for (id, answers) in self.awaiting_stop.drain(..) {
            answers.give(id, Ok(()));
        }
        let exit = Exit { code: Some(0), graceful: failed.is_none(), reason: failed.unwrap_or_default() };
        self.say();
        self.out.report.send_modify(|report| report.exit = Some(exit));
    }

    /// The pod is to end: the domain is asked first, within a part of the time.
    pub(super) fn stop(&mut self, grace: Duration) {
        let patience = grace.saturating_sub(FOR_THE_STOP).max(grace / 4);
        let until = Instant::now() + patience;
        if self.stopping.is_none() {
            tracing::info!(
                patience_s = patience.as_secs(),
                "told to stop: waiting until the domain lets this server end"
            );
        }
        self.stopping = Some(self.stopping.map_or(until, |known| known.min(until)));
        self.state.stopping = true;
        self.at_once |= grace < AT_ONCE;
    }

    /// The server has ended by itself.
    pub(super) async fn server_ended(&mut self, how: &str) {
        tracing::error!(how, "the server has ended");
        // What it left behind may still show something to clients: its end is said once there is nothing left.
        let rest = async { self.server.lock().await.stop(Stop::Immediate).await };
        match timeout(FOR_THE_STOP, rest).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(%error, "processes of the server do not end"),
            Err(_) => tracing::error!("processes of the server do not end"),
        }
        if let Run::Primary(primary) = &self.state.run {
            self.ended = Some((primary.begins.generation, Ended::Failed));
        }
        self.standbys.clear();
        (self.state.run, self.reading, self.reads) = (Run::Down, None, None);
        self.state.shuts_down = false;
        self.door.forget();
        self.caught_up = false;
        self.vitals.clear();
        self.failed(format!("the server has ended: {how}"));
    }
}
