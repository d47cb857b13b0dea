//! One conversation with a real Kubernetes and with the embedded one: after masking, the answers are equal, or
//! `differences.txt` says why they differ.
//!
//! `conversation/NN-TOPIC.txt` has the questions and the answers of a real Kubernetes (`script.rs` explains the
//! format). Each topic is independent of the others and has its own namespace:
//!
//! ```text
//! KUBECONFIG=... cargo test --test it -- --ignored transcript::topic::[TOPIC]    compares
//! UPDATE=1 KUBECONFIG=... cargo test ...                                  writes the answers down
//! TRANSCRIPT_OF=embedded KUBECONFIG=... cargo test ...                    with the embedded one: compares, and with
//!                                                                         UPDATE=1 rewrites differences.txt
//! ```
//! `KUBECTL` is the kubectl to use (1.33), `TRANSCRIPT_IMAGE` an image with a shell.

mod conversation;
mod differences;
mod fields;
mod kubernetes;
mod masks;
mod script;
mod watches;

use kubernetes::Kubernetes;
use script::Script;
use std::path::{Path, PathBuf};

/// How many requests the conversation must have at least.
const REQUESTS: usize = 80;

/// One test for each topic.
macro_rules! topics {
    ($($topic:ident)*) => {
        const TOPICS: &[&str] = &[$(stringify!($topic)),*];
        mod topic {
            use super::*;
            $(
                #[test]
                #[ignore = "needs a Kubernetes: tests/transcript/run DIR"]
                fn $topic() {
                    talk(stringify!($topic), &Kubernetes::of_environment());
                }
            )*
        }
    };
}

topics! {
    discovery
    objects
    apply
    patches
    conflicts
    lists
    watches
    leases
    deletions
    statefulsets
    parallel
    claims
    deployments
    rights
    pods
    lifecycles
    events
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcript/conversation")
}

/// The files of the conversation, in order.
fn scripts() -> Vec<(PathBuf, Script)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: PathBuf| match Script::read(&file) {
        Ok(script) => (file, script),
        Err(why) => panic!("{why}"),
    };
    files.into_iter().map(read).collect()
}

/// Runs a topic, and compares the answers or writes them to the file.
fn talk(topic: &str, kubernetes: &Kubernetes) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (file, script) = scripts().into_iter().find(|(_, script)| script.topic == topic).expect("a file of the topic");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let answers = runtime.block_on(conversation::converse(kubernetes, &script)).unwrap();
    let update = std::env::var_os("UPDATE").is_some();
    match (update, kubernetes.embedded) {
        (true, false) => std::fs::write(&file, script.with_answers(&answers)).unwrap(),
        (true, true) => differences::rewrite(&script, &answers).unwrap(),
        (false, _) => {
            let wrong = compare(&script, &answers, kubernetes.embedded);
            assert!(wrong.is_empty(), "{} of {} answers differ\n{}", wrong.len(), answers.len(), wrong.join("\n"));
        }
    }
}

/// The answers that differ from the file.
fn compare(script: &Script, answers: &[Vec<String>], embedded: bool) -> Vec<String> {
    let none = differences::Differences::new();
    differing(script, answers, &if embedded { differences::read().unwrap() } else { none })
}

fn differing(script: &Script, answers: &[Vec<String>], differences: &differences::Differences) -> Vec<String> {
    let mut wrong = Vec::new();
    for ((key, step), answer) in differences::names(script).into_iter().zip(&script.steps).zip(answers) {
        let listed = differences.get(&key);
        let expected = listed.map_or(&step.answer, |(_, answer)| answer);
        if listed.is_some() && *answer == step.answer {
            wrong.push(format!("{}\nno longer differs: take it out of differences.txt", key.1));
        } else if answer != expected {
            wrong.push(format!("{}\n- {}\n+ {}", key.1, expected.join("\n- "), answer.join("\n+ ")));
        }
    }
    wrong
}

#[test]
fn the_conversation_is_long_enough_and_every_topic_is_a_test() {
    let scripts = scripts();
    let topics: Vec<&str> = scripts.iter().map(|(_, script)| script.topic.as_str()).collect();
    assert_eq!(topics, TOPICS, "the topics of main.rs, in the order of the files");
    let requests: usize = scripts.iter().map(|(_, script)| script.requests()).sum();
    println!("{requests} requests in {} topics", topics.len());
    assert!(requests >= REQUESTS, "{requests} requests");
}

#[test]
fn an_answer_is_as_written_down_or_as_listed() {
    let script = Script::parse("t".to_owned(), "$ kubectl version\n  v1\n").unwrap();
    let [real, small] = ["v1", "v0"].map(|answer| vec![vec![answer.to_owned()]]);
    let listed = differences::parse("## t: $ kubectl version\nbecause: it is small\n  v0\n").unwrap();
    let none = differences::Differences::new();
    assert!(differing(&script, &real, &none).is_empty());
    assert!(differing(&script, &small, &listed).is_empty());
    assert_eq!(differing(&script, &small, &none), ["$ kubectl version\n- v1\n+ v0"]);
    let rotten = "$ kubectl version\nno longer differs: take it out of differences.txt";
    assert_eq!(differing(&script, &real, &listed), [rotten]);
}

#[test]
fn every_difference_names_a_request_and_a_reason() {
    let scripts: Vec<Script> = scripts().into_iter().map(|(_, script)| script).collect();
    let wrong = differences::untrue(&differences::read().unwrap(), &scripts);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
