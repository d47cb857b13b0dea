//! What is asked of this Kubernetes, and what it answers: from a request to a reply, without a socket.
//!
//! [`answer`] is the whole of it. It reads the path and checks the caller's permission, and one of the modules
//! below acts. Watches, logs, commands and tokens are only described here: the connection's task serves them.

mod decode;
mod delete;
mod form;
mod list;
mod options;
mod path;
mod protobuf;
mod scale;
mod watch;
mod write;

pub use decode::not_json;
pub use form::metadata_only;
pub use watch::{Polled, Watch};

use crate::discovery;
use crate::failure::Failure;
use crate::object;
use crate::rbac::{self, Attributes};
use crate::resource::Subresource;
use crate::runtime::{ExecRequest, LogRequest};
use crate::store::{Part, Store};
use form::Form;
use path::Target;
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
    /// The query, decoded.
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
        /// The HTTP status.
        code: u16,
        /// The object.
        body: Value,
        /// What the caller should know though it went well.
        warnings: Vec<String>,
    },
    /// A text.
    Text {
        /// The HTTP status.
        code: u16,
        /// What it is.
        content_type: &'static str,
        /// The text.
        body: String,
    },
    /// A watch: lines until it ends.
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

impl Request {
    /// What the query says of a key.
    pub fn given(&self, key: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Whether the query says yes to a key.
    pub fn says(&self, key: &str) -> bool {
        self.given(key).is_some_and(|value| !matches!(value, "0" | "false"))
    }

    /// The number that the query gives a key.
    pub fn number(&self, key: &str) -> Result<Option<i64>, Failure> {
        let parsed = |value: &str| {
            let why = || Failure::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"));
            value.parse().map_err(|_| why())
        };
        self.given(key).map(parsed).transpose()
    }
}

/// Answers a request.
pub fn answer(store: &mut Store, request: &Request) -> Reply {
    let read = match protobuf::to_json(request) {
        Ok(read) => read,
        Err(failure) => return Reply::failed(&failure),
    };
    let request = read.as_ref().unwrap_or(request);
    if let Some(reply) = discovery::answer(store, request) {
        return reply;
    }
    if !path::is_of_a_group(&request.path) {
        let (content_type, body) = ("text/plain; charset=utf-8", "404 page not found\n".to_owned());
        return Reply::Text { code: 404, content_type, body };
    }
    act(store, request).unwrap_or_else(|failure| Reply::failed(&failure))
}

fn act(store: &mut Store, request: &Request) -> Result<Reply, Failure> {
    let target = Target::of(&request.path)?;
    let watches = request.says("watch");
    rbac::authorize(store, &request.user, &attributes(&target, request, watches))?;
    match (target.subresource, request.method, &target.name) {
        (None, Method::Get, None) if watches => Ok(Reply::Watch(Watch::begin(request, &target)?)),
        (None, Method::Get, None) => list::answer(store, request, &target),
        (None | Some(Subresource::Status), Method::Get, Some(_)) => {
            list::reached(store, request)?;
            let found = store.get(&target.key())?;
            Ok(Reply::object(200, Form::of(request)?.one(target.kind, found, store.now())))
        }
        (None, Method::Post, None) => write::create(store, request, &target),
        (None, Method::Put, Some(_)) => write::replace(store, request, &target, Part::Main),
        (None, Method::Patch, Some(_)) => write::patch(store, request, &target, Part::Main),
        (None, Method::Delete, _) => delete::answer(store, request, &target),
        (Some(Subresource::Status), Method::Put, Some(_)) => write::replace(store, request, &target, Part::Status),
        (Some(Subresource::Status), Method::Patch, Some(_)) => write::patch(store, request, &target, Part::Status),
        (Some(Subresource::Scale), Method::Get | Method::Put | Method::Patch, Some(_)) => {
            scale::answer(store, request, &target)
        }
        (Some(Subresource::Log), Method::Get, Some(_)) => log(store, request, &target),
        (Some(Subresource::Exec), Method::Get | Method::Post, Some(_)) => exec(store, request, &target),
        (Some(Subresource::Token), Method::Post, Some(name)) => {
            store.get(&target.key())?;
            let (namespace, service_account) = (target.namespace.clone().unwrap_or_default(), name.clone());
            Ok(Reply::Token(TokenRequest { namespace, service_account, body: decode::json(&request.body)? }))
        }
        _ => Err(Failure::method_not_allowed()),
    }
}

fn attributes<'a>(target: &'a Target, request: &'a Request, watches: bool) -> Attributes<'a> {
    let verb = match (request.method, &target.name) {
        (Method::Get, Some(_)) => "get",
        (Method::Get, None) if watches => "watch",
        (Method::Get, None) => "list",
        (Method::Post, _) => "create",
        (Method::Put, _) => "update",
        (Method::Patch, _) => "patch",
        (Method::Delete, Some(_)) => "delete",
        (Method::Delete, None) => "deletecollection",
    };
    let resource = target.kind.resource();
    // As a real one does: the permission to one object by name is also the permission to list and watch that one.
    let selected = request.given("fieldSelector").and_then(|selector| selector.strip_prefix("metadata.name="));
    let name = target.name.as_deref().or(selected.filter(|name| !name.contains(','))).unwrap_or_default();
    Attributes {
        verb,
        group: resource.group,
        resource: resource.plural,
        subresource: target.subresource.map_or("", Subresource::name),
        name,
        namespace: target.namespace.as_deref().unwrap_or_default(),
    }
}

fn log(store: &Store, request: &Request, target: &Target) -> Result<Reply, Failure> {
    let count = |key: &str| {
        let bad = |value: i64| Failure::bad_request(format!("{key}: {value} must be greater than or equal to 0"));
        request.number(key)?.map(|value| u64::try_from(value).map_err(|_| bad(value))).transpose()
    };
    Ok(Reply::Log(LogRequest {
        pod: target.key(),
        container: Some(container(store, request, target)?),
        follow: request.says("follow"),
        previous: request.says("previous"),
        tail_lines: count("tailLines")?,
        limit_bytes: count("limitBytes")?,
        since_seconds: count("sinceSeconds")?,
        timestamps: request.says("timestamps"),
    }))
}

fn exec(store: &Store, request: &Request, target: &Target) -> Result<Reply, Failure> {
    let command: Vec<String> =
        request.query.iter().filter(|(key, _)| key == "command").map(|(_, word)| word.clone()).collect();
    if command.is_empty() {
        return Err(Failure::bad_request("you must specify at least 1 argument to this command"));
    }
    let container = Some(container(store, request, target)?);
    Ok(Reply::Exec(ExecRequest { pod: target.key(), container, command, stdin: request.says("stdin") }))
}

/// The container that is meant, which need not be said of a pod that has one only.
fn container(store: &Store, request: &Request, target: &Target) -> Result<String, Failure> {
    let pod = store.get(&target.key())?;
    let names = |list: &str| -> Vec<String> {
        object::list(pod, list).iter().map(|container| object::text(container, "/name").to_owned()).collect()
    };
    let (containers, init) = (names("/spec/containers"), names("/spec/initContainers"));
    let name = object::name(pod);
    match request.given("container") {
        Some(wanted) if containers.iter().chain(&init).any(|known| known == wanted) => Ok(wanted.to_owned()),
        Some(wanted) => Err(Failure::bad_request(format!("container {wanted} is not valid for pod {name}"))),
        None if containers.len() == 1 => Ok(containers[0].clone()),
        None => {
            let choose = format!("choose one of: [{}]", containers.join(" "));
            let init = if init.is_empty() {
                String::new()
            } else {
                format!(" or one of the init containers: [{}]", init.join(" "))
            };
            Err(Failure::bad_request(format!("a container name must be specified for pod {name}, {choose}{init}")))
        }
    }
}

#[cfg(test)]
mod tests;
