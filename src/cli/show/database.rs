//! `kaa show database`: where the primary is, which archives hold every commit, what can be lost, and how a client connects.

use super::{process, rows, shown_state};
use crate::cli::Agent;
use crate::cli::api::{Api, Error};
use crate::http::rows::ProcessRow;
use crate::http::{PlaceRow, ReplicationAnswer, SurvivalRow, WarningRow};
use clap::Args;
use kaa_core::domain::ids::Millis;
use kaa_core::replication::vitals::Bytes;
use std::collections::BTreeSet;

/// `kaa show database`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Database {
    /// Its name
    name: String,
    #[command(flatten)]
    agent: Agent,
}

impl Database {
    pub(in crate::cli) async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?;
        let shown: ReplicationAnswer = api.get(&["kaa", "replication", &self.name], &[]).await?;
        if shown.kind.code == "one_primary" || self.agent.output == crate::cli::Format::Json {
            return Ok(self.agent.print(&shown, database));
        }
        let name = regex::escape(&self.name);
        let query = [("orderBy", "startId"), ("filterBy", "dbName"), ("dbName", name.as_str())];
        let processes = rows(&api, api.all(&["processes"], &query).await?)?;
        Ok(without_roles(&shown, &processes))
    }
}

/// As `show domain` has it.
fn without_roles(shown: &ReplicationAnswer, processes: &[ProcessRow]) -> String {
    let mut lines = vec![format!("{} [state = {}]: {}", shown.name, shown.state, shown.kind.text)];
    lines.extend(processes.iter().map(|row| format!("  {}", process(row, shown_state(row, &BTreeSet::new())))));
    lines.extend(shown.warnings.iter().map(warning));
    lines.join("\n") + "\n"
}

/// The text of `show database`.
pub(in crate::cli) fn database(shown: &ReplicationAnswer) -> String {
    let mut lines = vec![head(shown)];
    if let Some(asked) = &shown.switchover {
        let to = asked.pod.as_ref().map_or("any standby".to_owned(), String::clone);
        let since = ago(shown.at, asked.at);
        lines.push(format!("switchover to {to} requested by {} {since} ago: {}", asked.by, asked.why));
    }
    if let Some(set) = &shown.sync_set {
        let mut notes = vec![format!("version {}", set.version)];
        notes.push(if set.in_force { "in force" } else { "not in force yet" }.to_owned());
        notes.extend(set.joining_pod.iter().map(|pod| format!("{pod} joins")));
        let mut line = format!("sync set: {} ({})", set.pods.join(", "), notes.join(", "));
        if let (Some(synchronous), Some(alone)) = (shown.synchronous, &shown.when_alone) {
            line += &format!("   synchronous: {synchronous}   when alone: {}", alone.text);
        }
        if let Some(failover) = &shown.failover {
            line += &format!("   failover: {}", failover.text);
        }
        if let Some(zone) = &shown.preferred_zone {
            line += &format!("   preferred zone: {zone}");
        }
        lines.push(line);
    }
    lines.extend(shown.survival.as_ref().map(survival));
    lines.extend(table(shown));
    for (at, way) in shown.connect.iter().enumerate() {
        lines.push(format!("{} {}", if at == 0 { "connect:" } else { "        " }, way.text));
    }
    if shown.warnings.is_empty() {
        lines.push("warnings: none".to_owned());
    }
    lines.extend(shown.warnings.iter().map(warning));
    if let Some(last) = &shown.last_change {
        lines.push(format!("last change: {} ago, by {}: {}", ago(shown.at, last.at), last.by, last.text));
    }
    lines.join("\n") + "\n"
}

fn head(shown: &ReplicationAnswer) -> String {
    let version = shown.engine_version.as_ref().map_or(String::new(), |version| format!("   engine {version}"));
    let primary = match (&shown.primary, shown.generation) {
        (Some(primary), Some(generation)) => {
            let since = primary.opened.filter(|_| primary.open);
            let since = since.map_or(String::new(), |since| format!(" since {}", ago(shown.at, since)));
            let is_up = primary.open && primary.state.code == "open";
            let state = if is_up { String::new() } else { format!(", {}", primary.state.text) };
            let timeline = shown.timeline.map_or(String::new(), |timeline| format!(" (timeline {timeline})"));
            format!("primary {}{since}, generation {generation}{timeline}{state}", primary.pod)
        }
        _ => "no primary yet".to_owned(),
    };
    format!("{}{version}   {primary}", shown.name)
}

fn warning(row: &WarningRow) -> String {
    format!("[!] {}\n    {}", row.text, row.ends)
}

