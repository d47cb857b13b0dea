//! `kaa recover`: an operator states that the group may continue without what only lost servers hold.

use super::api::Error;
use super::{Asking, Format, prompt};
use crate::http::{RecoverAnswer, RecoverServer, Retired};
use axum::http::Method;
use clap::Args;
use kaa_core::membership::retired::{NoPlace, Place};
use serde_json::json;
use std::fmt::Write as _;

/// `kaa recover`.
#[derive(Debug, Args)]
pub(super) struct Recover {
    /// Shows which server would found the next epoch, what may be lost, which pods must be deleted first, and the retired logs.
    /// Changes nothing
    #[arg(long, required_unless_present = "accept_data_loss", conflicts_with_all = ["accept_data_loss", "yes"])]
    dry_run: bool,
    /// Shows the same, asks for the domain's name as confirmation, and starts the new epoch. Entries that only lost servers
    /// hold are lost for good
    #[arg(long)]
    accept_data_loss: bool,
    /// Founds the next epoch from a retired log of an earlier epoch, named as --dry-run lists it, if no server has a log of the
    /// current epoch
    #[arg(long, value_name = "SERVER/NAME", value_parser = place)]
    from_retired_log: Option<String>,
    /// Skips the confirmation
    #[arg(long, requires = "accept_data_loss")]
    yes: bool,
    #[command(flatten)]
    asking: Asking,
}

/// A malformed place is refused before any server is asked.
fn place(text: &str) -> Result<String, NoPlace> {
    text.parse::<Place>().map(|place| place.to_string())
}

impl Recover {
    pub(super) async fn run(self) -> Result<String, Error> {
        self.asking(prompt::line).await
    }

    /// The same; `typed` is what the operator types who is asked.
    pub(super) async fn asking(self, typed: impl FnOnce() -> std::io::Result<String>) -> Result<String, Error> {
        let api = self.asking.api()?.patient();
        let from = self.from_retired_log.as_deref();
        let named: Vec<_> = from.map(|place| ("fromRetiredLog", place)).into_iter().collect();
        let shown: RecoverAnswer = api.get(&["kaa", "recover"], &named).await?;
        if self.dry_run {
            return Ok(self.asking.agent.print(&shown, text));
        }
        if let Some(why) = &shown.refusal {
            return Err(Error::Refused(why.clone()));
        }
        if !self.yes {
            prompt::confirm(&text(&shown), "To give that up permanently", &shown.name, typed)?;
        } else if self.asking.agent.output == Format::Text {
            prompt::tell(&text(&shown))?;
        }
        let mut word = json!({"acceptDataLoss": true, "domain": shown.name});
        if let Some(place) = from {
            word["fromRetiredLog"] = json!(place);
        }
        let done: RecoverAnswer = api.change(Method::POST, &["kaa", "recover"], Some(word)).await?;
        Ok(self.asking.agent.print(&done, begun))
    }
}

/// What would be done.
pub(super) fn text(answer: &RecoverAnswer) -> String {
    let RecoverAnswer { name, domain, epoch, anchor_epoch, server, .. } = answer;
    let mut text = format!("Domain {name} ({domain}), epoch {epoch}, as {server} sees it:\n");
    let width = answer.servers.iter().map(|server| server.id.len()).max().unwrap_or_default();
    for server in &answer.servers {
        line(&mut text, &format!("  {:width$}  {}", server.id, log(server)));
    }
    if anchor_epoch != epoch {
        line(&mut text, &format!("The anchor names epoch {anchor_epoch}."));
    }
    if let Some(waits) = &answer.waits {
        line(&mut text, &format!("Raft does not run on {server}: {waits}"));
    }
    if let Some(why) = &answer.refusal {
        line(&mut text, &format!("Would be refused: {why}"));
    }
    if let (Some(founder), Some(lost)) = (&answer.founder, &answer.lost) {
        let log = answer.from_retired_log.as_deref().map_or("its log".to_owned(), |place| format!("the log {place}"));
        line(&mut text, &format!("Would continue: {founder}, with {log} up to entry {}", answer.last_index));
        line(&mut text, &format!("May be lost: {lost}"));
        if !answer.outside.is_empty() {
            let outside = answer.outside.join(", ");
            line(&mut text, &format!("Must end first, or follow the new epoch: the pods of {outside}"));
        }
    }
    if !answer.retired.is_empty() {
        line(&mut text, "Retired logs:");
        answer.retired.iter().for_each(|log| line(&mut text, &format!("  {}", retired(log, domain))));
    }
    answer
        .unlisted
        .iter()
        .for_each(|why| line(&mut text, &format!("The retired logs of some servers are unknown: {why}")));
    text
}

fn line(text: &mut String, line: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{line}");
}

fn log(server: &RecoverServer) -> String {
    let place = match (server.wanted, server.votes) {
        (true, true) => "wanted, votes",
        (true, false) => "wanted",
        (false, true) => "not wanted, votes",
        (false, false) => "not wanted",
    };
    if let Some(why) = &server.silent {
        return format!("{place}; {why}");
    }
    let RecoverServer { raft_id, epoch, last_term, last_index, .. } = server;
    let role = server.role.as_deref().unwrap_or(if server.sealed { "SEALED" } else { "not started" });
    format!("{place}; {role}, log {raft_id} of epoch {epoch} up to entry {last_index} of term {last_term}")
}

fn retired(log: &Retired, domain: &str) -> String {
    let Retired { server, name, epoch, raft_id, .. } = log;
    let extent = match (log.last_index, &log.unreadable) {
        (Some(0), _) => "empty".to_owned(),
        (Some(last), _) => format!("up to entry {last} of term {}", log.last_term.unwrap_or_default()),
        (None, Some(why)) => format!("cannot be read: {why}"),
        (None, None) => "its last entry is unknown".to_owned(),
    };
    let other = log.domain.as_deref().filter(|of| *of != domain);
    let other = other.map(|of| format!(", of another domain, {of}")).unwrap_or_default();
    format!("{server}/{name}: log {raft_id} of epoch {epoch}, {extent}{other}")
}

/// What was done.
fn begun(answer: &RecoverAnswer) -> String {
    let Some(epoch) = answer.begun else {
        // An older agent, or one that found nothing to do.
        return text(answer);
    };
    let (founder, lost) = (answer.founder.as_deref().unwrap_or(&answer.server), answer.lost.as_deref());
    let log =
        answer.from_retired_log.as_ref().map_or(format!("the log of {founder}"), |place| format!("the log {place}"));
    let mut text = format!("Epoch {epoch} begins with {log}, up to entry {}.\n", answer.last_index);
    line(&mut text, &format!("Lost: {}", lost.unwrap_or("unknown")));
    if !answer.outside.is_empty() {
        line(
            &mut text,
            &format!(
                "It is founded as soon as the old pods of {} are gone or follow it: kaa recover --dry-run says which are not.",
                answer.outside.join(", ")
            ),
        );
    }
    text
}
