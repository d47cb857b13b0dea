//! The domain as a document: who may have it, what is refused of one, and what becomes of the domain.

use super::writes::{Domain, ELSEWHERE, POD};
use super::*;
use kaa_core::domain::ids::ArchiveId;
use serde_json::json;

const PATH: &str = "/api/1/kaa/snapshot";

fn post(body: &Value) -> Request {
    let request = Request::post(PATH).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

fn get() -> Request {
    Request::get(PATH).body(Body::empty()).unwrap()
}

async fn document() -> Value {
    let (status, document) = Domain::new(fake::source()).send(POD, get()).await;
    assert_eq!(status, StatusCode::OK, "{document}");
    document
}

fn message(answer: &Value) -> String {
    answer["messages"][0].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn only_who_may_write_has_the_domain_saved_or_restored() {
    let (saved, fresh) = (Domain::new(fake::source()), Domain::new(fake::founded_again()));
    assert_eq!(saved.send(ELSEWHERE, get()).await.0, StatusCode::FORBIDDEN);
    let body = json!({"domain": "nuodb", "document": document().await});
    assert_eq!(fresh.send(ELSEWHERE, post(&body)).await.0, StatusCode::FORBIDDEN);
    assert!(fresh.source.domain.lock().unwrap().restored.is_none());
    let (status, answer) = fresh.send(POD, post(&body)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!((&answer["restored"], &answer["domain"]), (&json!(true), &json!("d-2")));
    let said = fresh.last("archive/1");
    let sha256 = body["document"]["sha256"].as_str().unwrap();
    assert!(said.starts_with("loopback: restored from a snapshot of domain nuodb (d-1) up to entry "), "{said}");
    assert!(said.contains(&format!("sha256 {sha256}: databases 1, archives 3, values 1")), "{said}");
    assert_eq!(fresh.send(POD, post(&body)).await.0, StatusCode::OK, "it is so already");
}

#[tokio::test]
async fn what_cannot_be_restored_changes_nothing() {
    let fresh = Domain::new(fake::founded_again());
    let before = fresh.source.domain.lock().unwrap().clone();
    let good = document().await;
    let mut damaged = good.clone();
    damaged["snapshot"]["values"]["nuodb/nuosm/readiness"] = json!("no");
    let mut newer = good.clone();
    newer["format"] = json!(2);
    for (body, why) in [
        (json!({"document": good}), "parameter 'domain' has to name the domain that this is for"),
        (json!({"domain": "nuo", "document": good}), "parameter 'domain' names 'nuo', and this is domain 'nuodb'"),
        (
            json!({"domain": "nuodb", "document": damaged}),
            "parameter 'document' is unusable: it was modified or is damaged",
        ),
        (
            json!({"domain": "nuodb", "document": newer}),
            "parameter 'document' is unusable: it is a snapshot of format 2",
        ),
        (
            json!({"domain": "nuodb", "document": 7}),
            "parameter 'document' is unusable: it is not a snapshot of a domain",
        ),
        (json!({"domain": "nuodb", "document": good, "wihtout": [1]}), "cannot parse the request body"),
    ] {
        let (status, answer) = fresh.send(POD, post(&body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert!(message(&answer).starts_with(why), "{answer}");
    }
    let unknown = json!({"domain": "nuodb", "document": good, "without": [77]});
    let (status, answer) = fresh.send(POD, post(&unknown)).await;
    assert_eq!((status, message(&answer)), (StatusCode::CONFLICT, "there is no archive 77".to_owned()));
    let (status, answer) = fresh.send(POD, post(&json!({"document": good, "dryRun": true}))).await;
    assert_eq!((status, &answer["refusal"]), (StatusCode::OK, &Value::Null), "{answer}");
    let now = fresh.source.domain.lock().unwrap().clone();
    assert_eq!(now, kaa_core::domain::Domain { index: now.index, time: now.time, needs: now.needs, ..before });
}

#[tokio::test]
async fn a_domain_that_is_used_is_not_restored_into() {
    let used = Domain::new(fake::source());
    let body = json!({"domain": "nuodb", "document": document().await});
    let (status, answer) = used.send(POD, post(&body)).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(message(&answer).starts_with("the domain is not empty, it has process 1: "), "{answer}");
    let (status, answer) = used.send(POD, post(&json!({"document": body["document"], "dryRun": true}))).await;
    assert_eq!(status, StatusCode::OK);
    assert!(answer["refusal"].as_str().unwrap().starts_with("the domain is not empty, it has process 1: "));
}

#[tokio::test]
async fn without_a_quorum_nothing_is_saved() {
    let mut fake = fake::source();
    fake.quorum = false;
    let (status, _) = Domain::new(fake).send(POD, get()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

/// What is saved of a domain that was restored is what was saved before, but for what only the place that was left knew.
#[tokio::test]
async fn saved_restored_and_saved_again_it_is_the_same() {
    let fresh = Domain::new(fake::founded_again());
    let first = document().await;
    assert_eq!(fresh.send(POD, post(&json!({"domain": "nuodb", "document": first}))).await.0, StatusCode::OK);
    let (_, second) = fresh.send(POD, get()).await;
    let (mut first, second) = (Document::read(first).unwrap().snapshot, Document::read(second).unwrap().snapshot);
    assert_eq!((second.domain.as_str(), second.index), ("d-2", 3));
    let all = first.archives.iter().map(|archive| archive.id).collect();
    first.origins.insert(first.domain, all);
    assert_eq!(second.origins[&"d-1".into()].iter().map(|id: &ArchiveId| id.0).collect::<Vec<_>>(), [1, 2, 3]);
    first.archives.iter_mut().for_each(|archive| archive.was = None);
    (first.domain, first.index, first.time) = (second.domain.clone(), second.index, second.time);
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_document_that_is_too_large_is_not_read() {
    let fresh = Domain::new(fake::founded_again());
    let body = json!({"domain": "nuodb", "document": "x".repeat(4 * MAX_DOCUMENT_BYTES)});
    let (status, answer) = fresh.send(POD, post(&body)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
}
