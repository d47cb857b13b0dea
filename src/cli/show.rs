//! `kaa show`: the domain and its archives, line by line in the shape that users of such systems know.

mod database;

use super::api::{Api, Error};
use super::{Agent, pause};
use crate::http::rows::{ArchiveRow, DatabaseRow, ExitedRow, PeerRow, ProcessRow};
use crate::http::{MembershipAnswer, Page, PauseAnswer};
use clap::{Args, Subcommand};
use kaa_core::domain::ids::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// How long a running process may be silent before it is shown as unreachable.
const SILENCE_LIMIT_MILLIS: u64 = 20_000;

/// What to show.
#[derive(Debug, Subcommand)]
pub(super) enum Noun {
    /// Shows servers, databases and processes
    Domain(Domain),
    /// Shows archives, each with its process or its last exit
    Archives(Archives),
    /// Shows a database with one primary: where the primary is, which archives hold every commit, which pods can be lost, how a
    /// client connects
    Database(database::Database),
}

/// `kaa show domain`.
#[derive(Debug, Args)]
pub(super) struct Domain {
    #[command(flatten)]
    agent: Agent,
}

/// `kaa show archives`.
#[derive(Debug, Args)]
pub(super) struct Archives {
    /// Shows removed archives instead of active ones
    #[arg(long)]
    removed: bool,
    /// Shows the archives of one database only
    #[arg(long, value_name = "NAME")]
    db_name: Option<String>,
    #[command(flatten)]
    agent: Agent,
}

impl Noun {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Domain(_) => "show domain",
            Self::Archives(_) => "show archives",
            Self::Database(_) => "show database",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        match self {
            Self::Domain(command) => command.run().await,
            Self::Archives(command) => command.run().await,
            Self::Database(command) => command.run().await,
        }
    }
}

/// Everything that `show domain` asks for.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Shown {
    pub(super) server_version: String,
    pub(super) server_time_millis: Millis,
    pub(super) license_type: Option<String>,
    pub(super) client_token: String,
    pub(super) peers: Vec<PeerRow>,
    pub(super) databases: Vec<DatabaseRow>,
    pub(super) processes: Vec<ProcessRow>,
    pub(super) resync: PauseAnswer,
    pub(super) membership: MembershipAnswer,
}

impl Domain {
    async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?;
        // Appears in the agent's log, so that what was seen can be tied to what happened.
        let token = format!("{:016x}{:016x}", crate::clock::random_u64(), crate::clock::random_u64());
        let mut shown = api.log(&token).await?;
        shown["clientToken"] = Value::String(token);
        for (name, order) in [("peers", "id"), ("databases", "name"), ("processes", "startId")] {
            shown[name] = Value::Array(api.all(&[name], &[("orderBy", order)]).await?.data);
        }
        shown["resync"] = api.get(&["kaa", "pause"], &[]).await?;
        shown["membership"] = api.get(&["kaa", "membership"], &[]).await?;
        let rows: Shown = api.understood(shown.clone())?;
        Ok(self.agent.print(&shown, |_| domain(&rows)))
    }
}

/// The text of `show domain`.
pub(super) fn domain(shown: &Shown) -> String {
    let license = shown.license_type.as_deref().unwrap_or("None");
    let mut lines = vec![
        format!("server version: {}, server license: {license}", shown.server_version),
        format!("server time: {}, client token: {}", shown.server_time_millis, shown.client_token),
        "Servers:".to_owned(),
    ];
    lines.extend(shown.peers.iter().map(|peer| format!("  {}", server(peer))));
    if shown.resync.paused {
        lines.insert(2, pause::text(&shown.resync).trim_end().to_owned());
    }
    // What is about one server stands in its line, and in `kaa explain`.
    let group = shown.membership.waiting.iter().filter(|waiting| waiting.subject.is_none());
    lines.extend(group.map(|waiting| format!("  [!] {}: {}", waiting.code.replace('_', " "), waiting.reason)));
    lines.push("Databases:".to_owned());
    let gone = shown.peers.iter().filter(|peer| peer.connected_state.state != "Connected");
    let gone: BTreeSet<&str> = gone.map(|peer| peer.id.as_str()).collect();
    // One that was deleted is of no interest unless it is asked for by name (`kaa explain`).
    for database in shown.databases.iter().filter(|database| database.state != "TOMBSTONE") {
        lines.push(format!("  {} [state = {}]", database.name, database.state));
        let processes = shown.processes.iter().filter(|process| process.db_name == database.name);
        lines.extend(processes.map(|row| format!("    {}", process(row, shown_state(row, &gone)))));
    }
    lines.join("\n") + "\n"
}

fn or<T: ToString>(value: Option<T>, missing: &str) -> String {
    value.map_or_else(|| missing.to_owned(), |value| value.to_string())
}

