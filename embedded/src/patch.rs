//! Patches: an object and what is to be different, in four formats.

pub mod fields;
mod last_applied;
pub mod managed;
mod schema;
mod strategic;

use crate::api::not_json;
use crate::failure::Failure;
use serde_json::{Map, Value, json};

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Steps (RFC 6902).
    Json,
    /// Fields to be written over; null takes one away (RFC 7386).
    Merge,
    /// The same, but lists of things with names are merged by name.
    Strategic,
    /// Server-side apply: all that its author wants to be said of the object.
    Apply,
}

impl Format {
    /// The format that a content type names.
    pub fn of(content_type: &str) -> Result<Self, Failure> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ => {
                let failure = Failure::unsupported_media_type("415: Unsupported Media Type");
                Err(Failure { details: json!({}), ..failure })
            }
        }
    }
}

/// An object with a patch on it; not for [`Format::Apply`], which is done by [`managed::apply`].
pub fn patched(format: Format, before: &Value, body: &[u8]) -> Result<Value, Failure> {
    let mut object = before.clone();
    if format == Format::Json {
        let steps: Value = read(body).map_err(undecoded)?;
        if !steps.is_array() {
            return Err(undecoded(
                "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp".to_owned(),
            ));
        }
        // A real one says no more either.
        let rejected = || Failure {
            code: 422,
            reason: "Invalid",
            message: "the server rejected our request due to an error in our request".to_owned(),
            details: json!({}),
        };
        let steps: json_patch::Patch = serde_json::from_value(steps).map_err(|_| rejected())?;
        json_patch::patch(&mut object, &steps).map_err(|_| rejected())?;
    } else {
        // A real one says what it was doing only where it does it itself.
        let strategic = format == Format::Strategic;
        let fields =
            fields_of(body).map_err(|why| if strategic { Failure::bad_request(why) } else { undecoded(why) })?;
        match format {
            Format::Strategic => strategic::merge(&mut object, &fields)?,
            Format::Json | Format::Merge | Format::Apply => json_patch::merge(&mut object, &Value::Object(fields)),
        }
    }
    if object.is_object() { Ok(object) } else { Err(Failure::bad_request("the patch leaves no object")) }
}

/// A patch whose outcome is no object of its kind.
pub fn refused(format: Format, object: &Value, body: &[u8], why: &str) -> Failure {
    let shown = match (format, serde_json::from_slice::<Value>(body)) {
        (Format::Strategic, Ok(patch)) => go(&patch),
        _ => object.to_string(),
    };
    let cause = [("patch", format!("Invalid value: {shown:?}: {why}"))];
    let message = format!(" \"\" is invalid: patch: {}", cause[0].1);
    Failure { code: 422, reason: "Invalid", message, details: json!({"causes": Failure::causes(&cause)}) }
}

fn undecoded(why: String) -> Failure {
    Failure::bad_request(format!("error decoding patch: {why}"))
}

fn read(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| not_json(&error))
}

fn fields_of(body: &[u8]) -> Result<Map<String, Value>, String> {
    match read(body)? {
        Value::Object(fields) => Ok(fields),
        Value::Array(_) => Err("json: cannot unmarshal array into Go value of type map[string]interface {}".to_owned()),
        other => Err(format!("a patch has to be an object, not {other}")),
    }
}

/// As Kubernetes, which is written in Go, shows a patch in messages.
fn go(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}:{}", go(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(go).collect::<Vec<_>>().join(" ")),
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
