//! What is asked of this Kubernetes, and what it answers.

use crate::discovery;
use crate::failure::Failure;
use crate::resource::Kind;
use crate::runtime::{ExecRequest, LogRequest};
use crate::store::{Key, Store};
use serde_json::Value;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Create.
    Post,
    /// Replace.
    Put,
    /// Change.
    Patch,
    /// Delete.
    Delete,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is to be done.
    pub method: Method,
    /// Where.
    pub path: String,
    /// The query.
    pub query: Vec<(String, String)>,
    /// What the body is.
    pub content_type: String,
    /// What the answer may be.
    pub accept: String,
    /// The client.
    pub user_agent: String,
    /// The body.
    pub body: Vec<u8>,
    /// Who asks.
    pub user: User,
}

/// What a watch has to say now.
#[derive(Debug)]
pub struct Polled {
    /// Its lines.
    pub lines: String,
    /// Whether it has ended.
    pub ended: bool,
    /// When it has something to say even if nothing changes.
    pub wake: Option<jiff::Timestamp>,
}

/// A watch.
#[derive(Debug)]
pub struct Watch {}

impl Watch {
    /// What is due.
    pub fn poll(&mut self, _store: &Store) -> Polled {
        Polled { lines: String::new(), ended: true, wake: None }
    }
}

/// A token that is asked for.
#[derive(Debug)]
pub struct TokenRequest {
    /// The namespace.
    pub namespace: String,
    /// The account.
    pub service_account: String,
    /// The TokenRequest.
    pub body: Value,
}

/// The answer.
#[derive(Debug)]
pub enum Reply {
    /// An object.
    Object {
        /// HTTP status.
        code: u16,
        /// The object.
        body: Value,
        /// Warnings.
        warnings: Vec<String>,
    },
    /// A text.
    Text {
        /// HTTP status.
        code: u16,
        /// What it is.
        content_type: &'static str,
        /// The text.
        body: String,
    },
    /// A watch.
    Watch(Watch),
    /// A log.
    Log(LogRequest),
    /// A command.
    Exec(ExecRequest),
    /// A token.
    Token(TokenRequest),
}

impl Reply {
    /// An object.
    pub fn object(code: u16, body: Value) -> Self {
        Self::Object { code, body, warnings: Vec::new() }
    }

    /// A refusal.
    pub fn failed(failure: &Failure) -> Self {
        Self::object(failure.code, failure.status())
    }
}

/// Answers.
pub fn answer(store: &mut Store, request: &Request) -> Reply {
    if let Some(reply) = discovery::answer(store, request) {
        return reply;
    }
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let query =
        |name: &'static str| request.query.iter().filter(move |(known, _)| known == name).map(|(_, v)| v.clone());
    let done = match (request.method, parts.as_slice()) {
        (Method::Get, ["api", "v1", "namespaces", namespace, "pods", name, "exec"]) => {
            let pod = Key::new(Kind::Pod, namespace, name);
            let command = query("command").collect();
            let stdin = query("stdin").next().is_some();
            return Reply::Exec(ExecRequest { pod, container: None, command, stdin });
        }
        (Method::Get, ["api", "v1", "namespaces", namespace, "pods", name, "log"]) => {
            let pod = Key::new(Kind::Pod, namespace, name);
            let (follow, previous, timestamps) = (false, false, false);
            let (tail_lines, limit_bytes, since_seconds, container) = (None, None, None, None);
            let log =
                LogRequest { pod, container, follow, previous, tail_lines, limit_bytes, since_seconds, timestamps };
            return Reply::Log(log);
        }
        (Method::Get, ["api", "v1", "namespaces", namespace, plural, name]) => {
            let kind = Kind::at("", "v1", plural).unwrap_or(Kind::Pod);
            store.get(&Key::new(kind, namespace, name)).map(|object| Value::clone(object))
        }
        _ => Err(Failure::no_such_path()),
    };
    match done {
        Ok(object) => Reply::object(200, object),
        Err(failure) => Reply::failed(&failure),
    }
}
