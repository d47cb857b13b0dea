//! `kaa switchover`, `kaa failover` and `kaa database adopt|discard`: an operator moves the primary of a database, continues without it,
//! or says which data is the database's.

use super::api::{Api, Error};
use super::{Asking, Format, Reason, api};
use crate::http::{MoveAnswer, ReplicationAnswer};
use axum::http::Method;
use clap::{Args, Subcommand};
use kaa_core::domain::ids::ArchiveId;
use kaa_core::replication::grants::STAND_DOWN_MS;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often `--wait` asks the agent.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// `kaa switchover`.
#[derive(Debug, Args)]
pub(super) struct Switchover {
    /// The database
    #[arg(value_name = "NAME")]
    database: String,
    /// The pod whose server is to be the primary, or its archive's id; default: any standby of the sync set
    #[arg(long, value_name = "POD", conflicts_with = "cancel")]
    to: Option<String>,
    /// Takes back a switchover that has not begun
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

/// `kaa failover`.
#[derive(Debug, Args)]
pub(super) struct Failover {
    /// The database
    #[arg(value_name = "NAME")]
    database: String,
    /// The pod whose server is to be the primary, or its archive's id; default: the first one of the sync set that is up
    #[arg(long, value_name = "POD")]
    to: Option<String>,
    /// Does not wait for a proof that the old primary has ended. No acknowledged commit is lost. The next primary opens once the lease
    /// of the old one is over; if that has none, clients that stay connected to it can read stale data
    #[arg(long)]
    old_primary_may_run: bool,
    /// Gives up acknowledged commits that are only on servers which are gone, and continues with the server of --to. NAME is the
    /// database's, once more. Refused while a server that is known to have all commits is up, or the old primary may still run
    #[arg(long, value_name = "NAME", requires = "to", conflicts_with = "old_primary_may_run")]
    accept_data_loss: Option<String>,
    /// Your word that the old primary does not run, and will not: its node is off. Needed where neither its wrapper nor its node has
    /// shown its end
    #[arg(long, requires = "accept_data_loss")]
    old_primary_is_off: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

/// `kaa database`.
#[derive(Debug, Subcommand)]
pub(super) enum Database {
    /// Takes the data that is on an archive for that of its database: of a server that ran without Kaa, or of a domain that is lost.
    /// Refused once the database has had a primary
    Adopt(Data),
    /// Lets the data that is on an archive be overwritten with that of the primary: data that is not the database's, an old state of it, or
    /// that of a damaged standby. Refused for an archive of the sync set
    Discard(Data),
}

/// `kaa database adopt` and `kaa database discard`.
#[derive(Debug, Args)]
pub(super) struct Data {
    /// The database
    #[arg(value_name = "NAME")]
    database: String,
    /// The archive with the data
    #[arg(long, value_name = "ID")]
    archive: ArchiveId,
    /// Shows what would be done, or why it is refused. Changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    asking: Asking,
}

/// How long --wait waits where nothing else is said, in seconds.
const TIMEOUT_S: u64 = 60;

/// Whether to do it, and to wait for it.
#[derive(Debug, Args)]
struct How {
    /// Shows what would be done, or why it is refused. Changes nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Waits until the new primary lets clients in
    #[arg(long)]
    wait: bool,
    /// How long --wait waits, in seconds. Default: 630 for a switchover, before which the primary may write a checkpoint for 600 s; else 60
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u64>,
}

impl Switchover {
    pub(super) async fn run(self) -> Result<String, Error> {
        let Self { database, to, cancel, how, reason, asking } = self;
        let how = How { timeout: how.timeout.or(Some(STAND_DOWN_MS / 1000 + 30)), ..how };
        let body = json!({"to": to, "cancel": cancel, "why": reason.why, "dryRun": how.dry_run});
        moved(&asking, &database, "switchover", body, &how).await
    }
}

impl Failover {
    pub(super) async fn run(self) -> Result<String, Error> {
        let Self { database, to, old_primary_may_run, accept_data_loss, old_primary_is_off, how, reason, asking } =
            self;
        let body = json!({
            "to": to,
            "oldPrimaryMayRun": old_primary_may_run,
            "acceptDataLoss": accept_data_loss,
            "oldPrimaryIsOff": old_primary_is_off,
            "why": reason.why,
            "dryRun": how.dry_run,
        });
        moved(&asking, &database, "failover", body, &how).await
    }
}

impl Database {
    /// How the command is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Adopt(_) => "database adopt",
            Self::Discard(_) => "database discard",
        }
    }

    pub(super) async fn run(self) -> Result<String, Error> {
        let (what, data) = match self {
            Self::Adopt(data) => ("adopt", data),
            Self::Discard(data) => ("discard", data),
        };
        let Data { database, archive, dry_run, reason, asking } = data;
        let body = json!({"archive": archive.0, "why": reason.why, "dryRun": dry_run});
        moved(&asking, &database, what, body, &How { dry_run, wait: false, timeout: None }).await
    }
}

