//! The wrapper alone: `kaa-engine sm|te ... -- COMMAND`, or `kaa engine sm|te ... -- COMMAND` by a link of that name.

use clap::Parser;
use kaa_engine::EngineArgs;
use std::process::ExitCode;

/// The wrapper of a database engine.
#[derive(Debug, Parser)]
#[command(name = "kaa-engine", version)]
struct Cli {
    #[command(flatten)]
    engine: EngineArgs,
}

fn main() -> ExitCode {
    if let Some(code) = kaa_engine::postgres::shim() {
        return code;
    }
    let words = std::env::args_os().enumerate().filter(|(place, word)| *place != 1 || word != "engine");
    kaa_engine::main(Cli::parse_from(words.map(|(_, word)| word)).engine)
}
