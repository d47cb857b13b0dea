//! Writes the status of a pod: pure, from what its containers do.

use super::lifecycle::{Ended, Member, Policy, State};
use crate::object::{list, text, time};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use std::net::Ipv4Addr;

/// What a status tells.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub members: &'a [Member],
    pub policy: Policy,
    pub pod: &'a Value,
    pub host: Ipv4Addr,
    /// `None` until its volumes are there.
    pub address: Option<Ipv4Addr>,
    pub started_at: Timestamp,
    /// Whether nothing of it will run any more, whatever the policy says: it was deleted.
    pub over: bool,
    pub now: Timestamp,
}

/// The word for what a pod is doing.
pub(super) fn phase(members: &[Member], policy: Policy, over: bool) -> &'static str {
    let done =
        |member: &&Member| matches!(&member.state, State::Ended(_)) && (over || member.restarts_at(policy).is_none());
    let succeeded = |member: &Member| matches!(&member.state, State::Ended(ended) if ended.code == 0);
    let (inits, mains): (Vec<&Member>, Vec<&Member>) = members.iter().partition(|member| member.init);
    if inits.iter().filter(|init| !init.ready).any(done) {
        return "Failed";
    }
    if inits.iter().any(|init| !init.ready) {
        return "Pending";
    }
    if mains.iter().all(done) {
        return if mains.iter().all(|member| succeeded(member)) { "Succeeded" } else { "Failed" };
    }
    let never_ran =
        |member: &&Member| matches!(member.state, State::Waiting | State::Blocked { .. }) && member.last.is_none();
    if mains.iter().any(never_ran) { "Pending" } else { "Running" }
}

impl Report<'_> {
    /// Writes it over the status before, which keeps what others wrote.
    pub fn write(&self, status: &mut Value) {
        if !status.is_object() {
            *status = json!({});
        }
        let phase = phase(self.members, self.policy, self.over);
        let ended = matches!(phase, "Succeeded" | "Failed");
        status["phase"] = json!(phase);
        status["conditions"] = self.conditions(list(status, "/conditions"), phase);
        status["hostIP"] = json!(self.host);
        status["hostIPs"] = json!([{"ip": self.host}]);
        status["startTime"] = json!(time(self.started_at));
        if let Some(address) = self.address {
            status["podIP"] = json!(address);
            status["podIPs"] = json!([{"ip": address}]);
        }
        if text(status, "/qosClass").is_empty() {
            status["qosClass"] = json!(quality(self.pod));
        }
        for (field, init) in [("initContainerStatuses", true), ("containerStatuses", false)] {
            let of: Vec<Value> = self
                .members
                .iter()
                .filter(|member| member.init == init)
                .map(|member| self.container(member, ended))
                .collect();
            if !of.is_empty() {
                status[field] = json!(of);
            }
        }
    }

    fn conditions(&self, before: &[Value], phase: &str) -> Value {
        let names = |init: bool| -> Vec<&str> {
            let missing = self.members.iter().filter(|member| member.init == init && !member.ready);
            missing.map(|member| member.name.as_str()).collect()
        };
        let unready = match (phase, names(false).as_slice()) {
            ("Succeeded", _) => Some(("PodCompleted", String::new())),
            ("Failed", _) => Some(("PodFailed", String::new())),
            (_, []) => None,
            (_, names) => {
                Some(("ContainersNotReady", format!("containers with unready status: [{}]", names.join(" "))))
            }
        };
        let uninitialized = match names(true).as_slice() {
            [] => None,
            names => {
                let message = format!("containers with incomplete status: [{}]", names.join(" "));
                Some(("ContainersNotInitialized", message))
            }
        };
        let mut conditions = Vec::new();
        let mut add = |kind: &str, holds: bool, why: Option<(&str, String)>| {
            let holds = if holds { "True" } else { "False" };
            let known = before.iter().find(|known| known["type"] == kind);
            let since = known.filter(|known| known["status"] == holds).map(|known| known["lastTransitionTime"].clone());
            let since = since.unwrap_or_else(|| json!(time(self.now)));
            let mut condition =
                json!({"type": kind, "status": holds, "lastProbeTime": null, "lastTransitionTime": since});
            if let Some((reason, message)) = why {
                condition["reason"] = json!(reason);
                if !message.is_empty() {
                    condition["message"] = json!(message);
                }
            }
            conditions.push(condition);
        };
        let ended = matches!(phase, "Succeeded" | "Failed");
        add("PodReadyToStartContainers", self.address.is_some() && !ended, None);
        let completed = (phase == "Succeeded").then(|| ("PodCompleted", String::new()));
        add("Initialized", uninitialized.is_none(), uninitialized.or(completed));
        add("Ready", unready.is_none(), unready.clone());
        add("ContainersReady", unready.is_none(), unready);
        add("PodScheduled", true, None);
        let ours: Vec<Value> = conditions.iter().map(|condition| condition["type"].clone()).collect();
        conditions.extend(before.iter().filter(|known| !ours.contains(&known["type"])).cloned());
        json!(conditions)
    }

    fn container(&self, member: &Member, pod_ended: bool) -> Value {
        let mut last = member.last.as_ref();
        let (state, id) = match &member.state {
            State::Waiting if !member.init && pod_ended => (waiting("PodInitializing", ""), None),
            State::Waiting => (waiting(self.before_start(), ""), None),
            State::Blocked { reason, message, .. } => (waiting(reason, message), last.map(|last| &last.id)),
            State::Running { id, since } => (json!({"running": {"startedAt": time(*since)}}), Some(id)),
            State::Ended(ended) => match member.held_back(self.policy).filter(|_| !self.over) {
                Some(delay) => {
                    last = Some(ended);
                    (waiting("CrashLoopBackOff", &self.back_off(member, delay)), Some(&ended.id))
                }
                None => (terminated(ended), Some(&ended.id)),
            },
        };
        let mut status = json!({
            "name": member.name, "image": member.image, "imageID": "", "ready": member.ready,
            "started": member.started, "restartCount": member.restarts, "state": state,
            "lastState": last.map_or_else(|| json!({}), terminated),
        });
        if let Some(id) = id {
            status["containerID"] = json!(format!("embedded://{id}"));
            status["imageID"] = json!(format!("embedded://{}", member.image));
        }
        status
    }

    fn before_start(&self) -> &'static str {
        if self.members.iter().any(|member| member.init) { "PodInitializing" } else { "ContainerCreating" }
    }

    /// Why a container is held back, in the words of Kubernetes.
    fn back_off(&self, member: &Member, delay: SignedDuration) -> String {
        let pod = full_name(self.pod);
        format!("back-off {} restarting failed container={} pod={pod}", go_duration(delay), member.name)
    }
}

