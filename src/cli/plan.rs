//! `kaa plan`: what the next resync pass would propose.

use super::Agent;
use super::api::{Api, Error};
use crate::http::PlanAnswer;
use clap::Args;
use std::fmt::Write as _;

/// `kaa plan`.
#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(flatten)]
    agent: Agent,
}

impl Plan {
    pub(super) async fn run(self) -> Result<String, Error> {
        let answer: PlanAnswer = Api::new(&self.agent)?.get(&["kaa", "plan"], &[]).await?;
        Ok(self.agent.print(&answer, plan))
    }
}

/// The text of `kaa plan`.
pub(super) fn plan(answer: &PlanAnswer) -> String {
    let mut text = who_leads(answer) + "\n";
    if !answer.synced {
        text += "It has not listed Kubernetes completely yet, so the plan is not complete either.\n";
    }
    text += "\n";
    if answer.findings.is_empty() {
        text += if answer.waiting.is_empty() {
            "Nothing to propose: the domain says what Kubernetes says.\n"
        } else {
            "Nothing to propose.\n"
        };
    } else {
        text += if answer.leading { "The next pass proposes:\n" } else { "It would propose:\n" };
    }
    for finding in &answer.findings {
        let _ = writeln!(text, "  {}: {}", finding.subject, finding.proposal);
        if !finding.reads.is_empty() {
            let _ = writeln!(text, "    if a fresh read proves it: {}", finding.reads.join(", "));
        }
    }
    if !answer.waiting.is_empty() {
        text += "\nNot proposed:\n";
    }
    for waiting in &answer.waiting {
        let _ = writeln!(text, "  {}: {}", waiting.subject, waiting.reason);
    }
    if let Some(pass) = &answer.last_pass {
        let _ = writeln!(text, "\nThe last pass ended at {}:", pass.at);
        if pass.lines.is_empty() {
            text += "  nothing to do\n";
        }
        for line in &pass.lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn who_leads(answer: &PlanAnswer) -> String {
    let server = answer.server.as_deref().unwrap_or("This agent");
    let epoch = answer.epoch.map_or(String::new(), |epoch| format!(", epoch {epoch}"));
    match (&answer.resync_leader, answer.leading) {
        (_, true) => format!("{server} leads the resync{epoch}."),
        (Some(leader), false) => {
            format!("{server} does not lead the resync; {leader} does{epoch}. What follows is what {server} sees.")
        }
        (None, false) => format!("{server} does not lead the resync, and it knows of nobody who does."),
    }
}
