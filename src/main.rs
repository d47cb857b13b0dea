//! Parses the command line, dispatches, and turns errors into exit codes.

use clap::{Parser, Subcommand};
use kaa::engine::{self, EngineArgs, InstallArgs, StandInArgs};
use std::process::ExitCode;

/// A Kubernetes-aware admin agent for distributed databases.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Engine(Box<EngineArgs>),
    Install(InstallArgs),
    #[command(hide = true)]
    StandIn(StandInArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("KAA_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match cli.verb {
        Verb::Engine(args) => engine::run(*args).await,
        Verb::Install(args) => engine::install::run(args).await,
        Verb::StandIn(args) => engine::stand_in::run(args).await,
    };
    let code = result.unwrap_or_else(|error| {
        eprintln!("kaa: {error}");
        error.exit_code()
    });
    // Exit codes are one byte wide, as the kernel has it.
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
