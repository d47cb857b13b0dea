//! `kaa-engine`, or `kaa engine`: the entrypoint of a database container. It makes an engine a process of the domain.
//!
//! One task decides about the engine: `supervisor` about one that has one life, `roles` about a server with a role, which is
//! started and stopped as the domain assigns. `session` keeps a stream open to any agent and carries words to and fro; `child` and
//! `signals` are the duties of a container's first process; [`marker`] is the archive's directory. What to do is decided by the
//! domain: nothing of it is known here.
//!
//! Always: an engine starts only after its registration is committed, one with one life only after Start was said, and a server with
//! a role always fenced; a running engine runs on when agents are away or refuse it; an archive's directory is locked from before the
//! registration to the end.

mod child;
mod clock;
mod config;
mod dial;
pub mod marker;
pub mod names;
pub mod postgres;
pub mod probe;
pub mod process;
#[doc(hidden)]
pub mod roles;
mod running;
mod session;
mod signals;
mod supervisor;

/// Generated from `proto/engine.proto`: what a wrapper and an agent say to each other.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("kaa.engine.v1");
}

pub use config::{AGENT_PORT, Adapter, Agent, EngineArgs, Kind, Label, PostgresArgs, ReadyWhen};

use config::Config;
use kaa_core::domain::process::EngineKind;
use marker::{Archive, Locked};
use nix::sys::signal::Signal;
use probe::Health;
use proto::Register;
use roles::Keeper;
use session::{Report, Session, Times};
use signals::Signals;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;
use supervisor::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

/// What is logged if KAA_LOG does not say.
const DEFAULT_LOG: &str = "info";
/// How long another holder of the archive's directory may take to go away.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
/// How often the wrapper tries to lock the archive again.
const LOCK_PERIOD: Duration = Duration::from_millis(200);
/// Words of an agent that the supervisor has not read yet; it reads at once.
const TOLD_CAPACITY: usize = 16;

/// Why the wrapper ended without an exit code of its engine's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The flags contradict each other.
    #[error("{0}")]
    Usage(String),
    /// Signals cannot be received.
    #[error("cannot listen to signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The archive's directory, or a file in it, cannot be used.
    #[error("the archive at {} cannot be used: {source}", path.display())]
    Archive {
        /// What was tried to be used.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// The marker is damaged. It is not guessed around: it says which archive the data is.
    #[error("the archive's marker {} is damaged: {source}; delete it to have the claim alone decide", path.display())]
    Marker {
        /// The marker.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// What the server on the volume must not forget is damaged.
    #[error(
        "{} is damaged, or of a later version: {source}. Do not delete it: it says whether the data is whole. {}",
        path.display(),
        postgres::COPY_AGAIN
    )]
    Kept {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another wrapper has the archive's directory.
    #[error(
        "another engine holds the archive: {} has been locked for {} s; it must end first",
        path.display(), LOCK_PATIENCE.as_secs()
    )]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// The server cannot be used.
    #[error("{0}")]
    Server(#[source] Box<postgres::Error>),
    /// The domain does not want this engine.
    #[error("the domain refuses this engine: {reason}")]
    Refused {
        /// The domain's sentence.
        reason: String,
    },
}

impl Error {
    /// The exit code: those of sysexits.h, all below the shell's 126 and up.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Usage(_) => 64,
            Self::Archive { .. } | Self::Marker { .. } | Self::Kept { .. } | Self::Server(_) => 69,
            Self::Signals(_) => 70,
            Self::Locked { .. } => 75,
            Self::Refused { .. } => 77,
        }
    }
}

/// The whole command.
pub fn main(args: EngineArgs) -> ExitCode {
    if let Some(file) = &args.hosts_file {
        names::use_file(file.clone());
    }
    process::coded(DEFAULT_LOG, run(args), Error::exit_code)
}

