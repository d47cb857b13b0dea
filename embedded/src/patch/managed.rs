//! Who has set which fields, and server-side apply, which goes by it.
//!
//! Only requests are recorded, not what controllers and the kubelet write: no client applies over them. Entries hold the
//! fields that were set and the items of lists they are in; a real Kubernetes also names the maps in between.

use super::fields::{self, Fields, Path};
use super::{last_applied, schema, strategic};
use crate::failure::Failure;
use crate::object::{list, metadata, text, time};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Who sets fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// Its name.
    pub name: String,
    /// The subresource it does so by.
    pub subresource: String,
}

impl Manager {
    /// Names one.
    pub fn new(name: &str, subresource: &str) -> Self {
        Self { name: name.to_owned(), subresource: subresource.to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    manager: Manager,
    applies: bool,
    api_version: String,
    time: String,
    fields: Fields,
}

/// Records that a manager wrote an object, by which fields differ.
pub fn track(before: Option<&Value>, object: &mut Value, name: &str, subresource: &str, now: Timestamp) {
    let nothing = json!({});
    let known = before.unwrap_or(&nothing);
    let given = object.pointer("/metadata/managedFields").cloned();
    // A client that writes `managedFields` sets them; one that leaves them out keeps them.
    let mut entries = match (&given, before) {
        (Some(given), Some(before)) if before.pointer("/metadata/managedFields") != Some(given) => entries(given),
        (_, Some(before)) => entries(&before["metadata"]["managedFields"]),
        (_, None) => Vec::new(),
    };
    let written = |path: &Path| (path[0] == "f:status") == (subresource == "status");
    let differs = |path: &Path| written(path) && fields::at(known, path) != fields::at(object, path);
    let (is, was) = (Fields::of(object).0, Fields::of(known).0);
    let (set, gone): (BTreeSet<Path>, BTreeSet<Path>) = (
        is.iter().filter(|path| differs(path) && (!is_item(path) || !was.contains(*path))).cloned().collect(),
        was.difference(&is).filter(|path| written(path)).cloned().collect(),
    );
    let manager = Manager::new(name, subresource);
    for entry in &mut entries {
        let own = entry.manager == manager && !entry.applies;
        entry.fields.0.retain(|path| !gone.contains(path) && (own || is_item(path) || !set.contains(path)));
    }
    if !set.is_empty() {
        let entry = own(&mut entries, &manager, false, object);
        entry.fields.0.extend(set);
        entry.time = time(now);
    }
    write(object, entries);
}

/// The object after a manager applied its fields. `before` is the object as it is, if there is one.
pub fn apply(
    before: Option<&Value>,
    said: &Value,
    manager: &Manager,
    force: bool,
    now: Timestamp,
) -> Result<Value, Failure> {
    let mut wanted = said.clone();
    schema::fill_keys(&mut wanted);
    let mine = Fields::of(&wanted);
    let Some(before) = before else {
        let mut object = wanted;
        let mut entries = Vec::new();
        let entry = own(&mut entries, manager, true, &object);
        (entry.fields, entry.time) = (mine, time(now));
        write(&mut object, entries);
        return Ok(object);
    };
    let mut entries = entries(&before["metadata"]["managedFields"]);
    let differs = |path: &&Path| !is_item(path) && fields::at(before, path) != fields::at(&wanted, path);
    let changes: BTreeSet<Path> = mine.0.iter().filter(differs).cloned().collect();
    let kept = last_applied::kept(before, manager);
    let conflicts: Vec<(&Entry, &Path)> = entries
        .iter()
        .filter(|entry| !force && (entry.manager != *manager || !entry.applies))
        .flat_map(|entry| entry.fields.0.intersection(&changes).map(move |path| (entry, path)))
        .filter(|(_, path)| !kept.contains(*path))
        .collect();
    if !conflicts.is_empty() {
        return Err(conflict(&conflicts));
    }
    let last = own(&mut entries, manager, true, before);
    let mut left_out: Vec<Path> = last.fields.0.difference(&mine.0).cloned().collect();
    last.fields = mine;
    for entry in entries.iter_mut().filter(|entry| entry.manager != *manager || !entry.applies) {
        entry.fields.0.retain(|path| !changes.contains(path));
    }
    // A field that the manager left out and no other has set is removed; an item of a list goes as a whole.
    left_out.retain(|path| !entries.iter().any(|entry| entry.fields.0.iter().any(|kept| kept.starts_with(path))));
    let whole = |path: &&Path| !left_out.iter().any(|other| other.len() < path.len() && path.starts_with(other));
    let mut object = before.clone();
    for path in left_out.iter().filter(whole) {
        fields::remove(&mut object, path);
    }
    strategic::overlay(&mut object, &wanted)?;
    last_applied::follow(&mut object, said, manager);
    write(&mut object, entries.clone());
    if object != *before {
        own(&mut entries, manager, true, before).time = time(now);
        write(&mut object, entries);
    }
    Ok(object)
}

/// Whether a path ends in an item of a list, which many may have set.
fn is_item(path: &Path) -> bool {
    path.last().is_some_and(|step| step.starts_with("k:"))
}

fn own<'a>(entries: &'a mut Vec<Entry>, manager: &Manager, applies: bool, object: &Value) -> &'a mut Entry {
    let at = entries.iter().position(|entry| entry.manager == *manager && entry.applies == applies);
    let at = at.unwrap_or_else(|| {
        let api_version = text(object, "/apiVersion").to_owned();
        let (manager, fields) = (manager.clone(), Fields::default());
        entries.push(Entry { manager, applies, api_version, time: String::new(), fields });
        entries.len() - 1
    });
    &mut entries[at]
}

