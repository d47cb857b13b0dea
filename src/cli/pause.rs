//! `kaa pause` and `kaa resume`: the resync removes nothing in between.

use super::Asking;
use super::api::Error;
use crate::http::PauseAnswer;
use axum::http::Method;
use clap::Args;
use serde_json::json;

/// `kaa pause`.
#[derive(Debug, Args)]
pub(super) struct Pause {
    /// The reason, recorded in the audit trail and shown by `kaa plan`
    #[arg(long = "reason", value_name = "WHY")]
    why: String,
    #[command(flatten)]
    asking: Asking,
}

/// `kaa resume`.
#[derive(Debug, Args)]
pub(super) struct Resume {
    #[command(flatten)]
    asking: Asking,
}

impl Pause {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = self.asking.api()?;
        let answer: PauseAnswer = api.change(Method::PUT, &["kaa", "pause"], Some(json!({"why": self.why}))).await?;
        Ok(self.asking.agent.print(&answer, text))
    }
}

impl Resume {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = self.asking.api()?;
        let answer: PauseAnswer = api.change(Method::DELETE, &["kaa", "pause"], None).await?;
        Ok(self.asking.agent.print(&answer, text))
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
