//! `kaa pod-token`: prints the credentials for an operator who may exec into the agent's pod and calls the API over a
//! forwarded port.

use crate::auth::pod_token::{self, Error};
use clap::Args;
use std::path::PathBuf;

/// `kaa pod-token`.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The agent's --pod-token-file
    #[arg(long, env = "KAA_POD_TOKEN_FILE", value_name = "FILE")]
    pod_token_file: PathBuf,
}

impl Show {
    /// `pod:TOKEN`.
    pub(super) fn run(&self) -> Result<String, Error> {
        Ok(pod_token::read(&self.pod_token_file)? + "\n")
    }
}
