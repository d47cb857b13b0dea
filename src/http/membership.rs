//! `GET /api/1/kaa/membership`: who votes, what there is to know of how the voters are placed, and what is waited for.

use super::error::Error;
use super::source::MembershipReport;
use super::{Answer, Face};
use axum::extract::State;
use serde::{Deserialize, Serialize};

/// Who votes, and what is waited for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MembershipAnswer {
    /// The membership epoch: 1 at the founding, one more for each override; 0 while Raft does not run.
    pub epoch: u64,
    /// Who votes.
    pub voters: Vec<String>,
    /// Who is replicated to and does not vote.
    pub learners: Vec<String>,
    /// What a person should know of the voters. Nothing is done about it.
    pub findings: Vec<SaidRow>,
    /// What is waited for.
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
}

impl MembershipAnswer {
    /// The report of one server.
    pub fn new(report: &MembershipReport) -> Self {
        let names = |servers: &[kaa_core::domain::ids::ServerId]| servers.iter().map(ToString::to_string).collect();
        let findings = report.findings.iter().map(|finding| SaidRow {
            subject: None,
            reason: finding.to_string(),
            code: finding.code().to_owned(),
        });
        let waiting = report.waiting.iter().map(|waits| SaidRow {
            subject: waits.server.as_ref().map(|server| format!("server/{server}")),
            reason: waits.words.clone(),
            code: waits.code.to_owned(),
        });
        Self {
            epoch: report.epoch.0,
            voters: names(&report.voters),
            learners: names(&report.learners),
            findings: findings.collect(),
            waiting: waiting.collect(),
        }
    }
}

pub(super) async fn membership(State(face): State<Face>) -> Result<Answer<MembershipAnswer>, Error> {
    let index = face.source.read(|domain| domain.index);
    Ok(Answer { index, body: MembershipAnswer::new(&face.source.membership()) })
}
