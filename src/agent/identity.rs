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

/// Whether the engine speaks for the pod that its token was made for.
pub fn matches(caller: &Caller, register: &Register) -> Result<(), Status> {
    let pod = caller.pod.as_ref().map(|(name, uid)| (name.as_str(), uid.as_str()));
    let said = (register.pod.as_str(), register.pod_uid.as_str());
    if caller.namespace == register.namespace && pod == Some(said) {
        return Ok(());
    }
    let words = format!("the token is not that of pod {} ({}) in {}", said.0, said.1, register.namespace);
    Err(Status::new(Code::PermissionDenied, words))
}

fn refuse(shared: &Shared, why: &str) -> Status {
    warn!("an engine was not let in: {why}");
    shared.metrics.not_let_in();
    Status::unauthenticated(why.to_owned())
}
