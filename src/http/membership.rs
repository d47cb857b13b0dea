//! `GET /api/1/kaa/membership`: the voters, warnings about how they are placed, and what the servers wait for.

use super::error::Error;
use super::source::MembershipReport;
use super::{Answer, Face};
use crate::metrics::group_waits;
use axum::extract::State;
use kaa_core::membership::standing;
use kaa_core::wait;
use serde::{Deserialize, Serialize};

/// The voters, and what the servers wait for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MembershipAnswer {
    /// The membership epoch: 1 at the founding, one more for each override; 0 while Raft does not run.
    pub epoch: u64,
    /// Who votes.
    pub voters: Vec<String>,
    /// Who is replicated to and does not vote.
    pub learners: Vec<String>,
    /// What an operator should know of the voters. Nothing is done about it.
    pub warnings: Vec<SaidRow>,
    /// What the servers wait for.
    pub waiting: Vec<SaidRow>,
}

/// One thing that is said of the group, or of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SaidRow {
    /// What it is about: a server; `None` if it is the group.
    pub subject: Option<String>,
    /// What is so.
    pub reason: String,
    /// The same as one word.
    pub code: String,
    /// What ends the wait, if it is one.
    pub ends: Option<String>,
}

/// What ends a wait of the group or of a server.
fn ends(code: &str) -> Option<String> {
    wait::ends(&group_waits::WAITS, code).or_else(|| wait::ends(&standing::WAITS, code)).map(str::to_owned)
}

impl MembershipAnswer {
    /// The report of one server.
    pub fn new(report: &MembershipReport) -> Self {
        let names = |servers: &[kaa_core::domain::ids::ServerId]| servers.iter().map(ToString::to_string).collect();
        let warnings = report.warnings.iter().map(|warning| SaidRow {
            subject: None,
            reason: warning.to_string(),
            code: warning.code().to_owned(),
            ends: None,
        });
        let waiting = report.waiting.iter().map(|waits| SaidRow {
            subject: waits.server.as_ref().map(|server| format!("server/{server}")),
            reason: waits.words.clone(),
            code: waits.code.to_owned(),
            ends: ends(waits.code),
        });
        Self {
            epoch: report.epoch.0,
            voters: names(&report.voters),
            learners: names(&report.learners),
            warnings: warnings.collect(),
            waiting: waiting.collect(),
        }
    }
}

pub(super) async fn membership(State(face): State<Face>) -> Result<Answer<MembershipAnswer>, Error> {
    let index = face.source.read(|domain| domain.index);
    Ok(Answer { index, body: MembershipAnswer::new(&face.source.membership()) })
}
