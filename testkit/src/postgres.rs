//! The PostgreSQL that tests run on.

use std::io::Write;
use std::path::PathBuf;

/// The directory of PostgreSQL's programs: `KAA_POSTGRES_BIN`, or the newest in `/usr/lib/postgresql`, where Debian has them.
///
/// `None` if there is none: the test says so on the terminal and does not run. Where `KAA_REQUIRE_POSTGRES` is set, as in
/// `.ci/run`, that is a failure.
pub fn postgres() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("KAA_POSTGRES_BIN") {
        return Some(path.into());
    }
    let majors = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
    let majors = majors.filter(|path| path.join("bin/postgres").exists());
    let major = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    if let Some(newest) = majors.max_by_key(major) {
        return Some(newest.join("bin"));
    }
    not_run(
        "no PostgreSQL in /usr/lib/postgresql: install the package postgresql-15, or name a directory in KAA_POSTGRES_BIN",
    );
    None
}

/// Says on the terminal that the calling test does not run, and why.
///
/// # Panics
/// Where `KAA_REQUIRE_POSTGRES` is set.
pub fn not_run(why: &str) {
    assert!(std::env::var_os("KAA_REQUIRE_POSTGRES").is_none(), "{why}");
    // Not by a macro: the harness hides what these print of tests that pass.
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    writeln!(std::io::stderr(), "NOT RUN: {name}: {why}").expect("a terminal");
}
