//! Selectors: which objects of a kind are meant, by their labels and by a few of their fields.

use crate::api::Request;
use crate::failure::Failure;
use crate::object;
use crate::resource::Kind;
use serde_json::Value;

/// Which objects are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

/// What a label has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// The selectors of a request.
    pub fn of(request: &Request, kind: Kind) -> Result<Self, Failure> {
        let labels = labels(request.given("labelSelector").unwrap_or_default())?;
        let fields = fields(request.given("fieldSelector").unwrap_or_default(), kind)?;
        Ok(Self { labels, fields })
    }

    /// A `LabelSelector`: `matchLabels` and `matchExpressions`. One that says nothing means everything.
    pub fn of_labels(selector: &Value) -> Self {
        let mut labels = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            labels.push(Requirement::In(key.clone(), vec![value.as_str().unwrap_or_default().to_owned()]));
        }
        for expression in object::list(selector, "/matchExpressions") {
            let key = object::text(expression, "/key").to_owned();
            let values: Vec<String> =
                object::list(expression, "/values").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            labels.push(match object::text(expression, "/operator") {
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::Absent(key),
                _ => Requirement::In(key, values),
            });
        }
        Self { labels, fields: Vec::new() }
    }

    /// Whether an object is meant.
    pub fn wants(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.holds(object))
            && self.fields.iter().all(|(field, equal, value)| (at(object, field) == *value) == *equal)
    }

    /// Whether every object is meant.
    pub fn wants_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

impl Requirement {
    fn holds(&self, object: &Value) -> bool {
        let one_of = |key: &str, values: &[String]| {
            object::label(object, key).is_some_and(|label| values.iter().any(|value| value == label))
        };
        match self {
            Self::In(key, values) => one_of(key, values),
            Self::NotIn(key, values) => !one_of(key, values),
            Self::Exists(key) => object::label(object, key).is_some(),
            Self::Absent(key) => object::label(object, key).is_none(),
        }
    }
}

/// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
fn labels(text: &str) -> Result<Vec<Requirement>, Failure> {
    let mut requirements = Vec::new();
    for part in top_level(text) {
        let part = part.trim();
        if !part.is_empty() {
            requirements.push(requirement(part)?);
        }
    }
    Ok(requirements)
}

/// The parts between commas that are not in parentheses.
fn top_level(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn requirement(part: &str) -> Result<Requirement, Failure> {
    let refused = |why: String| Failure::bad_request(format!("unable to parse requirement: {why}"));
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(key.trim().to_owned()));
    }
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = part.split_once(operator) {
            let (key, values) = (key.trim().to_owned(), vec![value.trim().to_owned()]);
            if value.starts_with('=') {
                return Err(refused("found '=', expected: identifier".to_owned()));
            }
            return Ok(if equal { Requirement::In(key, values) } else { Requirement::NotIn(key, values) });
        }
    }
    let Some((key, rest)) = part.split_once(char::is_whitespace) else {
        return Ok(Requirement::Exists(part.to_owned()));
    };
    let rest = rest.trim();
    let (operator, rest) = rest.split_at(rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len()));
    let values = rest.trim().strip_prefix('(').map(|values| values.strip_suffix(')').ok_or(values));
    match (operator, values) {
        ("in" | "notin", Some(Ok(values))) => {
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            let key = key.to_owned();
            Ok(if operator == "in" { Requirement::In(key, values) } else { Requirement::NotIn(key, values) })
        }
        ("in" | "notin", Some(Err(_))) => Err(refused("found '', expected: ',' or ')'".to_owned())),
        ("in" | "notin", None) => Err(refused(format!("found '{}', expected: '('", rest.trim()))),
        (other, _) => Err(refused(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"))),
    }
}

/// Reads `a=b,c!=d`.
fn fields(text: &str, kind: Kind) -> Result<Vec<(String, bool, String)>, Failure> {
    let mut read = Vec::new();
    for term in text.split(',').filter(|term| !term.is_empty()) {
        let found = [("!=", false), ("==", true), ("=", true)]
            .iter()
            .find_map(|(operator, equal)| term.split_once(operator).map(|(field, value)| (field, *equal, value)));
        let (field, equal, value) = found
            .ok_or_else(|| Failure::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'")))?;
        let always = ["metadata.name", "metadata.namespace"].contains(&field);
        if !always && known(kind).is_empty() {
            let only = "only \"metadata.name\", \"metadata.namespace\"";
            return Err(Failure::bad_request(format!("{field:?} is not a known field selector: {only}")));
        }
        if !always && !known(kind).contains(&field) {
            return Err(Failure::bad_request(format!("field label not supported: {field}")));
        }
        read.push((field.to_owned(), equal, value.to_owned()));
    }
    Ok(read)
}

/// The fields of a kind, beside its name and namespace, by which it can be selected.
fn known(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Pod => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Kind::Event => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        Kind::Namespace => &["status.phase"],
        Kind::Secret => &["type"],
        Kind::Node => &["spec.unschedulable"],
        Kind::ReplicaSet => &["status.replicas"],
        Kind::Service => &["spec.clusterIP", "spec.type"],
        _ => &[],
    }
}

fn at(object: &Value, field: &str) -> String {
    let pointer = if field == "source" { "source/component".to_owned() } else { field.replace('.', "/") };
    match object.pointer(&format!("/{pointer}")) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None if matches!(field, "spec.hostNetwork" | "spec.unschedulable") => "false".to_owned(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Selector, fields, labels};
    use crate::resource::Kind;
    use serde_json::json;

    fn means(selector: &str) -> bool {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        Selector { labels: labels(selector).unwrap(), fields: Vec::new() }.wants(&object)
    }

    #[test]
    fn labels_are_compared_looked_up_and_missed() {
        for selector in ["", "app", "app=web", "app == web,tier!=back", "app in (db, web)", "x notin (y)", "!x", "x!=y"]
        {
            assert!(means(selector), "{selector}");
        }
        for selector in ["!app", "app=db", "app in (db)", "app notin (web,db)", "x", "x=", "app=web,x"] {
            assert!(!means(selector), "{selector}");
        }
    }

    #[test]
    fn what_is_not_a_selector_is_refused_in_words() {
        let refused = |text: &str| labels(text).unwrap_err().message;
        assert_eq!(refused("a b"), "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt");
        assert_eq!(refused("a in (b"), "unable to parse requirement: found '', expected: ',' or ')'");
        assert_eq!(refused("a===b"), "unable to parse requirement: found '=', expected: identifier");
        assert_eq!(fields("spec.foo=1", Kind::Pod).unwrap_err().message, "field label not supported: spec.foo");
    }

    #[test]
    fn fields_are_compared_where_the_kind_has_them() {
        let pod = json!({"metadata": {"name": "p"}, "status": {"phase": "Running"}});
        let means = |text| Selector { labels: Vec::new(), fields: fields(text, Kind::Pod).unwrap() }.wants(&pod);
        assert!(means("metadata.name=p,status.phase!=Failed,spec.nodeName="));
        assert!(!means("spec.nodeName=n"));
    }
}
