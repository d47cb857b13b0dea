//! The commands that run for long: the agent, the wrapper of an engine and what belongs to it. Their exit codes are their
//! own.

use crate::agent;
use crate::config::{AgentArgs, Config};
use crate::engine::{self, EngineArgs, InstallArgs, StandInArgs};
use crate::net::names;
use std::future::Future;
use std::io::IsTerminal;
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
    on_a_runtime(async {
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

/// Runs the wrapper of an engine.
pub fn engine(args: EngineArgs) -> ExitCode {
    if let Some(file) = &args.hosts_file {
        names::use_file(file.clone());
    }
    coded(engine::run(args))
}

/// Copies the executable.
pub fn install(args: InstallArgs) -> ExitCode {
    coded(engine::install::run(args))
}

/// Runs the stand-in for an engine.
pub fn stand_in(args: StandInArgs) -> ExitCode {
    coded(engine::stand_in::run(args))
}

fn coded(command: impl Future<Output = Result<i32, engine::Error>>) -> ExitCode {
    on_a_runtime(async {
        let code = command.await.unwrap_or_else(|error| {
            eprintln!("kaa: {error}");
            error.exit_code()
        });
        // Exit codes are one byte wide, as the kernel has it.
        ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
    })
}

/// Logs to stderr: for people on a terminal, as JSON elsewhere unless KAA_LOG_FORMAT says `text`.
fn on_a_runtime(command: impl Future<Output = ExitCode>) -> ExitCode {
    let filter = || tracing_subscriber::EnvFilter::try_from_env("KAA_LOG").unwrap_or_else(|_| DEFAULT_LOG.into());
    let text = match std::env::var("KAA_LOG_FORMAT").as_deref() {
        Ok("json") => false,
        Ok(_) => true,
        Err(_) => std::io::stderr().is_terminal(),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(std::io::stderr);
    if text {
        log.init()
    } else {
        log.json().flatten_event(true).init()
    }
    match tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => {
            eprintln!("kaa: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The libraries log each refusal of the API server besides our own line for each change; Raft tells every step, and of a
/// server that is away every heartbeat: `peers` says once that it is, and once that it is back.
const DEFAULT_LOG: &str = "info,kube_runtime=off,kube_client=off,openraft=warn,openraft::core::heartbeat=error,\
                           openraft::replication=error,openraft::engine::handler::replication_handler=error";

/// Threads: what runs here waits for the network and the disk; more of them would only cost memory.
const WORKERS: usize = 2;
