//! What a request says besides its path: its parameters and its body. What cannot be read is refused as everything else is, by an
//! [`Error`].

use super::error::Error;
use super::page::Parameters;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The parameters.
pub(super) struct Asked<T = Parameters>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let read = Query::from_request_parts(parts, state).await;
        read.map(|Query(asked)| Self(asked)).map_err(|rejection| Error::bad("query", rejection.body_text()))
    }
}

/// The body, in JSON.
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let read = Json::from_request(request, state).await;
        read.map(|Json(body)| Self(body)).map_err(|rejection| Error::BadBody(rejection.body_text()))
    }
}
