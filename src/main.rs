//! Parses the command line, dispatches, and turns errors into exit codes.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    kaa::cli::Cli::parse().run()
}
