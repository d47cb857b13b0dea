//! What an operator asks of an admin server that will not come back: `delete server` of the published client.

use super::domain::{Named, linearize, name};
use super::error::Error;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::change::{Command, ForgetServer};
use kaa_core::domain::command::{Outcome, Refusal};
use kaa_core::domain::ids::ServerId;
use kaa_core::domain::server::raft_log_claim;

/// Removes a server whose claim is gone. Answers with null.
pub(super) async fn delete(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
) -> Result<Answer<Option<()>>, Error> {
    let server = ServerId::from(name(named, "server id")?);
    // Nothing is read of a name that is no server's. An agent that does not follow the group knows of none.
    linearize(&face).await?;
    let known = face.source.read(|domain| domain.servers.get(&server).map(|server| server.raft_id));
    let Some(raft_id) = known else { return Err(Error::NotFound(Refusal::UnknownServer(server).to_string())) };
    let evidence = face.source.read_claim(&raft_log_claim(&server)).await;
    let (raft_id, cluster) = (Some(raft_id), Some(face.source.cluster()));
    let command = Command::ForgetServer(ForgetServer { server, raft_id, cluster, evidence });
    match face.source.write(actor, command).await?.outcome {
        Outcome::Refused(refusal @ Refusal::UnknownServer(_)) => Err(Error::NotFound(refusal.to_string())),
        Outcome::Refused(refusal) => Err(Error::Conflict(refusal.to_string())),
        _ => Ok(Answer { index: face.source.read(|domain| domain.index), body: None }),
    }
}
