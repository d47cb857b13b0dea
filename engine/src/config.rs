//! What was typed ([`EngineArgs`]) and what it means ([`Config`]).

use super::{Error, postgres};
use clap::ValueEnum;
use kaa_core::domain::process::EngineKind;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where an agent listens for engines unless --agents says otherwise.
pub const AGENT_PORT: u16 = 48004;

/// What an engine does in its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A storage manager: has an archive.
    Sm,
    /// A transaction engine: has none.
    Te,
}

impl From<Kind> for EngineKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Sm => Self::Sm,
            Kind::Te => Self::Te,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EngineKind::from(*self).fmt(f)
    }
}

/// Runs a database engine as the entrypoint of its container.
///
/// Registers the engine with any admin agent, starts the command once the domain allows it, and reports its states and its
/// exit. SIGTERM stops the engine. A running engine keeps running if no agent is reachable.
///
/// The exit code is the command's own, or 128 + n if signal n ended it. Before the command runs: 64 invalid arguments, 69 the
/// archive's directory is unusable, 70 internal error, 75 another wrapper uses the archive's directory, 76 the domain did not
/// allow the start within --start-timeout, 77 the domain refuses the engine until an operator acts, 126 the command cannot be
/// executed, 127 the command was not found.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// The kind of engine.
    #[arg(value_enum)]
    pub kind: Kind,
    /// The name of its database.
    #[arg(long, value_name = "NAME", env = "KAA_DATABASE")]
    pub database: String,
    /// The agents; a name stands for all addresses that it resolves to, so a headless Service covers all agents.
    #[arg(long, value_name = "HOST[:PORT],...", env = "KAA_AGENTS", value_delimiter = ',', required = true)]
    pub agents: Vec<Agent>,
    /// The namespace of this pod.
    #[arg(long, env = "KAA_NAMESPACE")]
    pub namespace: String,
    /// The name of this pod.
    #[arg(long, value_name = "NAME", env = "KAA_POD")]
    pub pod: String,
    /// The UID of this pod.
    #[arg(long, value_name = "UID", env = "KAA_POD_UID")]
    pub pod_uid: String,
    /// The name of this container in its pod.
    #[arg(long, value_name = "NAME", env = "KAA_CONTAINER", default_value = "engine")]
    pub container: String,
    /// The archive's directory: required for sm, absent for te.
    #[arg(long, value_name = "DIR", env = "KAA_ARCHIVE")]
    pub archive: Option<PathBuf>,
    /// A hosts(5) file that is consulted before DNS.
    #[arg(long, value_name = "FILE", env = "KAA_HOSTS_FILE")]
    pub hosts_file: Option<PathBuf>,
    /// The engine's own port.
    // Not KAA_PORT: a Service named `kaa` has the kubelet set that one in every container, to a URL.
    #[arg(long, env = "KAA_ENGINE_PORT", default_value_t = 48006)]
    pub port: u16,
    /// The engine's address: that of the pod.
    #[arg(long, env = "KAA_ADDRESS", default_value = "")]
    pub address: String,
    /// A label of the engine, for load-balancer queries. Repeatable. The label `zone` is also the zone of a PostgreSQL server whose pod
    /// has no label topology.kubernetes.io/zone.
    #[arg(long = "label", value_name = "KEY=VALUE", env = "KAA_LABEL", value_delimiter = ',')]
    pub labels: Vec<Label>,
    /// The engine's release, as `kaa show domain` displays it. The protocol version of a database is upgraded only while all its
    /// engines have the same.
    #[arg(long, value_name = "VERSION", env = "KAA_ENGINE_VERSION", default_value = "")]
    pub engine_version: String,
    /// A protocol version that this release of the engine supports: its number and its name, as in 1441792=4.3. Repeatable; a
    /// release names all that it supports. Without any, the protocol version of its database is not upgraded.
    #[arg(long = "protocol", value_name = "ID=NAME", env = "KAA_PROTOCOL", value_delimiter = ',')]
    pub protocols: Vec<Protocol>,
    /// The CA certificate of the agents, as a PEM file. Read again for each connection.
    #[arg(long, value_name = "FILE", env = "KAA_CA")]
    pub ca: Option<PathBuf>,
    /// The expected name in an agent's certificate, if it is not the host in --agents.
    #[arg(long, value_name = "NAME", env = "KAA_TLS_SERVER_NAME")]
    pub server_name: Option<String>,
    /// The file of a projected ServiceAccount token, which authenticates the pod. Read again for each connection.
    #[arg(long, value_name = "FILE", env = "KAA_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// A client certificate, as a PEM file, for pods without a token. Read again for each connection.
    #[arg(long, value_name = "FILE", env = "KAA_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of --cert, as a PEM file.
    #[arg(long, value_name = "FILE", env = "KAA_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Connects without TLS; for agents on loopback addresses only.
    #[arg(long, env = "KAA_PLAINTEXT", value_parser = clap::builder::BoolishValueParser::new())]
    pub plaintext: bool,
    /// When the engine counts as RUNNING: once its process is started, once a local TCP port accepts connections, or once a file
    /// exists that is not older than the process.
    #[arg(long, value_name = "started|tcp:PORT|file:PATH", env = "KAA_READY_WHEN", default_value = "started")]
    pub ready_when: ReadyWhen,
    /// The time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "SECONDS", env = "KAA_GRACE", default_value_t = 20)]
    pub grace: u64,
    /// How long the wrapper waits for the domain to allow the start, counted from the first reason to wait that it heard. Then
    /// it exits, and the kubelet restarts its container. A start is never allowed by a timeout.
    #[arg(long, value_name = "SECONDS", env = "KAA_START_TIMEOUT", default_value_t = 900)]
    pub start_timeout: u64,
    /// How the engine is driven: by its command, or as a PostgreSQL server that is given a role.
    #[arg(long, value_enum, env = "KAA_ADAPTER", default_value = "command")]
    pub adapter: Adapter,
    /// Flags of `--adapter postgres`.
    #[command(flatten)]
    pub postgres: PostgresArgs,
    /// The engine's command and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How the engine is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Adapter {
    /// The command is started once, and the wrapper ends with it.
    Command,
    /// A PostgreSQL server, the primary of its database or a standby, as the domain assigns.
    Postgres,
}

