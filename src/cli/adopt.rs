//! `kaa adopt`: a person's word that the domain belongs to this Kubernetes from now on.

use super::api::{Api, Error};
use super::{Agent, Writing};
use crate::http::AdoptAnswer;
use axum::http::Method;
use clap::Args;
use serde_json::json;

/// `kaa adopt`.
#[derive(Debug, Args)]
pub(super) struct Adopt {
    /// Why, for whoever reads it later: it is kept in the audit trail
    #[arg(long, value_name = "WHY")]
    because: String,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    agent: Agent,
}

impl Adopt {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?.by(&self.writing);
        let answer: AdoptAnswer =
            api.change(Method::POST, &["kaa", "adopt"], Some(json!({"why": self.because}))).await?;
        Ok(self.agent.print(&answer, text))
    }
}

fn text(answer: &AdoptAnswer) -> String {
    let AdoptAnswer { before, anchor } = answer;
    if before == anchor {
        return format!("The domain belongs to this Kubernetes already (anchor {anchor}).\n");
    }
    format!("The domain belongs to this Kubernetes now (anchor {anchor} instead of {before}).\n")
}
