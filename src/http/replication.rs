//! What an operator asks of a database with one primary: how it is, to move the primary, to continue without it, to take data for
//! the database's.

mod servers;
mod shown;

use super::domain::{Named, linearize, name};
use super::error::Error;
use super::extract::{Asked, Body};
use super::pause::checked;
use super::source::{Reached, Written};
use super::writer::Writer;
use super::{Answer, Face, own};
use axum::extract::State;
use kaa_core::domain::Domain;
use kaa_core::domain::change::{self, AdoptData, Command, DiscardData, GrantReason, RequestSwitchover};
use kaa_core::domain::command::{Actor, Outcome, Refusal};
use kaa_core::domain::database::{Database, DatabaseState};
use kaa_core::domain::ids::{ArchiveId, DatabaseName, Generation};
use kaa_core::domain::process::Process;
use kaa_core::domain::replicated::{Data, Replicated};
use kaa_core::replication::{Accepted, failover};
use kaa_core::resync::plan::WaitingReason;
use serde::{Deserialize, Serialize};
use servers::Hearing;
pub use servers::ServerRow;
pub use shown::{
    ChangeRow, Coded, PlaceRow, PrimaryRow, ReplicationAnswer, SurvivalRow, SwitchoverRow, SyncSetRow, WarningRow,
};

/// `kaa switchover`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SwitchoverWish {
    /// A pod, or an archive by its id.
    to: Option<String>,
    #[serde(default)]
    cancel: bool,
    why: String,
    #[serde(default)]
    dry_run: bool,
}

/// `kaa failover`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FailoverWish {
    to: Option<String>,
    #[serde(default)]
    old_primary_may_run: bool,
    /// The database's name: commits that no server has which is up are given up.
    accept_data_loss: Option<String>,
    #[serde(default)]
    old_primary_is_off: bool,
    why: String,
    #[serde(default)]
    dry_run: bool,
}

/// `kaa database adopt` and `kaa database discard`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DataWish {
    archive: u64,
    why: String,
    #[serde(default)]
    dry_run: bool,
}

/// Before its first engine registers, a database is known by its pods alone.
fn not_known_yet(name: &DatabaseName, wrong: &[WaitingReason]) -> Error {
    match wrong {
        [] => unknown(name),
        [first, ..] => Error::NotFound(format!("there is no database {name} yet: {first}")),
    }
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MoveAnswer {
    /// The database.
    pub database: String,
    /// The generation before.
    pub generation: u64,
    /// The pod of the primary before.
    pub from: String,
    /// The pod that is to be the primary's; null: that is decided when the primary stands down.
    pub to: Option<String>,
    /// Whether it was done; false for a dry run, and if there was nothing to do.
    pub done: bool,
    /// The entry of the log that did it; 0 for a dry run.
    pub entry: u64,
    /// What was done, or would be, in words.
    pub text: String,
}

/// The database, unless it was deleted.
fn known<'a>(domain: &'a Domain, name: &DatabaseName) -> Option<&'a Database> {
    domain.databases.get(name).filter(|database| database.state != DatabaseState::Tombstone)
}

fn unknown(name: &DatabaseName) -> Error {
    Error::NotFound(format!("there is no database {name}"))
}

pub(super) async fn shown(
    State(face): State<Face>,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<ReplicationAnswer>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    own::consistent(&face, &asked).await?;
    let (now, prefix, peers) = (face.source.now(), face.source.annotation_prefix(), face.source.peers());
    let routing = face.source.routing(&database);
    let (index, body) = face.source.read(|domain| {
        let body = known(domain, &database).map(|found| ReplicationAnswer::new(domain, found, now, &prefix, &peers));
        (domain.index, body)
    });
    let wrong = face.source.seen_wrong(&database);
    let mut body = body.ok_or_else(|| not_known_yet(&database, &wrong))?;
    body.routed(&routing);
    body.behind(&face.source.membership().waiting);
    body.seen_wrong(&wrong, &prefix);
    Ok(Answer { index, body })
}

/// What is asked of the domain as it is now; what it is asked about may be refused there.
struct Wished {
    command: Command,
    answer: MoveAnswer,
}

