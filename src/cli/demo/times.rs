//! How long the domain took to follow: from a change in Kubernetes, which this process sees at the moment it happens,
//! to the committed change of the domain, as the leader of the resync shows it.

use super::domain::{Domain, Error, PATIENCE};
use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::store::Change;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often the leader is asked: what is measured is a few milliseconds, and asking takes a share of them.
const POLL: Duration = Duration::from_millis(1);

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Times {
    taken: BTreeMap<&'static str, Vec<Duration>>,
}

impl Times {
    pub(super) fn note(&mut self, change: &'static str, took: Duration) {
        self.taken.entry(change).or_default().push(took);
    }

    /// A row for each kind of change, and one for all.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{:<72}{:>4}{:>9}{:>9}\n",
            "from the change in Kubernetes to the committed domain", "n", "p50 ms", "max ms"
        );
        let mut all = Vec::new();
        for (change, taken) in &self.taken {
            row(&mut text, change, taken.clone());
            all.extend(taken.iter().copied());
        }
        row(&mut text, "all", all);
        text
    }
}

fn row(text: &mut String, change: &str, mut taken: Vec<Duration>) {
    taken.sort();
    let ms = |at: usize| taken.get(at).map_or(0.0, |took| took.as_secs_f64() * 1000.0);
    let (p50, max) = (ms(taken.len() / 2), ms(taken.len().saturating_sub(1)));
    let _ = writeln!(text, "{change:<72}{:>4}{p50:>9.1}{max:>9.1}", taken.len());
}

/// Looks out for a change of the store, from now on; gives the moment at which it was seen.
pub(super) fn look_out(
    instance: &Arc<Instance>,
    wanted: impl Fn(&Change) -> bool + Send + 'static,
) -> JoinHandle<Option<Instant>> {
    let mut bell = instance.bell();
    let mut seen = *bell.borrow_and_update();
    let instance = instance.clone();
    tokio::spawn(async move {
        loop {
            bell.changed().await.ok()?;
            let now = Instant::now();
            let found = instance.with(|store| {
                let mut changes = store.changes_since(seen).ok()?;
                let found = changes.any(&wanted);
                seen = store.version();
                Some(found)
            })?;
            if found {
                return Some(now);
            }
        }
    })
}

/// Waits until an agent shows `what` in the history of a subject, and says when that was.
pub(super) async fn shown(domain: &Domain, agent: &str, subject: &str, what: &str) -> Result<Instant, Error> {
    let began = Instant::now();
    loop {
        let answer = domain.text(agent, &format!("kaa/explain/{subject}")).await?;
        if answer.contains(what) {
            return Ok(Instant::now());
        }
        if began.elapsed() > PATIENCE {
            let what = format!("'{what}' in the history of {subject}");
            return Err(Error::Waited { what, last: answer });
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::Times;
    use std::time::Duration;

    #[test]
    fn the_table_has_a_row_for_each_change_and_one_for_all() {
        let mut times = Times::default();
        for ms in [9, 3, 6] {
            times.note("a claim is gone", Duration::from_millis(ms));
        }
        times.note("a pod is gone", Duration::from_millis(12));
        let table = times.table();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().rev().take(3).collect()).collect();
        assert_eq!(rows[1], ["9.0", "6.0", "3"], "{table}");
        assert_eq!(rows[3], ["12.0", "9.0", "4"], "{table}");
    }
}
