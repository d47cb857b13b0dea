//! The report of a failing test, short enough for the last lines of an output; a file has the whole report.

use std::cell::RefCell;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// How many lines of the reason are shown.
const WHY_LINES: usize = 6;
/// How many lines of the state are shown.
const STATE_LINES: usize = 8;
/// How many of the last lines of each log are shown.
const LOG_LINES: usize = 3;
/// How many characters of a line are shown.
const WIDTH: usize = 200;
/// A log line that `kaa show domain` and `nuocmd` cause, without information.
const NOISE: &str = "a client asked to log this";

thread_local! {
    static WHY: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on a report can say why its test panicked, below whatever backtrace is printed.
pub fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let at = panic.location().map(ToString::to_string).unwrap_or_default();
            let why = panic.payload_as_str().unwrap_or_default();
            WHY.with_borrow_mut(|kept| *kept = format!("{why}\nat {at}"));
            usual(panic);
        }));
    });
}

/// Why the test of this thread panicked.
pub fn why() -> String {
    WHY.with_borrow(Clone::clone)
}

/// The facts about a failed test.
#[derive(Debug, Default)]
pub struct Report {
    /// The whole name of the test, as its runner gives it.
    pub test: String,
    /// Why it failed.
    pub why: String,
    /// The environment variables with which the test repeats the run, such as `KAA_SEED=7`.
    pub environment: String,
    /// The last state that was seen.
    pub state: String,
    /// The name and text of each relevant log.
    pub logs: Vec<(String, String)>,
}

/// The whole name of the test that runs in this thread.
pub fn test_name() -> String {
    std::thread::current().name().unwrap_or("main").to_owned()
}

fn cut(line: &str) -> String {
    line.chars().take(WIDTH).collect()
}

fn last(text: &str, lines: usize) -> impl Iterator<Item = &str> {
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty() && !line.contains(NOISE)).collect();
    let from = all.len().saturating_sub(lines);
    all.into_iter().skip(from)
}

impl Report {
    /// The command that runs the test again.
    pub fn command(&self) -> String {
        let space = if self.environment.is_empty() { "" } else { " " };
        format!(
            "{}{space}cargo test -p kaa --test it -- --include-ignored --nocapture --exact {}",
            self.environment, self.test
        )
    }

    /// Writes the whole report to a file below a directory, and returns the short one: about 30 lines at most.
    pub fn shown(&self, directory: &Path) -> String {
        let file = directory.join(format!("{}.txt", self.test.replace("::", ".")));
        let kept = self.keep(&file).map_or_else(|error| format!("not kept: {error}"), |()| file.display().to_string());
        let mut text = format!("--- {} failed\n", self.test);
        let shown = self.why.lines().take(WHY_LINES);
        // The place of the panic.
        let at = self.why.lines().skip(WHY_LINES).last();
        for line in shown.chain(at) {
            let _ = writeln!(text, "{}", cut(line));
        }
        for line in self.state.lines().filter(|line| !line.trim().is_empty()).take(STATE_LINES) {
            let _ = writeln!(text, "  {}", cut(line));
        }
        for (name, log) in &self.logs {
            let _ = writeln!(text, "  {name}:");
            for line in last(log, LOG_LINES) {
                let _ = writeln!(text, "    {}", cut(line));
            }
        }
        let _ = writeln!(text, "  all of it: {kept}\n  again: {}", self.command());
        text
    }

    fn keep(&self, file: &Path) -> std::io::Result<()> {
        let mut text = format!("{}\n{}\n{}\n", self.command(), self.why, self.state);
        for (name, log) in &self.logs {
            let _ = writeln!(text, "--- {name}\n{log}");
        }
        std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(file, text)
    }
}

/// The directory of the reports: below `target/` of the workspace.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("failures")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_ends_with_the_command_and_is_short() {
        let long = (0..100).map(|number| format!("line {number}\n")).collect::<String>();
        let logs = (0..3).map(|server| (format!("kaa-admin-{server}"), long.clone())).collect();
        let (test, environment) = ("area::real::case".to_owned(), "KAA_SEED=7".to_owned());
        let report = Report { test, environment, why: long.clone(), state: long.clone(), logs };
        let directory = std::env::temp_dir().join(format!("testkit-report-{}", std::process::id()));
        let shown = report.shown(&directory);
        assert!(shown.lines().count() <= 32, "{shown}");
        let again =
            "again: KAA_SEED=7 cargo test -p kaa --test it -- --include-ignored --nocapture --exact area::real::case\n";
        assert!(shown.ends_with(again), "{shown}");
        assert!(shown.contains("    line 99\n") && !shown.contains("    line 96\n"), "{shown}");
        let kept = std::fs::read_to_string(directory.join("area.real.case.txt")).unwrap();
        assert_eq!(kept.matches("line 50\n").count(), 5);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
