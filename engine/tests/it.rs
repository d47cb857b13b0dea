//! The executable as it is called: by its own name, and by a link named `kaa` that accepts `engine`. And real database servers.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test's panic is its verdict")]

mod postgres {
    mod real;
}

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

fn called(path: &Path, words: &str) -> Output {
    Command::new(path).args(words.split_whitespace()).env_clear().output().expect("it runs")
}

#[test]
fn a_link_named_kaa_accepts_engine() {
    let wrapper = Path::new(env!("CARGO_BIN_EXE_kaa-engine"));
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("kaa");
    symlink(wrapper, &link).unwrap();
    let flags = "sm --agents 127.0.0.1 --plaintext --database db --namespace ns --pod p-0 --pod-uid u-0 -- true";
    for (path, words) in [(wrapper, flags.to_owned()), (&link, format!("engine {flags}"))] {
        let output = called(path, &words);
        let said = String::from_utf8_lossy(&output.stderr);
        // Before it registers: a storage manager without an archive.
        assert_eq!(Some(64), output.status.code(), "{said}");
        assert!(said.contains("--archive"), "{said}");
    }
    let output = called(&link, "engine --version");
    assert_eq!(format!("kaa-engine {}\n", env!("CARGO_PKG_VERSION")), String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_is_not_understood_is_named() {
    let output = called(Path::new(env!("CARGO_BIN_EXE_kaa-engine")), "plan");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(Some(2), output.status.code(), "{said}");
    assert!(said.contains("plan"), "{said}");
}
