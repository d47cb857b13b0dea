//! Many processes are asked to end at once: `shutdown database`, `shutdown server`. Each is asked as by `shutdown process`.

use super::error::Error;
use super::{Answer, Face};
use futures::StreamExt;
use futures::stream;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Refusal};
use kaa_core::domain::ids::StartId;
use kaa_core::domain::process::{EngineKind, Process, Stop};
use std::cmp::Reverse;

/// So many requests are on their way to the log at once: one write of the log holds as many.
const AT_ONCE: usize = 64;

/// Asks the processes to end that `which` picks, or evicts them: the transaction engines before the storage managers. What has
/// ended meanwhile counts as done. If a request fails the rest is not sent: to ask again asks those that are left.
pub(super) async fn stop_all(
    face: &Face,
    actor: &Actor,
    evict: bool,
    which: impl Fn(&Process) -> bool,
) -> Result<Answer<()>, Error> {
    let mut processes: Vec<(Reverse<EngineKind>, StartId)> = face.source.read(|domain| {
        let picked = domain.processes.values().filter(|process| which(process));
        picked.map(|process| (Reverse(process.kind), process.id)).collect()
    });
    processes.sort();
    let command = |process| match evict {
        true => Command::EvictProcess(change::EvictProcess { process }),
        false => Command::StopProcess(change::StopProcess { process, how: Stop::Gracefully }),
    };
    let commands = processes.into_iter().map(|(_, process)| command(process));
    let mut written = stream::iter(commands.map(|command| face.source.write(actor.clone(), command))).buffered(AT_ONCE);
    while let Some(written) = written.next().await {
        match written?.accepted() {
            Ok(_) | Err(Refusal::UnknownProcess(_)) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(Answer { index: face.source.read(|domain| domain.index), body: () })
}