/// Flags of a PostgreSQL server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "With --adapter postgres")]
pub struct PostgresArgs {
    /// The directory with `postgres`, `initdb`, `pg_controldata`, `pg_basebackup`, `pg_rewind` and `pg_waldump`.
    #[arg(long, value_name = "DIR", env = "KAA_POSTGRES_BIN")]
    pub postgres_bin: Option<PathBuf>,
    /// The user of the server, if the wrapper runs as root: PostgreSQL does not.
    #[arg(long, value_name = "UID:GID", env = "KAA_POSTGRES_USER")]
    pub postgres_user: Option<UserGroup>,
    /// The address on which the server listens.
    #[arg(long, value_name = "ADDRESS", env = "KAA_POSTGRES_LISTEN", default_value = "*")]
    pub postgres_listen: String,
    /// A file with parameters of the server, in the form of postgresql.conf.
    #[arg(long, value_name = "FILE", env = "KAA_POSTGRES_PARAMETERS")]
    pub postgres_parameters: Option<PathBuf>,
    /// A file with lines of pg_hba.conf for clients, of the types host, hostssl, hostnossl, hostgssenc, hostnogssenc: PostgreSQL asks them
    /// before the line that lets everybody in with a password.
    #[arg(long, value_name = "FILE", env = "KAA_POSTGRES_HBA")]
    pub postgres_hba: Option<PathBuf>,
    /// A directory with the files `username` and `password` of the role that standbys connect as; a mounted Secret.
    #[arg(long, value_name = "DIR", env = "KAA_POSTGRES_REPLICATION")]
    pub postgres_replication: Option<PathBuf>,
    /// A directory with the files `username`, `password` and `dbname` of the application; a mounted Secret.
    #[arg(long, value_name = "DIR", env = "KAA_POSTGRES_APPLICATION")]
    pub postgres_application: Option<PathBuf>,
    /// A directory with the files `tls.crt`, `tls.key` and `ca.crt`; a mounted Secret. Clients and standbys need TLS then.
    #[arg(long, value_name = "DIR", env = "KAA_POSTGRES_TLS")]
    pub postgres_tls: Option<PathBuf>,
    /// Clients and standbys may do without TLS: for the rolling update that introduces it.
    #[arg(long, env = "KAA_POSTGRES_TLS_OPTIONAL", requires = "postgres_tls")]
    pub postgres_tls_optional: bool,
    /// The domain below which the certificates name the servers, as shop.default.svc for shop-0.shop.default.svc.
    #[arg(long, value_name = "DOMAIN", env = "KAA_POSTGRES_DOMAIN", requires = "postgres_tls")]
    pub postgres_domain: Option<String>,
}

/// A user and its group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserGroup(pub u32, pub u32);

