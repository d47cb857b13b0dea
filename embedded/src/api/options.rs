//! How a request wants to be done: tried only, by whom, and how strictly it is read.

use super::Request;
use crate::failure::Failure;
use crate::store::Store;
use serde_json::json;

/// What becomes of unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Nothing is said.
    Ignore,
    /// The caller is warned.
    Warn,
    /// The request is refused.
    Strict,
}

/// How to write.
#[derive(Debug)]
pub struct Options {
    /// Only try.
    pub dry: bool,
    /// What becomes of unknown fields.
    pub validation: Validation,
    /// Who is to be named as the writer of the fields.
    pub manager: String,
}

impl Options {
    /// Reads them; `name` is what Kubernetes calls them, such as `CreateOptions`.
    pub fn of(request: &Request, name: &str) -> Result<Self, Failure> {
        let validation = match request.given("fieldValidation") {
            Some("Ignore") => Validation::Ignore,
            None | Some("Warn") => Validation::Warn,
            Some("Strict") => Validation::Strict,
            Some(other) => {
                let supported = r#"supported values: "", "Ignore", "Strict", "Warn""#;
                let why = format!("Unsupported value: {other:?}: {supported}");
                return Err(refused(name, &[("fieldValidation", why)]));
            }
        };
        let agent = request.user_agent.split(['/', ' ']).next().unwrap_or_default();
        let manager = request.given("fieldManager").unwrap_or(if agent.is_empty() { "unknown" } else { agent });
        Ok(Self { dry: dry(request, name)?, validation, manager: manager.to_owned() })
    }
}

/// Whether a request is only tried.
pub fn dry(request: &Request, name: &str) -> Result<bool, Failure> {
    match request.given("dryRun") {
        None => Ok(false),
        Some("All") => Ok(true),
        Some(other) => {
            let why = format!("Unsupported value: []string{{{other:?}}}: supported values: \"All\"");
            Err(refused(name, &[("dryRun", why)]))
        }
    }
}

/// Does something, or tries it on a copy.
pub fn perform<T>(
    store: &mut Store,
    dry: bool,
    act: impl FnOnce(&mut Store) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if dry { act(&mut store.clone()) } else { act(store) }
}

/// Options that make no sense.
pub fn refused(name: &str, causes: &[(&str, String)]) -> Failure {
    let words: Vec<String> = causes.iter().map(|(field, why)| format!("{field}: {why}")).collect();
    let words = if words.len() == 1 { words[0].clone() } else { format!("[{}]", words.join(", ")) };
    let message = format!("{name}.meta.k8s.io \"\" is invalid: {words}");
    let details = json!({"group": "meta.k8s.io", "kind": name, "causes": Failure::causes(causes)});
    Failure { code: 422, reason: "Invalid", message, details }
}
