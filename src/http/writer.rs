//! Who may change the domain by way of the API, and how they are called in the audit trail.
//!
//! Whoever shows a name and password of the credentials file, whoever shows a client certificate that names a person of this
//! domain (`kaa://DOMAIN/person/NAME`), and whoever calls from the agent's own pod: over loopback. A handler that changes
//! something takes a [`Writer`], so that none can be reached without this.

use super::Face;
use super::error::Error;
use crate::net;
use crate::net::refusals::Port;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kaa_core::domain::command::{Actor, Role};
use std::net::SocketAddr;
use std::time::Instant;

/// The other end of the connection that a request came by.
#[derive(Clone, Copy, Debug)]
pub struct From(pub SocketAddr);

/// What stands in a request that somebody passed on: then it is not known who is at its other end.
const PASSED_ON: [HeaderName; 4] =
    [header::VIA, header::FORWARDED, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

/// The longest name: it goes into the audit trail.
const MAX_NAME_BYTES: usize = 128;

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
        let found = match parts.headers.get(header::AUTHORIZATION) {
            Some(shown) if face.credentials.is_some() => by_password(shown, parts, face).await,
            _ => by_connection(parts, face),
        };
        if let Err((error, reason)) = &found
            && let Some(reason) = reason
        {
            let from = parts.extensions.get::<From>().map(|from| from.0);
            face.refusals.note(Port::Http, reason, from, &format!("{} {}: {error}", parts.method, parts.uri.path()));
        }
        found.map(Self::new).map_err(|(error, _)| error)
    }
}

/// Why somebody may not write, and the name of that in metrics if it is a refusal.
type Refused = (Error, Option<&'static str>);

async fn by_password(shown: &HeaderValue, parts: &Parts, face: &Face) -> Result<String, Refused> {
    let from = parts.extensions.get::<From>().map(|from| from.0.ip());
    let throttled = |wait| (Error::Throttled(wait), Some("throttled"));
    face.throttle.attempt(from, Instant::now()).map_err(throttled)?;
    let given = shown.to_str().ok().and_then(basic);
    let accepted = match (given, &face.credentials) {
        (Some(given), Some(credentials)) => credentials.accept(&given).await,
        _ => Ok(None),
    };
    match accepted {
        Ok(None) => Err((Error::WrongCredentials, Some("wrong_credentials"))),
        Ok(Some(name)) => {
            face.throttle.refund(from);
            Ok(format!("user {name}"))
        }
        Err(error) => {
            face.throttle.refund(from);
            Err((error.into(), None))
        }
    }
}

fn by_connection(parts: &Parts, face: &Face) -> Result<String, Refused> {
    // A browser shows its certificate on whosever behalf; it says so.
    let by_browser = parts.headers.contains_key(header::ORIGIN);
    let shown = parts.extensions.get::<net::Caller>().and_then(|caller| caller.shown.as_ref());
    let mut refusal = if face.credentials.is_some() {
        (Error::NoCredentials, Some("no_credentials"))
    } else {
        (Error::OnlyLoopback, Some("not_loopback"))
    };
    if let (Some(shown), Some(people), false) = (shown, &face.people, by_browser) {
        let name = person(&shown.names.uris, &people.domain);
        match name {
            Some(name) if people.tls.still_trusts(shown) => return Ok(format!("certificate {name}")),
            Some(_) => refusal = (Error::StaleCertificate, Some("certificate")),
            None => refusal = (Error::NoPerson(people.domain.clone()), Some("name")),
        }
    }
    if is_local(parts.extensions.get::<From>(), &parts.headers) { Ok("loopback".to_owned()) } else { Err(refusal) }
}

/// The name in the URI `kaa://DOMAIN/person/NAME`.
fn person<'a>(uris: &'a [String], domain: &str) -> Option<&'a str> {
    let start = format!("kaa://{domain}/person/");
    let name = uris.iter().find_map(|uri| uri.strip_prefix(&start))?;
    let visible = name.chars().all(|c| c.is_ascii_graphic() && c != '/');
    (visible && (1..=MAX_NAME_BYTES).contains(&name.len())).then_some(name)
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

#[cfg(test)]
mod tests {
    use super::person;

    #[test]
    fn a_person_is_named_for_one_domain() {
        let named = |uri: &str| person(&[uri.to_owned()], "kaa").map(str::to_owned);
        assert_eq!(named("kaa://kaa/person/ann").as_deref(), Some("ann"));
        let long = format!("kaa://kaa/person/{}", "x".repeat(129));
        for other in ["kaa://other/person/ann", "kaa://kaa/agent", "kaa://kaa/person/", "kaa://kaa/person/a/b", &long] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
