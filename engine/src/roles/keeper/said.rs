//! What the wrapper says of its server, from what it knows now.

use super::Keeper;
use crate::probe::Health;
use crate::proto as wire;
use crate::roles::decide;
use crate::roles::readiness;
use crate::roles::words::{self, Known};
use tokio::time::Instant;

impl Keeper {
    /// Says to agents what the server does.
    pub(super) fn say(&mut self) {
        // Until it is registered it is no process of the domain: then it stays that one.
        let pid = self.member.as_ref().map_or(0, |_| std::process::id());
        let state = wire::State { engine: self.known().engine().into(), pid };
        let now = Instant::now();
        let (short_of_room, replays_late) = (self.vitals.is_short_of_room(now), self.vitals.replays_late(now));
        let replica = wire::Replica { short_of_room, replays_late, trouble: self.trouble(), ..self.known().replica() };
        let replica = words::bounded(replica);
        let (replica, vitals) = (Some(replica), self.vitals.told(decide::is_closed(&self.state), Instant::now()));
        self.out.report.send_if_modified(|report| {
            let changed = report.state != state || report.replica != replica || report.vitals != vitals;
            if changed {
                (report.state, report.replica, report.vitals) = (state, replica, vitals);
            }
            changed
        });
    }

    /// Says to probes whether the server does what was assigned to it.
    pub(super) fn show_health(&self) {
        let (now, wanted) = (Instant::now(), self.wanted.as_ref());
        let ready = match self.over {
            Some(_) => Err("its server has ended".to_owned()),
            None => readiness::readiness(&self.state, wanted, self.caught_up),
        };
        let silent = || "its server does not answer the wrapper".to_owned();
        let ready = ready.and_then(|()| if self.vitals.answers(now) { Ok(()) } else { Err(silent()) });
        self.out.health.send_replace(Health { beat: Some(now), ready });
    }

    fn known(&self) -> Known<'_> {
        Known {
            state: &self.state,
            start_before: self.start_before,
            start: self.start,
            wanted: self.wanted.as_ref(),
            under: self.under.as_ref().map(|(step, _)| step),
            ended: self.ended,
            reading: self.reading.as_ref(),
            hearing: &self.hearing,
            standbys: &self.standbys,
        }
    }

    /// What keeps the server from doing what is wanted, or from using what is mounted.
    fn trouble(&self) -> String {
        let receiver = self.reading.as_ref().and_then(|reading| reading.receiver_failure.clone());
        let complaints = self.using.complaints();
        match receiver {
            _ if self.is_too_old => "this wrapper does not understand its assignment: it is too old".to_owned(),
            _ if !self.trouble.is_empty() => self.trouble.clone(),
            // What is mounted and not used may be why.
            Some(failure) if !complaints.is_empty() => format!("it does not stream: {failure}; {complaints}"),
            Some(failure) => format!("it does not stream: {failure}"),
            None => complaints,
        }
    }
}
