//! Who an engine is: its ServiceAccount token proves its pod, and what it says of itself has to agree.

use super::Shared;
use crate::auth::Caller;
use crate::proto::engine::Register;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tracing::warn;

/// The caller, by the token that it shows.
pub async fn caller(shared: &Shared, metadata: &MetadataMap) -> Result<Caller, Status> {
    let header = metadata.get("authorization").and_then(|value| value.to_str().ok());
    let Some(token) = header.and_then(|value| value.strip_prefix("Bearer ")) else {
        return Err(refuse(shared, "no bearer token was shown"));
    };
    shared.tokens.verify(token).await.map_err(|refused| refuse(shared, &refused.to_string()))
}

/// Whether the engine speaks for the pod that its token was made for, and that pod is in the namespace that is watched: of
/// another one nothing could be known.
pub fn matches(caller: &Caller, register: &Register, namespace: &str) -> Result<(), Status> {
    let pod = caller.pod.as_ref().map(|(name, uid)| (name.as_str(), uid.as_str()));
    let said = (register.pod.as_str(), register.pod_uid.as_str());
    if caller.namespace == register.namespace && caller.namespace == namespace && pod == Some(said) {
        return Ok(());
    }
    let words = format!("the token is not that of pod {} ({}) in namespace {namespace}", said.0, said.1);
    Err(Status::new(Code::PermissionDenied, words))
}

fn refuse(shared: &Shared, why: &str) -> Status {
    warn!("an engine was not let in: {why}");
    shared.metrics.not_let_in();
    Status::unauthenticated(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::matches;
    use crate::auth::Caller;
    use crate::proto::engine::Register;

    fn caller(namespace: &str, pod: Option<(&str, &str)>) -> Caller {
        let pod = pod.map(|(name, uid)| (name.to_owned(), uid.into()));
        Caller { namespace: namespace.to_owned(), service_account: "default".to_owned(), pod }
    }

    #[test]
    fn an_engine_speaks_for_its_own_pod_of_the_watched_namespace_only() {
        let words = |text: &str| text.to_owned();
        let said = Register { namespace: words("a"), pod: words("sm-0"), pod_uid: words("u0"), ..Register::default() };
        assert!(matches(&caller("a", Some(("sm-0", "u0"))), &said, "a").is_ok());
        assert!(matches(&caller("a", Some(("sm-0", "u1"))), &said, "a").is_err(), "an earlier pod of the name");
        assert!(matches(&caller("a", Some(("sm-1", "u0"))), &said, "a").is_err(), "another pod");
        assert!(matches(&caller("b", Some(("sm-0", "u0"))), &said, "a").is_err(), "says another namespace");
        assert!(matches(&caller("a", None), &said, "a").is_err(), "a token that is bound to no pod");
        assert!(matches(&caller("a", Some(("sm-0", "u0"))), &said, "b").is_err(), "a namespace that is not watched");
    }
}