/// A pod as messages of a kubelet name it.
pub(super) fn full_name(pod: &Value) -> String {
    let [name, namespace, uid] = ["name", "namespace", "uid"].map(|field| text(pod, &format!("/metadata/{field}")));
    format!("{name}_{namespace}({uid})")
}

/// A duration as Go writes it.
fn go_duration(duration: SignedDuration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (0, millis) => format!("{millis}ms"),
        (seconds, _) if seconds >= 60 => format!("{}m{}s", seconds / 60, seconds % 60),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, millis) => format!("{}s", format!("{seconds}.{millis:03}").trim_end_matches('0')),
    }
}

fn waiting(reason: &str, message: &str) -> Value {
    let mut waiting = Map::from_iter([("reason".to_owned(), json!(reason))]);
    if !message.is_empty() {
        waiting.insert("message".to_owned(), json!(message));
    }
    json!({"waiting": waiting})
}

fn terminated(ended: &Ended) -> Value {
    let mut terminated = json!({
        "exitCode": ended.code, "reason": ended.reason, "containerID": format!("embedded://{}", ended.id),
        "startedAt": time(ended.started_at.unwrap_or(Timestamp::UNIX_EPOCH)), "finishedAt": time(ended.finished_at),
    });
    if !ended.message.is_empty() {
        terminated["message"] = json!(ended.message);
    }
    json!({"terminated": terminated})
}

/// The quality of service that requests and limits stand for. It changes nothing here.
fn quality(pod: &Value) -> &'static str {
    let containers = || list(pod, "/spec/initContainers").iter().chain(list(pod, "/spec/containers"));
    let asked = |container: &Value, field: &str, resource: &str| {
        container.pointer(&format!("/resources/{field}/{resource}")).cloned()
    };
    let both = ["cpu", "memory"];
    let guaranteed = containers().all(|container| {
        both.iter().all(|resource| {
            let limit = asked(container, "limits", resource);
            limit.is_some() && asked(container, "requests", resource).is_none_or(|request| Some(request) == limit)
        })
    });
    let burstable = containers().any(|container| {
        both.iter()
            .any(|resource| ["requests", "limits"].iter().any(|field| asked(container, field, resource).is_some()))
    });
    match (guaranteed, burstable) {
        (true, _) => "Guaranteed",
        (false, true) => "Burstable",
        (false, false) => "BestEffort",
    }
}

#[cfg(test)]
#[path = "tests/status.rs"]
mod tests;
