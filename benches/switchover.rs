//! For how long clients cannot write while the primary of a PostgreSQL database moves:
//!
//! ```text
//! cargo build --release --workspace && cargo bench --bench switchover [-- ROUNDS [WRITERS]]
//! ```
//!
//! It runs `kaa demo --postgres` with this machine's PostgreSQL, lets writers insert one row after another, each in a
//! session of its own, and moves the primary again and again. A gap is the longest time in which no writer at all was
//! told that its row is there. In the end every such row has to be at each server once, and all rows the same.

#![allow(clippy::unwrap_used, reason = "a failed step ends the run")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::{Chance, eventually};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

/// How long a writer waits for an answer before it connects again.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause of a writer that found no primary.
const PAUSE: Duration = Duration::from_millis(10);

/// What the writers were told: when, and which rows are there.
#[derive(Default)]
struct Told {
    times: Vec<Instant>,
    rows: BTreeSet<(i32, i32)>,
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut number = |default| words.next().map_or(default, |word| word.parse().expect("a number"));
    let (rounds, writers) = (number(50), number(8));
    let demo = Demo::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(measure(&demo, rounds, i32::try_from(writers).unwrap()));
    demo.stop();
}

async fn measure(demo: &Demo, rounds: usize, writers: i32) {
    let mut chance = Chance::new("switchover");
    let client = connect(&demo.url()).await.unwrap();
    client.batch_execute("CREATE TABLE rows (writer int, number int, PRIMARY KEY (writer, number))").await.unwrap();
    let (told, over) = (Arc::new(Mutex::new(Told::default())), Arc::new(AtomicBool::new(false)));
    let write = |writer| tokio::spawn(write(demo.dir.path().to_owned(), writer, told.clone(), over.clone()));
    let tasks: Vec<_> = (0..writers).map(write).collect();
    sleep(Duration::from_secs(2)).await;
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        demo.switch_over();
        sleep(Duration::from_millis(500 + chance.below(1500) as u64)).await;
        gaps.push(gap(&told.lock().unwrap().times, began));
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    gaps.sort();
    let at = |percent: usize| gaps[(gaps.len() * percent / 100).min(gaps.len() - 1)].as_millis();
    println!(
        "gap of {writers} writers at a switchover: n {rounds}, p50 {} ms, p90 {} ms, p99 {} ms",
        at(50),
        at(90),
        at(99)
    );
    let rows = std::mem::take(&mut told.lock().unwrap().rows);
    let mut sums = BTreeSet::new();
    for (pod, url) in demo.servers() {
        sums.insert(compared(&pod, &url, &rows).await);
    }
    assert_eq!(sums.len(), 1, "the servers differ: {sums:?}");
    println!("{} rows were acknowledged: each is at every server once, and all rows are the same", rows.len());
}

/// The longest time without an answer, from half a second before this moment on.
fn gap(times: &[Instant], began: Instant) -> Duration {
    let from = began.checked_sub(Duration::from_millis(500)).unwrap();
    let mut since: Vec<Instant> = times.iter().copied().filter(|time| *time >= from).collect();
    since.sort();
    since.windows(2).map(|pair| pair[1] - pair[0]).max().expect("no row was acknowledged")
}

/// Inserts until it is over. A row whose answer did not come may be there: it is not tried again.
async fn write(dir: PathBuf, writer: i32, told: Arc<Mutex<Told>>, over: Arc<AtomicBool>) {
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let Ok(client) = connect(&read(&dir, "postgres-url")).await else {
            sleep(PAUSE).await;
            continue;
        };
        while !over.load(Ordering::Relaxed) {
            number += 1;
            let insert = format!("INSERT INTO rows VALUES ({writer}, {number})");
            let Ok(Ok(())) = timeout(PATIENCE, client.batch_execute(&insert)).await else { break };
            let mut told = told.lock().unwrap();
            told.times.push(Instant::now());
            told.rows.insert((writer, number));
        }
    }
}

async fn connect(url: &str) -> Result<Client, String> {
    let connected = timeout(PATIENCE, tokio_postgres::connect(url, NoTls)).await.map_err(|_| "no answer")?;
    let (client, connection) = connected.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(client)
}

/// Waits until a server has all rows that were acknowledged; gives the hash of all rows.
async fn compared(pod: &str, url: &str, rows: &BTreeSet<(i32, i32)>) -> String {
    testkit::eventually_async(&format!("all acknowledged rows at {pod}"), async || {
        let client = connect(url).await?;
        let failed = |error: tokio_postgres::Error| error.to_string();
        let there = client.query("SELECT writer, number FROM rows", &[]).await.map_err(failed)?;
        let there: BTreeSet<(i32, i32)> = there.iter().map(|row| (row.get(0), row.get(1))).collect();
        let missing = rows.difference(&there).count();
        let hash = "SELECT md5(string_agg(rows::text, ',' ORDER BY writer, number)) FROM rows";
        let hash: String = client.query_one(hash, &[]).await.map_err(failed)?.get(0);
        if missing == 0 { Ok(hash) } else { Err(format!("{missing} are missing")) }
    })
    .await
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_default().trim().to_owned()
}

/// A demo that runs.
struct Demo {
    child: Child,
    dir: tempfile::TempDir,
    api: String,
}

impl Demo {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("kaa-pg.").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let log = dir.path().with_extension("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
        command.args(["demo", "--postgres", "--dir"]).arg(dir.path());
        let mut child = command.stdout(std::fs::File::create(&log).unwrap()).stderr(Stdio::inherit()).spawn().unwrap();
        let api = eventually("the demo", || {
            assert_eq!(child.try_wait().unwrap(), None, "the demo has ended");
            let said = std::fs::read_to_string(&log).unwrap();
            let api = said.split("KAA_API_SERVER=").nth(1).and_then(|rest| rest.split(' ').next());
            api.map(str::to_owned).ok_or(said)
        });
        std::fs::remove_file(&log).unwrap();
        Self { child, dir, api }
    }

    fn url(&self) -> String {
        read(self.dir.path(), "postgres-url")
    }

    fn servers(&self) -> Vec<(String, String)> {
        let text = read(self.dir.path(), "postgres-servers");
        text.lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(pod, url)| (pod.to_owned(), url.to_owned()))
            .collect()
    }

    fn switch_over(&self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaa"));
        command.args(["switchover", "shop", "--reason", "bench", "--wait", "--api-server", &self.api]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn stop(mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        self.child.wait().unwrap();
    }
}
