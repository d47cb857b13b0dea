//! Who may change the domain by way of the API, and how they are called in the audit trail.
//!
//! Whoever shows a name and password of the credentials file, and whoever calls from the agent's own pod: over loopback. A
//! handler that changes something takes a [`Writer`], so that none can be reached without this.

use super::Face;
use super::error::Error;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kaa_core::domain::command::{Actor, Role};
use std::net::SocketAddr;

/// The other end of the connection that a request came by.
#[derive(Clone, Copy, Debug)]
pub struct From(pub SocketAddr);

/// What stands in a request that somebody passed on: then it is not known who is at its other end.
const PASSED_ON: [HeaderName; 4] =
    [header::VIA, header::FORWARDED, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

/// Somebody who may change the domain.
pub(super) struct Writer(pub Actor);

impl Writer {
    fn new(name: String) -> Self {
        Self(Actor { role: Role::Person, name })
    }
}

impl FromRequestParts<Face> for Writer {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, face: &Face) -> Result<Self, Error> {
        let shown = parts.headers.get(header::AUTHORIZATION);
        if let (Some(shown), Some(credentials)) = (shown, &face.credentials) {
            let given = shown.to_str().ok().and_then(basic);
            let accepted = match &given {
                Some(given) => credentials.accept(given).await?,
                None => None,
            };
            return match accepted {
                Some(name) => Ok(Self::new(format!("user {name}"))),
                None => {
                    let from = parts.extensions.get::<From>().map(|from| from.0);
                    tracing::warn!(?from, path = parts.uri.path(), "wrong name or password");
                    Err(Error::WrongCredentials)
                }
            };
        }
        if is_local(parts.extensions.get::<From>(), &parts.headers) {
            return Ok(Self::new("loopback".to_owned()));
        }
        Err(if face.credentials.is_some() { Error::NoCredentials } else { Error::OnlyLoopback })
    }
}

/// `NAME:PASSWORD`, out of the header's value.
fn basic(value: &str) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    BASE64.decode(encoded.trim()).ok()
}

/// Whether the caller is in the agent's own pod. A page in a browser on the same machine is not meant: browsers say on
/// whose behalf they change something.
fn is_local(from: Option<&From>, headers: &HeaderMap) -> bool {
    let passed_on = PASSED_ON.iter().any(|name| headers.contains_key(name));
    // A socket that serves both families shows IPv4 addresses as ::ffff:127.0.0.1.
    let loopback = from.is_some_and(|from| from.0.ip().to_canonical().is_loopback());
    loopback && !passed_on && !headers.contains_key(header::ORIGIN)
}
