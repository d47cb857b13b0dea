//! Routes that the published API does not have: the plan, and the preview of a change.

use super::domain::linearize;
use super::error::Error;
use super::extract::Asked;
use super::membership::MembershipAnswer;
use super::page::{Parameters, parameter};
use super::source::{MembershipReport, PlanReport};
use super::{Answer, Face, whatif};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use kaa_core::domain::ids::Millis;
use kaa_core::observed::objects::ANNOTATION_PREFIX;
use kaa_core::resync::plan::{Finding, Waiting};
use serde::{Deserialize, Serialize};

/// What the next resync pass would propose.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanAnswer {
    /// The server that answers.
    pub server: Option<String>,
    /// Whether it leads the resync.
    pub leading: bool,
    /// Who does.
    pub resync_leader: Option<String>,
    /// Under which epoch.
    pub epoch: Option<u64>,
    /// Whether Kubernetes has been listed completely.
    pub synced: bool,
    /// The permissions in Kubernetes that are missing, such as `get pods`.
    pub missing_permissions: Vec<String>,
    /// What would be proposed, in this order.
    pub findings: Vec<FindingRow>,
    /// What would not, and why.
    pub waiting: Vec<WaitingRow>,
    /// The last pass that had something to do.
    pub last_pass: Option<PassRow>,
    /// The voters, and what the servers wait for.
    pub membership: MembershipAnswer,
}

/// One thing to propose.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FindingRow {
    /// What it is about.
    pub subject: String,
    /// What would be proposed.
    pub proposal: String,
    /// Whether it takes something away.
    pub removes: bool,
    /// What is read afresh before.
    pub reads: Vec<String>,
}

/// One thing that is not proposed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitingRow {
    /// What it is about.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// The same as one word.
    pub code: String,
    /// What ends it.
    pub ends: String,
}

/// What a pass did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PassRow {
    /// When it ended.
    pub at: Millis,
    /// One line for each thing it did or found in its way.
    pub lines: Vec<String>,
}

impl FindingRow {
    fn new(finding: &Finding) -> Self {
        Self {
            subject: finding.subject.to_string(),
            proposal: finding.text.clone(),
            removes: finding.removes(),
            reads: finding.needs.iter().map(ToString::to_string).collect(),
        }
    }
}

impl WaitingRow {
    /// `prefix` is that of the annotations, as the agent was told.
    pub(super) fn new(waiting: &Waiting, prefix: &str) -> Self {
        Self {
            subject: waiting.subject.to_string(),
            reason: waiting.reason.to_string(),
            code: waiting.reason.code().to_owned(),
            ends: waiting.ends().replace(ANNOTATION_PREFIX, prefix),
        }
    }
}

impl PlanAnswer {
    /// The report of one server.
    pub fn new(server: Option<String>, report: &PlanReport, membership: &MembershipReport, prefix: &str) -> Self {
        Self {
            server,
            leading: report.leading,
            resync_leader: report.resync_leader.as_ref().map(ToString::to_string),
            epoch: report.epoch.map(|epoch| epoch.0),
            synced: report.synced,
            missing_permissions: report.missing_permissions.clone(),
            findings: report.plan.findings.iter().map(FindingRow::new).collect(),
            waiting: report.plan.waiting.iter().map(|waiting| WaitingRow::new(waiting, prefix)).collect(),
            last_pass: report.last_pass.as_ref().map(|pass| PassRow { at: pass.at, lines: pass.lines.clone() }),
            membership: MembershipAnswer::new(membership),
        }
    }
}

/// Waits if the request asks for `?consistency=linearizable`; the default is `local`.
pub(super) async fn consistent(face: &Face, asked: &Parameters) -> Result<(), Error> {
    match parameter(asked, "consistency") {
        None | Some("local") => Ok(()),
        Some("linearizable") => linearize(face).await,
        Some(other) => Err(Error::bad("consistency", format!("has to be local or linearizable, not '{other}'"))),
    }
}

pub(super) async fn plan(State(face): State<Face>, Asked(asked): Asked) -> Result<Response, Error> {
    let changes = whatif::changes(&asked)?;
    consistent(&face, &asked).await?;
    let server = face.source.peers().into_iter().find(|peer| peer.is_local).map(|peer| peer.id.to_string());
    let index = face.source.read(|domain| domain.index);
    if !changes.is_empty() {
        let body = whatif::answer(&face.source, server, changes).await?;
        return Ok(Answer { index, body }.into_response());
    }
    let (plan, membership, prefix) = (face.source.plan(), face.source.membership(), face.source.annotation_prefix());
    let body = PlanAnswer::new(server, &plan, &membership, &prefix);
    Ok(Answer { index, body }.into_response())
}
