//! What names, labels, annotations and keys have to look like.

use super::{Causes, required};
use crate::object::{list, name, text};
use crate::resource::Kind;
use serde_json::Value;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const OLD_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
    is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
    an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
    'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// Name, labels, annotations, owners and finalizers.
pub fn of_metadata(kind: Kind, object: &Value) -> Causes {
    let mut found = Causes::new();
    let (name, prefix) = (name(object), text(object, "/metadata/generateName"));
    required(&mut found, format_args!("metadata.name"), name.is_empty(), "name or generateName is required");
    if !name.is_empty() {
        refuse(&mut found, "metadata.name", name, wrong_name(kind, name));
    } else if !prefix.is_empty() {
        refuse(&mut found, "metadata.generateName", prefix, wrong_name(kind, prefix.trim_end_matches('-')));
    }
    labels(&object["metadata"]["labels"], "metadata.labels", &mut found);
    for (key, _) in object["metadata"]["annotations"].as_object().into_iter().flatten() {
        refuse(&mut found, "metadata.annotations", key, wrong_key(&key.to_lowercase()));
    }
    for (at, owner) in list(object, "/metadata/ownerReferences").iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            let missing = text(owner, &format!("/{field}")).is_empty();
            let why = if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
            required(&mut found, format_args!("metadata.ownerReferences[{at}].{field}"), missing, why);
        }
    }
    for (at, finalizer) in list(object, "/metadata/finalizers").iter().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        let standard = matches!(finalizer, "kubernetes" | crate::store::ORPHAN | crate::store::FOREGROUND);
        let why = "name is neither a standard finalizer name nor is it fully qualified".to_owned();
        let wrong = (!standard && !finalizer.contains('/')).then_some(why);
        refuse(&mut found, &format!("metadata.finalizers[{at}]"), finalizer, wrong);
    }
    found
}

/// Labels of an object or of a template.
pub fn labels(labels: &Value, field: &str, found: &mut Causes) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        refuse(found, field, key, wrong_key(key));
        let value = value.as_str().unwrap_or_default();
        refuse(found, field, value, wrong(value.is_empty() || is_name(value), VALUE).or_else(|| too_long(value, 63)));
    }
}

/// The keys of what a ConfigMap or a Secret holds.
pub fn keys(object: &Value, fields: &[&str], found: &mut Causes) {
    for field in fields {
        for (key, _) in object[*field].as_object().into_iter().flatten() {
            let good = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            refuse(found, &format!("{field}[{key}]"), key, wrong(good, KEY).or_else(|| too_long(key, 253)));
        }
    }
}

/// The name of a container or of a volume.
pub fn label(name: &str, field: &str, found: &mut Causes) {
    required(found, format_args!("{field}"), name.is_empty(), "");
    if !name.is_empty() {
        refuse(found, field, name, wrong(is_label(name), LABEL).or_else(|| too_long(name, 63)));
    }
}

fn refuse(found: &mut Causes, field: &str, value: &str, wrong: Option<String>) {
    if let Some(why) = wrong {
        found.push((field.to_owned(), format!("Invalid value: {value:?}: {why}")));
    }
}

fn wrong(good: bool, why: &str) -> Option<String> {
    (!good).then(|| why.to_owned())
}

fn too_long(text: &str, most: usize) -> Option<String> {
    (text.len() > most).then(|| format!("must be no more than {most} characters"))
}

fn wrong_name(kind: Kind, name: &str) -> Option<String> {
    match kind {
        Kind::Namespace if name.contains('.') => Some("must not contain dots".to_owned()),
        Kind::Namespace => wrong(is_label(name), LABEL).or_else(|| too_long(name, 63)),
        Kind::Service => {
            let good = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
            wrong(good, OLD_LABEL).or_else(|| too_long(name, 63))
        }
        Kind::Role | Kind::RoleBinding => match name {
            "." | ".." => Some(format!("may not be '{name}'")),
            _ => ['/', '%'].iter().find(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")),
        },
        _ => wrong(name.split('.').all(is_label), SUBDOMAIN).or_else(|| too_long(name, 253)),
    }
}

fn wrong_key(key: &str) -> Option<String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if let Some(prefix) = prefix.filter(|prefix| !prefix.split('.').all(is_label)) {
        let why = if prefix.is_empty() { "must be non-empty" } else { SUBDOMAIN };
        return Some(format!("prefix part {why}"));
    }
    wrong(is_name(name), QUALIFIED).or_else(|| too_long(name, 63))
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ends(text.chars().next()) && ends(text.chars().next_back()) && text.chars().all(inner)
}
