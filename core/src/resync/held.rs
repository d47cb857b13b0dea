//! Findings that a fresh read held, so that they are not read again at each wake-up of the resync: every entry of the log
//! and every event of a watch wakes it, and what a read said a moment ago it says again.
//!
//! Such a finding is read again when something that it rests on shows itself changed, or when a period is over.

use super::plan::{Finding, Need, Waiting, WaitingReason};
use crate::domain::balancing::Object;
use crate::domain::ids::Uid;
use crate::observed::Observed;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::Hasher;

/// A finding that is to be read now, with what was seen when it was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The finding.
    pub finding: Finding,
    /// A digest of what it rests on, as the watches and the domain showed it.
    seen: u64,
}

/// What a plan comes to once the held findings are out of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Parted {
    /// The findings to read now, in the order of the plan.
    pub due: Vec<Due>,
    /// Why the others wait, as the last read told.
    pub waiting: Vec<Waiting>,
}

/// The findings that were held. It keeps no more than the last plan had.
#[derive(Clone, Debug)]
pub struct HeldFindings {
    period_ms: u64,
    /// By subject and text.
    held: BTreeMap<String, Held>,
}

#[derive(Clone, Debug)]
struct Held {
    due: Due,
    until_ms: u64,
    /// Why; `None` if the domain refused it.
    reason: Option<WaitingReason>,
}

impl HeldFindings {
    /// None yet. A held finding is read again after `period_ms` at the latest.
    pub fn new(period_ms: u64) -> Self {
        Self { period_ms, held: BTreeMap::new() }
    }

    /// Parts what is to be read at this moment from what was held a moment ago and has not changed since. `anchor` is the UID
    /// of the anchor that the domain knows.
    pub fn part(&mut self, findings: Vec<Finding>, observed: &Observed, anchor: Option<&Uid>, now_ms: u64) -> Parted {
        let mut before = std::mem::take(&mut self.held);
        let mut parted = Parted::default();
        for finding in findings {
            let due = Due { seen: digest(&finding, observed, anchor), finding };
            let key = key(&due.finding);
            match before.remove(&key).filter(|held| held.due == due && now_ms < held.until_ms) {
                Some(held) => {
                    let subject = due.finding.subject;
                    parted.waiting.extend(held.reason.clone().map(|reason| Waiting { subject, reason }));
                    self.held.insert(key, held);
                }
                None => parted.due.push(due),
            }
        }
        parted
    }

    /// Notes that a finding which was due came to nothing, and why; `None`: the domain refused it.
    pub fn note(&mut self, due: Due, reason: Option<WaitingReason>, now_ms: u64) {
        self.held.insert(key(&due.finding), Held { due, until_ms: now_ms + self.period_ms, reason });
    }

    /// When the first of them is to be read again though nothing changes.
    pub fn next_ms(&self) -> Option<u64> {
        self.held.values().map(|held| held.until_ms).min()
    }
}

fn key(finding: &Finding) -> String {
    format!("{}: {}", finding.subject, finding.text)
}

/// A digest of the objects that a finding rests on. Two that are equal by accident cost no more than the period.
fn digest(finding: &Finding, observed: &Observed, anchor: Option<&Uid>) -> u64 {
    let mut digest = Digest(DefaultHasher::new());
    for need in &finding.needs {
        // A digest takes everything.
        let _ = match need {
            Need::Claim(name) => write!(digest, "{:?}", observed.claims.known().map(|known| known.get(name))),
            Need::Pod(name) => write!(digest, "{:?}", observed.pods.known().map(|known| known.get(name))),
            Need::StatefulSet(name) | Need::Replication { stateful_set: name, .. } => {
                write!(digest, "{:?}", observed.stateful_sets.known().map(|known| known.get(name)))
            }
            Need::WantersOf(_) => write!(digest, "{observed:?}"),
            Need::WorkloadsOf { .. } => write!(
                digest,
                "{:?}{:?}{:?}",
                observed.stateful_sets.known(),
                observed.deployments.known(),
                observed.pods.known()
            ),
            Need::Anchor => write!(digest, "{anchor:?}"),
            Need::LoadBalancer { object: Object::StatefulSet(name), .. } => {
                write!(digest, "{:?}", observed.stateful_sets.known().map(|known| known.get(name)))
            }
            Need::LoadBalancer { object: Object::Deployment(name), .. } => {
                write!(digest, "{:?}", observed.deployments.known().map(|known| known.get(name)))
            }
        };
    }
    digest.0.finish()
}

