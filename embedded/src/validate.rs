//! What an object has to be: what a real Kubernetes demands in its own words, and what is not done here in plain ones.
//!
//! Everybody's writes are checked, also those of controllers and the kubelet. What means nothing where containers are
//! plain processes of one machine is let through without a word: security contexts, resources, ports, affinity,
//! tolerations, topology spread, pull secrets and policies. What would have to behave otherwise is refused.

mod names;
mod pod;
mod rules;
mod workload;

use crate::failure::Failure;
use crate::object::{list, name, number, text};
use crate::resource::Kind;
use crate::store::Part;
use serde_json::Value;
use std::fmt;

/// What is wrong: fields, and for each why.
type Causes = Vec<(String, String)>;

/// Checks an object that is created.
pub fn created(kind: Kind, object: &Value) -> Result<(), Failure> {
    refuse(kind, object, causes(kind, object))
}

/// Checks an object that is changed.
pub fn updated(kind: Kind, part: Part, before: &Value, object: &Value) -> Result<(), Failure> {
    if part == Part::Status || before == object {
        return Ok(());
    }
    // What is as before was in order before.
    let same = |field: &str| object.get(field).is_some_and(|is| before.get(field) == Some(is));
    let mut found = if same("spec") && same("metadata") { Causes::new() } else { causes(kind, object) };
    fixed(kind, before, object, &mut found);
    refuse(kind, object, found)?;
    if kind == Kind::PersistentVolumeClaim && before["spec"]["resources"] != object["spec"]["resources"] {
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
        return Err(Failure::forbidden(kind, name(object), why));
    }
    Ok(())
}

fn refuse(kind: Kind, object: &Value, causes: Causes) -> Result<(), Failure> {
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, name(object), &causes)) }
}

fn causes(kind: Kind, object: &Value) -> Causes {
    let mut found = names::of_metadata(kind, object);
    match kind {
        Kind::Pod => pod::check(&object["spec"], "spec", &mut found),
        Kind::StatefulSet => workload::stateful_set(object, &mut found),
        Kind::Deployment | Kind::ReplicaSet => workload::replicated(object, &mut found),
        Kind::PersistentVolumeClaim => claim(&object["spec"], "spec", &mut found),
        Kind::Service => service(object, &mut found),
        Kind::ConfigMap => names::keys(object, &["data", "binaryData"], &mut found),
        Kind::Secret => names::keys(object, &["data"], &mut found),
        Kind::Lease => lease(object, &mut found),
        Kind::Event => event(object, &mut found),
        Kind::Role => rules::role(object, &mut found),
        Kind::RoleBinding => rules::binding(object, &mut found),
        Kind::Namespace
        | Kind::Node
        | Kind::EndpointSlice
        | Kind::ServiceAccount
        | Kind::ControllerRevision
        | Kind::SelfSubjectAccessReview => {}
    }
    found
}

/// What may not change any more.
fn fixed(kind: Kind, before: &Value, object: &Value, found: &mut Causes) {
    let deleting = crate::object::is_deleting(before);
    let new: Vec<String> = list(object, "/metadata/finalizers")
        .iter()
        .filter(|finalizer| !list(before, "/metadata/finalizers").contains(finalizer))
        .map(ToString::to_string)
        .collect();
    if deleting && !new.is_empty() {
        let names = new.join(", ");
        let why = "no new finalizers can be added if the object is being deleted, found new finalizers";
        let cause = ("metadata.finalizers".to_owned(), format!("Forbidden: {why} []string{{{names}}}"));
        // A real one finds it twice, though it says so once.
        found.extend([cause.clone(), cause]);
    }
    let changed = |field: &str| before.get(field) != object.get(field);
    match kind {
        Kind::Pod => pod::fixed(before, object, found),
        Kind::StatefulSet => workload::fixed_set(before, object, found),
        Kind::Deployment | Kind::ReplicaSet => workload::fixed_selector(before, object, found),
        Kind::PersistentVolumeClaim => {
            let mut allowed = before["spec"].clone();
            allowed["resources"] = object["spec"]["resources"].clone();
            if text(before, "/spec/volumeName").is_empty() {
                allowed["volumeName"] = object["spec"]["volumeName"].clone();
            }
            if without_nulls(&allowed) != without_nulls(&object["spec"]) {
                let except = "except resources.requests and volumeAttributesClassName for bound claims";
                found.push(("spec".to_owned(), format!("Forbidden: spec is immutable after creation {except}")));
            }
        }
        Kind::ConfigMap | Kind::Secret if before["immutable"] == true => {
            for field in ["immutable", "data", "binaryData"].into_iter().filter(|field| changed(field)) {
                let why = "Forbidden: field is immutable when `immutable` is set".to_owned();
                found.push((field.to_owned(), why));
            }
        }
        Kind::RoleBinding if changed("roleRef") => {
            let why = format!("Invalid value: {}: cannot change roleRef", object["roleRef"]);
            found.push(("roleRef".to_owned(), why));
        }
        _ => {}
    }
}

