//! Who was not let in: counted, each by port and reason, and logged without a flood.
//!
//! Anybody who reaches a port can be refused as often as they like, so the log gets one line for each kind of refusal from
//! each address in a while, which says how many were like it. The count is complete.

use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long refusals of one kind from one address are hushed after one was logged.
const HUSH: Duration = Duration::from_secs(60);

/// How many kinds and addresses are told apart; those beyond are logged as one.
const MOST_KINDS: usize = 1024;

/// The port that a caller connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The REST API.
    Http,
    /// Engines.
    Engines,
    /// Other agents.
    Peers,
}

impl Port {
    /// Its name, as metrics and logs have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Engines => "engines",
            Self::Peers => "peers",
        }
    }
}

type Kind = (Port, &'static str, Option<IpAddr>);

/// Counts and logs; clones share it.
#[derive(Clone, Debug)]
pub struct Refusals(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    metrics: Arc<Metrics>,
    said: Mutex<BTreeMap<Kind, Said>>,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    hushed: u64,
}

impl Refusals {
    /// Counts in these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Shared { metrics, said: Mutex::default() }))
    }

    /// Counts and logs a refused caller. `words` must hold nothing that is secret.
    pub fn note(&self, port: Port, reason: &'static str, from: Option<SocketAddr>, words: &str) {
        self.0.metrics.refused(port.name(), reason);
        let address = from.map(|from| from.ip());
        let Some(hushed) = self.hushed((port, reason, address), Instant::now()) else { return };
        let from = address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string());
        let like_it = if hushed == 0 { String::new() } else { format!(" ({hushed} more like it before)") };
        tracing::warn!(port = port.name(), reason, "refused {from}: {words}{like_it}");
    }

    /// How many like it were hushed since the last that was logged; `None` if this one is, too.
    fn hushed(&self, mut kind: Kind, now: Instant) -> Option<u64> {
        let mut said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= MOST_KINDS && !said.contains_key(&kind) {
            said.retain(|_, said| now.duration_since(said.at) < HUSH);
            if said.len() >= MOST_KINDS {
                kind.2 = None;
            }
        }
        match said.get_mut(&kind) {
            Some(said) if now.duration_since(said.at) < HUSH => {
                said.hushed += 1;
                None
            }
            Some(said) => {
                said.at = now;
                Some(std::mem::take(&mut said.hushed))
            }
            None => {
                said.insert(kind, Said { at: now, hushed: 0 });
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_and_one_of_a_kind_is_logged_in_a_while() {
        let metrics = Arc::new(Metrics::new());
        let refusals = Refusals::new(metrics.clone());
        let from: SocketAddr = "10.0.0.9:1".parse().unwrap();
        for _ in 0..5 {
            refusals.note(Port::Peers, "name", Some(from), "x");
        }
        let text = metrics.text();
        assert!(text.contains("kaa_callers_refused_total{port=\"peers\",reason=\"name\"} 5"), "{text}");

        let kind = |reason| (Port::Http, reason, Some(from.ip()));
        let now = Instant::now();
        assert_eq!(refusals.hushed(kind("a"), now), Some(0));
        assert_eq!(refusals.hushed(kind("a"), now), None);
        assert_eq!(refusals.hushed(kind("b"), now), Some(0), "another kind");
        assert_eq!(refusals.hushed((Port::Http, "a", None), now), Some(0), "another address");
        assert_eq!(refusals.hushed(kind("a"), now + HUSH), Some(1));
    }

    #[test]
    fn a_thousand_addresses_do_not_make_a_thousand_lines_nor_fill_the_memory() {
        let refusals = Refusals::new(Arc::new(Metrics::new()));
        let now = Instant::now();
        let address = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        let logged = (0..5000).filter(|n| refusals.hushed((Port::Http, "a", address(*n)), now).is_some()).count();
        assert_eq!(logged, MOST_KINDS + 1);
        assert_eq!(refusals.0.said.lock().unwrap().len(), MOST_KINDS + 1);
    }
}