/// Which pods can be lost.
fn survival(found: &SurvivalRow) -> String {
    let one = |pods: &Vec<String>| match pods.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    };
    let all = |losses: &[Vec<String>], code: &str| {
        let zones = found.zones.iter().filter(|(_, loss)| *loss == code).map(|(zone, _)| format!("zone {zone}"));
        losses.iter().map(one).chain(zones).collect::<Vec<_>>().join("; ")
    };
    let mut parts = Vec::new();
    for (how, losses, code) in [
        ("survives by itself, nothing lost", &found.continues, "continues"),
        ("with `kaa failover`, nothing lost", &found.needs_failover, "needs_failover"),
        ("waits for another pod, nothing lost", &found.waits, "waits"),
    ] {
        let losses = all(losses, code);
        if !losses.is_empty() {
            parts.push(format!("{how}: {losses}"));
        }
    }
    parts.push(format!("does not survive the loss of {}", all(std::slice::from_ref(&found.loses), "loses")));
    parts.join("\n")
}

fn table(shown: &ReplicationAnswer) -> Vec<String> {
    // Where no zone is known, there is no column of zones.
    let zoned = shown.archives.iter().any(|row| row.zone.is_some());
    let cells = |zone: &str, [pod, archive, role, state, flushed, lag, free, since]: [&str; 8]| {
        let zone = zoned.then_some(zone);
        let cells = [pod, archive, role, state, flushed, lag].into_iter().chain(zone).chain([free, since]);
        cells.map(str::to_owned).collect::<Vec<String>>()
    };
    let row = |row: &PlaceRow| {
        let since = row.since.map_or(String::new(), |since| ago(shown.at, since));
        let ([flushed, lag, free], archive) = (fares(row), row.archive.to_string());
        let zone = row.zone.as_deref().unwrap_or("?");
        cells(zone, [&row.pod, &archive, &row.role.text, &row.state.text, &flushed, &lag, &free, &since])
    };
    let head = cells("zone", ["pod", "archive", "role", "state", "flushed", "replay lag", "free disk", "since"]);
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(shown.archives.iter().map(row)).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).chain(below(shown)).collect()
}

/// How far the log is flushed, how far behind it is replayed, and what is free on the volume; `-`: there is nothing to be known,
/// `?`: it is not known.
fn fares(row: &PlaceRow) -> [String; 3] {
    let server = &row.server;
    if server.heard_by.is_none() {
        let last = server.last_reached.as_ref().map_or_else(|| "-".to_owned(), |end| format!(">={end}"));
        return [last, "-".to_owned(), "-".to_owned()];
    }
    let unknown = || "?".to_owned();
    let flushed = match (&server.flushed, &server.replayed) {
        (Some(flushed), _) => flushed.clone(),
        // What is replayed was flushed before.
        (None, Some(replayed)) => format!(">={replayed}"),
        (None, None) => unknown(),
    };
    let bytes = server.replay_lag_bytes.map(|bytes| Bytes(bytes).to_string());
    let lag = match (bytes, server.replay_lag_ms.map(milliseconds)) {
        _ if row.role.code == "primary" => "-".to_owned(),
        (Some(bytes), Some(ms)) => format!("{bytes}, {ms}"),
        (Some(bytes), None) => bytes,
        // One that the primary does not see may have replayed all that it ever received.
        (None, _) => unknown(),
    };
    [flushed, lag, server.free_percent.map_or_else(unknown, |percent| format!("{percent}%"))]
}

fn milliseconds(ms: u64) -> String {
    if ms < 10_000 { format!("{ms} ms") } else { ago(Millis(ms), Millis(0)) }
}

/// What does not fit into the table, and why some of it is not known.
fn below(shown: &ReplicationAnswer) -> Vec<String> {
    let each = |title: &str, what: fn(&PlaceRow) -> Option<String>| {
        let said: Vec<String> =
            shown.archives.iter().filter_map(|row| Some(format!("{} {}", row.pod, what(row)?))).collect();
        (!said.is_empty()).then(|| format!("{title}: {}", said.join(", ")))
    };
    let clients = each("clients", |row| row.server.clients.map(|clients| clients.to_string()));
    let retained = each("log retained for standbys", |row| {
        row.server.retained_log_bytes.filter(|bytes| *bytes > 0).map(|bytes| Bytes(bytes).to_string())
    });
    let parts: Vec<String> = clients.into_iter().chain(retained).collect();
    let mut lines = Vec::new();
    if !parts.is_empty() {
        lines.push(parts.join("   "));
    }
    let unknown =
        shown.archives.iter().filter_map(|row| Some(format!("? {}: {}", row.pod, row.server.unknown.as_ref()?)));
    lines.extend(unknown);
    lines
}

/// How long ago that was: `3 d 4 h`, `2 h 5 min`, `12 s`.
fn ago(now: Millis, then: Millis) -> String {
    let seconds = now.since(then) / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |many: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{many} {unit}"),
        _ => format!("{many} {unit} {rest} {small}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => two(minutes, "min", seconds % 60, "s"),
        (0, _, _) => two(hours, "h", minutes % 60, "min"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_two_units() {
        let shown = |seconds: u64| ago(Millis(seconds * 1000 + 5000), Millis(5000));
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7500, "2 h 5 min"), (273_600, "3 d 4 h"), (86_400, "1 d")]
        {
            assert_eq!(shown(seconds), text);
        }
    }
}
