//! The row of a pod: what its containers are about, in one word.

use super::age;
use super::rows::or_none;
use crate::object::{self, list, number, text};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Name, ready, status, restarts, age and the wide rest.
pub fn cells(pod: &Value, now: Timestamp) -> Value {
    let (init, main) = (list(pod, "/status/initContainerStatuses"), list(pod, "/status/containerStatuses"));
    let initializing = initializing(pod, init);
    // Once the pod has been initialized, the containers that did it do not count any more.
    let starts = initializing.is_some() && !has(pod, "Initialized");
    let counted = if starts { init } else { main };
    let ready = main.iter().filter(|_| !starts).filter(|status| runs_and_is_ready(status)).count();
    let gates = list(pod, "/spec/readinessGates");
    json!([
        object::name(pod),
        format!("{ready}/{}", list(pod, "/spec/containers").len()),
        status(pod, initializing.filter(|_| starts), main),
        restarts(counted, now),
        age::of(pod, now),
        or_none(text(pod, "/status/podIP")),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        if gates.is_empty() { "<none>".to_owned() } else { gates_met(pod, gates) },
    ])
}

fn status(pod: &Value, initializing: Option<String>, containers: &[Value]) -> String {
    let phase = text(pod, "/status/phase");
    if object::is_deleting(pod) && !matches!(phase, "Succeeded" | "Failed") {
        return "Terminating".to_owned();
    }
    if let Some(word) = initializing {
        return word;
    }
    let own = text(pod, "/status/reason");
    let mut word = if own.is_empty() { phase.to_owned() } else { own.to_owned() };
    for container in containers.iter().rev() {
        if let Some(told) = of_container(container) {
            word = told;
        }
    }
    // One container has ended, another runs on.
    if word == "Completed" && containers.iter().any(runs_and_is_ready) {
        word = if has(pod, "Ready") { "Running".to_owned() } else { "NotReady".to_owned() };
    }
    word
}

/// Why a container does not run, if it does not.
fn of_container(container: &Value) -> Option<String> {
    let waits = text(container, "/state/waiting/reason");
    let ended = container.pointer("/state/terminated");
    match (waits, ended) {
        ("", None) => None,
        ("", Some(ended)) => Some(end(ended)),
        (waits, _) => Some(waits.to_owned()),
    }
}

fn end(ended: &Value) -> String {
    let (reason, signal) = (text(ended, "/reason"), number(ended, "/signal").unwrap_or(0));
    match (reason, signal) {
        ("", 0) => format!("ExitCode:{}", number(ended, "/exitCode").unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// What the first container is about that has to end well before the others start.
fn initializing(pod: &Value, init: &[Value]) -> Option<String> {
    let open = |status: &&Value| number(status, "/state/terminated/exitCode") != Some(0);
    let at = init.iter().position(|status| open(&status))?;
    let word = of_container(&init[at]).filter(|word| word != "PodInitializing");
    let count = list(pod, "/spec/initContainers").len();
    Some(word.map_or_else(|| format!("Init:{at}/{count}"), |word| format!("Init:{word}")))
}

fn restarts(containers: &[Value], now: Timestamp) -> String {
    let count: i64 = containers.iter().filter_map(|status| number(status, "/restartCount")).sum();
    let ends = containers.iter().map(|status| text(status, "/lastState/terminated/finishedAt"));
    let last = ends.fold("", age::later);
    if count == 0 || last.is_empty() { count.to_string() } else { format!("{count} ({} ago)", age::since(last, now)) }
}

fn runs_and_is_ready(status: &Value) -> bool {
    status["ready"] == true && status.pointer("/state/running").is_some()
}

fn has(pod: &Value, condition: &str) -> bool {
    let holds = |known: &Value| known["type"] == condition && known["status"] == "True";
    list(pod, "/status/conditions").iter().any(holds)
}

fn gates_met(pod: &Value, gates: &[Value]) -> String {
    let met = gates.iter().filter(|gate| has(pod, text(gate, "/conditionType"))).count();
    format!("{met}/{}", gates.len())
}
