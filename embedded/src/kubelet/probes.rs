//! Asks containers how they are, and runs their hooks.

use super::exec;
use super::process::{Launch, Spawner};
use crate::object::{list, number, text};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How much of an answer is read.
const ANSWER_BYTES: u64 = 10 << 10;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Startup,
    Liveness,
    Readiness,
}

/// All of them.
pub(super) const PURPOSES: [Purpose; 3] = [Purpose::Startup, Purpose::Liveness, Purpose::Readiness];

impl Purpose {
    /// Where it stands in a container's spec, and its name in messages.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Startup => ("startupProbe", "Startup"),
            Self::Liveness => ("livenessProbe", "Liveness"),
            Self::Readiness => ("readinessProbe", "Readiness"),
        }
    }
}

/// Where and how a container can be asked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Which of the pod's containers, and which run of it.
    pub index: usize,
    pub id: String,
    pub address: String,
    pub container: Value,
    pub launch: Launch,
    pub spawner: Spawner,
}

/// What one probe says.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub index: usize,
    pub id: String,
    pub purpose: Purpose,
    /// What went wrong, if something did.
    pub failure: Option<String>,
    /// What the last ones together mean, if that is certain.
    pub holds: Option<bool>,
}

/// How many probes in a row say the same: a threshold makes it certain.
#[derive(Debug, Default)]
struct Row {
    good: bool,
    count: i64,
}

impl Row {
    fn add(&mut self, good: bool, probe: &Value) -> Option<bool> {
        self.count = if self.good == good { self.count + 1 } else { 1 };
        self.good = good;
        let (pointer, otherwise) = if good { ("/successThreshold", 1) } else { ("/failureThreshold", 3) };
        (self.count >= number(probe, pointer).unwrap_or(otherwise)).then_some(good)
    }
}

/// Probes a container as its spec asks, until it is dropped: first whether it has started, then the rest.
pub(super) async fn watch(target: Target, verdicts: mpsc::Sender<Verdict>) {
    ask(&target, Purpose::Startup, &verdicts).await;
    tokio::join!(ask(&target, Purpose::Liveness, &verdicts), ask(&target, Purpose::Readiness, &verdicts));
}

/// Asks one thing again and again. A startup probe that has succeeded is done; one that failed for good as well.
async fn ask(target: &Target, purpose: Purpose, verdicts: &mpsc::Sender<Verdict>) {
    let Some(probe) = target.container.get(purpose.words().0).filter(|probe| probe.is_object()) else { return };
    let seconds = |pointer: &str, otherwise: i64| {
        let seconds = number(probe, pointer).unwrap_or(otherwise).max(0);
        Duration::from_secs(seconds.unsigned_abs())
    };
    sleep(seconds("/initialDelaySeconds", 0)).await;
    let mut row = Row::default();
    loop {
        let limit = seconds("/timeoutSeconds", 1).max(Duration::from_secs(1));
        let failure = perform(target, probe, limit).await.err();
        let holds = row.add(failure.is_none(), probe);
        let (index, id) = (target.index, target.id.clone());
        if verdicts.send(Verdict { index, id, purpose, failure, holds }).await.is_err() {
            return;
        }
        if purpose == Purpose::Startup && holds.is_some() {
            return;
        }
        sleep(seconds("/periodSeconds", 10).max(Duration::from_secs(1))).await;
    }
}

/// Does what a probe or a hook says.
pub(super) async fn perform(target: &Target, action: &Value, limit: Duration) -> Result<(), String> {
    if let Some(exec) = action.get("exec") {
        return command(target, exec, limit).await;
    }
    if let Some(request) = action.get("httpGet") {
        return get(target, request, limit).await;
    }
    if let Some(socket) = action.get("tcpSocket") {
        let address = address(target, socket)?;
        return match timeout(limit, TcpStream::connect(&address)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(refused(&address, &error)),
            Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
        };
    }
    if let Some(seconds) = action.get("sleep").and_then(|sleep| number(sleep, "/seconds")) {
        sleep(Duration::from_secs(seconds.max(0).unsigned_abs())).await;
        return Ok(());
    }
    Err("only exec, httpGet, tcpSocket and sleep are known here".to_owned())
}

async fn command(target: &Target, exec: &Value, limit: Duration) -> Result<(), String> {
    let words = target.launch.words(list(exec, "/command").iter().filter_map(Value::as_str));
    let failed = |error: super::process::Error| format!("unable to start container process: {error}");
    let process = target.spawner.spawn(&words, &target.launch, false).await.map_err(failed)?;
    match timeout(limit, exec::collect(process)).await {
        Ok((0, _)) => Ok(()),
        Ok((code, output)) if output.is_empty() => Err(format!("command terminated with exit code {code}")),
        Ok((_, output)) => Err(output),
        Err(_) => Err(format!("command {words:?} timed out")),
    }
}

/// The address that an action names. A port may be named as one of the container's.
fn address(target: &Target, action: &Value) -> Result<String, String> {
    let host = match text(action, "/host") {
        "" => target.address.as_str(),
        host => host,
    };
    let named = |name: &str| {
        let port = list(&target.container, "/ports").iter().find(|port| port["name"] == name);
        port.and_then(|port| number(port, "/containerPort")).or_else(|| name.parse().ok())
    };
    let port = match &action["port"] {
        Value::String(name) => named(name).ok_or_else(|| format!("couldn't find port: {name}"))?,
        port => port.as_i64().ok_or_else(|| format!("no port: {port}"))?,
    };
    Ok(format!("{host}:{port}"))
}

fn refused(address: &str, error: &std::io::Error) -> String {
    let why = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    };
    format!("dial tcp {address}: connect: {why}")
}

/// Asks by HTTP; a redirection is a success that is not followed.
async fn get(target: &Target, request: &Value, limit: Duration) -> Result<(), String> {
    let address = address(target, request)?;
    let path = format!("/{}", text(request, "/path").trim_start_matches('/'));
    let url = format!("http://{address}{path}");
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe/1.32\r\n");
    for header in list(request, "/httpHeaders") {
        head.push_str(&format!("{}: {}\r\n", text(header, "/name"), text(header, "/value")));
    }
    head.push_str("Accept: */*\r\nConnection: close\r\n\r\n");
    let answer = async {
        let mut stream = TcpStream::connect(&address)
            .await
            .map_err(|error| format!("Get {url:?}: {}", refused(&address, &error)))?;
        let broken = |error: std::io::Error| format!("Get {url:?}: {error}");
        stream.write_all(head.as_bytes()).await.map_err(broken)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES).read_to_end(&mut answer).await.map_err(broken)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = timeout(limit, answer).await.unwrap_or_else(|_| {
        Err(format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"))
    })?;
    let code = answer.split_whitespace().nth(1).and_then(|code| code.parse::<u16>().ok());
    match code {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
        None => Err(format!("Get {url:?}: no HTTP response")),
    }
}

#[cfg(test)]
mod tests {
    use super::Row;
    use serde_json::json;

    #[test]
    fn a_threshold_makes_it_certain() {
        let probe = json!({"successThreshold": 2, "failureThreshold": 3});
        let mut row = Row::default();
        let said: Vec<_> = "++-+---+".chars().map(|sign| row.add(sign == '+', &probe)).collect();
        assert_eq!(said, [None, Some(true), None, None, None, None, Some(false), None]);
    }
}
