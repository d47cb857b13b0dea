//! What an operator asks of an admin server: `delete server` of the published client, of one that will not come back, and `shutdown
//! server`.

use super::domain::{Named, linearize, name};
use super::error::Error;
use super::extract::Asked;
use super::page::flag;
use super::stop::stop_all;
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::change::{Command, ForgetServer};
use kaa_core::domain::command::Refusal;
use kaa_core::domain::ids::ServerId;
use kaa_core::domain::process::SessionState;
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
    let Some(raft_id) = known else { return Err(Refusal::UnknownServer(server).into()) };
    let evidence = face.source.read_claim(&raft_log_claim(&server)).await;
    let (raft_id, cluster) = (Some(raft_id), Some(face.source.cluster()));
    let command = Command::ForgetServer(ForgetServer { server, raft_id, cluster, evidence });
    face.source.write(actor, command).await?.accepted()?;
    Ok(Answer { index: face.source.read(|domain| domain.index), body: None })
}

/// Asks the engines to end that have their session with a server, or evicts them (`evictLocal`). The agent itself is not ended:
/// Kubernetes would start it again.
pub(super) async fn shutdown(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<()>, Error> {
    let server = ServerId::from(name(named, "server id")?);
    let evict = flag(&asked, "evictLocal")?;
    // An agent that lags may take engines that have moved on for those of the server.
    linearize(&face).await?;
    let is_known = |known: &ServerId| *known == server;
    let known = face.source.read(|domain| domain.servers.keys().any(is_known))
        || face.source.peers().iter().any(|peer| is_known(&peer.id));
    if !known {
        return Err(Refusal::UnknownServer(server).into());
    }
    stop_all(&face, &actor, evict, |process| {
        process.session.server == server && process.session.state == SessionState::Live
    })
    .await
}
