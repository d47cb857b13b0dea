//! Why something is refused, in the words of Kubernetes: each failure is a `Status` that clients understand.

use crate::resource::Kind;
use serde_json::{Value, json};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The HTTP status.
    pub code: u16,
    /// The machine's word for it, such as `NotFound`.
    pub reason: &'static str,
    /// The sentence.
    pub message: String,
    /// `details`; null if there are none.
    pub details: Value,
}

impl Failure {
    fn about(code: u16, reason: &'static str, kind: Kind, name: &str, message: String) -> Self {
        let resource = kind.resource();
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        Self { code, reason, message, details }
    }

    /// There is no such object.
    pub fn not_found(kind: Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.resource().qualified());
        Self::about(404, "NotFound", kind, name, message)
    }

    /// There is such an object already, though perhaps not for long.
    pub fn already_exists(kind: Kind, name: &str, is_deleting: bool) -> Self {
        let goes = if is_deleting { "object is being deleted: " } else { "" };
        let message = format!("{goes}{} {name:?} already exists", kind.resource().qualified());
        Self::about(409, "AlreadyExists", kind, name, message)
    }

    /// The object is not in the state that the request expects.
    pub fn conflict(kind: Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.resource().qualified());
        Self::about(409, "Conflict", kind, name, message)
    }

    /// The object is not the one that is to be deleted; a real server names its kind here, not its resource.
    pub fn precondition(kind: Kind, name: &str, why: &str) -> Self {
        let mut failure = Self::conflict(kind, name, why);
        let resource = kind.resource();
        let group = if resource.group.is_empty() { String::new() } else { format!(".{}", resource.group) };
        failure.message = format!("Operation cannot be fulfilled on {}{group} {name:?}: {why}", resource.name);
        failure.details["kind"] = json!(resource.name);
        failure
    }

    /// The object was changed since it was read.
    pub fn stale(kind: Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// Fields of the object are not what they have to be; each cause is a field and what is wrong with it.
    pub fn invalid(kind: Kind, name: &str, causes: &[(String, String)]) -> Self {
        let resource = kind.resource();
        let mut words: Vec<String> = causes.iter().map(|(field, why)| format!("{field}: {why}")).collect();
        words.dedup();
        let words = if words.len() == 1 { words[0].clone() } else { format!("[{}]", words.join(", ")) };
        let qualified = if resource.group.is_empty() {
            resource.name.to_owned()
        } else {
            format!("{}.{}", resource.name, resource.group)
        };
        let mut failure = Self::about(422, "Invalid", kind, name, format!("{qualified} {name:?} is invalid: {words}"));
        failure.details["kind"] = json!(resource.name);
        failure.details["causes"] = Self::causes(causes);
        if name.is_empty() {
            drop(failure.details.as_object_mut().and_then(|details| details.remove("name")));
        }
        failure
    }

    /// The same of something else than a stored object, such as a Scale.
    pub fn invalid_named(kind: &str, group: &str, name: &str, causes: &[(&str, String)]) -> Self {
        let words: Vec<String> = causes.iter().map(|(field, why)| format!("{field}: {why}")).collect();
        let message = format!("{kind}.{group} {name:?} is invalid: {}", words.join(", "));
        let details = json!({"name": name, "group": group, "kind": kind, "causes": Self::causes(causes)});
        Self { code: 422, reason: "Invalid", message, details }
    }

    /// `causes`: for each field what is wrong with it, and the machine's word for that.
    pub fn causes<S: AsRef<str>>(causes: &[(S, String)]) -> Value {
        let reason = |why: &str| match why.split(':').next().unwrap_or_default() {
            "Required value" => "FieldValueRequired",
            "Duplicate value" => "FieldValueDuplicate",
            "Forbidden" => "FieldValueForbidden",
            "Not found" => "FieldValueNotFound",
            "Unsupported value" => "FieldValueNotSupported",
            _ => "FieldValueInvalid",
        };
        let cause =
            |(field, why): &(S, String)| json!({"reason": reason(why), "message": why, "field": field.as_ref()});
        causes.iter().map(cause).collect()
    }

    /// The request itself is not understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into(), details: Value::Null }
    }

    /// The caller may not do this.
    pub fn forbidden(kind: Kind, name: &str, why: &str) -> Self {
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{named} is forbidden: {why}", kind.resource().qualified());
        let mut failure = Self::about(403, "Forbidden", kind, name, message);
        if name.is_empty() {
            failure.details.as_object_mut().expect("details are an object").remove("name");
        }
        failure
    }

    /// The caller is unknown.
    pub fn unauthorized() -> Self {
        Self { code: 401, reason: "Unauthorized", message: "Unauthorized".to_owned(), details: Value::Null }
    }

    /// A watch or a list continues from a version that is forgotten.
    pub fn expired(message: impl Into<String>) -> Self {
        Self { code: 410, reason: "Expired", message: message.into(), details: Value::Null }
    }

    /// A version that is not reached yet.
    pub fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        Self { code: 504, reason: "Timeout", message, details: json!({"causes": [cause], "retryAfterSeconds": 1}) }
    }

    /// What a real server calls an internal error, though it is often the caller's.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: 500, reason: "", message: message.into(), details: Value::Null }
    }

    /// A path that leads nowhere.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self { code: 404, reason: "NotFound", message, details: json!({}) }
    }

    /// A kind, or what is below an object of it, does not do this.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self { code: 405, reason: "MethodNotAllowed", message, details: json!({}) }
    }

    /// A body in a form that is not read.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self { code: 415, reason: "UnsupportedMediaType", message: message.into(), details: Value::Null }
    }

    /// The `Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
