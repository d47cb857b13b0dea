//! Whole agents and a database with roles: three servers, of which one is the primary. The wrappers' and the domain's
//! decisions are the product's, PostgreSQL is a model ([`postgres`]).
//!
//! `KAA_SIM_SEED=7 cargo test -p kaa --test it sim::databases::no_commit` runs one seed and prints what happened;
//! `KAA_SIM_SEEDS=1000` runs this number of seeds.

mod clients;
mod faults;
mod performs;
mod postgres;
mod reading;
mod runs;
mod stories;
mod stream;
mod wrapper;

use crate::sim::engine::{Ground, Truth};
use crate::sim::network::Network;
use crate::sim::trace::Trace;
use clients::Clients;
use postgres::Postgres;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use stream::Stream;
use tokio::sync::watch;
use wrapper::Wrapper;

/// The name of the database and of its StatefulSet.
pub const NAME: &str = "shop";

/// How many standbys are to confirm each commit.
fn synchronous(seed: u64) -> usize {
    if seed % 4 == 2 { 2 } else { 1 }
}

/// The zone of a pod: there are two.
fn zone(pod: &str) -> &'static str {
    if pod.ends_with('1') { "b" } else { "a" }
}

/// The annotations of its StatefulSet, of which three of four seeds have some.
pub fn settings(seed: u64) -> serde_json::Value {
    match seed % 4 {
        1 => serde_json::json!({"kaa.dev/preferred-zone": zone("shop-1")}),
        2 => serde_json::json!({"kaa.dev/synchronous": synchronous(seed).to_string()}),
        3 => serde_json::json!({"kaa.dev/when-alone": "block"}),
        _ => serde_json::json!({}),
    }
}

/// The servers of the database, their wrappers and their clients; clones share them.
#[derive(Clone)]
pub struct Databases(Arc<Mutex<Inner>>);

struct Inner {
    postgres: Postgres,
    wrappers: BTreeMap<u64, (Wrapper, watch::Receiver<bool>)>,
    clients: Clients,
    truth: Arc<Mutex<Truth>>,
}

impl Databases {
    pub fn new(network: Network, trace: Trace, truth: Arc<Mutex<Truth>>) -> Self {
        let (postgres, wrappers, clients) = (Postgres::new(network, trace), BTreeMap::new(), Clients::default());
        Self(Arc::new(Mutex::new(Inner { postgres, wrappers, clients, truth })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Starts a wrapper in a container. What is returned is its stream to agents.
    pub fn begin(
        &self,
        ground: Ground,
        nonce: u64,
        (pod, pod_uid): (&str, &str),
        claim: &str,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let wrapper = Wrapper::new(nonce, (pod, pod_uid), claim, ground.truth.clone());
        let line = wrapper.line.clone();
        self.inner().wrappers.insert(nonce, (wrapper, stop));
        let (pod, pod_uid, started_ms) = (pod.to_owned(), pod_uid.to_owned(), kaa::clock::now().0);
        Stream { ground, line, pod, pod_uid, nonce, started_ms, start_id: 0 }.run()
    }

    /// Does what is due.
    pub fn step(&self, now_ms: u64) {
        self.inner().step(now_ms);
    }
}

impl Inner {
    fn step(&mut self, now_ms: u64) {
        let nonces: Vec<u64> = self.wrappers.keys().copied().collect();
        for nonce in &nonces {
            let ended = self.truth.lock().unwrap().engines.get(nonce).is_none_or(|facts| facts.ended);
            if ended {
                self.remove(*nonce);
            }
        }
        self.postgres.step(now_ms);
        for nonce in &nonces {
            let Some((wrapper, stop)) = self.wrappers.get_mut(nonce).filter(|(wrapper, _)| !wrapper.paused) else {
                continue;
            };
            if *stop.borrow() && !wrapper.is_stopping() {
                wrapper.stop(now_ms);
            }
            wrapper.commit(&mut self.postgres, now_ms);
            if !wrapper.step(&mut self.postgres, now_ms) {
                self.remove(*nonce);
            }
        }
        self.clients.step(&mut self.postgres, now_ms);
    }

    /// The container has ended, with all that ran in it.
    fn remove(&mut self, nonce: u64) {
        self.postgres.crash(nonce);
        let Some((wrapper, _)) = self.wrappers.remove(&nonce) else { return };
        let volume = self.postgres.volume(&wrapper.claim);
        volume.holder = volume.holder.filter(|holder| *holder != nonce);
        wrapper.line.lock().unwrap().over = true;
        if let Some(facts) = self.truth.lock().unwrap().engines.get_mut(&nonce) {
            (facts.running, facts.ended) = (false, true);
        }
    }
}
