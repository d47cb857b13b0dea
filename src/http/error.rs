//! Why a request is not answered, in the shape that clients of the published API understand.

use super::rows::ExitedRow;
use super::source::NoQuorum;
use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::error::Error as _;

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
    #[error("the body of the request is not understood: {0}")]
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
    /// This API has no such request.
    #[error("this agent does not know the request {method} {path}")]
    NotImplemented {
        /// Its method.
        method: Method,
        /// Its path.
        path: String,
    },
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
            Self::NoQuorum(_) | Self::CannotTell(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::TimedOut(_) => StatusCode::REQUEST_TIMEOUT,
            Self::NotImplemented { .. } => StatusCode::NOT_IMPLEMENTED,
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
        let mut body = json!({"code": status.as_u16(), "messages": messages});
        if let (Self::Exited(row), Value::Object(body)) = (self, &mut body)
            && let Ok(Value::Object(fields)) = serde_json::to_value(*row)
        {
            body.extend(fields);
        }
        (status, Json(body)).into_response()
    }
}
