//! The important style rules, as a test: code drifts from rules that are written down and not checked.

use std::path::{Path, PathBuf};

/// A file that is longer holds more than one thing.
const FILE_LINES: usize = 500;
/// A function that is longer does more than one thing.
const FUNCTION_LINES: usize = 70;

/// Each module may use the modules of its own row and of the rows above. All may use `metrics`, `clock`, `failpoints`,
/// `net`, `pace`, `proto` and `certificates`.
const LAYERS: [&[&str]; 8] = [
    &["clock", "failpoints", "net", "pace", "proto", "metrics", "certificates"],
    &["raft", "kubernetes", "install", "stand_in"],
    &["auth", "http"],
    &["config"],
    &["agent"],
    &["demo"],
    &["cli"],
    &["main", "lib"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below the directories, with its path from the root.
fn files(directories: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut ahead: Vec<PathBuf> = directories.iter().map(|directory| root().join(directory)).collect();
    while let Some(path) = ahead.pop() {
        if path.is_dir() {
            ahead.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    assert!(found.len() > 10, "no files in {directories:?}");
    found
}

fn is_test(name: &str) -> bool {
    name.contains("/tests") || name.contains("fake")
}

/// The part of a file before its tests.
fn code(text: &str) -> &str {
    text.split("\n#[cfg(test)]").next().unwrap_or_default()
}

#[test]
fn files_are_short_and_named_for_what_they_hold() {
    let mut wrong = Vec::new();
    for (name, text) in files(&["src", "core/src", "engine/src", "embedded/src", "model/src"]) {
        let lines = code(&text).lines().count();
        if lines > FILE_LINES && !is_test(&name) {
            wrong.push(format!("{name}: {lines} lines, more than {FILE_LINES}"));
        }
        let stem = Path::new(&name).file_stem().unwrap().to_string_lossy().into_owned();
        if ["mod", "util", "utils", "helper", "helpers", "common", "misc"].contains(&stem.as_str()) {
            wrong.push(format!("{name}: name it for what it holds"));
        }
        if !text.starts_with("//!") {
            wrong.push(format!("{name}: begins without saying what it is for"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The functions and methods of a file with more than `most` lines: the first line's number, the first line, and the
/// number of lines.
fn long_functions(text: &str, most: usize) -> Vec<(usize, String, usize)> {
    let mut long = Vec::new();
    let mut began: Option<(usize, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let (indent, words) = (line.len() - line.trim_start().len(), line.trim());
        let begins = words.contains("fn ") && !words.starts_with("//") && !words.ends_with([';', '}']);
        match &began {
            None if begins => began = Some((number, indent, words.to_owned())),
            Some((first, at, signature)) if indent == *at && words == "}" => {
                let lines = number - first + 1;
                if lines > most {
                    long.push((first + 1, signature.clone(), lines));
                }
                began = None;
            }
            // A signature without a body, over several lines.
            Some((_, at, _)) if indent <= *at && words.ends_with(';') => began = None,
            _ => {}
        }
    }
    long
}

#[test]
fn functions_are_short() {
    let mut wrong = Vec::new();
    for (name, text) in files(&["src", "core/src", "engine/src", "embedded/src", "model/src"]) {
        for (line, signature, lines) in long_functions(&text, FUNCTION_LINES) {
            wrong.push(format!("{name}:{line}: {signature} has {lines} lines"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_long_function_is_found_wherever_it_stands() {
    let text =
        "fn short() {\n}\n\nimpl X {\n    fn one_line() {}\n\n    fn long() {\n        a;\n        b;\n    }\n}\n";
    assert_eq!(long_functions(text, 3), [(7, "fn long() {".to_owned(), 4)]);
}

/// How many signatures in `src/agent` take everything that an agent shares. A function that takes only what it needs
/// can be tested.
const TAKES_ALL_OF_THE_AGENT: usize = 72;
/// The number of fields of the mailbox between the agent's code and Raft's.
const FIELDS_OF_THE_HOST: usize = 13;

#[test]
fn what_knows_everything_does_not_grow() {
    let agent = files(&["src/agent.rs", "src/agent"]).into_iter().filter(|(name, _)| !is_test(name));
    let takes = |text: &str| [": &Shared", ": Arc<Shared>", ": &Arc<Shared>"].map(|it| code(text).matches(it).count());
    let taken: usize = agent.flat_map(|(_, text)| takes(&text)).sum();
    assert_eq!(taken, TAKES_ALL_OF_THE_AGENT, "lower the number where it fell; where it rose, take what is needed");
    let server = std::fs::read_to_string(root().join("src/raft/server.rs")).unwrap();
    let host = server.split("\nstruct Shared {\n").nth(1).unwrap().split("\n}").next().unwrap();
    assert_eq!(host.lines().count(), FIELDS_OF_THE_HOST, "lower the number where it fell; add no field");
}

#[test]
fn imports_point_one_way() {
    let layer = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let mut wrong = Vec::new();
    for (name, text) in files(&["src"]) {
        let module = name.trim_start_matches("src/").split(['/', '.']).next().unwrap().to_owned();
        let own = layer(&module).unwrap_or_else(|| panic!("{name}: module {module} has no layer"));
        for line in code(&text).lines().filter(|line| !line.trim_start().starts_with("//")) {
            for used in line.split("crate::").skip(1) {
                let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                if layer(used).is_some_and(|layer| layer > own) {
                    wrong.push(format!("{name}: {module} uses {used}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_is_pure() {
    let manifest = std::fs::read_to_string(root().join("core/Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let names: Vec<&str> = dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty() && !name.starts_with('#')).collect();
    assert_eq!(names, ["serde", "strum", "thiserror"], "what decides must not be able to wait, listen or read a clock");
    for (name, text) in files(&["core/src"]) {
        for banned in ["async fn", ".await", "std::time", "std::thread", "std::net", "std::fs", "std::env", "HashMap"] {
            assert!(!code(&text).contains(banned), "{name}: the core does without {banned}");
        }
    }
}

/// Code that a simulation steps must not wait, listen or read a clock either.
#[test]
fn the_core_of_the_embedded_kubernetes_is_pure() {
    let shell = ["instance", "kubelet", "runtime", "server", "bin"];
    for (name, text) in files(&["embedded/src"]) {
        let module = name.trim_start_matches("embedded/src/").split(['/', '.']).next().unwrap();
        if shell.contains(&module) || is_test(&name) {
            continue;
        }
        for banned in ["async fn", ".await", "std::time", "std::thread", "std::net", "std::fs", "env::var", "HashMap"] {
            assert!(!code(&text).contains(banned), "{name}: only {shell:?} may use {banned}");
        }
    }
}

/// The number of lines of the embedded Kubernetes without its tests. Its purpose is that tests run against it: the
/// number rises only in a commit that names the need.
const EMBEDDED_LINES: usize = 12_261;

#[test]
fn the_embedded_kubernetes_does_not_grow() {
    let sources = files(&["embedded/src"]).into_iter().filter(|(name, _)| !is_test(name));
    let lines: usize = sources.map(|(_, text)| code(&text).lines().count()).sum();
    assert_eq!(lines, EMBEDDED_LINES, "lower the number where it fell; where it rose, the commit names the need");
}

#[test]
fn nothing_is_left_undone() {
    let mut wrong = Vec::new();
    for (name, text) in files(&["src", "core/src", "engine/src", "embedded/src", "model/src"]) {
        for (number, line) in code(&text).lines().enumerate() {
            for banned in ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
                if line.contains(banned) && !is_test(&name) {
                    wrong.push(format!("{name}:{}: {banned}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Words for which `GLOSSARY.md` has a better one. CHANGELOG is not checked, because it names what was renamed.
const WORDS: [&str; 30] = [
    "anew",
    "for ever",
    "take away",
    "takes away",
    "taken away",
    "took away",
    "taking away",
    "a person",
    "set aside",
    "sets aside",
    "set-aside",
    "befall",
    "befell",
    "the right to",
    "whoever",
    "whomever",
    "nobody",
    "somebody",
    "overrule",
    "overruled",
    "is looked",
    "are looked",
    "is waited",
    "are waited",
    "be waited",
    "it is said",
    "goes on",
    "go on",
    "going on",
    "went on",
];

#[test]
fn the_words_are_those_of_the_glossary() {
    let mut texts = files(&["src", "core/src", "engine/src", "embedded/src", "model/src", "benches"]);
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain(["README.md", "ARCHITECTURE.md"].map(|page| root().join(page)));
    let pages = pages.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    texts.extend(pages.map(|page| (page.display().to_string(), std::fs::read_to_string(page).unwrap())));
    assert!(texts.iter().any(|(name, _)| name.ends_with("docs/reference.md")), "the documents are not where they were");
    let mut wrong = Vec::new();
    for (name, text) in &texts {
        for (number, line) in text.lines().enumerate() {
            let letters = |it: char| if it.is_alphanumeric() || it == '-' { it } else { ' ' };
            let line = format!(" {} ", line.to_lowercase().replace(|it: char| letters(it) == ' ', " "));
            let banned = WORDS.iter().filter(|word| line.contains(&format!(" {word} ")));
            wrong.extend(banned.map(|word| format!("{name}:{}: {word}", number + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Mutants run only in `.ci/long` (`tests/mutants/run`). This test finds one that no longer applies.
#[test]
fn every_mutant_still_applies() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("tests/mutants")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "mutant") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, changes) = text.split_once("\nfile: ").expect("test, file");
        assert!(head.starts_with("test: "), "{}", path.display());
        for change in changes.split("\nfile: ") {
            let (file, change) = change.split_once("\n--- old\n").expect("file, --- old");
            let (old, new) = change.split_once("\n+++ new\n").expect("old, +++ new");
            let times = std::fs::read_to_string(root().join(file)).unwrap().matches(old).count();
            if times != 1 || old == new.trim_end_matches('\n') {
                wrong.push(format!("{}: its old text stands {times} times in {file}", path.display()));
            }
        }
    }
    assert!(count >= 12, "the mutants are missing");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An alert names the section of the page that says what to do.
#[test]
fn every_alert_has_its_section() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (rules, page) = (read("manifests/alerts/postgres-rules.yaml"), read("docs/postgres-alerts.md"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## Kaa")).collect();
    assert!(alerts.len() > 8 && alerts.len() == sections.len(), "{alerts:?} {sections:?}");
    for alert in alerts {
        let link = format!("runbook_page: \"docs/postgres-alerts.md#{}\"", alert.to_lowercase());
        assert!(
            page.contains(&format!("\n## {alert}\n")) && rules.contains(&link),
            "{alert} has no section, or no link to it"
        );
    }
}