/// Proposes what `wish` makes of the domain as it is after all that was committed before, or shows it.
async fn moved(
    face: &Face,
    actor: Actor,
    database: &DatabaseName,
    dry_run: bool,
    wish: impl FnOnce(&Domain, &Replicated) -> Result<Wished, String>,
) -> Result<Answer<MoveAnswer>, Error> {
    // A server that lags would refuse, or show, what is not so any more.
    linearize(face).await?;
    let (index, wished) = face.source.read(|domain| {
        let wished = known(domain, database).map(|found| match found.replicated.as_deref() {
            Some(replicated) => wish(domain, replicated),
            None => Err(Refusal::NotReplicated(database.clone()).to_string()),
        });
        (domain.index, wished)
    });
    let Wished { command, answer } = wished.ok_or_else(|| unknown(database))?.map_err(Error::Conflict)?;
    if dry_run {
        return Ok(Answer { index, body: answer });
    }
    let written = face.source.write(actor, command).await?;
    // The pod or the archive is named by the body, and not by the path.
    let Written { index, outcome } = written.accepted().map_err(|refusal| Error::Conflict(refusal.to_string()))?;
    let done = outcome != Outcome::Unchanged;
    Ok(Answer { index, body: MoveAnswer { done, entry: index, ..answer } })
}

/// The archive that an operator named, by its pod or its id.
fn archive(domain: &Domain, database: &DatabaseName, named: &str) -> Result<ArchiveId, String> {
    let mut found = domain
        .active_archives(database)
        .filter(|archive| named.parse() == Ok(archive.id.0) || domain.pod_of(archive.id) == named);
    match (found.next(), found.next()) {
        (Some(archive), None) => Ok(archive.id),
        (None, _) => {
            let known: Vec<String> = domain.active_archives(database).map(|it| domain.pod_of(it.id)).collect();
            Err(format!("database {database} has no pod or archive '{named}'; its pods are {}", known.join(", ")))
        }
        _ => Err(format!("several archives of database {database} are of pod '{named}': give the archive's id")),
    }
}

/// The archive of the primary and the generation.
fn current(database: &DatabaseName, replicated: &Replicated) -> Result<(ArchiveId, Generation), String> {
    let record = replicated.record.as_ref();
    let current = record.map(|record| (record.primary, record.generation));
    current.ok_or_else(|| Refusal::NoPrimaryYet(database.clone()).to_string())
}

/// Asks for a switchover, or takes the request back.
pub(super) async fn switch_over(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(wish): Body<SwitchoverWish>,
) -> Result<Answer<MoveAnswer>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let why = checked(wish.why)?;
    if wish.cancel && wish.to.is_some() {
        return Err(Error::bad("to", "cannot be given together with cancel"));
    }
    moved(&face, actor, &database, wish.dry_run, |domain, replicated| {
        let (primary, generation) = current(&database, replicated)?;
        let from = domain.pod_of(primary);
        let (what, to, text) = if wish.cancel {
            (change::Asked::Cancel, None, cancelled(domain, replicated, &from))
        } else {
            let to = wish.to.as_deref().map(|to| archive(domain, &database, to)).transpose()?;
            domain
                .may_switch_over(&database, generation, to)
                .map_err(|refusal| why_not(domain, replicated, &refusal))?;
            (change::Asked::Move(to), to, moves(domain, replicated, primary, generation, to))
        };
        let command = RequestSwitchover { database: database.clone(), generation, what, why };
        let to = to.map(|to| domain.pod_of(to));
        let database = database.to_string();
        let answer = MoveAnswer { database, generation: generation.0, from, to, done: false, entry: 0, text };
        Ok(Wished { command: Command::RequestSwitchover(command), answer })
    })
    .await
}

fn cancelled(domain: &Domain, replicated: &Replicated, from: &str) -> String {
    match &replicated.switchover {
        None => format!("no switchover is under way; {from} is the primary"),
        Some(asked) => {
            let to = asked.to.map_or(String::new(), |to| format!(" to {}", domain.pod_of(to)));
            format!("the switchover{to} is taken back; {from} stays the primary")
        }
    }
}

/// A refusal of a switchover, with the command that helps.
fn why_not(domain: &Domain, replicated: &Replicated, refusal: &Refusal) -> String {
    match refusal {
        Refusal::SwitchoverUnderWay(name) => {
            format!("{refusal}: `kaa switchover {name} --cancel --reason WHY` takes it back")
        }
        Refusal::NotOpen(name) => {
            let primary = replicated.record.as_ref().map(|record| domain.place(replicated, record.primary));
            let primary = primary.map_or(String::new(), |primary| format!(": {primary}"));
            format!("{refusal}{primary}. A switchover moves a primary that runs; without it: `kaa failover {name}`")
        }
        Refusal::NotServing(archive) => format!("{refusal}: {}", domain.place(replicated, *archive)),
        _ => refusal.to_string(),
    }
}

