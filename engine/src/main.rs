//! The wrapper alone: `kaa-engine sm|te ... -- COMMAND`, or `kaa engine sm|te ... -- COMMAND` by a link of that name; and its probes,
//! `kaa-engine probe live|ready`, or `kaa probe live|ready`.

use clap::Parser;
use kaa_engine::EngineArgs;
use kaa_engine::probe::{self, ProbeArgs};
use std::process::ExitCode;

/// The wrapper of a database engine.
#[derive(Debug, Parser)]
#[command(name = "kaa-engine", version)]
struct Cli {
    #[command(flatten)]
    engine: EngineArgs,
}

/// The probes of a wrapper.
#[derive(Debug, Parser)]
#[command(name = "kaa-engine probe", version)]
struct Probe {
    #[command(flatten)]
    probe: ProbeArgs,
}

fn main() -> ExitCode {
    if let Some(code) = kaa_engine::postgres::shim() {
        return code;
    }
    let first = std::env::args_os().nth(1);
    let rest = |word: &str| {
        let drops = first.as_deref().is_some_and(|first| first == word);
        std::env::args_os().enumerate().filter(move |(place, _)| !(drops && *place == 1)).map(|(_, word)| word)
    };
    if first.as_deref().is_some_and(|first| first == "probe") {
        return probe::main(&Probe::parse_from(rest("probe")).probe);
    }
    kaa_engine::main(Cli::parse_from(rest("engine")).engine)
}
