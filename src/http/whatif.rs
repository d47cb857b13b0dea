//! `GET /api/1/kaa/plan?scale=statefulset/NAME=N&delete=pvc/NAME`: what would be removed, or why nothing would be.

use super::error::Error;
use super::own::WaitingRow;
use super::page::Parameters;
use super::source::Source;
use kaa_core::resync::whatif;
use kaa_core::resync::whatif::change::Change;
use kaa_core::resync::whatif::outcome::{Happening, WhatIf};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// One at a time: over ten thousand pods it takes a core for up to a second, and everybody may ask.
static ONE: Semaphore = Semaphore::const_new(1);

/// What would come of changes that were not made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WhatIfAnswer {
    /// The server that answers.
    pub server: Option<String>,
    /// The changes, each as a condition: `statefulset/sm-demo had 1 replica`.
    pub changes: Vec<String>,
    /// What happens, in this order.
    pub steps: Vec<StepRow>,
    /// What there is to know beside.
    pub notes: Vec<String>,
    /// What is not removed, and why.
    pub waiting: Vec<WaitingRow>,
}

/// One thing that happens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepRow {
    /// What it is about.
    pub subject: String,
    /// What happens, and why.
    pub what: String,
    /// Whether it takes something away.
    pub removes: bool,
    /// Whether it happens without the changes too.
    pub anyway: bool,
}

impl WhatIfAnswer {
    fn new(server: Option<String>, changes: &[Change], comes: &WhatIf, prefix: &str) -> Self {
        let row = |Happening { step, anyway }: &Happening| StepRow {
            subject: step.subject(),
            what: step.to_string(),
            removes: step.removes(),
            anyway: *anyway,
        };
        Self {
            server,
            changes: changes.iter().map(ToString::to_string).collect(),
            steps: comes.steps.iter().map(row).collect(),
            notes: comes.notes.iter().map(ToString::to_string).collect(),
            waiting: comes.waiting.iter().map(|waiting| WaitingRow::new(waiting, prefix)).collect(),
        }
    }
}

/// The changes that a request asks about.
pub(super) fn changes(asked: &Parameters) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    for (name, value) in asked {
        let bad = |why: whatif::change::NotAChange| Error::bad(name, format!("is not understood: {why}"));
        match name.as_str() {
            "scale" => changes.push(Change::Scale(value.parse().map_err(bad)?)),
            "delete" => changes.push(Change::Delete(value.parse().map_err(bad)?)),
            _ => {}
        }
    }
    Ok(changes)
}

/// Asks the source on a thread of its own: it copies the domain, and may have thousands of pods to go through.
pub(super) async fn answer(
    source: &Arc<dyn Source>,
    server: Option<String>,
    changes: Vec<Change>,
) -> Result<WhatIfAnswer, Error> {
    let turn = ONE.acquire().await.expect("the semaphore is never closed");
    let (source, asked) = (source.clone(), changes.clone());
    let prefix = source.annotation_prefix();
    // The turn goes with the work: a client that gives up does not end it.
    let work = move || {
        let _turn = turn;
        source.what_if(&asked)
    };
    let comes = tokio::task::spawn_blocking(work).await;
    let comes = comes.map_err(|died| Error::CannotTell(format!("the preview failed: {died}")))?;
    Ok(WhatIfAnswer::new(server, &changes, &comes?, &prefix))
}

impl From<whatif::Error> for Error {
    fn from(why: whatif::Error) -> Self {
        let text = why.to_string();
        match why {
            whatif::Error::NotFounded | whatif::Error::Unknown { .. } => Self::CannotTell(text),
            whatif::Error::NoSuch { .. } => Self::NotFound(text),
            whatif::Error::Twice(_) | whatif::Error::TooMany(_) => Self::BadChanges(text),
        }
    }
}
