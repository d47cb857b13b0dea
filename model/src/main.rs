//! Explores everything that can happen to the membership of an admin StatefulSet, with the decisions of kaa-core: first
//! under the protocol as it is, then with one safeguard removed at a time, where some property must fail.
//!
//! `model.rs` says where each rule is, `check.rs` prints the results.

mod cases;
mod check;
mod decide;
mod log;
mod model;
mod mutations;
mod possible;
mod progress;
mod rules;
mod state;
mod step;
mod trace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: kaa-membership-model check [--all] [TEXT]

Explores the protocol of docs/membership.md, and prints a row for each case and each safeguard that is taken out.
  --all   the large ones too (many minutes and a few GB), and of each mutation the shortest run that goes wrong
  TEXT    only rows whose name contains it, with those runs

Exit status: 0 if every row came out as expected, 1 if one did not, 2 if this was not understood or no row is of that name.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["check"] => check::run(false, ""),
        ["check", "--all"] => check::run(true, ""),
        ["check", "--all", text] => check::run(true, text),
        ["check", text] if !text.starts_with('-') => check::run(false, text),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        check::Outcome::AsExpected => ExitCode::SUCCESS,
        check::Outcome::Unexpected(rows) => {
            eprintln!("\nnot as expected: {rows}");
            ExitCode::FAILURE
        }
        check::Outcome::NoRow => {
            eprintln!("no row is of that name");
            ExitCode::from(2)
        }
    }
}
