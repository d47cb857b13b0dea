//! `kaa demo`: a whole domain on this machine, to play with or to watch.

mod configured;
mod domain;
mod door;
mod members;
mod postgres;
mod times;
mod walkthrough;

use crate::certificates;
use crate::demo::install;
use crate::demo::manifests::{self, Part, change};
use crate::demo::postgres::Error as PostgresError;
use crate::demo::stage::{self, Directory, Stage};
use clap::Args;
use domain::Domain;
use door::Door;
use postgres::Shop;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tokio::signal::unix::{Signal, SignalKind, signal};
use walkthrough::Walkthrough;

/// Where everything is applied.
const NAMESPACE: &str = "default";
/// How long the demo's certificates are valid.
const DAYS: u32 = 30;

/// Runs a small Kubernetes on loopback, with admin servers, storage managers and transaction engines in it, or with PostgreSQL servers.
///
/// All of it is in this process and its children, in a directory and on loopback addresses; it ends with Ctrl-C. Linux
/// only, and no root is needed.
#[derive(Args, Clone, Debug)]
pub(super) struct Demo {
    /// Where kubeconfig, volumes and logs are: an empty or new directory, or that of an earlier demo. Default: a new one,
    /// which is deleted at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How many admin servers. Default: 2, with --postgres 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=7))]
    admins: Option<u32>,
    /// How many storage managers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=20))]
    sm: u32,
    /// How many transaction engines
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=20))]
    te: u32,
    /// Runs a database of three PostgreSQL servers, one of them the primary, instead of the storage managers and transaction engines.
    /// BINDIR has the programs of PostgreSQL. Default: the newest /usr/lib/postgresql/*/bin
    #[arg(long, value_name = "BINDIR", num_args = 0..=1, conflicts_with_all = ["sm", "te", "walkthrough"])]
    postgres: Option<Option<PathBuf>>,
    /// Plays the use cases with commentary, checks that the domain follows each time, and ends
    #[arg(long)]
    walkthrough: bool,
    /// How often the walkthrough repeats each change without commentary, for the table of latencies
    #[arg(long, value_name = "N", default_value_t = 5, requires = "walkthrough", value_parser = clap::value_parser!(u32).range(0..=100))]
    rounds: u32,
}

