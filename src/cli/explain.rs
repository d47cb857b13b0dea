//! `kaa explain`: what a thing is, and how it came to be so.

use super::Agent;
use super::api::{Api, Error};
use crate::http::Explanation;
use clap::Args;
use kaa_core::domain::audit::Subject;
use std::fmt::Write as _;

/// `kaa explain`.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// archive/1, process/3, server/admin-0, database/demo, resync/CLUSTER, value/KEY, load-balancer/ENTRY, or domain
    subject: Subject,
    #[command(flatten)]
    agent: Agent,
}

impl Explain {
    pub(super) async fn run(self) -> Result<String, Error> {
        let subject = self.subject.to_string();
        let mut path = vec!["kaa", "explain"];
        path.extend(subject.splitn(2, '/'));
        let answer: Explanation = Api::new(&self.agent)?.get(&path, &[]).await?;
        Ok(self.agent.print(&answer, explanation))
    }
}

/// The text of `kaa explain`.
pub(super) fn explanation(answer: &Explanation) -> String {
    let mut text = format!("{}: {}\n", answer.subject, answer.state.as_deref().unwrap_or("is gone"));
    if !answer.waiting.is_empty() {
        text += "\nWaiting for:\n";
    }
    for waiting in &answer.waiting {
        let _ = writeln!(text, "  {waiting}");
    }
    if let (1.., Some(since)) = (answer.dropped, answer.kept_since) {
        let _ = writeln!(text, "\nRecords from before {since} have been deleted ({}).", answer.dropped);
    }
    for change in &answer.history {
        let _ = writeln!(text, "\n{} [{}] {}\n  {}", change.at, change.index, change.actor, change.what);
        if !change.evidence.is_empty() {
            let read = change.read_at.map_or(String::new(), |at| format!(", read {at}"));
            let _ = writeln!(text, "  on the evidence{read}:");
        }
        for fact in &change.evidence {
            let _ = writeln!(text, "    {fact}");
        }
    }
    text
}