struct Digest(DefaultHasher);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{HeldFindings, Parted};
    use crate::domain::audit::Subject;
    use crate::domain::change::{Command, RemoveProcess};
    use crate::domain::command::Fence;
    use crate::domain::evidence::Evidence;
    use crate::domain::ids::{SessionNumber, StartId, Uid};
    use crate::domain::process::ExitReason;
    use crate::observed::Observed;
    use crate::observed::objects::Pod;
    use crate::resync::plan::{Finding, Need, WaitingReason};

    const PERIOD_MS: u64 = 10_000;

    fn gone(process: u64) -> Finding {
        let command = Command::RemoveProcess(RemoveProcess {
            fence: Fence::default(),
            process: StartId(process),
            session: SessionNumber(1),
            reason: ExitReason::PodGone,
            evidence: Evidence::default(),
        });
        Finding {
            subject: Subject::Process(StartId(process)),
            text: format!("remove process {process}"),
            command,
            needs: vec![Need::Pod(format!("te-{process}")), Need::Anchor],
            guards: Vec::new(),
        }
    }

    fn pods(names: &[&str]) -> Observed {
        let mut observed = Observed::default();
        names.iter().for_each(|name| observed.pods.list(Pod { name: (*name).to_owned(), ..Pod::default() }));
        observed.pods.complete();
        observed
    }

    /// Which processes are due, and which wait.
    fn told(parted: &Parted) -> String {
        let due = parted.due.iter().map(|due| format!("{} due", due.finding.subject));
        let waiting = parted.waiting.iter().map(|waiting| format!("{} waits", waiting.subject));
        due.chain(waiting).collect::<Vec<_>>().join(", ")
    }

    /// One held finding, about process 1, since 0 ms.
    fn held() -> HeldFindings {
        let mut held = HeldFindings::new(PERIOD_MS);
        let parted = held.part(vec![gone(1)], &pods(&[]), None, 0);
        assert_eq!(told(&parted), "process/1 due");
        for due in parted.due {
            held.note(due, Some(WaitingReason::SessionLive), 0);
        }
        held
    }

    #[test]
    fn a_held_finding_is_not_read_again_before_the_period_is_over() {
        let mut held = held();
        assert_eq!(told(&held.part(vec![gone(1)], &pods(&[]), None, 20)), "process/1 waits");
        assert_eq!(told(&held.part(vec![gone(1)], &pods(&["other"]), None, 9_999)), "process/1 waits");
        assert_eq!(held.next_ms(), Some(PERIOD_MS));
        assert_eq!(told(&held.part(vec![gone(1)], &pods(&[]), None, PERIOD_MS)), "process/1 due");
        assert_eq!(held.next_ms(), None, "who is due is not held any more");
    }

    #[test]
    fn it_is_read_again_at_once_when_what_it_rests_on_changes() {
        let another = Uid::from("another");
        assert_eq!(told(&held().part(vec![gone(1)], &pods(&["te-1"]), None, 20)), "process/1 due");
        assert_eq!(told(&held().part(vec![gone(1)], &Observed::default(), None, 20)), "process/1 due");
        assert_eq!(told(&held().part(vec![gone(1)], &pods(&[]), Some(&another), 20)), "process/1 due");
        let mut next = gone(1);
        if let Command::RemoveProcess(change) = &mut next.command {
            change.session = SessionNumber(2);
        }
        assert_eq!(told(&held().part(vec![next], &pods(&[]), None, 20)), "process/1 due");
    }

    #[test]
    fn what_is_planned_no_more_is_forgotten() {
        let mut held = held();
        let other = held.part(vec![gone(2)], &pods(&[]), None, 20);
        assert_eq!(told(&other), "process/2 due");
        assert_eq!(told(&held.part(vec![gone(1)], &pods(&[]), None, 40)), "process/1 due");
    }

    #[test]
    fn what_the_domain_refused_waits_without_a_word() {
        let mut held = HeldFindings::new(PERIOD_MS);
        for due in held.part(vec![gone(1)], &pods(&[]), None, 0).due {
            held.note(due, None, 0);
        }
        assert_eq!(told(&held.part(vec![gone(1)], &pods(&[]), None, 20)), "");
    }
}
