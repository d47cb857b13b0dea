//! `kaa drain`: a server gets ready to end.

use super::Asking;
use super::api::Error;
use crate::http::DrainAnswer;
use axum::http::Method;
use clap::Args;

/// `kaa drain`.
#[derive(Debug, Args)]
pub(super) struct Drain {
    #[command(flatten)]
    asking: Asking,
}

impl Drain {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = self.asking.api()?.patient();
        let answer: DrainAnswer = api.change(Method::POST, &["kaa", "drain"], None).await?;
        Ok(self.asking.agent.print(&answer, text))
    }
}

fn text(answer: &DrainAnswer) -> String {
    let leads =
        answer.leader.as_ref().map_or_else(|| "no leader is known".to_owned(), |leader| format!("{leader} leads"));
    format!("{}; {leads}.\n", answer.message)
}
