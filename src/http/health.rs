//! The probes and the metrics.

use super::Face;
use super::page::{Parameters, parameter};
use super::source::{Check, Health, Note, ResyncReport};
use crate::metrics::{Metrics, Said, group_waits};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::fmt::Write as _;

type Asked = Result<Query<Parameters>, QueryRejection>;

pub(super) async fn live(State(face): State<Face>, asked: Asked) -> Response {
    probe("livez", &face.source.health().live, &[], asked)
}

pub(super) async fn ready(State(face): State<Face>, asked: Asked) -> Response {
    let Health { live: _, ready, mut notes } = face.source.health();
    if let Some(pause) = face.source.read(|domain| domain.paused.clone()) {
        notes.push(Note { name: "resync", words: format!("paused by {}: {}", pause.by, pause.why) });
    }
    probe("readyz", &ready, &notes, asked)
}

/// Answers in the shape of Kubernetes' own probes. A probe is answered even if its parameters are not understood. The notes
/// say what is no failure and yet worth to be known.
fn probe(name: &str, checks: &[Check], notes: &[Note], asked: Asked) -> Response {
    let failed = checks.iter().any(|check| check.failure.is_some());
    let verbose = asked.is_ok_and(|Query(asked)| parameter(&asked, "verbose").is_some());
    if !failed && !verbose {
        return "ok".into_response();
    }
    let mut text = String::new();
    for Check { name, failure } in checks {
        let line = match failure {
            None => writeln!(text, "[+]{name} ok"),
            Some(why) => writeln!(text, "[-]{name} failed: {why}"),
        };
        line.expect("a string can be written to");
    }
    for Note { name, words } in notes {
        writeln!(text, "[!]{name}: {words}").expect("a string can be written to");
    }
    text.push_str(name);
    text.push_str(if failed { " check failed\n" } else { " check passed\n" });
    let status = if failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, text).into_response()
}

pub(super) async fn metrics(State(face): State<Face>) -> Response {
    let text = face.metrics.page(|metrics| mirror(&face, metrics));
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

/// Sets the metrics that mirror the agent's state.
fn mirror(face: &Face, metrics: &Metrics) {
    metrics.mirror_process();
    let local = face.source.peers().into_iter().find(|peer| peer.is_local);
    let status = local.as_ref().and_then(|peer| peer.status.clone()).unwrap_or_default();
    let leads = status.role.as_deref() == Some("LEADER");
    metrics.mirror_raft(leads, status.term, status.commit_index, status.applied_index);
    let ResyncReport { leading, synced, findings, waiting } = face.source.resync();
    metrics.mirror_resync(leading, synced, findings, &waiting);
    let membership = face.source.membership();
    let warnings: Vec<_> = membership.warnings.iter().map(|warning| warning.code()).collect();
    let waiting: Vec<_> = membership.waiting.iter().map(|awaits| awaits.code).collect();
    let (voters, learners) = (membership.voters.len(), membership.learners.len());
    metrics.mirror_membership(membership.epoch.0, voters, learners, &warnings, &waiting);
    let said = status.hears.iter().map(|(process, it)| {
        let (process, session, trouble) = (*process, it.session, it.trouble.as_deref());
        Said { process, session, trouble, vitals: it.vitals.as_ref() }
    });
    let behind = waiting.contains(&group_waits::NO_LEADER);
    let now = face.source.now();
    face.source.read(|domain| {
        metrics.mirror_domain(domain, local.as_ref().map(|peer| &peer.id), behind, now);
        metrics.mirror_servers(domain, said, now);
    });
}