/// What a switchover does, in words.
fn moves(
    domain: &Domain,
    replicated: &Replicated,
    primary: ArchiveId,
    generation: Generation,
    to: Option<ArchiveId>,
) -> String {
    let from = domain.pod_of(primary);
    let counts = |archive: &ArchiveId| replicated.counts(*archive);
    let (to, joins) = match (to, domain.successors(replicated).first()) {
        (Some(to), _) => (domain.pod_of(to), !counts(&to)),
        (None, Some(first)) => (format!("another pod, at present {}", domain.pod_of(*first)), false),
        (None, None) => ("another pod".to_owned(), true),
    };
    let joins = if joins { ", which joins the sync set first" } else { "" };
    let next = replicated.next_generation(generation);
    format!("the primary moves from {from} to {to}{joins}; generation {next} follows {generation}")
}

/// Continues without the primary.
pub(super) async fn fail_over(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(wish): Body<FailoverWish>,
) -> Result<Answer<MoveAnswer>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let why = checked(wish.why)?;
    let loss = wish.accept_data_loss.is_some();
    let accepted = Accepted { may_run: wish.old_primary_may_run, loss, is_off: wish.old_primary_is_off };
    if wish.accept_data_loss.is_some_and(|named| named != database.as_str()) {
        return Err(Error::bad("acceptDataLoss", format!("has to be the name of the database, {database}")));
    }
    if accepted.may_run && accepted.loss {
        return Err(Error::bad(
            "acceptDataLoss",
            "cannot be given together with oldPrimaryMayRun: it could acknowledge more",
        ));
    }
    let (timing, peers, now) = (face.source.timing(), face.source.peers(), face.source.now());
    moved(&face, actor, &database, wish.dry_run, |domain, replicated| {
        let (primary, generation) = current(&database, replicated)?;
        let to = wish.to.as_deref().map(|to| archive(domain, &database, to)).transpose()?;
        let grant = failover(domain, &database, to, accepted, &why, &timing).map_err(|refusal| refusal.to_string())?;
        let (from, to) = (domain.pod_of(primary), domain.pod_of(grant.winner));
        let set: Vec<String> = grant.sync_set.iter().map(|archive| domain.pod_of(*archive)).collect();
        let mut text = format!(
            "{to} becomes the primary, after {from}; generation {} follows {generation}, sync set {}; ",
            replicated.next_generation(generation),
            set.join(", ")
        );
        text += &match &grant.reason {
            GrantReason::LossAccepted { .. } => {
                let hearing = Hearing::new(domain, replicated, &peers, now);
                given_up(domain, &database, grant.winner, |archive| hearing.reached(archive))
            }
            _ => "no acknowledged commit is lost".to_owned(),
        };
        if accepted.may_run && !domain.primary_has_ended(replicated) {
            let keeps_lease = replicated.primary.as_ref().is_some_and(|primary| primary.keeps_lease);
            text += &match keeps_lease {
                true => format!("; it opens once the lease of {from} is over"),
                false => format!("; clients that stay connected to {from} can read stale data until it ends"),
            };
        }
        let (database, to) = (database.to_string(), Some(to));
        let answer = MoveAnswer { database, generation: generation.0, from, to, done: false, entry: 0, text };
        Ok(Wished { command: Command::GrantPrimary(grant), answer })
    })
    .await
}

/// What is lost, and what is left of it: how far each log is, or was when it was last heard. Positions of different generations cannot be
/// compared, so the generations are named.
pub(super) fn given_up(
    domain: &Domain,
    database: &DatabaseName,
    winner: ArchiveId,
    reached: impl Fn(ArchiveId) -> Option<Reached>,
) -> String {
    let highest_of = |process: &Process| match process.data? {
        Data::Initialized { highest, .. } => Some(highest),
        Data::Empty => None,
    };
    let highest = |archive: ArchiveId| highest_of(domain.serving(archive)?);
    let exited = |archive: ArchiveId| Some(&domain.last_exit_on(archive)?.process);
    let one = |archive: ArchiveId| {
        let mut text = format!("archive {archive}, pod {}", domain.pod_of(archive));
        let last = domain.process_on(archive).or_else(|| exited(archive));
        if let Some(highest) = last.and_then(highest_of) {
            text += &format!(", with data up to generation {highest}");
        }
        if let Some(Reached { end, at }) = reached(archive) {
            // What was heard of an earlier start may be of data that was replaced since.
            let is_there = domain.serving(archive).is_some_and(|process| at >= process.registered);
            let when = if is_there { String::new() } else { format!(" when it was last heard, at {at}") };
            text += &format!(", log up to {end} or more{when}");
        }
        text
    };
    let others = || domain.active_archives(database).map(|it| it.id).filter(|other| *other != winner);
    let text = format!(
        "acknowledged commits that had not reached {} are lost. They may be on {}: what is there is neither used nor overwritten until \
         `kaa database discard {database} --archive ID --reason WHY`",
        one(winner),
        others().map(one).collect::<Vec<_>>().join("; ")
    );
    match others().filter(|other| highest(*other) > highest(winner)).map(|other| domain.pod_of(other)).next() {
        Some(pod) => format!("{text}. {pod} has data of a later generation: less may be lost with it"),
        None => text,
    }
}

