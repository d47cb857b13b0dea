//! What must hold of the group of admin servers in every run: one domain, one founder of each epoch, and no epoch that
//! the anchor does not name. It also counts the events of the group, so that the test notices a run without any.

use crate::sim::host::Host;
use crate::sim::trace::Trace;
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object::number;
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::Key;
use kaa::raft::{Role, Status};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::sync::Arc;

/// How often each event happened to the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Epochs that were founded without a majority of the one before.
    pub overrides: usize,
    /// Logs of earlier epochs that were retired.
    pub retired: usize,
    /// Servers that were evicted, and servers that became voters again.
    pub evictions: usize,
    pub inclusions: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Self { overrides, retired, evictions, inclusions } = other;
        self.overrides += overrides;
        self.retired += retired;
        self.evictions += evictions;
        self.inclusions += inclusions;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Anchor {
    domain: String,
    epoch: u64,
    founder: u64,
}

/// What was seen of the group so far.
pub struct Group {
    trace: Trace,
    instance: Arc<Instance>,
    anchor: Option<Anchor>,
    /// The last epoch in which an agent was seen.
    begun: u64,
    /// The last known voters, with the epoch and term of the leader that reported them.
    voters: (u64, u64, BTreeSet<String>),
    /// Servers that were evicted and have not become voters again so far.
    out: BTreeSet<String>,
    pub counts: Counts,
}

impl Group {
    pub fn new(trace: Trace, instance: Arc<Instance>) -> Self {
        let (voters, out, counts) = (Default::default(), BTreeSet::new(), Counts::default());
        Self { trace, instance, anchor: None, begun: 0, voters, out, counts }
    }

    /// How many admin servers are wanted.
    pub fn wanted(&self) -> usize {
        let key = Key::new(Kind::StatefulSet, "default", "kaa-admin");
        let replicas = self.instance.look(|store| store.find(&key).and_then(|set| number(set, "/spec/replicas")));
        usize::try_from(replicas.expect("it is there")).unwrap()
    }

    /// The epoch of the anchor, 0 without one.
    pub fn epoch(&self) -> u64 {
        self.anchor.as_ref().map_or(0, |anchor| anchor.epoch)
    }

    /// Checks the anchor and every agent.
    pub fn look(&mut self, hosts: &[Host]) {
        self.look_at_the_anchor();
        for host in hosts {
            if let Some(status) = host.look(|shared| shared.raft.status()) {
                self.look_at(&host.name, &status);
            }
        }
    }

    fn look_at_the_anchor(&mut self) {
        let key = Key::new(Kind::Lease, "default", "kaa-default-anchor");
        let now = self.instance.look(|store| {
            let said = |lease: &Value, key: &str| {
                let value = &lease["metadata"]["annotations"][format!("kaa.dev/{key}")];
                value.as_str().expect("a whole anchor").to_owned()
            };
            store.find(&key).map(|lease| Anchor {
                domain: said(lease, "domain"),
                epoch: said(lease, "epoch").parse().expect("an epoch"),
                founder: said(lease, "founder").parse().expect("a founder"),
            })
        });
        if now == self.anchor {
            return;
        }
        match (&self.anchor, &now) {
            (None, Some(first)) if first.epoch == 1 => {}
            (Some(old), Some(new)) if new.domain == old.domain && new.epoch == old.epoch + 1 => {
                self.counts.overrides += 1;
            }
            (old, new) => self.trace.wrong(&format!("the anchor was {old:?} and is {new:?}")),
        }
        if let Some(Anchor { epoch, founder, .. }) = &now {
            self.trace.line(&format!("the anchor is of epoch {epoch}, which log {founder:x} founds"));
        }
        self.anchor = now;
    }

    fn look_at(&mut self, name: &str, status: &Status) {
        let Some(anchor) = &self.anchor else {
            return self.trace.wrong(&format!("{name} runs its Raft, and there is no anchor"));
        };
        let epoch = status.epoch.0;
        if status.domain.as_str() != anchor.domain || epoch > anchor.epoch {
            let words = format!("{name} is of domain {} and epoch {epoch}, and the anchor {anchor:?}", status.domain);
            self.trace.wrong(&words);
        }
        if epoch > self.begun && !status.voters.is_empty() {
            self.begun = epoch;
            // The anchor may be of a later epoch by now, which has another founder.
            if epoch == anchor.epoch && !status.voters.keys().map(|id| id.0).eq([anchor.founder]) {
                self.trace.wrong(&format!("epoch {epoch} begins with the voters {:?}", status.voters));
            }
        }
        if status.role == Role::Leader && status.quorum {
            self.note_voters(status);
        }
    }

    fn note_voters(&mut self, status: &Status) {
        let voters: BTreeSet<String> = status.voters.values().map(|node| node.server.clone()).collect();
        let (epoch, term, last) = &self.voters;
        let led = (status.epoch.0, status.term);
        if led < (*epoch, *term) || voters == *last {
            return;
        }
        self.trace.line(&format!("the voters are {}", Vec::from_iter(voters.iter().cloned()).join(", ")));
        if led.0 == *epoch {
            let evicted: BTreeSet<String> = last.difference(&voters).cloned().collect();
            self.counts.evictions += evicted.len();
            self.out.extend(evicted);
        }
        self.counts.inclusions += voters.iter().filter(|server| self.out.remove(*server)).count();
        self.voters = (led.0, led.1, voters);
    }

    /// Returns the differences from the wanted state: exactly the wanted servers vote, with their present logs and in
    /// the anchor's epoch, and all of them know it.
    pub fn differences(&self, wanted: &[Host]) -> Vec<String> {
        let status = |host: &Host| host.look(|shared| shared.raft.status()).filter(|_| host.is_up());
        let all: Vec<Option<Status>> = wanted.iter().map(status).collect();
        let ids: BTreeSet<_> = all.iter().flatten().map(|status| status.raft_id).collect();
        let mut differences = Vec::new();
        for (host, status) in wanted.iter().zip(&all) {
            let Some(status) = status else {
                differences.push(format!("{} does not run", host.name));
                continue;
            };
            let (voters, epoch) = (status.voters.keys().copied().collect::<BTreeSet<_>>(), status.epoch.0);
            if voters != ids || !status.quorum || epoch != self.epoch() {
                let (count, quorum) = (voters.len(), status.quorum);
                differences.push(format!("{}: {count} voters, quorum {quorum}, epoch {epoch}", host.name));
            }
        }
        differences
    }
}
