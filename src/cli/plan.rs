//! `kaa plan`: what the next resync pass would propose, now or after an operator scaled or deleted something.

use super::api::{Api, Error};
use super::{Agent, whatif};
use crate::http::{MembershipAnswer, PlanAnswer, WhatIfAnswer};
use clap::Args;
use kaa_core::resync::whatif::change::{Delete, Scale};
use std::fmt::Write as _;

/// `kaa plan`.
#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(flatten)]
    agent: Agent,
    /// Previews what scaling to N replicas would remove, once the surplus pods have exited: statefulset/NAME=N or
    /// deployment/NAME=N. Repeatable, also with --delete. Changes nothing
    #[arg(long, value_name = "KIND/NAME=N")]
    scale: Vec<Scale>,
    /// Previews what deleting this would remove: pvc/NAME or pod/NAME. Repeatable. Changes nothing
    #[arg(long, value_name = "KIND/NAME")]
    delete: Vec<Delete>,
}

impl Plan {
    pub(super) async fn run(self) -> Result<String, Error> {
        let (api, path) = (Api::new(&self.agent)?, ["kaa", "plan"]);
        let scale = self.scale.iter().map(|scale| ("scale", scale.to_string()));
        let delete = self.delete.iter().map(|delete| ("delete", delete.to_string()));
        let changes: Vec<(&str, String)> = scale.chain(delete).collect();
        if changes.is_empty() {
            let answer: PlanAnswer = api.get(&path, &[]).await?;
            return Ok(self.agent.print(&answer, plan));
        }
        let query: Vec<(&str, &str)> = changes.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer: WhatIfAnswer = api.get(&path, &query).await?;
        Ok(self.agent.print(&answer, whatif::what_if))
    }
}

/// The text of `kaa plan`.
pub(super) fn plan(answer: &PlanAnswer) -> String {
    let mut text = who_leads(answer) + "\n";
    if !answer.synced {
        text += "It has not listed all Kubernetes objects yet, so the plan is incomplete.\n";
    }
    for permission in &answer.missing_permissions {
        let _ = writeln!(text, "Missing permission: {permission}. Removals that need it are blocked.");
    }
    text += "\n";
    if answer.findings.is_empty() {
        text += if answer.waiting.is_empty() {
            "Nothing to propose: the domain matches Kubernetes.\n"
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
        text += &what_ends_it(&waiting.ends);
    }
    text += &membership(&answer.membership);
    if let Some(pass) = &answer.last_pass {
        let _ = writeln!(text, "\nThe last pass with something to do ended at {}:", pass.at);
        for line in &pass.lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn what_ends_it(ends: &str) -> String {
    format!("    what ends it: {}\n", ends.replace('`', ""))
}

/// Nothing where there is nothing to know.
fn membership(answer: &MembershipAnswer) -> String {
    if answer.warnings.is_empty() && answer.waiting.is_empty() {
        return String::new();
    }
    let voters = if answer.voters.is_empty() { "unknown".to_owned() } else { answer.voters.join(", ") };
    let mut text = format!("\nAdmin servers (membership epoch {}, voters: {voters}):\n", answer.epoch);
    for said in answer.waiting.iter().chain(&answer.warnings) {
        let subject = said.subject.as_ref().map_or(String::new(), |subject| format!("{subject}: "));
        let _ = writeln!(text, "  {subject}{}", said.reason);
        text += &said.ends.as_deref().map(what_ends_it).unwrap_or_default();
    }
    text
}

fn who_leads(answer: &PlanAnswer) -> String {
    let server = answer.server.as_deref().unwrap_or("This agent");
    let epoch = answer.epoch.map_or(String::new(), |epoch| format!(", epoch {epoch}"));
    match (&answer.resync_leader, answer.leading) {
        (_, true) => format!("{server} leads the resync{epoch}."),
        (Some(leader), false) => {
            format!("{server} does not lead the resync; {leader} does{epoch}. The following is what {server} sees.")
        }
        (None, false) => format!("{server} does not lead the resync and knows of no server that does."),
    }
}
