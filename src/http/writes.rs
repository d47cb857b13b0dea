//! What the published client changes. An answer means that the change is committed, and applied on this server.

use super::domain::{Named, Pair, id, name};
use super::error::Error;
use super::extract::{Asked, Body};
use super::page::{Parameters, flag, parameter};
use super::rows::{ExitedRow, Hearing, ProcessRow};
use super::writer::Writer;
use super::{Answer, Face};
use axum::extract::State;
use kaa_core::domain::bounds::Bounds;
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Expected, Outcome, Refusal};
use kaa_core::domain::ids::StartId;
use kaa_core::domain::process::Stop;
use serde::{Deserialize, Deserializer};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The longest key: it goes into the audit trail.
const MAX_KEY_BYTES: usize = Bounds::DEFAULT.key;

/// The greatest value: all of them are in memory and in every snapshot.
const MAX_VALUE_BYTES: usize = Bounds::DEFAULT.value;

/// The greatest body of a change: two values of the greatest size, written in JSON.
pub(super) const MAX_BODY_BYTES: usize = 512 * 1024;

/// The longest that a request may wait for a process to end.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// How often a handler checks whether the process has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How much of a value is shown in an error.
const SHOWN_CHARS: usize = 100;

/// What to make of a value.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    key: Option<String>,
    /// Null deletes it. It has to be there: a slip of the pen in its name must not delete anything.
    #[serde(deserialize_with = "present")]
    new_value: Option<String>,
    expected_value: Option<String>,
    #[serde(default)]
    expected_absent: bool,
}

fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(value)
}

impl Change {
    fn command(self, key: &str) -> Result<Command, Error> {
        if self.key.is_some_and(|named| named != key) {
            return Err(Error::bad("key", "differs between the body and the path"));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::bad("key", format!("has more than {MAX_KEY_BYTES} bytes")));
        }
        if self.new_value.as_ref().is_some_and(|value| value.len() > MAX_VALUE_BYTES) {
            return Err(Error::bad("newValue", format!("has more than {MAX_VALUE_BYTES} bytes")));
        }
        let expected = match (self.expected_value, self.expected_absent) {
            (None, false) => Expected::Anything,
            (None, true) => Expected::Absent,
            (Some(value), false) => Expected::Value(value),
            (Some(_), true) => return Err(Error::bad("expectedValue", "is not allowed if expectedAbsent is true")),
        };
        Ok(Command::SetValue(change::SetValue { key: key.to_owned(), value: self.new_value, expected }))
    }
}

pub(super) async fn set_value(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Body(change): Body<Change>,
) -> Result<Answer<Pair>, Error> {
    let key = name(named, "key")?;
    let value = change.new_value.clone();
    let written = face.source.write(actor, change.command(&key)?).await?;
    match written.outcome {
        Outcome::Refused(Refusal::AnotherValue(current)) => Err(Error::Conflict(match current {
            Some(current) => format!("key '{key}' has another value than expected: '{}'", shown(&current)),
            None => format!("key '{key}' has another value than expected: it is absent"),
        })),
        Outcome::Refused(refusal) => Err(refusal.into()),
        _ => Ok(Answer { index: written.index, body: Pair { key, value } }),
    }
}

fn shown(value: &str) -> String {
    let start: String = value.chars().take(SHOWN_CHARS).collect();
    if start.len() == value.len() { start } else { format!("{start}...") }
}

/// How a process shall end.
fn ending(asked: &Parameters, process: StartId) -> Result<Command, Error> {
    if flag(asked, "killWithCore")? {
        let why = "core dumps of engines are not supported: use kill, or send SIGABRT in the engine's container";
        return Err(Error::NotSupported(why));
    }
    Ok(match (flag(asked, "evict")?, flag(asked, "kill")?) {
        (true, true) => return Err(Error::bad("evict", "cannot be true together with kill")),
        (true, false) => Command::EvictProcess(change::EvictProcess { process }),
        (false, true) => Command::StopProcess(change::StopProcess { process, how: Stop::Kill }),
        (false, false) => Command::StopProcess(change::StopProcess { process, how: Stop::Gracefully }),
    })
}

fn wait(asked: &Parameters) -> Result<Duration, Error> {
    let Some(text) = parameter(asked, "timeout") else { return Ok(Duration::ZERO) };
    let seconds: i64 = text.parse().map_err(|_| Error::bad("timeout", format!("has to be seconds, not '{text}'")))?;
    let wait = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    if wait > MAX_WAIT {
        return Err(Error::bad("timeout", format!("has to be at most {} seconds", MAX_WAIT.as_secs())));
    }
    Ok(wait)
}

/// Has a process end. Answers with its row if it has not ended after the time that the request allows, else with null.
pub(super) async fn end_process(
    State(face): State<Face>,
    Writer(actor): Writer,
    named: Named,
    Asked(asked): Asked,
) -> Result<Answer<Option<ProcessRow>>, Error> {
    let process: StartId = id(named, "start id")?;
    let (command, until) = (ending(&asked, process)?, Instant::now() + wait(&asked)?);
    let exited = face.source.read(|domain| Some(ExitedRow::new(domain, domain.tombstones.get(&process)?)));
    if let Some(exited) = exited {
        return Err(Error::Exited(Box::new(exited)));
    }
    face.source.write(actor, command).await?.accepted()?;
    loop {
        let hearing = Hearing { heard: face.source.heard(), peers: face.source.peers() };
        let (index, body) = face.source.read(|domain| {
            let row = domain.processes.get(&process).map(|process| ProcessRow::new(domain, process, &hearing));
            (domain.index, row)
        });
        if body.is_none() || Instant::now() >= until {
            return Ok(Answer { index, body });
        }
        sleep(LOOK_PERIOD).await;
    }
}