/// Asks for it, and waits if that was asked for.
async fn moved(asking: &Asking, database: &str, what: &str, body: Value, how: &How) -> Result<String, Error> {
    let api = asking.api()?;
    let began = Instant::now();
    let path = ["kaa", "replication", database, what];
    let is_named = body["to"].is_string();
    let answer: MoveAnswer = api.change(Method::POST, &path, Some(body)).await?;
    if !how.wait {
        let dry = if how.dry_run { ", dry run" } else { "" };
        return Ok(asking.agent.print(&answer, |answer| format!("{}{dry}: {}\n", answer.database, answer.text)));
    }
    // Without a name any primary will do.
    let answer = MoveAnswer { to: answer.to.clone().filter(|_| is_named), ..answer };
    let timeout = Duration::from_secs(how.timeout.unwrap_or(TIMEOUT_S));
    let (opened, after) = opened(&api, &answer, began, timeout).await?;
    if asking.agent.output == Format::Json {
        return Ok(api::raw(&opened));
    }
    let (pod, generation) = (opened.primary.map(|primary| primary.pod), opened.generation);
    let (pod, generation) = (pod.unwrap_or_default(), generation.unwrap_or_default());
    let after = after.as_secs_f64();
    Ok(format!("{database}: {pod} is the primary since generation {generation} (after {after:.1} s)\n"))
}

/// The database once a later primary is open, and how long that took.
async fn opened(
    api: &Api,
    asked: &MoveAnswer,
    began: Instant,
    timeout: Duration,
) -> Result<(ReplicationAnswer, Duration), Error> {
    loop {
        // An agent that restarts meanwhile answers again before long.
        let shown = match api.get::<ReplicationAnswer>(&["kaa", "replication", &asked.database], &[]).await {
            Err(error @ Error::NoAnswer { .. }) => Err(error),
            answered => Ok(answered?),
        };
        if let Ok(shown) = &shown {
            match stands(shown, asked) {
                Stands::Open => return Ok((shown.clone(), began.elapsed())),
                Stands::GivenUp(why) => return Err(Error::Refused(why)),
                Stands::UnderWay => {}
            }
        }
        if began.elapsed() >= timeout {
            let shown = shown?;
            let stays = shown.switchover.as_ref().map_or(String::new(), |_| {
                format!(". The request stays: `kaa switchover {} --cancel --reason WHY` takes it back", asked.database)
            });
            let why = format!("no new primary is open after {} s: {}{stays}", timeout.as_secs(), at_present(&shown));
            return Err(Error::Refused(why));
        }
        sleep(LOOK_PERIOD).await;
    }
}

/// How far a move has come.
#[derive(Debug, PartialEq, Eq)]
enum Stands {
    Open,
    UnderWay,
    GivenUp(String),
}

fn stands(shown: &ReplicationAnswer, asked: &MoveAnswer) -> Stands {
    // Behind one address may be several agents, and one that lags does not know the request yet.
    if shown.applied < asked.entry {
        return Stands::UnderWay;
    }
    let is_later = shown.generation.is_some_and(|generation| generation > asked.generation);
    match (&shown.primary, is_later) {
        (Some(primary), true) if primary.open && asked.to.as_ref().is_some_and(|to| *to != primary.pod) => {
            Stands::GivenUp(format!("the primary has changed for another reason meanwhile: {}", at_present(shown)))
        }
        (Some(primary), true) if primary.open => Stands::Open,
        (_, false) if shown.switchover.is_none() => {
            let last = shown.last_change.as_ref().filter(|change| change.code == "ReplicationSwitchoverCancelled");
            let why = last.map_or_else(|| "the switchover was taken back".to_owned(), |last| last.text.clone());
            Stands::GivenUp(format!("{why}; {}", at_present(shown)))
        }
        _ => Stands::UnderWay,
    }
}

/// Where the primary is, and what is in its way.
fn at_present(shown: &ReplicationAnswer) -> String {
    let mut text = match (&shown.primary, shown.generation) {
        (Some(primary), Some(generation)) => {
            format!("{} is the primary of generation {generation}, {}", primary.pod, primary.state.text)
        }
        _ => "there is no primary".to_owned(),
    };
    for warning in &shown.warnings {
        text += &format!("; {}", warning.text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{ChangeRow, PrimaryRow, SwitchoverRow};

    fn shown(generation: u64, open: bool, asked: bool) -> ReplicationAnswer {
        let primary = PrimaryRow { pod: "shop-0".to_owned(), open, ..PrimaryRow::default() };
        let code = "ReplicationSwitchoverCancelled".to_owned();
        let text = "the switchover was cancelled: its target was not up".to_owned();
        ReplicationAnswer {
            applied: 20,
            generation: Some(generation),
            primary: Some(primary),
            switchover: asked.then(SwitchoverRow::default),
            last_change: Some(ChangeRow { code, text, ..ChangeRow::default() }),
            ..ReplicationAnswer::default()
        }
    }

    #[test]
    fn a_move_is_done_once_a_later_primary_is_open() {
        let asked = MoveAnswer { generation: 7, entry: 20, ..MoveAnswer::default() };
        assert_eq!(stands(&shown(7, true, true), &asked), Stands::UnderWay, "the old one is still open");
        assert_eq!(stands(&shown(8, false, false), &asked), Stands::UnderWay, "granted");
        assert_eq!(stands(&shown(8, true, false), &asked), Stands::Open);
        let elsewhere = MoveAnswer { to: Some("shop-2".to_owned()), ..asked.clone() };
        assert!(
            matches!(stands(&shown(8, true, false), &elsewhere), Stands::GivenUp(_)),
            "another failover came first"
        );
        assert_eq!(stands(&shown(7, true, true), &elsewhere), Stands::UnderWay);
        let late = ReplicationAnswer { applied: 19, ..shown(7, true, false) };
        assert_eq!(stands(&late, &asked), Stands::UnderWay, "the agent does not know the request yet");
        let Stands::GivenUp(why) = stands(&shown(7, true, false), &asked) else { panic!() };
        assert!(why.starts_with("the switchover was cancelled: its target was not up; shop-0 is the primary"), "{why}");
    }
}
