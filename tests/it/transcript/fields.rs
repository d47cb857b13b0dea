//! The fields of an answer that are compared: a real server fills in many more than a small one should.

use serde_json::Value;

/// The value at a path of names with dots between them; `*` stands for every element of a list, and `\.` for a dot in a
/// name. The result is `None` if there is no such value; a list omits the elements without one.
pub fn field(value: &Value, path: &str) -> Option<Value> {
    let path = path.replace("\\.", "\0");
    let names: Vec<String> = path.split('.').map(|name| name.replace('\0', ".")).collect();
    find(value, &names)
}

fn find(value: &Value, names: &[String]) -> Option<Value> {
    let Some((name, rest)) = names.split_first() else { return Some(value.clone()) };
    match (name.as_str(), value) {
        ("*", Value::Array(items)) => Some(Value::Array(items.iter().filter_map(|item| find(item, rest)).collect())),
        (name, Value::Array(items)) => find(items.get(name.parse::<usize>().ok()?)?, rest),
        (name, value) => find(value.get(name)?, rest),
    }
}

/// One line for each field. A Status is shown as a whole, unless `show` has its `reason`.
pub fn shown(answer: &Value, show: &[String]) -> Vec<String> {
    if answer["kind"] == "Status" && !show.iter().any(|path| path == "reason") {
        let says = |path: &str| field(answer, path).map(|value| format!("{path} {value}"));
        return ["status", "reason", "message", "details"].into_iter().filter_map(says).collect();
    }
    show.iter().map(|path| format!("{path} {}", text(answer, path))).collect()
}

/// The field as text.
pub fn text(value: &Value, path: &str) -> String {
    field(value, path).map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[test]
fn fields_are_found_by_path() {
    let value = serde_json::json!({"a": {"b.c": 1}, "l": [{"n": 1}, {"n": 2, "m": 3}]});
    assert_eq!(shown(&value, &["a.b\\.c".to_owned(), "x.y".to_owned()]), ["a.b\\.c 1", "x.y -"]);
    assert_eq!(text(&value, "l.*.n"), "[1,2]");
    assert_eq!(text(&value, "l.*.m"), "[3]");
    assert_eq!(text(&value, "l.1.n"), "2");
    let status = serde_json::json!({"kind": "Status", "status": "Failure", "code": 404, "details": {"name": "x"}});
    assert_eq!(shown(&status, &[]), ["status \"Failure\"", "details {\"name\":\"x\"}"]);
}
