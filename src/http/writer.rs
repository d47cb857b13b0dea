//! Who may change the domain by way of the API, and how they are called in the audit trail.
//!
//! Three kinds of caller may: one with a name and password of the credentials file; one with a client certificate that names an
//! operator of this domain (`kaa://DOMAIN/operator/NAME`); and one in the agent's own pod, which the pod's token proves over
//! loopback. A loopback address alone proves that only without a proxy in the pod, since a proxy's connections have one too:
//! it counts where `--loopback-may-write` says so. A handler that changes something takes a [`Writer`], so that none can
//! be reached without this check.

use super::Face;
use super::error::Error;
use crate::auth::pod_token::PodToken;
use crate::net;
use crate::net::refusals::Port;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kaa_core::domain::command::{Actor, Role};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// The other end of the connection that a request came by.
#[derive(Clone, Copy, Debug)]
pub struct From(pub SocketAddr);

/// How callers in the agent's own pod are known.
#[derive(Clone, Debug)]
pub struct OwnPod {
    /// Whether a loopback address is enough, unless a proxy or a web page shows.
    pub by_address: bool,
    /// What only the pod can read, if there is such a file.
    pub token: Option<Arc<PodToken>>,
}

/// What stands in a request that a proxy passed on: then it is not known who is at its other end.
const PASSED_ON: [HeaderName; 4] =
    [header::VIA, header::FORWARDED, HeaderName::from_static("x-real-ip"), HeaderName::from_static("x-request-id")];

/// How the names of other such headers begin: those of proxies in general, of Envoy (Istio and others), of Linkerd.
const PASSED_ON_BEGIN: [&str; 3] = ["x-forwarded-", "x-envoy-", "l5d-"];

/// What callers in the agent's own pod are called in the audit trail.
const LOOPBACK: &str = "loopback";

/// The longest name: it goes into the audit trail.
const MAX_NAME_BYTES: usize = 128;

/// A caller that may change the domain.
pub(super) struct Writer(pub Actor);

impl Writer {
    fn new(name: String) -> Self {
        Self(Actor { role: Role::Operator, name })
    }
}

impl FromRequestParts<Face> for Writer {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, face: &Face) -> Result<Self, Error> {
        let found = match parts.headers.get(header::AUTHORIZATION) {
            Some(shown) if face.credentials.is_some() || face.own_pod.token.is_some() => {
                by_password(shown, parts, face).await
            }
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

/// Why a caller may not write, and the reason's name in metrics if it is a refusal.
type Refused = (Error, Option<&'static str>);

async fn by_password(shown: &HeaderValue, parts: &Parts, face: &Face) -> Result<String, Refused> {
    let given = shown.to_str().ok().and_then(basic);
    // Compared before the attempts are counted, since behind a proxy in the pod all callers share those of loopback, and the
    // token cannot be guessed. Accepted over loopback only, so that a stolen token is of no use elsewhere.
    let has_token = |token: &Arc<PodToken>| given.as_ref().is_some_and(|given| token.is(given));
    if is_loopback(parts.extensions.get::<From>()) && face.own_pod.token.as_ref().is_some_and(has_token) {
        return Ok(LOOPBACK.to_owned());
    }
    let from = parts.extensions.get::<From>().map(|from| from.0.ip());
    let throttled = |wait| (Error::Throttled(wait), Some("throttled"));
    face.throttle.attempt(from, Instant::now()).map_err(throttled)?;
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
    let local = is_local(parts, face.own_pod.by_address);
    let mut refusal = match local {
        Err(why) if face.credentials.is_none() => (Error::NotFromPod(why), Some("not_loopback")),
        _ => (Error::NoCredentials, Some("no_credentials")),
    };
    if let (Some(shown), Some(people), false) = (shown, &face.people, by_browser) {
        let name = operator(&shown.names.uris, &people.domain);
        match name {
            Some(name) if people.tls.still_trusts(shown) => return Ok(format!("certificate {name}")),
            Some(_) => refusal = (Error::StaleCertificate, Some("certificate")),
            None => refusal = (Error::NoOperator(people.domain.clone()), Some("name")),
        }
    }
    local.map(|()| LOOPBACK.to_owned()).map_err(|_| refusal)
}

/// The name in the URI `kaa://DOMAIN/operator/NAME`.
fn operator<'a>(uris: &'a [String], domain: &str) -> Option<&'a str> {
    let start = format!("kaa://{domain}/operator/");
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

fn is_loopback(from: Option<&From>) -> bool {
    // A socket that serves both families shows IPv4 addresses as ::ffff:127.0.0.1.
    from.is_some_and(|from| from.0.ip().to_canonical().is_loopback())
}

/// Whether the address of the caller shows that it is in the agent's own pod; if not, why.
fn is_local(parts: &Parts, by_address: bool) -> Result<(), &'static str> {
    if !is_loopback(parts.extensions.get::<From>()) {
        return Err("the request does not come from the agent's own pod");
    }
    if !by_address {
        return Err("a loopback address does not prove that the request comes from the agent's own pod");
    }
    if is_passed_on(&parts.headers) {
        return Err("a proxy forwarded the request");
    }
    // Browsers say on whose behalf they change something.
    if parts.headers.contains_key(header::ORIGIN) {
        return Err("a web page sent the request");
    }
    if !is_for_loopback(parts) {
        return Err("the request is for another host than localhost");
    }
    Ok(())
}

fn is_passed_on(headers: &HeaderMap) -> bool {
    let begins = |name: &HeaderName| PASSED_ON_BEGIN.iter().any(|begin| name.as_str().starts_with(begin));
    headers.keys().any(|name| PASSED_ON.contains(name) || begins(name))
}

/// Whether the request names the loopback as its host. A web page whose name was made to resolve to a loopback address reads
/// from it without `Origin`, but not without the page's name. A pod's own name is none of these: its address is not loopback.
fn is_for_loopback(parts: &Parts) -> bool {
    let mut named = parts.headers.get_all(header::HOST).iter();
    let (Some(host), None) = (named.next(), named.next()) else { return false };
    let host: Option<Authority> = host.to_str().ok().and_then(|host| host.parse().ok());
    let is_good = |authority: &Authority| {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
    };
    host.as_ref().is_some_and(is_good) && parts.uri.authority().is_none_or(is_good)
}

#[cfg(test)]
mod tests {
    use super::operator;

    #[test]
    fn an_operator_is_named_for_one_domain() {
        let named = |uri: &str| operator(&[uri.to_owned()], "kaa").map(str::to_owned);
        assert_eq!(named("kaa://kaa/operator/ann").as_deref(), Some("ann"));
        let long = format!("kaa://kaa/operator/{}", "x".repeat(129));
        for other in
            ["kaa://other/operator/ann", "kaa://kaa/agent", "kaa://kaa/operator/", "kaa://kaa/operator/a/b", &long]
        {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
