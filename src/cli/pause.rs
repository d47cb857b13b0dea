//! `kaa pause` and `kaa resume`: the resync takes nothing away in between.

use super::api::{Api, Error};
use super::{Agent, Writing};
use crate::http::PauseAnswer;
use axum::http::Method;
use clap::Args;
use serde_json::json;

/// `kaa pause`.
#[derive(Debug, Args)]
pub(super) struct Pause {
    /// Why, for whoever reads it later: it is kept in the audit trail, and shown wherever something waits for it
    #[arg(long, value_name = "WHY")]
    because: String,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    agent: Agent,
}

/// `kaa resume`.
#[derive(Debug, Args)]
pub(super) struct Resume {
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    agent: Agent,
}

impl Pause {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?.by(&self.writing);
        let answer: PauseAnswer =
            api.change(Method::PUT, &["kaa", "pause"], Some(json!({"why": self.because}))).await?;
        Ok(self.agent.print(&answer, text))
    }
}

impl Resume {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?.by(&self.writing);
        let answer: PauseAnswer = api.change(Method::DELETE, &["kaa", "pause"], None).await?;
        Ok(self.agent.print(&answer, text))
    }
}

/// Whether the resync is paused, as a line.
pub(super) fn text(answer: &PauseAnswer) -> String {
    let known = |text: &Option<String>| text.clone().unwrap_or_default();
    match (answer.paused, answer.since) {
        (true, Some(since)) => {
            format!("The resync is paused since {since} by {}: {}\n", known(&answer.by), known(&answer.why))
        }
        (true, None) => format!("The resync is paused by {}: {}\n", known(&answer.by), known(&answer.why)),
        (false, _) => "The resync is not paused.\n".to_owned(),
    }
}
