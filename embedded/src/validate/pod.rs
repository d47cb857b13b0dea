//! Pods, and the templates of pods.

use super::{Causes, names, not_done, one_of, required, without_nulls};
use crate::object::{list, number, text};
use serde_json::Value;

/// The kinds of volumes there are.
const VOLUMES: [&str; 6] = ["emptyDir", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim"];

const HOSTS: &str = "names are resolved as on this machine, and by one hosts file of the kubelet";

/// Checks what a pod specifies.
pub fn check(spec: &Value, field: &str, found: &mut Causes) {
    let volumes = list(spec, "/volumes");
    let volume_names = named(volumes, &format!("{field}.volumes"), found);
    let containers = list(spec, "/containers");
    required(found, format_args!("{field}.containers"), containers.is_empty(), "");
    for list_of in ["initContainers", "containers"] {
        let containers = list(spec, &format!("/{list_of}"));
        named(containers, &format!("{field}.{list_of}"), found);
        for (at, container) in containers.iter().enumerate() {
            check_container(container, &format!("{field}.{list_of}[{at}]"), &volume_names, found);
        }
    }
    let policy = text(spec, "/restartPolicy");
    one_of(found, format_args!("{field}.restartPolicy"), policy, &["Always", "OnFailure", "Never"]);
    not_done_of(spec, field, found);
}

/// The names of containers or volumes, of which each may be there once.
fn named<'a>(items: &'a [Value], field: &str, found: &mut Causes) -> Vec<&'a str> {
    let mut known = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let (name, field) = (text(item, "/name"), format!("{field}[{at}].name"));
        names::label(name, &field, found);
        if known.contains(&name) {
            found.push((field, format!("Duplicate value: {name:?}")));
        }
        known.push(name);
    }
    known
}

fn check_container(container: &Value, field: &str, volumes: &[&str], found: &mut Causes) {
    required(found, format_args!("{field}.image"), text(container, "/image").is_empty(), "");
    for (at, port) in list(container, "/ports").iter().enumerate() {
        let (field, port) = (format!("{field}.ports[{at}].containerPort"), number(port, "/containerPort").unwrap_or(0));
        match port {
            0 => required(found, format_args!("{field}"), true, ""),
            1..=65535 => {}
            _ => found.push((field, format!("Invalid value: {port}: must be between 1 and 65535, inclusive"))),
        }
    }
    for (at, variable) in list(container, "/env").iter().enumerate() {
        required(found, format_args!("{field}.env[{at}].name"), text(variable, "/name").is_empty(), "");
    }
    for (at, mount) in list(container, "/volumeMounts").iter().enumerate() {
        let (field, name) = (format!("{field}.volumeMounts[{at}]"), text(mount, "/name"));
        required(found, format_args!("{field}.name"), name.is_empty(), "");
        if !name.is_empty() && !volumes.contains(&name) {
            found.push((format!("{field}.name"), format!("Not found: {name:?}")));
        }
        required(found, format_args!("{field}.mountPath"), text(mount, "/mountPath").is_empty(), "");
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe_of) = container.get(probe) {
            let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
            let none = !handlers.iter().any(|handler| probe_of.get(*handler).is_some());
            required(found, format_args!("{field}.{probe}"), none, "must specify a handler type");
        }
    }
}

