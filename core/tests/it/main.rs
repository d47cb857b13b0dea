//! Readable cases: each file of `tests/data` is a script of what Kubernetes, engines and people do, with what the domain
//! answers and the next pass would propose. `UPDATE=1 cargo test -p kaa-core` rewrites the answers.

#![allow(clippy::unwrap_used, reason = "a test's panic is its verdict")]

mod faults;
mod membership;
mod overrule;
mod recover;
mod script;
mod sequences;
mod set_aside;
mod stating;

use std::path::Path;

#[test]
fn every_case_comes_out_as_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "the cases are missing");
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let answered = script::run(&text);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &answered).unwrap();
        } else if answered != text {
            let lines = text.lines().zip(answered.lines()).enumerate();
            let first = lines.into_iter().find(|(_, (written, got))| written != got);
            wrong.push(format!("{}: {first:?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "came out otherwise (UPDATE=1 rewrites):\n{}", wrong.join("\n"));
}
