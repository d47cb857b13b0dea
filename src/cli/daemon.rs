//! The agent, and what brings the wrapper and the stand-in of an engine. Their exit codes are their own.

use crate::agent;
use crate::config::{AgentArgs, Config};
use crate::install::{self, InstallArgs};
use crate::stand_in::{self, StandInArgs};
use kaa_engine::{names, process};
use std::process::ExitCode;

/// Runs the agent of an admin pod.
pub fn agent(args: AgentArgs) -> ExitCode {
    if let Some(file) = &args.hosts_file {
        names::use_file(file.clone());
    }
    let config = match Config::new(args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("kaa: {error}");
            return ExitCode::from(USAGE);
        }
    };
    process::run(DEFAULT_LOG, async {
        match agent::run(config).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error:#}");
                ExitCode::FAILURE
            }
        }
    })
}

/// Arguments that parse and mean nothing: as those that do not parse.
const USAGE: u8 = 2;

/// Copies the executable.
pub fn install(args: InstallArgs) -> ExitCode {
    process::coded(DEFAULT_LOG, install::run(args), install::Error::exit_code)
}

/// Runs the stand-in for an engine.
pub fn stand_in(args: StandInArgs) -> ExitCode {
    process::coded(DEFAULT_LOG, stand_in::run(args), stand_in::Error::exit_code)
}

/// The libraries log each refusal of the API server besides our own line for each change; Raft tells every step, and of a
/// server that is away every heartbeat: `peers` says once that it is, and once that it is back.
const DEFAULT_LOG: &str = "info,kube_runtime=off,kube_client=off,openraft=warn,openraft::core::heartbeat=error,\
                           openraft::replication=error,openraft::engine::handler::replication_handler=error";
