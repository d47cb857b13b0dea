//! `kaa stand-in`: what stands in for a database engine in examples and tests. It keeps a little data, answers on a
//! port and stops when it is told to, and no more.

use crate::net;
use kaa_engine::Kind;
use std::fs::OpenOptions;
use std::future::pending;
use std::io::{self, Write};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A client that does not take its line within this time is left; one after the other is served, so none may hang.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Why the stand-in ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Signals cannot be received.
    #[error("cannot listen to signals: {0}")]
    Signals(#[source] io::Error),
    /// The data cannot be written.
    #[error("the archive at {} cannot be used: {source}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on port {port}: {source}")]
    Listen {
        /// The port.
        port: u16,
        /// What went wrong.
        source: io::Error,
    },
}

impl Error {
    /// The exit code, of sysexits.h.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Archive { .. } => 69,
            Self::Signals(_) | Self::Listen { .. } => 70,
        }
    }
}

/// Stands in for a database engine in examples and tests.
#[derive(Clone, Debug, clap::Args)]
pub struct StandInArgs {
    /// What it stands in for.
    #[arg(value_enum)]
    pub kind: Kind,
    /// Answers each connection on this port with a line.
    #[arg(long, env = "KAA_ENGINE_PORT")]
    pub port: Option<u16>,
    /// Adds a line to data.txt in this directory at each start (sm only).
    #[arg(long, value_name = "DIR", env = "KAA_ARCHIVE")]
    pub archive: Option<PathBuf>,
    /// Does not end at SIGTERM.
    #[arg(long, env = "KAA_STAND_IN_IGNORE_TERM", value_parser = clap::builder::FalseyValueParser::new())]
    pub ignore_term: bool,
}

/// Runs until SIGTERM, and gives the exit code.
pub async fn run(args: StandInArgs) -> Result<i32, Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    println!("The {} stand-in {} starts.", args.kind, std::process::id());
    if let (Kind::Sm, Some(archive)) = (args.kind, &args.archive) {
        keep_data(archive).map_err(|source| Error::Archive { path: archive.clone(), source })?;
    }
    let greeting = format!("kaa stand-in {} {}\n", args.kind, std::process::id());
    let listener = match args.port {
        Some(port) => Some(
            net::listen((Ipv6Addr::UNSPECIFIED, port).into()).await.map_err(|source| Error::Listen { port, source })?,
        ),
        None => None,
    };
    let answering = async {
        match &listener {
            Some(listener) => answer(listener, greeting.as_bytes()).await,
            None => pending().await,
        }
    };
    let told_to_stop = async {
        while terminate.recv().await.is_some() {
            if !args.ignore_term {
                return;
            }
            println!("The {} stand-in ignores SIGTERM.", args.kind);
        }
    };
    tokio::select! {
        () = answering => {}
        () = told_to_stop => {}
    }
    println!("The {} stand-in {} stops.", args.kind, std::process::id());
    Ok(0)
}

fn keep_data(archive: &Path) -> io::Result<()> {
    let mut data = OpenOptions::new().create(true).append(true).open(archive.join("data.txt"))?;
    let now_ms = crate::clock::now().0;
    writeln!(data, "started at {now_ms} ms as process {}", std::process::id())?;
    data.sync_all()
}

async fn answer(listener: &TcpListener, greeting: &[u8]) {
    loop {
        match listener.accept().await {
            // A client that goes away early is its own affair.
            Ok((mut client, _)) => drop(tokio::time::timeout(ANSWER_LIMIT, client.write_all(greeting)).await),
            // Out of file descriptors, for one: not a reason to spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