impl FromStr for UserGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
        match numbers {
            Some((0, _)) => Err("PostgreSQL does not run as root".to_owned()),
            Some((user, group)) => Ok(Self(user, group)),
            None => Err("not UID:GID, both numbers".to_owned()),
        }
    }
}

/// Where an agent, or several of them, can be found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Agent {
    /// A DNS name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for Agent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = match text.rsplit_once(':') {
            // More than one colon and no brackets: an IPv6 address without a port.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("no host".to_owned());
        }
        let port = port.map_or(Ok(AGENT_PORT), str::parse).map_err(|error| format!("port: {error}"))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A label of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            _ => Err("not KEY=VALUE".to_owned()),
        }
    }
}

/// A protocol version of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((id, name)) if !name.is_empty() => {
                let id = id.parse().map_err(|error| format!("the number of a protocol version: {error}"))?;
                Ok(Self { id, name: name.to_owned() })
            }
            _ => Err("not ID=NAME".to_owned()),
        }
    }
}

/// What must be seen before an engine is shown as RUNNING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyWhen {
    /// Its process is started.
    Started,
    /// This port accepts a connection.
    Tcp(u16),
    /// This file is there, and not older than the process.
    File(PathBuf),
}

impl FromStr for ReadyWhen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "started" => Ok(Self::Started),
            Some(("tcp", port)) => port.parse().map(Self::Tcp).map_err(|error| format!("port: {error}")),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err("neither `started` nor `tcp:PORT` nor `file:PATH`".to_owned()),
        }
    }
}

/// What the wrapper is to do.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub kind: Kind,
    pub database: String,
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub container: String,
    /// Present for a storage manager, and only for one.
    pub archive: Option<PathBuf>,
    pub port: u16,
    pub address: String,
    pub labels: BTreeMap<String, String>,
    pub version: String,
    pub protocols: BTreeMap<u64, String>,
    pub ready_when: ReadyWhen,
    pub grace: Duration,
    /// How long it waits to be let start.
    pub start_timeout: Duration,
    pub command: Vec<OsString>,
    pub adapter: Adapter,
    pub postgres: PostgresArgs,
    pub dial: Dial,
}

impl Config {
    /// How the server runs.
    pub fn postgres(&self) -> Result<postgres::Settings, Error> {
        let needs = |flag: &str| Error::Usage(format!("--adapter postgres needs {flag}"));
        let PostgresArgs { postgres_bin, postgres_user, postgres_listen, .. } = &self.postgres;
        let PostgresArgs { postgres_parameters, postgres_hba, postgres_replication, postgres_application, .. } =
            &self.postgres;
        let PostgresArgs { postgres_tls, postgres_tls_optional, postgres_domain, .. } = &self.postgres;
        let bin = postgres_bin.clone().ok_or_else(|| needs("--postgres-bin DIR (KAA_POSTGRES_BIN)"))?;
        let major = postgres::check_programs(&bin).map_err(|source| Error::Server(Box::new(source)))?;
        Ok(postgres::Settings {
            directory: self.archive.clone().ok_or_else(|| needs("--archive DIR (KAA_ARCHIVE)"))?,
            bin,
            major,
            user: postgres_user.map(|UserGroup(user, group)| (user, group)),
            listen: postgres_listen.clone(),
            port: self.port,
            parameters: postgres_parameters.clone(),
            hba: postgres_hba.clone(),
            replication: postgres_replication
                .clone()
                .ok_or_else(|| needs("--postgres-replication DIR (KAA_POSTGRES_REPLICATION)"))?,
            application: postgres_application.clone(),
            tls: postgres_tls.clone(),
            tls_optional: *postgres_tls_optional,
            domain: postgres_domain.clone(),
            shim: std::env::current_exe().map_err(|source| Error::Archive { path: "/proc/self/exe".into(), source })?,
        })
    }
}