fn entries(managed: &Value) -> Vec<Entry> {
    let entry = |entry: &Value| Entry {
        manager: Manager::new(text(entry, "/manager"), text(entry, "/subresource")),
        applies: text(entry, "/operation") == "Apply",
        api_version: text(entry, "/apiVersion").to_owned(),
        time: text(entry, "/time").to_owned(),
        fields: Fields::read(&entry["fieldsV1"]),
    };
    list(managed, "").iter().filter(|entry| !text(entry, "/operation").is_empty()).map(entry).collect()
}

fn write(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.fields.0.is_empty());
    entries.sort_by_key(|entry| !entry.applies);
    let written: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let mut written = json!({
                "manager": entry.manager.name, "operation": if entry.applies { "Apply" } else { "Update" },
                "apiVersion": entry.api_version, "time": entry.time,
                "fieldsType": "FieldsV1", "fieldsV1": entry.fields.write(),
            });
            if !entry.manager.subresource.is_empty() {
                written["subresource"] = json!(entry.manager.subresource);
            }
            written
        })
        .collect();
    if written.is_empty() {
        metadata(object).remove("managedFields");
    } else {
        metadata(object).insert("managedFields".to_owned(), Value::Array(written));
    }
}

fn conflict(conflicts: &[(&Entry, &Path)]) -> Failure {
    let mut by_manager: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (entry, path) in conflicts {
        let mut who = format!("{:?}", entry.manager.name);
        if !entry.manager.subresource.is_empty() {
            who += &format!(" with subresource {:?}", entry.manager.subresource);
        }
        if !entry.applies {
            who += &format!(" using {}", entry.api_version);
        }
        by_manager.entry(who).or_default().push(fields::show(path));
    }
    let message = match conflicts.len() {
        1 => by_manager.iter().map(|(who, fields)| format!("conflict with {who}: {}", fields[0])).collect(),
        _ => {
            let told = |(who, fields): (&String, &Vec<String>)| {
                let fields: Vec<String> = fields.iter().map(|field| format!("- {field}")).collect();
                format!("conflicts with {who}:\n{}", fields.join("\n"))
            };
            by_manager.iter().map(told).collect::<Vec<_>>().join("\n")
        }
    };
    let cause = |who: &String, field: &String| json!({"reason": "FieldManagerConflict", "message": format!("conflict with {who}"), "field": field});
    let causes: Vec<Value> =
        by_manager.iter().flat_map(|(who, fields)| fields.iter().map(move |field| cause(who, field))).collect();
    let (count, plural) = (conflicts.len(), if conflicts.len() == 1 { "" } else { "s" });
    let message = format!("Apply failed with {count} conflict{plural}: {message}");
    Failure { code: 409, reason: "Conflict", message, details: json!({"causes": causes}) }
}