fn without_nulls(fields: &Value) -> Value {
    let kept = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Refuses what is missing. Fields are named only when something is wrong with them: most objects are in order.
fn required(found: &mut Causes, field: fmt::Arguments<'_>, missing: bool, why: &str) {
    if missing {
        let why = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        found.push((field.to_string(), why));
    }
}

fn not_negative(found: &mut Causes, field: fmt::Arguments<'_>, value: Option<i64>) {
    if let Some(value) = value.filter(|value| *value < 0) {
        found.push((field.to_string(), format!("Invalid value: {value}: must be greater than or equal to 0")));
    }
}

/// Refuses a value that is none of those there are.
fn one_of(found: &mut Causes, field: fmt::Arguments<'_>, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let why = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        found.push((field.to_string(), why));
    }
}

/// Refuses what this Kubernetes does not do.
fn not_done(found: &mut Causes, field: fmt::Arguments<'_>, asked: bool, why: &str) {
    if asked {
        found.push((field.to_string(), format!("Forbidden: not done by this embedded Kubernetes: {why}")));
    }
}

fn claim(spec: &Value, field: &str, found: &mut Causes) {
    let modes = list(spec, "/accessModes");
    required(found, format_args!("{field}.accessModes"), modes.is_empty(), "at least 1 access mode is required");
    let storage = spec.pointer("/resources/requests/storage");
    required(found, format_args!("{field}.resources[storage]"), storage.is_none(), "");
    let block = spec["volumeMode"] == "Block";
    not_done(found, format_args!("{field}.volumeMode"), block, "a volume is a directory");
    for source in ["dataSource", "dataSourceRef", "selector"] {
        let why = "every volume is new and empty";
        not_done(found, format_args!("{field}.{source}"), spec.get(source).is_some(), why);
    }
}

fn service(object: &Value, found: &mut Causes) {
    let ports = list(object, "/spec/ports");
    let headless = object["spec"]["clusterIP"] == "None";
    required(found, format_args!("spec.ports"), ports.is_empty() && !headless, "");
    for (at, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{at}].{name}");
        required(found, format_args!("{}", field("name")), ports.len() > 1 && text(port, "/name").is_empty(), "");
        for name in ["port", "targetPort"] {
            if let Some(value) = number(port, &format!("/{name}")).filter(|value| !(1..=65535).contains(value)) {
                let why = format!("Invalid value: {value}: must be between 1 and 65535, inclusive");
                found.push((field(name), why));
            }
        }
    }
    let kind = text(object, "/spec/type");
    let why = format!("a Service of type {kind}; nothing outside this machine is served");
    not_done(found, format_args!("spec.type"), kind != "ClusterIP", &why);
}

fn lease(object: &Value, found: &mut Causes) {
    if let Some(seconds) = number(object, "/spec/leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        let why = format!("Invalid value: {seconds}: must be greater than 0");
        found.push(("spec.leaseDurationSeconds".to_owned(), why));
    }
    not_negative(found, format_args!("spec.leaseTransitions"), number(object, "/spec/leaseTransitions"));
}

fn event(object: &Value, found: &mut Causes) {
    let about = text(object, "/involvedObject/namespace");
    let cluster = about.is_empty() && crate::object::namespace(object) == "default";
    if about != crate::object::namespace(object) && !cluster {
        let why = format!("Invalid value: {about:?}: does not match event.namespace");
        found.push(("involvedObject.namespace".to_owned(), why));
    }
}

#[cfg(test)]
mod tests;
