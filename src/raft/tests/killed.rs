//! `kill -9` in a loop: a process that writes by way of Raft and says on a pipe what was acknowledged is killed at any
//! moment, and afterwards the test looks for everything that was acknowledged.
//!
//! The process is this test's executable, which runs one ignored test. `KAA_KILLS` says how often, `KAA_SEED` when.

use super::{Agent, anchor, node, start, value};
use crate::raft::backend::Engine;
use crate::raft::{Role, Volume};
use clap::ValueEnum;
use kaa_core::domain::ids::MembershipEpoch;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::tempdir;
use testkit::Chance;
use testkit::chance::number;

const DIR: &str = "KAA_TEST_WRITER_DIR";
const ENGINE: &str = "KAA_TEST_WRITER_STORE";
const ACKNOWLEDGED: &str = "acknowledged ";
const STARTED: &str = "started";

fn writer(dir: &Path, engine: Engine) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "raft::tests::killed::the_writer"]);
    command.env(ENGINE, engine.to_possible_value().unwrap().get_name());
    command.env(DIR, dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What is killed: founds, writes k0, k1, ... in turn, makes snapshots and purges.
#[tokio::test]
#[ignore = "the process that the others kill"]
async fn the_writer() {
    let dir = std::env::var_os(DIR).expect("run by the tests that kill it");
    let engine = Engine::from_str(&std::env::var(ENGINE).unwrap(), false).unwrap();
    let mut volume = Volume::open_in(Path::new(&dir), engine).unwrap();
    let address = super::free_address();
    if volume.local_log().domain.is_none() {
        let anchor = anchor(1, volume.local_log().raft_id);
        volume.found(&anchor, &node("admin-0", &address), None).unwrap();
    }
    let agent = start(volume, "admin-0", &address, None).await;
    tokio::select! {
        why = agent.handle.failed() => {
            eprintln!("raft has stopped: {why}");
            std::process::exit(3);
        }
        never = write(&agent) => match never {},
    }
}

async fn write(agent: &Agent) -> Infallible {
    super::until("it leads", || agent.handle.status().role == Role::Leader).await;
    super::found_domain(agent).await;
    let mut next = agent.handle.read(|domain| domain.values.len());
    println!("\n{STARTED}");
    loop {
        if agent.handle.propose(value(&format!("k{next}"), "v")).await.is_err() {
            // Raft has stopped, which is told elsewhere.
            std::future::pending::<()>().await;
        }
        println!("{ACKNOWLEDGED}{next}");
        std::io::stdout().flush().unwrap();
        next += 1;
        if next.is_multiple_of(40) {
            agent.handle.raft().trigger().snapshot().await.unwrap();
        }
        if next.is_multiple_of(100) {
            agent.handle.raft().trigger().purge_log(agent.handle.status().applied_index - 30).await.unwrap();
        }
    }
}

/// Kills a process that has started, after a while, and returns the last number that it said.
fn kill(mut writer: Child, after: Duration) -> Option<usize> {
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
    let started = lines.any(|line| line == STARTED);
    if started {
        std::thread::sleep(after);
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    let mut complaint = String::new();
    writer.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(started, "the writer did not start: {complaint}");
    lines.filter_map(|line| line.strip_prefix(ACKNOWLEDGED)?.parse().ok()).last()
}

#[test]
fn kill_9_takes_nothing_that_was_acknowledged() {
    kill_again_and_again(Engine::Redb);
}

#[cfg(feature = "sled")]
#[test]
fn kill_9_takes_nothing_that_was_acknowledged_by_sled() {
    kill_again_and_again(Engine::Sled);
}

fn kill_again_and_again(engine: Engine) {
    let mut chance = Chance::new("kill -9");
    let dir = tempdir().unwrap();
    let (mut acknowledged, mut vote, mut local) = (None, None, None);
    for round in 0..number("KAA_KILLS").unwrap_or(6) {
        let after = Duration::from_millis(chance.below(300) as u64);
        acknowledged = kill(writer(dir.path(), engine).spawn().unwrap(), after).or(acknowledged);

        let volume = Volume::open_in(dir.path(), engine).unwrap();
        let found = volume.local_log();
        assert_eq!(found.epoch, MembershipEpoch(1));
        assert_eq!(*local.get_or_insert(found.clone()), found, "round {round}: the log is another one");
        let parts = volume.into_parts();
        assert!(parts.log.vote >= vote, "round {round}: the vote went back from {vote:?} to {:?}", parts.log.vote);
        vote = parts.log.vote;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let written = runtime.block_on(async {
        let agent = start(Volume::open_in(dir.path(), engine).unwrap(), "admin-0", &super::free_address(), None).await;
        agent.handle.linearize().await.unwrap();
        let values = agent.handle.read(|domain| domain.values.clone());
        agent.stop().await;
        values
    });
    let acknowledged = acknowledged.expect("nothing was acknowledged in all rounds");
    let missing: Vec<_> = (0..=acknowledged).filter(|i| !written.contains_key(&format!("k{i}"))).collect();
    assert!(missing.is_empty(), "of {acknowledged} acknowledged values {missing:?} are gone");
    eprintln!("{acknowledged} values");
}

/// A file that may not grow stands for a disk that is full in the middle of a write.
#[test]
fn an_io_error_ends_the_process_with_a_status_and_takes_nothing() {
    let dir = tempdir().unwrap();
    drop(Volume::open(dir.path()).unwrap());
    let size = std::fs::metadata(dir.path().join("log/raft.redb")).unwrap().len();
    let plain = writer(dir.path(), Engine::Redb);
    let mut limited = Command::new("sh");
    // The shell ignores the signal, so that the write fails instead; in units of 512 bytes.
    limited.args([
        "-c",
        "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"",
        "sh",
        &((size + 65536) / 512).to_string(),
    ]);
    limited.arg(plain.get_program()).args(plain.get_args()).env(DIR, dir.path()).env(ENGINE, "redb");
    let output = limited.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{said}\n{complaint}");
    assert!(complaint.contains("the log's storage failed"), "{complaint}");
    let mut acknowledged = said.lines().rev().filter_map(|line| line.strip_prefix(ACKNOWLEDGED)?.parse::<usize>().ok());
    let acknowledged = acknowledged.next();

    // With room again it continues where it was.
    let again = kill(writer(dir.path(), Engine::Redb).spawn().unwrap(), Duration::from_millis(200));
    assert!(again > acknowledged, "{again:?} after {acknowledged:?}");
}
