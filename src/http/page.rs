//! Which rows of a collection, in which order: `offset`, `limit`, `orderBy`, `descendingFields`, and `filterBy` with a
//! regular expression for each field it names. A field may be a path, as in `process.dbName`.

use super::error::Error;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cmp::Ordering;

/// The most rows of one answer: some hundred kilobytes.
pub const MAX_LIMIT: usize = 1000;

/// The most memory that one expression of a request may compile to.
const MAX_REGEX_BYTES: usize = 256 * 1024;

/// The most fields that one request may name to filter or to order by: more than any row has that make sense.
const MAX_FIELDS: usize = 16;

/// The parameters of a request, in their order.
pub type Parameters = Vec<(String, String)>;

/// One page of a collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// Its rows.
    pub data: Vec<Value>,
    /// Whether there are more.
    pub has_next: bool,
    /// The most rows that may be asked for at once.
    pub max_limit: usize,
}

/// What was asked of a collection.
#[derive(Debug)]
pub struct Selection {
    offset: usize,
    limit: usize,
    order: Vec<(String, bool)>,
    filters: Vec<(String, Regex)>,
}

impl Selection {
    /// Reads the parameters.
    pub fn parse(parameters: &Parameters) -> Result<Self, Error> {
        let descending: Vec<&str> = fields(parameters, "descendingFields").collect();
        let order = fields(parameters, "orderBy").map(|field| (field.to_owned(), descending.contains(&field)));
        for name in ["filterBy", "orderBy", "descendingFields"] {
            if fields(parameters, name).count() > MAX_FIELDS {
                return Err(Error::bad(name, format!("names more than {MAX_FIELDS} fields")));
            }
        }
        let limit = number(parameters, "limit")?.unwrap_or(MAX_LIMIT);
        if limit == 0 {
            return Err(Error::bad("limit", "has to be at least 1"));
        }
        Ok(Self {
            offset: number(parameters, "offset")?.unwrap_or(0),
            limit: limit.min(MAX_LIMIT),
            order: order.collect(),
            filters: fields(parameters, "filterBy").map(|field| filter(parameters, field)).collect::<Result<_, _>>()?,
        })
    }

    /// Applies them.
    pub fn page(&self, mut rows: Vec<Value>) -> Page {
        rows.retain(|row| {
            self.filters.iter().all(|(field, regex)| text(at(row, field)).is_some_and(|t| regex.is_match(&t)))
        });
        rows.sort_by(|one, other| {
            let by = |(field, descending): &(String, bool)| {
                let ordering = compare(at(one, field), at(other, field));
                if *descending { ordering.reverse() } else { ordering }
            };
            self.order.iter().map(by).find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal)
        });
        let has_next = rows.len() > self.offset.saturating_add(self.limit);
        let data = rows.into_iter().skip(self.offset).take(self.limit).collect();
        Page { data, has_next, max_limit: MAX_LIMIT }
    }
}

/// The value of a parameter.
pub fn parameter<'a>(parameters: &'a Parameters, name: &str) -> Option<&'a str> {
    parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// A parameter that is true or false, in any case: clients in Python send `True`. Given without a value it is true.
pub fn flag(parameters: &Parameters, name: &str) -> Result<bool, Error> {
    match parameter(parameters, name).map(str::to_ascii_lowercase).as_deref() {
        None | Some("false") => Ok(false),
        Some("true" | "") => Ok(true),
        Some(other) => Err(Error::bad(name, format!("has to be true or false, not '{other}'"))),
    }
}

fn number(parameters: &Parameters, name: &str) -> Result<Option<usize>, Error> {
    let parse = |text: &str| text.parse().map_err(|_| Error::bad(name, format!("has to be a number, not '{text}'")));
    parameter(parameters, name).map(parse).transpose()
}

/// The field names of a parameter that may be given several times, or once with commas.
fn fields<'a>(parameters: &'a Parameters, name: &'a str) -> impl Iterator<Item = &'a str> {
    let given = parameters.iter().filter(move |(key, _)| key == name);
    given.flat_map(|(_, value)| value.split(',')).filter(|field| !field.is_empty())
}

fn filter(parameters: &Parameters, field: &str) -> Result<(String, Regex), Error> {
    let pattern = parameter(parameters, field)
        .ok_or_else(|| Error::bad("filterBy", format!("names '{field}', but there is no such parameter")))?;
    // The whole value has to match, else `archiveId=1` would find archive 10. By itself it has to be an expression too,
    // else `1)|(.*` would close our parenthesis.
    let regex = build(pattern).and_then(|_| build(&format!("^(?:{pattern})$")));
    let regex = regex.map_err(|error| {
        let why = match error {
            regex::Error::CompiledTooBig(_) => "is too large a regular expression",
            _ => "is no regular expression (of the kind without backreferences and look-around)",
        };
        Error::bad(field, format!("{why}: '{pattern}'"))
    })?;
    Ok((field.to_owned(), regex))
}

fn build(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_BYTES).build()
}

fn at<'a>(row: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(row, |value, field| value.get(field)).unwrap_or(&Value::Null)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
    }
}

/// Numbers, and texts that are numbers (start ids), by their size; incarnations by `major`, then `minor`. What is of different
/// kinds has one order too, whatever the values: nothing, lists, numbers, texts, objects. A sort panics without one.
fn compare(one: &Value, other: &Value) -> Ordering {
    if let (Value::Object(one), Value::Object(other)) = (one, other) {
        let field =
            |((name, a), (other, b)): ((&String, &Value), (&String, &Value))| name.cmp(other).then(compare(a, b));
        let fields = one.iter().zip(other.iter()).map(field);
        return fields.into_iter().find(|order| order.is_ne()).unwrap_or(one.len().cmp(&other.len()));
    }
    let key = |value: &Value| {
        let text = text(value);
        let size = text.as_ref().and_then(|text| text.parse::<u64>().ok());
        let kind = match (value, size) {
            (Value::Null, _) => 0,
            (Value::Array(_), _) => 1,
            (_, Some(_)) => 2,
            (Value::Object(_), None) => 4,
            _ => 3,
        };
        (kind, size, text)
    };
    key(one).cmp(&key(other))
}
