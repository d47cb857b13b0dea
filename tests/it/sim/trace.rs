//! What happened in a run: as text for a reader, and as a hash of much more than the text. Two runs of one seed must
//! have the same hash.

use crate::sim::seeds::Told;
use std::sync::{Arc, Mutex};

/// A record to which all parts of a run write.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Record>>);

struct Record {
    now_ms: u64,
    hash: u64,
    lines: Vec<String>,
    wrong: Vec<String>,
}

impl Default for Record {
    fn default() -> Self {
        Self { now_ms: 0, hash: 0xcbf2_9ce4_8422_2325, lines: Vec::new(), wrong: Vec::new() }
    }
}

impl Record {
    fn mix(&mut self, text: &str) {
        for byte in format!("{} {text}\n", self.now_ms).bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Trace {
    /// Sets the virtual time of the trace.
    pub fn set_now(&self, now_ms: u64) {
        self.0.lock().unwrap().now_ms = now_ms;
    }

    /// The virtual time since the run began, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.0.lock().unwrap().now_ms
    }

    /// Adds to the hash only: messages and requests.
    pub fn mix(&self, text: &str) {
        self.0.lock().unwrap().mix(text);
    }

    /// Adds a line for the reader.
    pub fn line(&self, text: &str) {
        let mut record = self.0.lock().unwrap();
        record.mix(text);
        let line = format!("{:>7.3}  {text}", record.now_ms as f64 / 1000.0);
        record.lines.push(line);
    }

    /// Records a violation.
    pub fn wrong(&self, what: &str) {
        self.line(&format!("WRONG: {what}"));
        self.0.lock().unwrap().wrong.push(what.to_owned());
    }

    /// All violations.
    pub fn all_wrong(&self) -> Vec<String> {
        self.0.lock().unwrap().wrong.clone()
    }

    /// All of it.
    pub fn told(&self) -> Told {
        let hash = self.0.lock().unwrap().hash;
        Told { hash, text: self.text(), wrong: self.all_wrong() }
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.0.lock().unwrap().lines.join("\n")
    }
}
