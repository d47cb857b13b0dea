//! Compares what the domain removed, and the recorded reasons, with what was true in Kubernetes.

use super::truth::Truth;
use crate::domain::clients::Agents;
use embedded_kubernetes::resource::Kind;
use kaa::http::{Change, Explanation};
use regex::Regex;
use std::collections::BTreeMap;
use std::time::Duration;

/// How much earlier than the last fact of the same evidence another fact may have been read.
const READ_MS: u64 = 15_000;

/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The records of each archive, by the index of the log entry (one entry may make several records). The test collects
/// them while the agents write them, since the audit trail keeps only the latest.
#[derive(Debug, Default)]
pub struct Trail(BTreeMap<u64, BTreeMap<(u64, String), Change>>);

/// How many archives were removed and purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub removed: usize,
    pub purged: usize,
}

impl Trail {
    /// Adds the records that the agents return now.
    pub async fn collect(&mut self, agents: &Agents) {
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        for (_, address) in agents.all() {
            for archive in 1.. {
                let answer = http.get(format!("{address}/kaa/explain/archive/{archive}")).send().await;
                let Ok(answer) = answer.and_then(|answer| answer.error_for_status()) else { break };
                let Ok(explained) = answer.json::<Explanation>().await else { break };
                let known = self.0.entry(archive).or_default();
                known.extend(explained.history.into_iter().map(|change| ((change.index, change.what.clone()), change)));
            }
        }
    }

    /// Compares each removal with what was true. Returns the counts, and a message for each wrong removal.
    pub fn check(&self, truth: &Truth) -> (Taken, Vec<String>) {
        let (mut taken, mut wrong) = (Taken::default(), Vec::new());
        let claim = Regex::new(r"(?:on|to) claim (\S+) \((\S+)\)").unwrap();
        for (archive, changes) in &self.0 {
            let mut bound: Option<(String, String)> = None;
            for change in changes.values() {
                if let Some(found) = claim.captures(&change.what) {
                    bound = Some((found[1].to_owned(), found[2].to_owned()));
                }
                let removed = change.what.starts_with(&format!("archive {archive} removed"));
                let purged = change.what.starts_with(&format!("archive {archive} purged"))
                    || removed && change.what.contains(" and purged");
                if !removed && !purged {
                    continue;
                }
                taken.removed += usize::from(removed);
                taken.purged += usize::from(purged);
                let Some((name, uid)) = &bound else {
                    wrong.push(format!("nobody said on which claim archive {archive} was: {changes:?}"));
                    continue;
                };
                let why_not = judge(truth, change, name, uid);
                wrong.extend(why_not.into_iter().map(|why| format!("archive {archive} on {name}: {why}: {change:?}")));
            }
        }
        (taken, wrong)
    }
}

/// The reasons why one removal of the archive on this claim is wrong.
fn judge(truth: &Truth, change: &Change, claim: &str, uid: &str) -> Vec<String> {
    let mut against = Vec::new();
    let scaled = change.what.contains("was scaled down");
    if !scaled && truth.is_there(uid, change.at.0) {
        against.push("its claim was there".to_owned());
    }
    // A new engine on a new claim of the same name supersedes what was on the old one; that needs no further reading.
    if change.what.contains("was replaced") {
        return against;
    }
    let Some(read_at) = change.read_at else {
        against.push("without evidence".to_owned());
        return against;
    };
    let (from, to) = (read_at.0.saturating_sub(READ_MS), read_at.0);
    let absent = Regex::new(r"^persistentvolumeclaim (\S+) not found$").unwrap();
    let wants =
        Regex::new(r"^statefulset (\S+) \(uid (\S+), generation (\d+)\) wants (\d+) replicas from ordinal 0$").unwrap();
    let ordinal: u64 = claim.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse().ok()).expect("an ordinal");
    let mut proven = false;
    for fact in &change.evidence {
        if let Some(found) = absent.captures(fact) {
            proven |= !scaled && &found[1] == claim;
            if !truth.was_absent(Kind::PersistentVolumeClaim, &found[1], from, to) {
                against.push(format!("it was never so: {fact}"));
            }
        } else if let Some(found) = wants.captures(fact) {
            let number = |at: usize| found[at].parse::<i64>().expect("digits");
            proven |= scaled && number(4) <= ordinal as i64;
            if !truth.wanted(&found[1], &found[2], number(3), number(4), from, to) {
                against.push(format!("it was never so: {fact}"));
            }
        }
    }
    if !proven {
        against.push("its evidence does not prove it".to_owned());
    }
    against
}
