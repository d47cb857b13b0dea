//! Carries out one step at the server. A step that is dropped leaves the server such that the next one can begin.

use super::decide::{Primary, Readers, Run, State, Step};
use super::outside::Outside;
use super::words;
use crate::clock::monotonic_ms;
use crate::postgres::{Data, Error, Follows, Mounted, Server, Settings, Stop};
use kaa_core::domain::ids::{ArchiveId, Generation};
use kaa_core::domain::replicated::Begins;
use kaa_core::replication::{Memory, Rule, Source};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// How long a primary may take to stop so that another one takes over. Its sessions have ended, and a checkpoint was written.
const STAND_DOWN_LIMIT: Duration = Duration::from_secs(20);

/// The pause after a failed attempt to stop a server.
const AGAIN: Duration = Duration::from_millis(200);

/// How long a copy waits that has found damaged pages: they are read once more, all of them.
const DAMAGED_PAUSE: Duration = Duration::from_secs(600);

/// How long a primary whose lease is over may take to close. After that its processes are killed.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// What a step has done.
pub(super) struct Done {
    pub step: Step,
    pub result: Result<Outcome, String>,
    /// How long it is not to be tried again, at least.
    pub pause: Duration,
    /// What the server does now.
    pub run: Run,
    /// What is on the volume now, if that was looked at.
    pub data: Option<Data>,
    /// Whether that is a whole copy of the primary's, made by this step.
    pub copied: bool,
    /// What was mounted when a step began that uses it.
    pub mounted: Option<Mounted>,
    /// Whether no client can connect with what it uses.
    pub keeps_out: bool,
    /// Which of that is not used, and why.
    pub complaints: Vec<String>,
    /// Whether what is mounted is to be used again in a while: the roles are not all as the Secrets say, or sessions do not load a library.
    pub uses_again: bool,
}

/// What came of a step that succeeded.
#[derive(Default)]
pub struct Outcome {
    /// Set if the data cannot follow.
    pub needs_overwrite: Option<String>,
    /// Whether the data is that of a server that was promoted by other means than a grant.
    pub outside: bool,
}

impl Step {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::StartFenced => "start fenced",
            Self::Stop => "stop",
            Self::Promote(_) => "promote",
            Self::Establish => "have the first record confirmed",
            Self::Open => "let clients in",
            Self::Prepare => "prepare the roles of the Secrets",
            Self::KeepLog(_) => "keep the log for standbys",
            Self::HoldCommits => "hold commits",
            Self::Require(_) => "change the rule",
            Self::Close => "close",
            Self::Retire => "retire",
            Self::StandDown => "stand down",
            Self::Follow { .. } => "follow",
            Self::Overwrite { .. } => "overwrite the data",
            Self::Return(_) => "return the permission to overwrite",
            Self::AdmitReaders => "let readers in",
            Self::Refresh => "use what is mounted now",
        }
    }
}

/// Why a step must not begin, not even on the volume: a promotion that is remembered and then fails uses up its generation.
///
/// # Errors
/// Why not.
pub fn may_begin(step: &Step, settings: &Settings) -> Result<(), String> {
    match step {
        Step::Promote(_) => settings.check_replication().map_err(|error| format!("{}: {error}", step.name())),
        _ => Ok(()),
    }
}

/// What the volume has to remember before the step begins; `None` if nothing new.
pub fn remembers(step: &Step, mut memory: Memory) -> Option<Result<Memory, String>> {
    let changed = match step {
        Step::Promote(rule) => memory.take_up(rule.generation),
        Step::Follow { generation, .. } => memory.follow(*generation),
        Step::Overwrite { permission, .. } => memory.begin_overwrite(*permission),
        Step::Return(permission) => memory.return_permission(*permission),
        Step::Initialize
        | Step::StartFenced
        | Step::Stop
        | Step::Establish
        | Step::Open
        | Step::Prepare
        | Step::KeepLog(_)
        | Step::HoldCommits
        | Step::Require(_)
        | Step::Close
        | Step::Retire
        | Step::StandDown
        | Step::AdmitReaders
        | Step::Refresh => return None,
    };
    Some(changed.map(|()| memory).map_err(|why| why.to_string()))
}

