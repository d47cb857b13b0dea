//! The commands: what was typed, and which exit code comes of it.
//!
//! 0: done. 1: `'<verb> <noun>' failed: <reason>` on stderr (the noun where there is one). 2: the arguments were not understood. One file per verb.

mod adopt;
mod api;
mod archive;
mod certificates;
mod client;
mod cluster;
mod daemon;
#[cfg(feature = "demo")]
mod demo;
mod domain;
mod drain;
mod explain;
mod pause;
mod plan;
mod pod_token;
mod primary;
mod prompt;
mod recover;
mod route;
mod show;
mod task;
#[cfg(test)]
mod tests;
mod whatif;

use crate::config::AgentArgs;
use crate::install::InstallArgs;
use crate::stand_in::StandInArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kaa_engine::EngineArgs;
use kaa_engine::probe::{self, ProbeArgs};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// A Kubernetes-aware admin agent for distributed databases.
#[derive(Debug, Parser)]
#[command(name = "kaa", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Every verb. A new one: its file, its variant, its arm in [`Cli::run`].
#[derive(Debug, Subcommand)]
enum Command {
    /// Shows servers, databases, processes or archives
    #[command(subcommand)]
    Show(show::Noun),
    /// Shows what the next resync pass proposes and what it waits for; or previews what scaling or deleting an object would
    /// remove
    Plan(plan::Plan),
    /// Shows the state and the history of an object: who changed it, when, and on what evidence
    Explain(explain::Explain),
    /// Shows which process of a database a client is sent to, and for each other process why not
    Route(route::Route),
    /// Pauses all removals by the resync until `kaa resume`. Engines, sessions and admin servers are not affected
    Pause(pause::Pause),
    /// Ends a pause
    Resume(pause::Resume),
    /// Removes or purges an archive by hand, where a wait would not end otherwise
    #[command(subcommand)]
    Archive(archive::Archive),
    /// Evicts a process
    #[command(subcommand)]
    Process(archive::Process),
    /// Removes another cluster of the domain that is lost for good
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Moves the primary of a database to another pod: it stops after its standbys have all of its log, so nothing is lost
    Switchover(primary::Switchover),
    /// Makes another server of a database the primary, after the pod of the primary is lost. No acknowledged commit is lost
    Failover(primary::Failover),
    /// Adopts the data of an archive as that of its database, or discards it
    #[command(subcommand)]
    Database(primary::Database),
    /// Lists, shows and cancels tasks: changes in several steps, such as the upgrade of a protocol version
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Re-anchors the domain to this cluster, after Kubernetes or the admin volumes were restored: removals resume. Creates the
    /// anchor Lease if it is missing
    Adopt(adopt::Adopt),
    /// Drains a server, as its preStop hook does: waits until it is removed from the voters (scale-down), or transfers Raft
    /// leadership (restart). The server keeps running
    Drain(drain::Drain),
    /// Prints the token of the agent's own pod, for --basic-creds: `kubectl exec POD -- kaa pod-token`
    PodToken(pod_token::Show),
    /// Recovers from a permanent loss of quorum: starts a new membership epoch from the surviving servers. Committed entries
    /// that only lost servers hold are lost
    Recover(recover::Recover),
    /// Saves the domain to a file, and restores it in another cluster
    #[command(subcommand)]
    Domain(domain::Domain),
    /// Creates a CA and certificates, for clusters without cert-manager
    #[command(subcommand)]
    Certificates(certificates::Certificates),
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    #[cfg(feature = "demo")]
    #[command(hide = true, disable_help_flag = true)]
    ContainerShim(demo::Shim),
    Agent(Box<AgentArgs>),
    Engine(Box<EngineArgs>),
    Probe(ProbeArgs),
    Install(InstallArgs),
    #[command(hide = true)]
    StandIn(StandInArgs),
}

/// Which agent to ask.
#[derive(Clone, Debug, Args)]
struct Agent {
    /// The REST API of any agent of the domain: a URL, or host:port
    #[arg(long, env = "KAA_API_SERVER", default_value = "http://localhost:8888", value_name = "URL")]
    api_server: String,
    #[command(flatten)]
    tls: client::Tls,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Who asks for a change.
#[derive(Clone, Debug, Args)]
struct Writing {
    /// Name and password, if the agent has a --credentials-file; over a forwarded port, the output of `kubectl exec POD -- kaa
    /// pod-token`. Not needed with a client certificate (--cert), or in the agent's own pod
    #[arg(long, env = "KAA_BASIC_CREDS", hide_env_values = true, value_name = "USER:PASSWORD")]
    basic_creds: Option<String>,
    /// The token of the agent's own pod. Sent only to an agent at a loopback address, and only without other credentials
    #[arg(long, env = "KAA_POD_TOKEN_FILE", value_name = "FILE")]
    pod_token_file: Option<PathBuf>,
}

/// Who asks for a change, and whom.
#[derive(Clone, Debug, Args)]
struct Asking {
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    agent: Agent,
}

impl Asking {
    fn api(&self) -> Result<api::Api, api::Error> {
        Ok(api::Api::new(&self.agent)?.by(&self.writing))
    }
}

/// The reason of a change.
#[derive(Clone, Debug, Args)]
struct Reason {
    /// The reason, recorded in the audit trail
    #[arg(long = "reason", value_name = "WHY")]
    why: String,
}

/// How to print an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// The API's own words
    Json,
}

