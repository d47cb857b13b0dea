//! Parameters that a standby must not have lower than the primary whose log it replays, such as `max_connections`.
//!
//! A server starts as a standby, so that it starts with the greater of what is wanted and of what `pg_control` records. A
//! lower value can take effect only at a server that is about to be promoted: started again as one that serves no readers,
//! it may have any value, and its first record as the primary tells the others.

use super::control_file::{ControlFile, LIMITS};
use super::error::Error;
use super::{Position, Role, Server, Settings, Stop, files};
use std::time::Duration;
use tokio::time::timeout;

/// One value of each of [`LIMITS`].
pub(super) type Limits = [u64; LIMITS.len()];

/// The value that PostgreSQL, or the wrapper, gives each of them.
const DEFAULTS: Limits = [100, 8, 20, 0, 64];
/// How long a checkpoint before the other start may take.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(5);
/// How much log may be replayed at the other start: more would make the change of the primary long.
const REPLAYED: u64 = 64 << 20;
/// More bytes than the record of a checkpoint takes with the header of a page, and fewer than one with that of a prepared transaction.
const ONE_CHECKPOINT: u64 = 200;
/// How many transactions may be prepared.
const PREPARED: &str = "max_prepared_transactions";

/// The last value of a parameter in a text of settings.
fn value_of(text: &str, name: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| {
        let (word, value) = line.trim().split_once(|it: char| it == '=' || it.is_whitespace())?;
        let value = value.trim_start_matches(|it: char| it == '=' || it.is_whitespace());
        let value = value.split(|it: char| it == '#' || it.is_whitespace()).next()?;
        word.eq_ignore_ascii_case(name).then(|| value.trim_matches('\'').parse().ok())?
    })
}

/// What the settings of the user say; those of `ALTER SYSTEM` have precedence.
pub(super) fn wanted(settings: &Settings) -> Result<Limits, Error> {
    let read = |path: std::path::PathBuf| files::read(&path).map(Option::unwrap_or_default);
    let own = read(settings.conf().join("user.conf"))?;
    let automatic = read(settings.pgdata().join("postgresql.auto.conf"))?;
    let mut limits = DEFAULTS;
    for (limit, (_, name)) in limits.iter_mut().zip(LIMITS) {
        let value = value_of(&automatic, name).or_else(|| value_of(&own, name));
        *limit = value.unwrap_or(*limit);
    }
    Ok(limits)
}

/// What a standby starts with.
pub(super) fn of_a_standby(wanted: Limits, control: &ControlFile) -> Limits {
    let mut limits = wanted;
    for (limit, needed) in limits.iter_mut().zip(control.limits) {
        *limit = needed.max(*limit);
    }
    limits
}

/// The names of the parameters for which what a server runs with and what is wanted compare so.
fn names(runs_with: &Limits, wanted: &Limits, are: fn(&u64, &u64) -> bool) -> Vec<&'static str> {
    let pairs = LIMITS.iter().zip(runs_with.iter().zip(wanted));
    pairs.filter(|(_, (has, wanted))| are(has, wanted)).map(|((_, name), _)| *name).collect()
}

/// Those that another start would make lower.
fn lower(runs_with: &Limits, wanted: &Limits) -> Vec<&'static str> {
    names(runs_with, wanted, u64::gt)
}

/// Whether a start that begins at `redo` replays little, and nothing that needs more of these parameters than they will have. Log with a
/// prepared transaction needs a place for it: the server would end while it is promoted.
fn may_replay(redo: Position, end: Position, names: &[&str]) -> bool {
    let limit = if names.contains(&PREPARED) { ONE_CHECKPOINT } else { REPLAYED };
    end.0.saturating_sub(redo.0) <= limit
}

/// The names of the parameters that wait for a restart: those that the server names, and those for which it needed more
/// than is wanted when it started.
pub(super) fn pending(named: Vec<String>, runs_with: &Limits, wanted: &Limits) -> Vec<String> {
    let mut pending = named;
    pending.extend(names(runs_with, wanted, u64::ne).into_iter().map(str::to_owned));
    pending.sort_unstable();
    pending.dedup();
    pending
}

impl Server {
    /// What the settings of the user say now.
    pub(super) async fn wanted_limits(&mut self) -> Result<Limits, Error> {
        let settings = self.settings.clone();
        self.in_time(move || wanted(&settings)).await
    }