/// Refuses what would have to behave otherwise than processes of one machine do.
pub fn not_done_of(spec: &Value, field: &str, found: &mut Causes) {
    for flag in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "setHostnameAsFQDN"] {
        let why = "containers are processes of this machine";
        not_done(found, format_args!("{field}.{flag}"), spec[flag] == true, why);
    }
    let seconds = spec.get("activeDeadlineSeconds").is_some();
    not_done(found, format_args!("{field}.activeDeadlineSeconds"), seconds, "nothing ends a pod that runs");
    for (name, why) in [("readinessGates", "nothing sets them"), ("hostAliases", HOSTS), ("dnsConfig", HOSTS)] {
        not_done(found, format_args!("{field}.{name}"), spec.get(name).is_some(), why);
    }
    let debug = !list(spec, "/ephemeralContainers").is_empty();
    not_done(found, format_args!("{field}.ephemeralContainers"), debug, "no containers are added to a pod that runs");
    for (at, volume) in list(spec, "/volumes").iter().enumerate() {
        let kinds = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).filter(|key| *key != "name");
        for kind in kinds.filter(|kind| !VOLUMES.contains(kind)) {
            let why = format!("volumes are {}", VOLUMES.join(", "));
            not_done(found, format_args!("{field}.volumes[{at}].{kind}"), true, &why);
        }
        for (part, source) in list(volume, "/projected/sources").iter().enumerate() {
            let field = format_args!("{field}.volumes[{at}].projected.sources[{part}].clusterTrustBundle");
            not_done(found, field, source.get("clusterTrustBundle").is_some(), "there are no such bundles");
        }
    }
    for list_of in ["initContainers", "containers"] {
        for (at, container) in list(spec, &format!("/{list_of}")).iter().enumerate() {
            not_done_of_container(container, &format!("{field}.{list_of}[{at}]"), found);
        }
    }
}

fn not_done_of_container(container: &Value, field: &str, found: &mut Causes) {
    let sidecar = container.get("restartPolicy").is_some();
    not_done(found, format_args!("{field}.restartPolicy"), sidecar, "an initContainer ends before the others start");
    let privileged = container.pointer("/securityContext/privileged") == Some(&Value::Bool(true));
    not_done(
        found,
        format_args!("{field}.securityContext.privileged"),
        privileged,
        "no process gets rights of another user",
    );
    let devices = !list(container, "/volumeDevices").is_empty();
    not_done(found, format_args!("{field}.volumeDevices"), devices, "a volume is a directory");
    let hook = container.pointer("/lifecycle/postStart").is_some();
    not_done(found, format_args!("{field}.lifecycle.postStart"), hook, "only preStop hooks are run");
    let terminal = container["tty"] == true;
    not_done(found, format_args!("{field}.tty"), terminal, "no container has a terminal");
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let secure = container.pointer(&format!("/{probe}/httpGet/scheme")).is_some_and(|is| is == "HTTPS");
        not_done(found, format_args!("{field}.{probe}.httpGet.scheme"), secure, "probes speak plain HTTP");
        let grpc = container.pointer(&format!("/{probe}/grpc")).is_some();
        not_done(found, format_args!("{field}.{probe}.grpc"), grpc, "probes are exec, httpGet and tcpSocket");
    }
    for (at, mount) in list(container, "/volumeMounts").iter().enumerate() {
        let computed = mount.get("subPathExpr").is_some();
        not_done(found, format_args!("{field}.volumeMounts[{at}].subPathExpr"), computed, "subPath is done");
    }
}

/// A pod stays what it is, but for its images, its deadline, what it tolerates and the node it is given.
pub fn fixed(before: &Value, object: &Value, found: &mut Causes) {
    let mut allowed = before["spec"].clone();
    let new = &object["spec"];
    for list_of in ["containers", "initContainers"] {
        let Some(containers) = allowed.get_mut(list_of).and_then(Value::as_array_mut) else { continue };
        for (container, new) in containers.iter_mut().zip(list(new, &format!("/{list_of}"))) {
            container["image"] = new["image"].clone();
        }
    }
    let kept = list(&before["spec"], "/tolerations").iter().all(|known| list(new, "/tolerations").contains(known));
    if kept {
        allowed["tolerations"] = new["tolerations"].clone();
    }
    allowed["activeDeadlineSeconds"] = new["activeDeadlineSeconds"].clone();
    if text(before, "/spec/nodeName").is_empty() {
        allowed["nodeName"] = new["nodeName"].clone();
    }
    if without_nulls(&allowed) != without_nulls(new) {
        let fields = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                      `spec.tolerations` (only additions to existing tolerations),\
                      `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        let why = format!("Forbidden: pod updates may not change fields other than {fields}");
        found.push(("spec".to_owned(), why));
    }
}
