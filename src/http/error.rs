//! Why a request is not answered, in the shape that clients of the published API understand.

use super::rows::ExitedRow;
use super::source::{NoQuorum, NotWritten};
use crate::auth::credentials;
use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kaa_core::domain::command::Refusal;
use serde_json::{Value, json};
use std::error::Error as _;
use std::time::Duration;

/// After how long a request that found no place may be sent again: places become free all the time.
const RETRY_SECONDS: u64 = 1;

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter is not what it has to be.
    #[error("parameter '{name}' {why}")]
    BadParameter {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The changes that are asked about do not go together.
    #[error("{0}")]
    BadChanges(String),
    /// The body is not what it has to be.
    #[error("cannot parse the request body: {0}")]
    BadBody(String),
    /// No such thing.
    #[error("{0}")]
    NotFound(String),
    /// The process asked for has exited; the answer carries what is left of it.
    #[error("process {} has exited: {}", .0.process.start_id, .0.reason)]
    Exited(Box<ExitedRow>),
    /// What the answer would rest on is not known.
    #[error("{0}")]
    CannotTell(String),
    /// The read cannot be linearizable.
    #[error("the answer would not be consistent")]
    NoQuorum(#[from] NoQuorum),
    /// It took too long.
    #[error("there was no answer within {0} seconds")]
    TimedOut(u64),
    /// As many requests are being answered as may be.
    #[error("too many concurrent requests, from this address or in total: try again")]
    NoPlace,
    /// Who changes something has to say who they are.
    #[error(
        "a change of the domain from outside the agent's pod needs a name and password (--basic-creds of nuocmd), or a client \
         certificate"
    )]
    NoCredentials,
    /// They said it wrongly.
    #[error("the name or the password is wrong")]
    WrongCredentials,
    /// There is no way to say it; the reason is why the caller is not taken for one in the pod.
    #[error(
        "{0}: change the domain by `kubectl exec POD -- kaa ...`, or with --basic-creds \"$(kubectl exec POD -- kaa pod-token)\" \
         over a forwarded port, or with a client certificate, since this agent has no --credentials-file"
    )]
    NotFromPod(&'static str),
    /// They said it wrongly too often.
    #[error("too many wrong names and passwords from this address: try again in {} s", seconds(.0))]
    Throttled(Duration),
    /// Their certificate was good once.
    #[error("the client certificate has expired or is no longer trusted")]
    StaleCertificate,
    /// Their certificate is no operator's.
    #[error("the client certificate has no URI kaa://{0}/operator/NAME: it does not allow changes of the domain")]
    NoOperator(String),
    /// The credentials cannot be read.
    #[error("names and passwords cannot be checked at the moment")]
    Credentials(#[from] credentials::Error),
    /// What is there is not what the request expects.
    #[error("{0}")]
    Conflict(String),
    /// The change was not made, or it is not known whether it was.
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
    /// A part of the request is beyond this agent.
    #[error("{0}")]
    NotSupported(&'static str),
    /// This API has no such request.
    #[error("the API of this agent has no {method} {path}")]
    NotImplemented {
        /// Its method.
        method: Method,
        /// Its path.
        path: String,
    },
}

impl From<Refusal> for Error {
    /// What is asked of something that is not there is not found; all else is a conflict.
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownServer(_)
            | Refusal::UnknownProcess(_)
            | Refusal::UnknownArchive(_)
            | Refusal::UnknownCluster(_)
            | Refusal::UnknownTask(_)
            | Refusal::UnknownDatabase(_)
            | Refusal::NoDatabase(_) => Self::NotFound(refusal.to_string()),
            _ => Self::Conflict(refusal.to_string()),
        }
    }
}

impl Error {
    /// A parameter that is not understood.
    pub fn bad(name: &str, why: impl std::fmt::Display) -> Self {
        Self::BadParameter { name: name.to_owned(), why: why.to_string() }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::BadParameter { .. } | Self::BadChanges(_) | Self::BadBody(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) | Self::Exited(_) => StatusCode::NOT_FOUND,
            Self::NoQuorum(_) | Self::NoPlace | Self::CannotTell(_) | Self::NotWritten(NotWritten::Certainly(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NotWritten(NotWritten::Perhaps(_) | NotWritten::NotHere(_)) => StatusCode::GATEWAY_TIMEOUT,
            Self::TimedOut(_) => StatusCode::REQUEST_TIMEOUT,
            Self::NoCredentials | Self::WrongCredentials => StatusCode::UNAUTHORIZED,
            Self::NotFromPod(_) | Self::StaleCertificate | Self::NoOperator(_) => StatusCode::FORBIDDEN,
            Self::Throttled(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Credentials(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::NotImplemented { .. } | Self::NotSupported(_) => StatusCode::NOT_IMPLEMENTED,
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut messages = vec![self.to_string()];
        let mut cause = self.source();
        while let Some(error) = cause {
            messages.push(error.to_string());
            cause = error.source();
        }
        let status = self.status();
        let wait = match &self {
            Self::Throttled(wait) => Some(HeaderValue::from(seconds(wait))),
            Self::NoPlace => Some(HeaderValue::from(RETRY_SECONDS)),
            _ => None,
        };
        let mut body = json!({"code": status.as_u16(), "messages": messages});
        if let (Self::Exited(row), Value::Object(body)) = (self, &mut body)
            && let Ok(Value::Object(fields)) = serde_json::to_value(*row)
        {
            body.extend(fields);
        }
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"kaa\""));
        }
        if let Some(wait) = wait {
            response.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        response
    }
}

fn seconds(wait: &Duration) -> u64 {
    wait.as_secs() + 1
}