/// Runs the engine to its end, and gives the exit code.
async fn run(args: EngineArgs) -> Result<i32, Error> {
    let config = Config::try_from(args)?;
    let mut signals = Signals::listen().map_err(Error::Signals)?;
    child::adopt_orphans();
    let archive = match &config.archive {
        Some(directory) => match hold(directory, &mut signals).await? {
            Some(locked) => Some(locked),
            None => return Ok(0),
        },
        None => None,
    };
    let marker = archive.as_ref().map(Locked::marker).transpose()?.flatten();
    let marker = marker.map(|marker| proto::Marker { domain: marker.domain.to_string(), archive: marker.archive.0 });
    let (report, reported) = watch::channel(Report { marker, ..Report::default() });
    let (tell, told) = mpsc::channel(TOLD_CAPACITY);
    let times = match config.adapter {
        Adapter::Command => Times::COMMAND,
        Adapter::Postgres => Times::ROLE,
    };
    let (health, shown) = watch::channel(Health::default());
    let out = Out { report, health };
    let (dial, register) = (config.dial.clone(), register(&config));
    let (pod_uid, container) = (config.pod_uid.clone(), config.container.clone());
    // What refuses its volume never registers: the domain would have to ask whether it has written there.
    let engine: Pin<Box<dyn Future<Output = Result<i32, Error>>>> = match (config.adapter, archive) {
        (Adapter::Postgres, Some(archive)) => Box::pin(Keeper::new(config, archive, out, told, signals)?.run()),
        (_, archive) => Box::pin(Supervisor::new(config, archive, out, told, signals).run()),
    };
    let session = tokio::spawn(Session::new((dial, times), register, reported, tell).keep());
    let probes = tokio::spawn(probe::answer(pod_uid, container, shown));
    let result = engine.await;
    probes.abort();
    session.abort();
    // It has ended before the runtime shuts down. Otherwise it would try the next agent, and log that it cannot read its files.
    let _ = session.await;
    result
}

/// Where the one task that decides about an engine says how it fares.
struct Out {
    /// To agents.
    report: watch::Sender<Report>,
    /// To probes.
    health: watch::Sender<Health>,
}

/// Locks the archive's directory; `None` if told to end while another has it.
async fn hold(directory: &Path, signals: &mut Signals) -> Result<Option<Locked>, Error> {
    let give_up_at = Instant::now() + LOCK_PATIENCE;
    let mut archive = Archive::open(directory)?;
    let mut said = false;
    loop {
        archive = match archive.lock()? {
            Ok(locked) => return Ok(Some(locked)),
            Err(archive) => archive,
        };
        if Instant::now() >= give_up_at {
            return Err(Error::Locked { path: archive.lock_path() });
        }
        if !said {
            tracing::warn!(lock = %archive.lock_path().display(), "another engine holds the archive: waiting until it ends");
            said = true;
        }
        tokio::select! {
            () = sleep(LOCK_PERIOD) => {}
            signal = signals.next() => match signal {
                Signal::SIGTERM | Signal::SIGINT => return Ok(None),
                Signal::SIGCHLD => drop(child::reap(None)),
                // There is no engine yet to pass it on to.
                _ => {}
            },
        }
    }
}

/// What is the same in every registration of this start.
fn register(config: &Config) -> Register {
    let kind = match EngineKind::from(config.kind) {
        EngineKind::Sm => proto::Kind::Sm,
        EngineKind::Te => proto::Kind::Te,
    };
    Register {
        kind: kind.into(),
        database: config.database.clone(),
        namespace: config.namespace.clone(),
        pod: config.pod.clone(),
        pod_uid: config.pod_uid.clone(),
        container: config.container.clone(),
        nonce: clock::random_u64(),
        started_ms: clock::now_ms(),
        path: config.archive.as_deref().map(|path| path.display().to_string()).unwrap_or_default(),
        address: config.address.clone(),
        hostname: config.pod.clone(),
        port: config.port.into(),
        version: config.version.clone(),
        labels: config.labels.clone().into_iter().collect(),
        protocols: config.protocols.clone().into_iter().collect(),
        ..Register::default()
    }
}
