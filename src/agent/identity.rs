//! Who an engine is: its ServiceAccount token proves its pod, or its client certificate names it, and what it says of
//! itself has to agree.

use super::Shared;
use crate::auth::{Caller, Refused};
use crate::net;
use crate::net::refusals::Port;
use crate::proto::engine::Register;
use std::net::SocketAddr;
use std::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Status};

/// Who calls on the port for engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Where it is.
    address: Option<SocketAddr>,
    proof: Proof,
}

/// What it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Proof {
    /// A token, which proves the very pod.
    Token(Caller),
    /// A certificate, which names a namespace, and perhaps a pod in it.
    Certificate { namespace: String, pod: Option<String> },
}

/// The caller, by the token that it shows, else by its certificate.
pub async fn caller(shared: &Shared, metadata: &MetadataMap, extensions: &Extensions) -> Result<Engine, Status> {
    let connection = extensions.get::<net::Caller>();
    let address = connection.and_then(|connection| connection.address);
    let refuse = |reason, words: &str| {
        shared.guards.refusals.note(Port::Engines, reason, address, words);
        Status::unauthenticated(words.to_owned())
    };
    let header = metadata.get("authorization").and_then(|value| value.to_str().ok());
    if let Some(token) = header.and_then(|value| value.strip_prefix("Bearer ")) {
        let from = address.map(|address| address.ip());
        if let Err(wait) = shared.guards.throttle.attempt(from, Instant::now()) {
            refuse("throttled", "too many invalid tokens");
            let words = format!("too many invalid tokens: try again in {} s", wait.as_secs() + 1);
            return Err(Status::resource_exhausted(words));
        }
        let verified = shared.tokens.verify(token).await;
        // That the cluster's keys cannot be read is not the caller's failure.
        if matches!(verified, Ok(_) | Err(Refused::NoKeys(_))) {
            shared.guards.throttle.refund(from);
        }
        let caller = verified.map_err(|refused| refuse("token", &refused.to_string()))?;
        return Ok(Engine { address, proof: Proof::Token(caller) });
    }
    let Some(shown) = connection.and_then(|connection| connection.shown.as_ref()) else {
        return Err(refuse(
            "nothing_shown",
            "the request has no bearer token and the connection no client certificate",
        ));
    };
    if !shared.guards.tls.still_trusts(shown) {
        return Err(refuse("certificate", "the certificate has expired or is no longer trusted"));
    }
    match named(&shown.names.uris, &shared.config.domain) {
        Some((namespace, pod)) => Ok(Engine { address, proof: Proof::Certificate { namespace, pod } }),
        None => {
            let wanted = format!("kaa://{}/engine/NAMESPACE[/POD]", shared.config.domain);
            Err(refuse("name", &format!("the certificate has no URI {wanted}; it has {}", shown.names.to_line())))
        }
    }
}

/// Namespace and pod in the URI `kaa://DOMAIN/engine/NAMESPACE[/POD]`.
fn named(uris: &[String], domain: &str) -> Option<(String, Option<String>)> {
    let start = format!("kaa://{domain}/engine/");
    let rest = uris.iter().find_map(|uri| uri.strip_prefix(&start))?;
    let (namespace, pod) = rest.split_once('/').map_or((rest, None), |(namespace, pod)| (namespace, Some(pod)));
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    let good = is_name(namespace) && pod.is_none_or(is_name);
    good.then(|| (namespace.to_owned(), pod.map(str::to_owned)))
}

/// Whether the engine speaks for the pod that it says it is in, and that pod is in the namespace that is watched: of another
/// one nothing could be known.
pub fn matches(shared: &Shared, engine: &Engine, register: &Register) -> Result<(), Status> {
    let namespace = shared.kubernetes.namespace();
    if speaks_for(&engine.proof, register, namespace) {
        return Ok(());
    }
    let shown = match engine.proof {
        Proof::Token(_) => "token",
        Proof::Certificate { .. } => "certificate",
    };
    let pod = (&register.pod, &register.pod_uid);
    let words = format!("the {shown} does not belong to pod {} ({}) in namespace {namespace}", pod.0, pod.1);
    shared.guards.refusals.note(Port::Engines, "identity", engine.address, &words);
    Err(Status::permission_denied(words))
}

fn speaks_for(proof: &Proof, register: &Register, watched: &str) -> bool {
    let namespace = match proof {
        Proof::Token(caller) => &caller.namespace,
        Proof::Certificate { namespace, .. } => namespace,
    };
    let pod = match proof {
        Proof::Token(Caller { pod: None, .. }) => false,
        Proof::Token(Caller { pod: Some((name, uid)), .. }) => {
            *name == register.pod && uid.as_str() == register.pod_uid
        }
        // Its UID is what Kubernetes says of the pod of this name, and is compared when that is read.
        Proof::Certificate { pod, .. } => pod.as_ref().is_none_or(|pod| *pod == register.pod),
    };
    *namespace == register.namespace && namespace == watched && pod
}

#[cfg(test)]
mod tests {
    use super::{Proof, named, speaks_for};
    use crate::auth::Caller;
    use crate::proto::engine::Register;

    fn token(namespace: &str, pod: Option<(&str, &str)>) -> Proof {
        let pod = pod.map(|(name, uid)| (name.to_owned(), uid.into()));
        Proof::Token(Caller { namespace: namespace.to_owned(), service_account: "default".to_owned(), pod })
    }

    fn certificate(uri: &str) -> Option<Proof> {
        let named = named(&[uri.to_owned()], "kaa");
        named.map(|(namespace, pod)| Proof::Certificate { namespace, pod })
    }

    #[test]
    fn an_engine_speaks_for_its_own_pod_of_the_watched_namespace_only() {
        let words = |text: &str| text.to_owned();
        let said = Register { namespace: words("a"), pod: words("sm-0"), pod_uid: words("u0"), ..Register::default() };
        let speaks = |proof: &Proof, watched: &str| speaks_for(proof, &said, watched);
        assert!(speaks(&token("a", Some(("sm-0", "u0"))), "a"));
        assert!(!speaks(&token("a", Some(("sm-0", "u1"))), "a"), "an earlier pod of the name");
        assert!(!speaks(&token("a", Some(("sm-1", "u0"))), "a"), "another pod");
        assert!(!speaks(&token("b", Some(("sm-0", "u0"))), "a"), "says another namespace");
        assert!(!speaks(&token("a", None), "a"), "a token that is bound to no pod");
        assert!(!speaks(&token("a", Some(("sm-0", "u0"))), "b"), "a namespace that is not watched");
        let by = |uri: &str, watched: &str| certificate(uri).is_some_and(|proof| speaks(&proof, watched));
        assert!(by("kaa://kaa/engine/a/sm-0", "a"));
        assert!(by("kaa://kaa/engine/a", "a"), "one for all engines of the namespace");
        assert!(!by("kaa://kaa/engine/a/sm-1", "a"), "another pod");
        assert!(!by("kaa://kaa/engine/b", "a"), "another namespace");
        assert!(!by("kaa://kaa/engine/a", "b"), "a namespace that is not watched");
        for other in ["kaa://other/engine/a", "kaa://kaa/agent", "kaa://kaa/engine/", "kaa://kaa/engine/a/sm-0/x"] {
            assert!(!by(other, "a"), "{other}");
        }
    }
}
