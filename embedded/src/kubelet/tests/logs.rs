//! What is kept of what a container writes.

use super::{Log, SEGMENT_BYTES};
use crate::instance::Instance;
use crate::resource::Kind;
use crate::runtime::LogRequest;
use crate::store::{Key, Store};
use jiff::Timestamp;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Later than the lines of a test, which are written at a fixed time.
fn clock() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn log(directory: &Path) -> Log {
    Log::create(directory, 0, Arc::new(Instance::new(Store::new(1, clock()), clock))).unwrap()
}

fn request() -> LogRequest {
    LogRequest {
        pod: Key::new(Kind::Pod, "n", "p"),
        container: None,
        follow: false,
        previous: false,
        tail_lines: None,
        limit_bytes: None,
        since_seconds: None,
        timestamps: false,
    }
}

async fn read(log: &Log, request: &LogRequest) -> String {
    let (sender, mut receiver) = mpsc::channel(1);
    let gather = async {
        let mut all = Vec::new();
        while let Some(piece) = receiver.recv().await {
            all.extend(piece);
        }
        String::from_utf8(all).unwrap()
    };
    let (sent, text) = tokio::join!(log.send(request, sender), gather);
    sent.unwrap();
    text
}

#[tokio::test]
async fn lines_are_given_as_they_are_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let log = log(directory.path());
    log.keep("stdout", "one\n two  spaces\n\nno end".as_bytes()).await.unwrap();
    assert_eq!(read(&log, &request()).await, "one\n two  spaces\n\nno end");
    assert_eq!(read(&log, &LogRequest { tail_lines: Some(2), ..request() }).await, "\nno end");
    assert_eq!(read(&log, &LogRequest { tail_lines: Some(0), ..request() }).await, "");
    assert_eq!(read(&log, &LogRequest { limit_bytes: Some(5), ..request() }).await, "one\n ");
    assert_eq!(log.end_of(2, 100).unwrap(), "\nno end");
    assert_eq!(log.end_of(80, 3).unwrap(), "end");
    let stamped = read(&log, &LogRequest { timestamps: true, tail_lines: Some(3), ..request() }).await;
    let time = "1970-01-01T00:00:00.000000000Z";
    assert_eq!(stamped, format!("{time}  two  spaces\n{time} \n{time} no end"));
}

#[tokio::test]
async fn who_follows_reads_until_the_run_ends() {
    let directory = tempfile::tempdir().unwrap();
    let log = log(directory.path());
    log.keep("stdout", "before\n".as_bytes()).await.unwrap();
    let follow = LogRequest { follow: true, ..request() };
    let write = async {
        tokio::task::yield_now().await;
        log.keep("stderr", "after\n".as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
        log.end();
    };
    let (text, ()) = tokio::join!(read(&log, &follow), write);
    assert_eq!(text, "before\nafter\n");
    assert!(!log.is_open());
}

#[tokio::test]
async fn a_log_is_bounded_and_read_across_its_segments() {
    let directory = tempfile::tempdir().unwrap();
    let log = log(directory.path());
    let lines = |name: &str| format!("{name}{}\n", "x".repeat(1 << 10)).repeat(10 << 10);
    for name in ["a", "b", "c"] {
        log.keep("stdout", lines(name).as_bytes()).await.unwrap();
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    let kept = read(&log, &request()).await;
    assert!(kept.ends_with(&lines("c")) && !kept.contains('a') && (kept.len() as u64) < 2 * SEGMENT_BYTES);
    log.remove();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
