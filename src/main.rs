//! Parses the command line, dispatches, and turns errors into exit codes.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The wrapper starts PostgreSQL by way of this program.
    if let Some(code) = kaa_engine::postgres::shim() {
        return code;
    }
    kaa::cli::Cli::parse().run()
}
