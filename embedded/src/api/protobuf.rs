//! Reads protobuf bodies: `kubectl create configmap` and its like send nothing else.
//!
//! They are turned into JSON before anybody looks at them, by a table of the messages that `kubectl` makes itself.
//! Whatever comes from files is JSON. Answers are always JSON.

mod schema;

use super::{Method, Request};
use crate::failure::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schema::Field;
use serde_json::{Map, Value, json};

/// What such a body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// How deep messages may lie in each other.
const DEPTH: u32 = 16;

/// The request with a JSON body, if it had one of protobuf.
pub fn to_json(request: &Request) -> Result<Option<Request>, Failure> {
    let protobuf = request.content_type.split(';').next().unwrap_or_default() == "application/vnd.kubernetes.protobuf";
    if !protobuf || request.body.is_empty() || request.method == Method::Get {
        return Ok(None);
    }
    let object = object(&request.body)?;
    let (content_type, body) = ("application/json".to_owned(), object.to_string().into_bytes());
    Ok(Some(Request { content_type, body, ..request.clone() }))
}

fn object(body: &[u8]) -> Result<Value, Failure> {
    let broken = || Failure::bad_request("the body is not a Kubernetes object in protobuf");
    let unknown = body.strip_prefix(MAGIC).ok_or_else(broken)?;
    let envelope = message(unknown, &schema::find("Unknown"), DEPTH).ok_or_else(broken)?;
    let text = |pointer: &str| envelope.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, api_version) = (text("/typeMeta/kind"), text("/typeMeta/apiVersion"));
    let fields = schema::find(kind);
    if fields.is_empty() {
        let why = format!("a {kind} is not read from protobuf here; send JSON, as `kubectl create -f` does");
        return Err(Failure::unsupported_media_type(why));
    }
    let raw = STANDARD.decode(text("/raw")).map_err(|_| broken())?;
    let mut object = message(&raw, &fields, DEPTH).ok_or_else(broken)?;
    object["kind"] = json!(kind);
    object["apiVersion"] = json!(api_version);
    Ok(object)
}

/// Reads a message. What is empty or zero is left out, as Go writes it though it was not set; but for the numbers of
/// which a zero says something.
fn message(mut bytes: &[u8], fields: &[Field], depth: u32) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let mut read = Map::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = fields.iter().find(|field| u64::from(field.number) == tag >> 3);
        match tag & 7 {
            0 => {
                let number = varint(&mut bytes)?;
                if let Some(field) = field.filter(|field| number != 0 || field.kind == "zero") {
                    let number = if field.kind == "bool" { json!(true) } else { json!(number.cast_signed()) };
                    insert(&mut read, field, number);
                }
            }
            1 => drop(take(&mut bytes, 8)?),
            2 => {
                let size = usize::try_from(varint(&mut bytes)?).ok()?;
                let content = take(&mut bytes, size)?;
                if let Some(field) = field {
                    value(&mut read, field, content, depth)?;
                }
            }
            5 => drop(take(&mut bytes, 4)?),
            _ => return None,
        }
    }
    Some(Value::Object(read))
}

fn value(read: &mut Map<String, Value>, field: &Field, content: &[u8], depth: u32) -> Option<()> {
    let text = || String::from_utf8(content.to_vec()).ok();
    match field.kind {
        "" => {
            if !content.is_empty() || field.repeated {
                insert(read, field, json!(text()?));
            }
        }
        "bytes" => insert(read, field, json!(STANDARD.encode(content))),
        "map" | "map of bytes" => {
            let kind = if field.kind == "map" { "Entry" } else { "BytesEntry" };
            let entry = message(content, &schema::find(kind), depth)?;
            let key = entry.get("key").and_then(Value::as_str).unwrap_or_default();
            let value = entry.get("value").cloned().unwrap_or_else(|| json!(""));
            let map = read.entry(field.name).or_insert_with(|| json!({}));
            map.as_object_mut()?.insert(key.to_owned(), value);
        }
        "IntOrString" => {
            let either = message(content, &schema::find("IntOrString"), depth)?;
            let number = either.get("intVal").cloned().unwrap_or_else(|| json!(0));
            insert(read, field, either.get("strVal").cloned().unwrap_or(number));
        }
        kind => {
            let below = message(content, &schema::find(kind), depth)?;
            if field.repeated || below.as_object().is_some_and(|fields| !fields.is_empty()) {
                insert(read, field, below);
            }
        }
    }
    Some(())
}

fn insert(read: &mut Map<String, Value>, field: &Field, value: Value) {
    if !field.repeated {
        read.insert(field.name.to_owned(), value);
    } else if let Some(items) = read.entry(field.name).or_insert_with(|| json!([])).as_array_mut() {
        items.push(value);
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..10 {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << (7 * at);
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(size)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::object;
    use serde_json::json;

    /// A field that holds bytes.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let size = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, size], content].concat()
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = field(1, &[field(1, b"v1"), field(2, kind.as_bytes())].concat());
        [b"k8s\0".to_vec(), type_meta, field(2, raw)].concat()
    }

    #[test]
    fn an_object_is_read_by_its_table() {
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let metadata = field(1, &[field(1, b"m"), field(2, b"")].concat());
        let read = object(&body("ConfigMap", &[metadata, field(2, &entry)].concat())).unwrap();
        let expected =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"key": "value"}});
        assert_eq!(read, expected);
    }

    #[test]
    fn what_is_broken_or_unknown_is_refused() {
        assert_eq!(object(b"{}").unwrap_err().code, 400);
        let mut cut = body("ConfigMap", &field(1, &field(1, b"name")));
        cut.pop();
        assert_eq!(object(&cut).unwrap_err().code, 400);
        let refused = object(&body("Gadget", b"")).unwrap_err();
        assert_eq!(
            (refused.code, refused.message.split(';').next()),
            (415, Some("a Gadget is not read from protobuf here"))
        );
    }
}
