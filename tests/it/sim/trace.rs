//! What happened, in words for people, and as a hash of much more than the words: two runs of one seed must agree in
//! it.

use std::sync::{Arc, Mutex};

/// A record that all parts of a run write into.
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
    /// Moves its time on.
    pub fn set_now(&self, now_ms: u64) {
        self.0.lock().unwrap().now_ms = now_ms;
    }

    /// The virtual time since the run began, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.0.lock().unwrap().now_ms
    }

    /// Something that only counts for the hash: messages and requests.
    pub fn mix(&self, text: &str) {
        self.0.lock().unwrap().mix(text);
    }

    /// Something that people want to read.
    pub fn line(&self, text: &str) {
        let mut record = self.0.lock().unwrap();
        record.mix(text);
        let line = format!("{:>7.3}  {text}", record.now_ms as f64 / 1000.0);
        record.lines.push(line);
    }

    /// Something that must not happen.
    pub fn wrong(&self, what: &str) {
        self.line(&format!("WRONG: {what}"));
        self.0.lock().unwrap().wrong.push(what.to_owned());
    }

    /// What must not have happened and did.
    pub fn all_wrong(&self) -> Vec<String> {
        self.0.lock().unwrap().wrong.clone()
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.0.lock().unwrap().hash
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.0.lock().unwrap().lines.join("\n")
    }
}
