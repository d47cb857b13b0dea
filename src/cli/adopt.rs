//! `kaa adopt`: an operator states that the domain belongs to this Kubernetes from now on.

use super::api::Error;
use super::{Asking, Reason};
use crate::http::AdoptAnswer;
use axum::http::Method;
use clap::Args;
use serde_json::json;

/// `kaa adopt`.
#[derive(Debug, Args)]
pub(super) struct Adopt {
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

impl Adopt {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = self.asking.api()?;
        let answer: AdoptAnswer =
            api.change(Method::POST, &["kaa", "adopt"], Some(json!({"why": self.reason.why}))).await?;
        Ok(self.asking.agent.print(&answer, text))
    }
}

fn text(answer: &AdoptAnswer) -> String {
    let AdoptAnswer { before, anchor } = answer;
    if before == anchor {
        return format!("The domain is anchored to this cluster already (anchor {anchor}).\n");
    }
    format!("The domain is anchored to this cluster now (anchor {anchor}, before: {before}).\n")
}