    /// Starts a server that is about to be promoted once more if it runs with more than is wanted of such parameters. It does
    /// not if much log would have to be replayed: then it keeps its values until the next time.
    ///
    /// # Errors
    /// If the server is not fenced, or does not run in the end.
    pub async fn lower_limits(&mut self) -> Result<(), Error> {
        if self.living()?.role != Role::Fenced {
            return Err(Error::State("only a fenced server is started once more".to_owned()));
        }
        let wanted = self.wanted_limits().await?;
        let lower = lower(&self.running()?.limits, &wanted);
        if lower.is_empty() {
            return Ok(());
        }
        let names = lower.join(", ");
        // After a planned change this brings the beginning of the replay to the end of the log.
        let checkpoint = timeout(CHECKPOINT_LIMIT, self.checkpoint()).await;
        let Ok(Ok(())) = checkpoint else {
            tracing::warn!(names, ?checkpoint, "lower values wait for another start: there was no checkpoint");
            return Ok(());
        };
        let end = match self.fence().await {
            Err(Error::NoSql { said, .. }) => {
                tracing::warn!(names, said, "lower values wait for another start: the end of the log is not known");
                return Ok(());
            }
            end => end?,
        };
        let redo = self.control().await?.redo;
        if !may_replay(redo, end, &lower) {
            tracing::warn!(names, %redo, %end, "lower values wait for another start: it would have to replay log that they may not suffice for");
            return Ok(());
        }
        tracing::info!(names, "starts once more before it is promoted: lower values take effect");
        if let Err(error) = self.stand_down(CHECKPOINT_LIMIT).await {
            tracing::warn!(%error, "the server is stopped at once");
            self.stop(Stop::Immediate).await?;
        }
        if let Err(error) = self.start_unread().await {
            tracing::warn!(%error, names, "the server does not start with lower values: it keeps the ones that it had");
            self.stop(Stop::Immediate).await?;
            self.start_fenced().await?;
        }
        Ok(())
    }
}

/// The arguments by which a standby has these limits.
pub(super) fn arguments(limits: &Limits, wanted: &Limits) -> Vec<(&'static str, u64)> {
    let values = LIMITS.iter().zip(limits.iter().zip(wanted));
    values.filter(|(_, (limit, wanted))| limit > wanted).map(|((_, name), (limit, _))| (*name, *limit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_limit_counts() {
        let text = "max_connections = 20\nMAX_CONNECTIONS='50' # few\n#max_connections = 7\nmax_connections_x 9\n";
        assert_eq!(Some(50), value_of(text, "max_connections"));
        assert_eq!(Some(60), value_of("max_connections = 60\t\t\t# as in PostgreSQL's own sample", "max_connections"));
        assert_eq!(Some(9), value_of(text, "max_connections_x"));
        assert_eq!(None, value_of(text, "max_wal_senders"));
    }

    #[test]
    fn alter_system_has_precedence_over_the_users_file() {
        let volume = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(volume.path());
        for directory in [settings.conf(), settings.pgdata()] {
            std::fs::create_dir(directory).unwrap();
        }
        assert_eq!(wanted(&settings).unwrap(), DEFAULTS);
        let text = "max_connections = 50\nmax_prepared_transactions = 7\n";
        std::fs::write(settings.conf().join("user.conf"), text).unwrap();
        assert_eq!(wanted(&settings).unwrap(), [50, 8, 20, 7, 64]);
        std::fs::write(settings.pgdata().join("postgresql.auto.conf"), "max_connections = '70'\n").unwrap();
        assert_eq!(wanted(&settings).unwrap(), [70, 8, 20, 7, 64]);
    }

    #[test]
    fn a_server_is_started_once_more_for_a_lower_value_and_if_that_takes_not_long() {
        let runs_with = [100, 8, 20, 0, 64];
        assert_eq!(lower(&runs_with, &[200, 8, 20, 0, 64]), [""; 0], "a higher one needs no such start");
        assert_eq!(lower(&runs_with, &[200, 4, 20, 0, 32]), ["max_worker_processes", "max_locks_per_transaction"]);
        let after = |bytes, names: &[&str]| may_replay(Position(5 << 30), Position((5 << 30) + bytes), names);
        let any = ["max_connections"];
        assert_eq!([0, REPLAYED, REPLAYED + 1].map(|bytes| after(bytes, &any)), [true, true, false]);
        let prepared = ["max_connections", PREPARED];
        assert_eq!([120, 232, REPLAYED].map(|bytes| after(bytes, &prepared)), [true, false, false], "in that log, say");
    }

    #[test]
    fn a_difference_in_either_direction_waits_for_a_restart() {
        let runs_with = [100, 8, 20, 0, 64];
        assert_eq!(pending(Vec::new(), &runs_with, &runs_with), [""; 0]);
        let named = vec!["shared_buffers".to_owned(), "max_connections".to_owned()];
        let names = pending(named, &runs_with, &[50, 8, 20, 5, 64]);
        assert_eq!(names, ["max_connections", "max_prepared_transactions", "shared_buffers"]);
        assert_eq!(arguments(&runs_with, &[50, 9, 20, 0, 64]), [("max_connections", 100)]);
    }
}