fn server(row: &PeerRow) -> String {
    const NONE: &str = "<NO VALUE>";
    let role = &row.local_role_info;
    let log = &role.local_peer_term_index_info;
    let ack = row.connected_state.last_ack_delta_millis;
    let ack = if ack < 0 { "NEVER".to_owned() } else { format!("{:.2}", ack as f64 / 1000.0) };
    let life_cycle = or(role.life_cycle.as_ref(), NONE);
    let raft_state = match life_cycle.as_str() {
        _ if !row.is_passive => life_cycle,
        "ACTIVE" => "PASSIVE".to_owned(),
        stage => format!("PASSIVE({})", stage.replace(NONE, "UNKNOWN")),
    };
    let mut line = format!("[{}] {}", row.id, or(row.address.as_ref(), NONE));
    // What the published client is told is always the same.
    let member = row.membership.as_ref().unwrap_or(&row.peer_member_state);
    let _ = write!(line, " [last_ack = {ack}] [member = {member}] [raft_state = {raft_state}]");
    let (term, commit, last) = (or(log.log_last_term, "?"), or(log.commit_index, "?"), or(log.log_last_index, "?"));
    let (name, leader) = (or(role.role.as_ref(), NONE), or(role.leader_server_id.as_ref(), NONE));
    let state = if row.is_evicted { "Evicted" } else { &row.connected_state.state };
    let _ = write!(line, " ({name}, Leader={leader}, log={term}/{commit}/{last}");
    if let (Some(applied), Some(epoch)) = (row.applied_index, row.epoch) {
        let _ = write!(line, ", applied={applied}, epoch={epoch}");
    }
    let _ = write!(line, ") {state}");
    line + if row.is_local { " *" } else { "" }
}

/// What is shown as the state of an engine, which is more than it said last.
fn shown_state(row: &ProcessRow, gone: &BTreeSet<&str>) -> String {
    let served = row.durable_state == "MONITORED" || row.durable_state == "REQUESTED_SHUTDOWN";
    let silent = row.last_heard_from.is_none_or(|millis| millis > SILENCE_LIMIT_MILLIS);
    if gone.contains(row.host.as_str()) || row.session_lost.is_some() || (served && silent) {
        format!("UNREACHABLE({})", row.state)
    } else if row.state == "UNKNOWN" && !served {
        "STARTING_UP".to_owned()
    } else {
        row.state.clone()
    }
}

/// `host/ip:port`, without what is not known of it.
fn address(row: &ProcessRow) -> String {
    let Some(port) = row.port else { return "<UNKNOWN ADDRESS>".to_owned() };
    let address = row.address.as_ref().map(|a| if a.contains(':') { format!("[{a}]") } else { a.clone() });
    match (&row.hostname, address) {
        (Some(host), Some(address)) if row.address.as_ref() != Some(host) => format!("{host}/{address}:{port}"),
        (_, Some(address)) => format!("{address}:{port}"),
        (Some(host), None) => format!("{host}:{port}"),
        (None, None) => "<UNKNOWN ADDRESS>".to_owned(),
    }
}

fn identity(row: &ProcessRow) -> String {
    let (kind, address, start_id, server) = (&row.r#type, address(row), &row.start_id, &row.host);
    let (pid, node) = (or(row.pid, ""), or(row.node_id, ""));
    format!("[{kind}] {address} [start_id = {start_id}] [server_id = {server}] [pid = {pid}] [node_id = {node}]")
}

fn process(row: &ProcessRow, state: String) -> String {
    let ack = row.last_heard_from.map(|millis| format!("{:5.2}", millis as f64 / 1000.0));
    format!("{} [last_ack = {}] {}:{state}", identity(row), or(ack, ">60"), row.durable_state)
}

fn exited(row: &ExitedRow) -> String {
    let (process, code) = (&row.process, or(row.exit_code, "?"));
    let (durable, engine) = (&process.durable_state, &process.state);
    format!("{} EXITED({durable}:{engine}):{} ({code})", identity(process), row.reason)
}

impl Archives {
    async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?;
        let removed = self.removed.to_string();
        let name = self.db_name.as_deref().map(regex::escape);
        let of = |field| name.as_deref().map(|name| [("filterBy", field), (field, name)]).into_iter().flatten();
        let query: Vec<_> =
            [("removed", removed.as_str()), ("orderBy", "id")].into_iter().chain(of("dbName")).collect();
        let page = api.all(&["archives"], &query).await?;
        if self.agent.output == super::Format::Json {
            return Ok(super::api::raw(&page));
        }
        let query: Vec<_> = [("orderBy", "startId")].into_iter().chain(of("dbName")).collect();
        let processes = api.all(&["processes"], &query).await?;
        let query: Vec<_> = [("orderBy", "databaseIncarnation,process.startId")].into_iter().collect();
        let query: Vec<_> = query.into_iter().chain(of("process.dbName")).collect();
        let exited = api.all(&["processes", "exited"], &query).await?;
        Ok(archives(&rows(&api, page)?, &rows(&api, processes)?, &rows(&api, exited)?))
    }
}

fn rows<T: serde::de::DeserializeOwned>(api: &Api, page: Page) -> Result<Vec<T>, Error> {
    page.data.into_iter().map(|row| api.understood(row)).collect()
}

/// The text of `show archives`.
pub(super) fn archives(archives: &[ArchiveRow], processes: &[ProcessRow], tombstones: &[ExitedRow]) -> String {
    let mut text = String::new();
    for row in archives {
        let (host, journal) = (or(row.host.as_ref(), "<NO VALUE>"), or(row.journal_path.as_ref(), ""));
        let (id, path, database) = (row.id, &row.path, &row.db_name);
        let snapshot = or(row.snapshot_archive_path.as_ref(), "");
        let state = if row.removed_at.is_some() { format!("REMOVED({})", row.state) } else { row.state.clone() };
        let _ = writeln!(
            text,
            "[{id}] {host} : {path} @ {database} [journal_path = {journal}] [snapshot_archive_path = {snapshot}] {state}"
        );
        if let Some(running) = processes.iter().find(|process| process.archive_id == Some(id)) {
            let _ = writeln!(text, "  {}", process(running, shown_state(running, &BTreeSet::new())));
        } else if let Some(last) = tombstones.iter().rfind(|tombstone| tombstone.process.archive_id == Some(id)) {
            let _ = writeln!(text, "  {}", exited(last));
        }
    }
    text
}
