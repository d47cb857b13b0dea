//! Explores everything that can happen to the membership of an admin StatefulSet, and to the replication of a database with
//! one primary, with the decisions of kaa-core: first under the protocol as it is, then with one safeguard removed at a
//! time, where some property must fail.
//!
//! `membership/model.rs` and `replication/model.rs` say where each rule is, `check.rs` prints the results.

mod check;
mod membership;
mod replication;

use check::Rows;
use std::process::ExitCode;

const USAGE: &str = "\
usage: kaa-model check [--all] [TEXT]

Explores the protocols of docs/membership.md and docs/replication.md, and prints a row for each case and each safeguard that is
taken out.
  --all   the large ones too (many minutes and a few GB), and of each mutation the shortest run that goes wrong
  TEXT    only rows whose name contains it, with those runs

Exit status: 0 if every row came out as expected, 1 if one did not, 2 if this was not understood or no row is of that name.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (all, text) = match words.as_slice() {
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["check"] => (false, ""),
        ["check", "--all"] => (true, ""),
        ["check", "--all", text] => (true, *text),
        ["check", text] if !text.starts_with('-') => (false, *text),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut rows = Rows::default();
    let membership = (membership::cases(), membership::mutations());
    rows += check::run("the membership protocol", membership, all, text);
    let replication = (replication::cases(), replication::mutations());
    rows += check::run("the replication protocol", replication, all, text);
    match rows {
        Rows { all: 0, .. } => {
            eprintln!("no row is of that name");
            ExitCode::from(2)
        }
        Rows { unexpected: 0, .. } => ExitCode::SUCCESS,
        Rows { unexpected, .. } => {
            eprintln!("\nnot as expected: {unexpected}");
            ExitCode::FAILURE
        }
    }
}
