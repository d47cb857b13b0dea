//! Parses the command line, dispatches, and turns errors into exit codes.

fn main() {}
