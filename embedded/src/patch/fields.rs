//! Sets of fields, as `managedFields` writes them down: which fields of an object a manager has set.

use super::schema::{self, List};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The way to a field: `f:NAME`, `k:{…}` for an item of a list by what tells it apart, `v:…` for a value in a set.
pub type Path = Vec<String>;

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub BTreeSet<Path>);

/// Fields that no manager owns.
const UNOWNED: [&str; 9] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
];

impl Fields {
    /// All fields of an object.
    pub fn of(object: &Value) -> Self {
        let mut found = BTreeSet::new();
        for (key, value) in object.as_object().into_iter().flatten() {
            match (key.as_str(), value) {
                ("apiVersion" | "kind", _) => {}
                ("metadata", Value::Object(metadata)) => {
                    for (key, value) in metadata.iter().filter(|(key, _)| !UNOWNED.contains(&key.as_str())) {
                        walk(key, value, vec!["f:metadata".to_owned(), format!("f:{key}")], &mut found);
                    }
                }
                _ => walk(key, value, vec![format!("f:{key}")], &mut found),
            }
        }
        Self(found)
    }

    /// Reads `fieldsV1`.
    pub fn read(tree: &Value) -> Self {
        let mut found = BTreeSet::new();
        read(tree, &mut Vec::new(), &mut found);
        Self(found)
    }

    /// Writes `fieldsV1`.
    pub fn write(&self) -> Value {
        let mut tree = json!({});
        for path in &self.0 {
            let mut node = &mut tree;
            for step in path {
                let fields = node.as_object_mut().expect("every node is an object");
                node = fields.entry(step.clone()).or_insert_with(|| json!({}));
            }
            // A field that has fields of its own and is owned itself carries a dot.
            node["."] = json!({});
        }
        without_lonely_dots(&mut tree);
        tree
    }
}

fn walk(field: &str, value: &Value, path: Path, found: &mut BTreeSet<Path>) {
    let below = |step: String| path.iter().cloned().chain([step]).collect::<Path>();
    match value {
        Value::Object(fields) if !fields.is_empty() && !schema::is_atomic(field) => {
            for (key, value) in fields {
                walk(key, value, below(format!("f:{key}")), found);
            }
        }
        Value::Array(items) if !items.is_empty() => match schema::list(field, items) {
            List::Atomic => drop(found.insert(path)),
            List::Set => found.extend(items.iter().map(|item| below(format!("v:{item}")))),
            List::Map(keys) => {
                for item in items {
                    let key: Map<String, Value> =
                        keys.iter().filter_map(|key| Some(((*key).to_owned(), item.get(*key)?.clone()))).collect();
                    let path = below(format!("k:{}", Value::Object(key)));
                    for (key, value) in item.as_object().into_iter().flatten() {
                        walk(key, value, path.iter().cloned().chain([format!("f:{key}")]).collect(), found);
                    }
                    found.insert(path);
                }
            }
        },
        _ => drop(found.insert(path)),
    }
}

fn read(node: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
    let Some(fields) = node.as_object() else { return };
    if (fields.is_empty() && !path.is_empty()) || fields.contains_key(".") {
        found.insert(path.clone());
    }
    let is_step = |step: &str| ["f:", "k:", "v:"].iter().any(|kind| step.starts_with(kind));
    for (step, below) in fields.iter().filter(|(step, _)| is_step(step)) {
        path.push(step.clone());
        read(below, path, found);
        path.pop();
    }
}

fn without_lonely_dots(node: &mut Value) {
    let Some(fields) = node.as_object_mut() else { return };
    if fields.len() == 1 && fields.contains_key(".") {
        fields.clear();
    }
    fields.values_mut().for_each(without_lonely_dots);
}

/// The value at a path.
pub fn at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, step| match step.split_at(2) {
        ("f:", field) => value.get(field),
        (kind, key) => value.as_array()?.get(position(value, kind, key)?),
    })
}

/// Takes the value at a path away, and what is empty thereafter.
pub fn remove(object: &mut Value, path: &[String]) {
    let Some((step, below)) = path.split_first() else { return };
    let (kind, key) = step.split_at(2);
    match (kind, &mut *object) {
        ("f:", Value::Object(fields)) => {
            if let Some(value) = fields.get_mut(key) {
                remove(value, below);
                let empty = value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
                if below.is_empty() || empty {
                    fields.remove(key);
                }
            }
        }
        (_, list) => {
            let Some(at) = position(list, kind, key) else { return };
            let Some(items) = list.as_array_mut() else { return };
            if below.is_empty() {
                items.remove(at);
            } else {
                remove(&mut items[at], below);
            }
        }
    }
}

fn position(list: &Value, kind: &str, key: &str) -> Option<usize> {
    let wanted: Value = serde_json::from_str(key).ok()?;
    let is = |item: &Value| match (kind, &wanted) {
        ("k:", Value::Object(keys)) => keys.iter().all(|(key, value)| item.get(key) == Some(value)),
        _ => *item == wanted,
    };
    list.as_array()?.iter().position(is)
}

/// A path as messages write it: `.spec.containers[name="a"].image`.
pub fn show(path: &[String]) -> String {
    let step = |step: &String| match step.split_at(2) {
        ("f:", field) => format!(".{field}"),
        ("k:", key) => {
            let keys: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        (_, value) => format!("[={value}]"),
    };
    path.iter().map(step).collect()
}