/// Carries out a step.
pub(super) async fn perform(step: Step, server: Arc<Mutex<Server>>, own: ArchiveId, state: State) -> Done {
    let mut server = server.lock().await;
    let uses = matches!(step, Step::StartFenced | Step::Overwrite { .. } | Step::Refresh);
    let mounted = uses.then(|| server.mounted());
    let (before, mut run, mut data, mut copied) = (state.run.clone(), state.run.clone(), None, false);
    let result = carry_out(&step, &mut server, own, state, &mut run, (&mut data, &mut copied)).await;
    // It runs on until the next reading takes note of it: a start would hide that.
    if matches!(&result, Err(Error::Promoted)) {
        run = before.clone();
    }
    if let Some(how) = result.as_ref().err().and_then(|error| stops(&step, error, &run)) {
        // It starts fenced, and is stopped once more before that.
        run = Run::Down;
        match &result {
            // It waits in the kernel, and runs no code of its own any more.
            Err(Error::Unended(_)) => {}
            _ => match server.stop(how).await {
                Ok(_) => {}
                Err(error @ Error::Unended(_)) => tracing::error!(%error, "the server does not end"),
                Err(error) => {
                    tracing::error!(%error, "the server may run: it is stopped again");
                    if matches!(before, Run::Primary(_)) {
                        run = before;
                    }
                    sleep(AGAIN).await;
                }
            },
        }
    }
    // Whatever failed after its end: a server that does not run has no role.
    if result.is_err() && server.reader().is_err() {
        run = Run::Down;
    }
    let keeps_out = server.keeps_clients_out().await;
    let complaints = server.complaints();
    let prepares = matches!(step, Step::Prepare | Step::Refresh) && result.is_ok();
    let uses_again = (prepares && server.prepares_again()) || server.retries_libraries();
    let pause = if let Err(Error::DamagedSource { .. }) = &result { DAMAGED_PAUSE } else { Duration::ZERO };
    let result = result.map_err(|error| error.to_string());
    Done { step, result, pause, run, data, copied, mounted, keeps_out, complaints, uses_again }
}

/// How the server is stopped after a step has failed; `None` if it runs on.
fn stops(step: &Step, error: &Error, run: &Run) -> Option<Stop> {
    match step {
        // One that does not close must not show anything more.
        Step::Close => Some(Stop::Kill),
        // What is mounted is no reason to stop a server.
        Step::Refresh => None,
        _ => is_unknown(error, run).then_some(Stop::Immediate),
    }
}

/// Whether, after this failure, it is no longer known what the server does.
fn is_unknown(error: &Error, run: &Run) -> bool {
    *run == Run::Down || matches!(error, Error::Stuck(_) | Error::Ended(_) | Error::Unended(_))
}

async fn carry_out(
    step: &Step,
    server: &mut Server,
    own: ArchiveId,
    state: State,
    run: &mut Run,
    (data, copied): (&mut Option<Data>, &mut bool),
) -> Result<Outcome, Error> {
    match step {
        Step::Initialize => *data = Some(server.initialize().await?),
        Step::StartFenced => {
            // What a server that has ended left behind may still write.
            server.stop(Stop::Immediate).await?;
            if state.outside != Outside::No {
                *data = Some(server.inspect_in_time().await?);
            }
            server.start_fenced().await?;
            *run = Run::Fenced;
        }
        Step::Stop => {
            server.stop(Stop::Immediate).await?;
            *run = Run::Down;
            if state.outside != Outside::No {
                // The domain has to hear of the number that its timeline has.
                *data = server.inspect_in_time().await.ok();
            }
        }
        Step::Promote(rule) => promote(server, rule, &state, run, data).await?,
        Step::Establish
        | Step::Open
        | Step::Prepare
        | Step::KeepLog(_)
        | Step::Require(_)
        | Step::HoldCommits
        | Step::Close
        | Step::Retire
        | Step::StandDown => {
            if let Run::Primary(primary) = run
                && at_primary(step, server, primary).await?
            {
                *run = Run::Down;
            }
        }
        Step::Follow { generation, source, history } => {
            return follow(server, own, source, *generation, history, run).await;
        }
        Step::Overwrite { generation, source, history, rewind, permission: _ } => {
            *run = Run::Down;
            let overwritten = server.overwrite(source, *rewind).await?;
            // Whatever comes after it: the data need not be copied once more.
            (*data, *copied) = (Some(overwritten.data), overwritten.copied);
            server.start_fenced().await?;
            // That its data is whole is known once it streams.
            let outcome = follow(server, own, source, *generation, history, run).await?;
            if let Some(why) = outcome.needs_overwrite {
                return Err(Error::Stuck(format!("the new data cannot follow either: {why}")));
            }
        }
        Step::Return(_) => {}
        Step::Refresh => server.refresh().await?,
        Step::AdmitReaders => {
            server.admit_readers().await?;
            if let Run::Follows { readers, .. } = run {
                *readers = Readers::Admitted;
            }
        }
    }
    Ok(Outcome::default())
}

