//! StatefulSets, Deployments and ReplicaSets.

use super::{Causes, claim, names, not_negative, one_of, pod, required, without_nulls};
use crate::object::{list, number, text};
use crate::selector::Selector;
use serde_json::{Value, json};

/// What of a StatefulSet may change.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub fn stateful_set(set: &Value, found: &mut Causes) {
    let policy = text(set, "/spec/podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let why = format!("Invalid value: {policy:?}: must be 'OrderedReady' or 'Parallel'");
        found.push(("spec.podManagementPolicy".to_owned(), why));
    }
    let strategy = text(set, "/spec/updateStrategy/type");
    if !matches!(strategy, "RollingUpdate" | "OnDelete") {
        let why = format!("Invalid value: {strategy:?}: must be 'RollingUpdate' or 'OnDelete'");
        found.push(("spec.updateStrategy".to_owned(), why));
    }
    for when in ["whenDeleted", "whenScaled"] {
        let field = format!("spec.persistentVolumeClaimRetentionPolicy.{when}");
        let policy = text(&set["spec"]["persistentVolumeClaimRetentionPolicy"], &format!("/{when}"));
        one_of(found, format_args!("{field}"), policy, &["Retain", "Delete"]);
    }
    for field in ["replicas", "minReadySeconds", "ordinals.start"] {
        let pointer = format!("/spec/{}", field.replace('.', "/"));
        not_negative(found, format_args!("spec.{field}"), number(set, &pointer));
    }
    selector(set, "statefulset", found);
    template(set, found);
    for (at, template) in list(set, "/spec/volumeClaimTemplates").iter().enumerate() {
        claim(&template["spec"], &format!("spec.volumeClaimTemplates[{at}].spec"), found);
    }
    // A real one looks at the rest of the template only when a pod is made of it; what is not done is told at once.
    pod::not_done_of(&set["spec"]["template"]["spec"], "spec.template.spec", found);
}

pub fn replicated(object: &Value, found: &mut Causes) {
    for field in ["replicas", "minReadySeconds"] {
        not_negative(found, format_args!("spec.{field}"), number(object, &format!("/spec/{field}")));
    }
    selector(object, "deployment", found);
    template(object, found);
    pod::check(&object["spec"]["template"]["spec"], "spec.template.spec", found);
}

fn selector(object: &Value, kind: &str, found: &mut Causes) {
    let nothing = json!({});
    let selector = object["spec"].get("selector");
    let empty = selector.is_some_and(|selector| Selector::of_labels(selector).wants_all());
    required(found, format_args!("spec.selector"), selector.is_none(), "");
    if empty {
        let why = format!("Invalid value: {}: empty selector is invalid for {kind}", go(&nothing));
        found.push(("spec.selector".to_owned(), why));
    }
    let labels = object.pointer("/spec/template/metadata/labels");
    let template = json!({"metadata": {"labels": labels.unwrap_or(&nothing)}});
    if !empty && !selector.is_some_and(|selector| Selector::of_labels(selector).wants(&template)) {
        let why = format!("Invalid value: {}: `selector` does not match template `labels`", map(labels));
        found.push(("spec.template.metadata.labels".to_owned(), why));
    }
}

fn template(object: &Value, found: &mut Causes) {
    names::labels(&object["spec"]["template"]["metadata"]["labels"], "spec.template.labels", found);
    let policy = text(object, "/spec/template/spec/restartPolicy");
    if !policy.is_empty() {
        one_of(found, format_args!("spec.template.spec.restartPolicy"), policy, &["Always"]);
    }
}

/// A map of texts as Go shows it.
fn map(labels: Option<&Value>) -> String {
    let Some(labels) = labels.and_then(Value::as_object) else { return "map[string]string(nil)".to_owned() };
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
    format!("map[string]string{{{}}}", labels.join(", "))
}

/// A selector as Go shows it.
fn go(selector: &Value) -> String {
    let expressions = match selector.get("matchExpressions") {
        None => "[]v1.LabelSelectorRequirement(nil)".to_owned(),
        Some(expressions) => expressions.to_string(),
    };
    format!("v1.LabelSelector{{MatchLabels:{}, MatchExpressions:{expressions}}}", map(selector.get("matchLabels")))
}

pub fn fixed_set(before: &Value, object: &Value, found: &mut Causes) {
    let mut allowed = object["spec"].clone();
    for field in CHANGEABLE {
        allowed[field] = before["spec"][field].clone();
    }
    if without_nulls(&allowed) != without_nulls(&before["spec"]) {
        let names = "'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', \
                     'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds'";
        let why = format!("updates to statefulset spec for fields other than {names} are forbidden");
        found.push(("spec".to_owned(), format!("Forbidden: {why}")));
    }
}

pub fn fixed_selector(before: &Value, object: &Value, found: &mut Causes) {
    let selector = &object["spec"]["selector"];
    if *selector != before["spec"]["selector"] {
        found.push(("spec.selector".to_owned(), format!("Invalid value: {}: field is immutable", go(selector))));
    }
}