/// Why a command failed. Formatted once, here.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The agent did not answer, or refused.
    #[error(transparent)]
    Api(#[from] api::Error),
    /// There is no snapshot, or it was not restored.
    #[error(transparent)]
    Domain(#[from] domain::Error),
    /// There is no token of a pod here.
    #[error(transparent)]
    PodToken(#[from] crate::auth::pod_token::Error),
    /// The certificates were not made.
    #[error(transparent)]
    Certificates(#[from] certificates::Error),
    /// It asks no agent.
    #[cfg(feature = "demo")]
    #[error("the demo asks agents only: {0}")]
    NoQuestion(String),
    /// No runtime, no output.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl Cli {
    /// Carries out what was typed.
    pub fn run(self) -> ExitCode {
        let (name, done) = match self.command {
            Command::Show(noun) => (noun.name(), asking(noun.run())),
            Command::Plan(plan) => ("plan", asking(plan.run())),
            Command::Explain(explain) => ("explain", asking(explain.run())),
            Command::Route(route) => ("route", asking(route.run())),
            Command::Pause(pause) => ("pause", asking(pause.run())),
            Command::Resume(resume) => ("resume", asking(resume.run())),
            Command::Archive(archive) => (archive.name(), asking(archive.run())),
            Command::Process(process) => (process.name(), asking(process.run())),
            Command::Cluster(cluster) => (cluster.name(), asking(cluster.run())),
            Command::Switchover(switchover) => ("switchover", asking(switchover.run())),
            Command::Failover(failover) => ("failover", asking(failover.run())),
            Command::Database(database) => (database.name(), asking(database.run())),
            Command::Task(task) => (task.name(), asking(task.run())),
            Command::Adopt(adopt) => ("adopt", asking(adopt.run())),
            Command::Drain(drain) => ("drain", asking(drain.run())),
            Command::PodToken(show) => ("pod-token", show.run().map_err(Error::from)),
            Command::Recover(recover) => ("recover", asking(recover.run())),
            Command::Domain(domain) => (domain.name(), asking(domain.run())),
            Command::Certificates(certificates) => ("certificates", certificates.run().map_err(Error::from)),
            #[cfg(feature = "demo")]
            Command::Demo(demo) => return demo::main(demo),
            #[cfg(feature = "demo")]
            Command::ContainerShim(shim) => return demo::shim(shim),
            Command::Agent(agent) => return daemon::agent(*agent),
            Command::Engine(engine) => return kaa_engine::main(*engine),
            Command::Probe(args) => return probe::main(&args),
            Command::Install(install) => return daemon::install(install),
            Command::StandIn(stand_in) => return daemon::stand_in(stand_in),
        };
        match done.and_then(|text| Ok(print(&text)?)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // If stderr is closed as well, the error cannot be reported.
                let _ = writeln!(std::io::stderr(), "'{name}' failed: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

#[cfg(feature = "demo")]
impl Cli {
    /// What a command that asks an agent prints.
    async fn text(self) -> Result<String, Error> {
        match self.command {
            Command::Show(noun) => Ok(noun.run().await?),
            Command::Plan(plan) => Ok(plan.run().await?),
            Command::Explain(explain) => Ok(explain.run().await?),
            Command::Route(route) => Ok(route.run().await?),
            Command::Task(task) => Ok(task.run().await?),
            Command::Switchover(switchover) => Ok(switchover.run().await?),
            Command::Failover(failover) => Ok(failover.run().await?),
            Command::Pause(pause) => Ok(pause.run().await?),
            Command::Resume(resume) => Ok(resume.run().await?),
            other => Err(Error::NoQuestion(format!("{other:?}"))),
        }
    }
}

/// Runs a command that asks an agent, on a runtime of its own: one thread is plenty.
fn asking<E>(command: impl Future<Output = Result<String, E>>) -> Result<String, Error>
where
    Error: From<E>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(command)?)
}

/// A reader that has seen enough, as in `kaa plan | head`, is no error.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