/// A step at a primary. True if its server has stopped as it was told.
async fn at_primary(step: &Step, server: &mut Server, primary: &mut Primary) -> Result<bool, Error> {
    match step {
        Step::Establish => {
            let end = server.establish().await?;
            primary.establish(end);
        }
        Step::Open => {
            server.open().await?;
            primary.open = true;
        }
        Step::Prepare => {
            // A standby that has to be rewound compares with it: the checkpoint names the new timeline.
            server.checkpoint().await?;
            server.prepare_roles().await?;
            primary.prepared = true;
        }
        Step::KeepLog(archives) => {
            server.provide_slots(archives).await?;
            primary.slots.clone_from(archives);
        }
        Step::Require(rule) => {
            let members: Vec<ArchiveId> = rule.members.iter().copied().collect();
            // A primary that is not established yet still writes the first record of its generation, which standbys look for.
            let end = server.require(&members, words::timeline(rule.generation)).await?;
            primary.ruling.settle(rule.version, end.0);
        }
        Step::HoldCommits => {
            server.release_nothing().await?;
            // It applies something else than its rule, until a rule is made again.
            primary.ruling.doubt();
        }
        Step::Close => {
            let done = timeout(CLOSE_LIMIT, server.close()).await;
            done.unwrap_or_else(|_| Err(Error::Stuck(format!("it does not close within {CLOSE_LIMIT:?}"))))?;
            primary.close();
        }
        Step::Retire => {
            server.checkpoint().await?;
            primary.may_refuse();
            server.close().await?;
            // If it is not to stand down after all, it opens again.
            primary.close();
        }
        Step::StandDown => {
            server.stand_down(STAND_DOWN_LIMIT).await?;
            return Ok(true);
        }
        Step::Initialize
        | Step::StartFenced
        | Step::Stop
        | Step::Promote(_)
        | Step::Follow { .. }
        | Step::Overwrite { .. }
        | Step::Return(_)
        | Step::AdmitReaders
        | Step::Refresh => {}
    }
    Ok(false)
}

async fn promote(
    server: &mut Server,
    rule: &Rule,
    state: &State,
    run: &mut Run,
    data: &mut Option<Data>,
) -> Result<(), Error> {
    let members: Vec<ArchiveId> = rule.members.iter().copied().collect();
    // Until it is known to be promoted as it should be: a server under another number must not serve.
    *run = Run::Down;
    let generation = words::timeline(rule.generation);
    match server.fence_for_promotion(generation, &members).await {
        Ok(_) => {}
        // It takes no log. After a crash with many open subtransactions it answers only once it is promoted; another stop would have it replay
        // all of its log once more.
        Err(Error::NoSql { said: why, .. }) if state.run == Run::Fenced || server.has_no_later_history().await => {
            tracing::warn!(why, "it is promoted without an answer")
        }
        Err(error) => return Err(error),
    }
    // It takes no log any more.
    let stopped_ms = monotonic_ms();
    server.lower_limits().await?;
    let begins = server.promote(generation, &members).await?;
    let ancestors = server.ancestors(generation).await?;
    *data = Some(server.inspect_in_time().await?);
    *run = Run::Primary(Box::new(Primary::promoted(begins, rule.clone(), stopped_ms, ancestors)));
    Ok(())
}