/// Why a demo ended otherwise than asked to.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Stage(#[from] stage::Error),
    #[error(transparent)]
    Manifests(#[from] manifests::Error),
    #[error("{0}")]
    Install(#[from] install::Error),
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(transparent)]
    Certificates(#[from] certificates::Error),
    #[error("cannot find the path of this program: {0}")]
    Executable(io::Error),
    #[error(transparent)]
    Domain(#[from] domain::Error),
    #[error("the walkthrough needs --sm 2 and --te 1 at least")]
    TooFew,
    #[error("{0} before the end")]
    Interrupted(&'static str),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Demo {
    /// Runs until it is told to stop, or until the walkthrough is over.
    pub(super) async fn run(self) -> Result<(), Error> {
        if self.walkthrough && (self.sm < 2 || self.te < 1) {
            return Err(Error::TooFew);
        }
        let mut signals = Signals::listen()?;
        let executable = std::env::current_exe().map_err(Error::Executable)?;
        let directory = Directory::take(self.dir.as_deref())?;
        let bin = self.postgres.as_ref();
        let shop = bin.map(|bin| Shop::prepare(bin.as_deref(), directory.path())).transpose()?;
        let began = Instant::now();
        let stage = Stage::open(directory.path(), &executable).await?;
        let door = Door::open(&stage, NAMESPACE).await?;
        let _services = match &shop {
            Some(shop) => shop.open(&stage, directory.path()).await?,
            None => Vec::new(),
        };
        let _publishing = shop.as_ref().map(|shop| shop.publish(&stage, directory.path()));
        let playing = async {
            self.play(&stage, shop.as_ref(), directory.path(), &executable, &door.url(), began).await?;
            if self.walkthrough { Ok(()) } else { std::future::pending().await }
        };
        let ended = tokio::select! {
            ended = playing => ended,
            signal = signals.next() => {
                say(&format!("\n{signal}: stopping everything."))?;
                if self.walkthrough { Err(Error::Interrupted(signal)) } else { Ok(()) }
            }
        };
        stage.close().await;
        ended
    }

    async fn play(
        &self,
        stage: &Stage,
        shop: Option<&Shop>,
        dir: &Path,
        executable: &Path,
        door: &str,
        began: Instant,
    ) -> Result<(), Error> {
        self.step(&format!("A Kubernetes in this process, at {}", stage.api_server()), began)?;
        self.install(stage, shop).await?;
        match shop {
            Some(shop) => shop.play(self, stage, &postgres::invitation(dir, executable, door), began).await,
            None => self.play_example(stage, &invitation(dir, executable, door), began).await,
        }
    }

    async fn play_example(&self, stage: &Stage, invitation: &str, began: Instant) -> Result<(), Error> {
        let step = |what: &str| self.step(what, began);
        let domain = Domain::new(stage, NAMESPACE);
        domain.servers(self.admins()).await?;
        step(&format!("{} admin servers: StatefulSet kaa-admin", self.admins()))?;
        domain.running("SM", self.sm as usize).await?;
        step(&format!("{} storage managers: StatefulSet sm-demo", self.sm))?;
        domain.running("TE", self.te as usize).await?;
        step(&format!("{} transaction engines: Deployment te-demo", self.te))?;
        say(&format!("\n$ kaa show domain\n{}", domain.kaa("show domain").await?))?;
        if self.walkthrough {
            return Ok(Walkthrough::new(stage, &domain, self.sm, self.admins()).play(self.rounds).await?);
        }
        Ok(say(invitation)?)
    }

    /// How many admin servers there are. A primary's failover needs a quorum that survives one of them.
    fn admins(&self) -> u32 {
        self.admins.unwrap_or(if self.postgres.is_some() { 3 } else { 2 })
    }

    /// Tells what is there, and how long it took.
    fn step(&self, what: &str, began: Instant) -> io::Result<()> {
        say(&format!("{what:<64}{:>6.1} s", began.elapsed().as_secs_f64()))
    }

    /// Applies the project's manifests, with as many of each as was asked for.
    async fn install(&self, stage: &Stage, shop: Option<&Shop>) -> Result<(), Error> {
        let made = certificates::make(&install::names(NAMESPACE), DAYS)?;
        let mut objects = install::certificates(NAMESPACE, &made);
        objects.extend(manifests::objects(Part::Base, NAMESPACE)?);
        objects.extend(match shop {
            Some(shop) => shop.objects()?,
            None => manifests::objects(Part::Example, NAMESPACE)?,
        });
        let wanted = [
            ("StatefulSet", "kaa-admin", self.admins()),
            ("StatefulSet", "sm-demo", self.sm),
            ("Deployment", "te-demo", self.te),
        ];
        for (kind, name, replicas) in wanted {
            change(&mut objects, kind, name, |workload| workload["spec"]["replicas"] = json!(replicas));
        }
        Ok(install::apply(&stage.client(), &objects).await?)
    }
}

/// Runs a demo, on a runtime of its own.
pub(super) fn main(demo: Demo) -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let done = tokio::runtime::Runtime::new().map_err(Error::from).and_then(|runtime| runtime.block_on(demo.run()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            let mut causes: Vec<String> = causes.map(ToString::to_string).collect();
            causes.dedup();
            // If stderr is closed as well, the error cannot be reported.
            let _ = writeln!(io::stderr(), "'demo' failed: {}", causes.join(": "));
            ExitCode::FAILURE
        }
    }
}

/// What the demo's kubelet starts each container by.
#[derive(Args, Debug)]
pub(super) struct Shim {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes the program of a container; returns only if that fails.
pub(super) fn shim(shim: Shim) -> ExitCode {
    let error = embedded_kubernetes::kubelet::shim(shim.arguments);
    let _ = writeln!(io::stderr(), "kaa: {error}");
    ExitCode::from(CANNOT_EXECUTE)
}

/// As shells have it.
const CANNOT_EXECUTE: u8 = 126;

/// What to type next.
fn invitation(dir: &Path, executable: &Path, address: &str) -> String {
    let bin = executable.parent().unwrap_or(executable).display();
    let kubeconfig = dir.join("kubeconfig");
    let kubeconfig = kubeconfig.display();
    format!(
        "To try it, in another terminal (kubectl 1.31 to 1.33):\n\n  \
         export KUBECONFIG={kubeconfig} KAA_API_SERVER={address} PATH={bin}:$PATH\n  \
         kubectl get pods,pvc\n  \
         kubectl scale statefulset/sm-demo --replicas=1   # its archive is removed, its data kept\n  \
         kaa show archives --removed                      # the number in brackets is the N of the next\n  \
         kaa explain archive/N\n  \
         kubectl delete pvc archive-volume-sm-demo-1      # now it is purged\n  \
         kubectl delete pod -l component=te               # new engines, new start ids\n  \
         kaa plan --scale statefulset/sm-demo=0           # what would happen if\n  \
         kubectl scale statefulset/kaa-admin --replicas=1 # the server is evicted, its engines move\n  \
         kaa explain server/kaa-admin-1\n\n\
         Ctrl-C stops everything and leaves nothing running."
    )
}

/// Prints lines for an operator.
fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// The signals that end a demo.
struct Signals([(&'static str, Signal); 3]);

impl Signals {
    fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self([("Interrupted", interrupt?), ("Terminated", terminate?), ("Terminal gone", hangup?)]))
    }

    async fn next(&mut self) -> &'static str {
        let [one, two, three] = &mut self.0;
        tokio::select! {
            _ = one.1.recv() => one.0,
            _ = two.1.recv() => two.0,
            _ = three.1.recv() => three.0,
        }
    }
}