/// How agents are reached.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub agents: Vec<Agent>,
    /// The agents' certificate authority; without one they are spoken to in plaintext, on loopback only.
    pub ca: Option<PathBuf>,
    pub server_name: Option<String>,
    pub token_file: Option<PathBuf>,
    /// A client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TryFrom<EngineArgs> for Config {
    type Error = Error;

    fn try_from(args: EngineArgs) -> Result<Self, Error> {
        let usage = |why: &str| Err(Error::Usage(why.to_owned()));
        match (args.kind, &args.archive) {
            (Kind::Sm, None) => return usage("a storage manager needs --archive DIR (KAA_ARCHIVE)"),
            (Kind::Te, Some(_)) => {
                return usage("a transaction engine has no archive: leave out --archive (KAA_ARCHIVE)");
            }
            _ => {}
        }
        let remote = |agent: &&Agent| agent.host.parse().is_ok_and(|address: IpAddr| !address.is_loopback());
        match (&args.ca, args.plaintext) {
            (None, false) => return usage("give the agents' certificate authority with --ca FILE (KAA_CA)"),
            (Some(_), true) => return usage("either --ca (KAA_CA) or --plaintext (KAA_PLAINTEXT), not both"),
            (None, true) if let Some(agent) = args.agents.iter().find(remote) => {
                return usage(&format!("--plaintext is for loopback addresses only, and {agent} is none"));
            }
            _ => {}
        }
        match (args.adapter, args.kind) {
            (Adapter::Command, _) if args.command.is_empty() => return usage("give the engine's command behind --"),
            (Adapter::Postgres, Kind::Te) => return usage("--adapter postgres is for storage managers (sm)"),
            (Adapter::Postgres, _) if !args.command.is_empty() => {
                return usage("--adapter postgres takes no command: it starts the server of --postgres-bin");
            }
            _ => {}
        }
        let needed = [(&args.database, "--database"), (&args.pod, "--pod"), (&args.pod_uid, "--pod-uid")];
        if let Some((_, flag)) = needed.into_iter().find(|(value, _)| value.is_empty()) {
            return usage(&format!("{flag} is empty"));
        }
        Ok(Self {
            kind: args.kind,
            database: args.database,
            namespace: args.namespace,
            pod: args.pod,
            pod_uid: args.pod_uid,
            container: args.container,
            archive: args.archive,
            port: args.port,
            address: args.address,
            labels: args.labels.into_iter().map(|label| (label.key, label.value)).collect(),
            version: args.engine_version,
            protocols: args.protocols.into_iter().map(|protocol| (protocol.id, protocol.name)).collect(),
            ready_when: args.ready_when,
            grace: Duration::from_secs(args.grace),
            start_timeout: Duration::from_secs(args.start_timeout),
            command: args.command,
            adapter: args.adapter,
            postgres: args.postgres,
            dial: Dial {
                agents: args.agents,
                ca: args.ca,
                server_name: args.server_name,
                token_file: args.token_file,
                identity: args.cert.zip(args.key),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: EngineArgs,
    }

    fn typed(flags: &str) -> Result<Config, String> {
        let line = format!("kaa --database db --namespace ns --pod p-0 --pod-uid u-0 {flags} -- run --it");
        let line = Line::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        Config::try_from(line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn agents_default_to_the_engines_port() {
        let cases = [("admin", "admin:48004"), ("admin:9", "admin:9"), ("::1", "[::1]:48004"), ("[::1]:9", "[::1]:9")];
        for (text, meant) in cases {
            assert_eq!(meant, text.parse::<Agent>().unwrap().to_string());
        }
        assert!(":48004".parse::<Agent>().is_err());
        assert!("admin:http".parse::<Agent>().is_err());
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused_by_name() {
        let cases = [
            ("sm --agents a --ca f", "--archive"),
            ("te --agents a --ca f --archive d", "--archive"),
            ("te --agents a", "--ca"),
            ("te --agents a --ca f --plaintext", "--plaintext"),
            ("te --agents 127.0.0.1,10.0.0.1 --plaintext", "10.0.0.1:48004"),
            ("te --agents a --ca f --ready-when soon", "tcp:PORT"),
            ("te --agents a --ca f --label x", "KEY=VALUE"),
            ("te --agents a --ca f --protocol 1441792", "ID=NAME"),
            ("te --agents a --ca f --protocol 4.3=4.3", "invalid digit"),
        ];
        for (flags, named) in cases {
            let error = typed(flags).unwrap_err();
            assert!(error.contains(named), "{flags}: {error}");
        }
    }

    #[test]
    fn a_whole_line_means_what_it_says() {
        let config =
            typed("sm --agents a,b:1 --ca f --archive d --label x=1 --label y=2=3 --protocol 1=4.2|4.3,2=5 --ready-when tcp:5").unwrap();
        assert_eq!(vec!["a:48004", "b:1"], config.dial.agents.iter().map(Agent::to_string).collect::<Vec<_>>());
        assert_eq!(Some(&"2=3".to_owned()), config.labels.get("y"));
        assert_eq!(BTreeMap::from([(1, "4.2|4.3".to_owned()), (2, "5".to_owned())]), config.protocols);
        assert_eq!(ReadyWhen::Tcp(5), config.ready_when);
        assert_eq!(vec!["run", "--it"], config.command);
        assert_eq!(Duration::from_secs(20), config.grace);
    }
}