async fn follow(
    server: &mut Server,
    own: ArchiveId,
    source: &Source,
    generation: Generation,
    history: &[Begins],
    run: &mut Run,
) -> Result<Outcome, Error> {
    // If that is not completed, it may be connected.
    *run = Run::Down;
    let followed = server.follow(own, source, words::timeline(generation), history).await;
    *run = followed.as_ref().err().map_or(Run::Fenced, |error| unfollowed(server.is_fenced(), error));
    let followed = followed?;
    match followed {
        Follows::Streams => {
            *run = Run::Follows { generation, source: source.clone(), readers: Readers::No };
            Ok(Outcome::default())
        }
        Follows::NeedsOverwrite { why } => Ok(Outcome { needs_overwrite: Some(why), outside: false }),
        Follows::Outside { why } => Ok(Outcome { needs_overwrite: Some(why), outside: true }),
    }
}

/// What a server is that was told to follow, and did not: it may be connected. But one that is fenced and accepts no session is not connected
/// before it accepts one. It replays its log, for minutes after a crash, and would begin that again if it was stopped.
fn unfollowed(is_fenced: bool, error: &Error) -> Run {
    match error {
        Error::NoSql { .. } if is_fenced => Run::Fenced,
        _ => Run::Down,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaa_core::domain::ids::SetVersion;
    use std::collections::BTreeSet;

    #[test]
    fn a_promotion_after_which_no_standby_could_connect_does_not_begin() {
        let (secret, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = Settings { replication: secret.path().to_owned(), ..Settings::of_test(volume.path()) };
        std::fs::create_dir(volume.path().join("conf")).unwrap();
        let rule = Rule { generation: Generation(3), version: SetVersion(1), members: BTreeSet::new() };
        let promotes = || may_begin(&Step::Promote(rule.clone()), &settings);
        let why = promotes().unwrap_err();
        assert!(why.starts_with("promote: ") && why.contains("/username cannot be used"), "{why}");
        assert_eq!(may_begin(&Step::Close, &settings), Ok(()), "what is there stays in use");
        for name in ["username", "password"] {
            std::fs::write(secret.path().join(name), "text").unwrap();
        }
        assert_eq!(promotes(), Ok(()));
        std::fs::remove_file(secret.path().join("username")).unwrap();
        promotes().unwrap_err();
        std::fs::write(volume.path().join("conf/replication.last"), "name\ntext\n").unwrap();
        assert_eq!(promotes(), Ok(()), "with those that its start has kept");
    }

    #[test]
    fn a_fenced_server_that_replays_its_log_for_long_is_not_stopped_by_an_order_to_follow() {
        let recovers =
            || Error::NoSql { heard: true, said: "the database system is not yet accepting connections".to_owned() };
        let stopped = |is_fenced, error: &Error| is_unknown(error, &unfollowed(is_fenced, error));
        assert!(!stopped(true, &recovers()), "its replay would begin again");
        assert!(stopped(false, &recovers()), "it may be connected");
        assert!(stopped(true, &Error::Stuck("it does not read its configuration".to_owned())), "it may be connected");
    }

    #[test]
    fn a_primary_that_does_not_close_is_killed_and_a_refresh_that_fails_stops_none() {
        let stuck = || Error::Stuck("it does not close".to_owned());
        assert_eq!(stops(&Step::Close, &stuck(), &Run::Fenced), Some(Stop::Kill));
        let refused = Error::NoSql { heard: true, said: "too many clients".to_owned() };
        assert_eq!(stops(&Step::Close, &refused, &Run::Fenced), Some(Stop::Kill), "clients may still be served");
        assert_eq!(stops(&Step::Refresh, &stuck(), &Run::Down), None);
        assert_eq!(stops(&Step::Open, &stuck(), &Run::Fenced), Some(Stop::Immediate));
        assert_eq!(stops(&Step::Open, &refused, &Run::Fenced), None);
    }

    #[test]
    fn a_server_that_is_neither_known_to_stand_where_it_stood_nor_where_it_should_is_stopped() {
        let failed = || Error::NoSql { heard: true, said: "too many clients".to_owned() };
        assert!(!is_unknown(&failed(), &Run::Fenced), "the step had not begun, or changes nothing by half");
        assert!(is_unknown(&failed(), &Run::Down), "it was to be promoted, or to be connected");
        assert!(is_unknown(&Error::Stuck("a sender does not obey".to_owned()), &Run::Fenced));
        assert!(is_unknown(&Error::Unended(7), &Run::Fenced), "it was killed");
    }
}