/// Takes the data of an archive for that of the database.
pub(super) async fn adopt(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(wish): Body<DataWish>,
) -> Result<Answer<MoveAnswer>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let (why, archive) = (checked(wish.why)?, ArchiveId(wish.archive));
    moved(&face, actor, &database, wish.dry_run, |domain, replicated| {
        let (system, highest) = domain.may_adopt(&database, archive).map_err(|refusal| match refusal {
            Refusal::NoDataToAdopt(archive) => format!("{refusal}: {}", domain.place(replicated, archive)),
            _ => refusal.to_string(),
        })?;
        let pod = domain.pod_of(archive);
        let others = domain.active_archives(&database).filter(|other| other.id != archive);
        let others: Vec<String> = others.map(|other| domain.pod_of(other.id)).collect();
        let mut text = format!(
            "the data of archive {archive}, pod {pod}, system {system}, up to generation {highest}, is that of the database"
        );
        if !others.is_empty() {
            text += &format!(
                "; data that is on {} is neither used nor overwritten until it is discarded",
                others.join(", ")
            );
        }
        let command = AdoptData { database: database.clone(), archive, why };
        let (database, to) = (database.to_string(), Some(pod.clone()));
        let answer = MoveAnswer { database, generation: highest.0, from: pod, to, done: false, entry: 0, text };
        Ok(Wished { command: Command::AdoptData(command), answer })
    })
    .await
}

/// Why data is not given up before a database has a primary, and what helps.
fn nothing_instead(domain: &Domain, database: &DatabaseName, archive: ArchiveId) -> String {
    let pod = domain.pod_of(archive);
    let data = domain.process_on(archive).and_then(|process| process.data);
    let (holds, adopts) = match data {
        Some(Data::Initialized { system, highest }) => (
            format!(", of system {system}, up to generation {highest}"),
            format!(
                "If that is the data of the database: `kaa database adopt {database} --archive {archive} --reason WHY`. If it is not needed"
            ),
        ),
        _ => (String::new(), "If it is not needed".to_owned()),
    };
    format!(
        "database {database} has no primary yet, so there is no data to overwrite that of archive {archive}, pod {pod}{holds}, with. \
         {adopts}: `kubectl delete pvc/archive-volume-{pod} pod/{pod}`, and the pod comes back with an empty volume"
    )
}

/// Gives up the data of an archive outside the sync set.
pub(super) async fn discard(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(wish): Body<DataWish>,
) -> Result<Answer<MoveAnswer>, Error> {
    let database = DatabaseName::from(name(named, "database name")?);
    let (why, archive) = (checked(wish.why)?, ArchiveId(wish.archive));
    moved(&face, actor, &database, wish.dry_run, |domain, replicated| {
        domain.may_discard(&database, archive).map_err(|refusal| match refusal {
            Refusal::UnknownArchive(archive) => format!("database {database} has no archive {archive}"),
            Refusal::NoPrimaryYet(_) => nothing_instead(domain, &database, archive),
            _ => refusal.to_string(),
        })?;
        let (primary, generation) = current(&database, replicated)?;
        let pod = domain.pod_of(archive);
        let text = format!(
            "the data of archive {archive}, pod {pod}, is overwritten with that of {}, and not kept",
            domain.pod_of(primary)
        );
        let command = DiscardData { database: database.clone(), archive, why };
        let (database, to) = (database.to_string(), Some(pod.clone()));
        let answer = MoveAnswer { database, generation: generation.0, from: pod, to, done: false, entry: 0, text };
        Ok(Wished { command: Command::DiscardData(command), answer })
    })
    .await
}
