//! What is wrong with a database by what Kubernetes shows.

use super::writes::{Domain, ELSEWHERE};
use super::*;
use kaa_core::observed::objects::{Container, Ended, Pod, StatefulSet};
use kaa_core::observed::replication::Annotated;
use serde_json::json;

fn get(database: &str) -> Request {
    Request::get(format!("/api/1/kaa/replication/{database}")).body(Body::empty()).unwrap()
}

/// The database does not wait for it, so it is nowhere else to be seen.
#[tokio::test]
async fn it_names_the_annotations_that_are_not_followed() {
    let annotations = [("kaa.dev/synchronous", "two"), ("kaa.dev/primaries", "2"), ("kaa.dev/failover", "manual")];
    let set = StatefulSet {
        name: "shop".to_owned(),
        database: Some("shop".into()),
        templates: vec!["archive-volume".to_owned()],
        replication: Annotated::read(annotations, "nuodb.com/"),
        ..StatefulSet::default()
    };
    let mut source = fake::shop().source();
    source.observed.stateful_sets.apply(set);
    let (_, shown) = Domain::new(source).send(ELSEWHERE, get("shop")).await;
    let named: Vec<_> = shown["warnings"].as_array().unwrap().iter().map(|row| (&row["code"], &row["text"])).collect();
    let code = json!("setting_broken");
    let value = json!(
        "statefulset shop: annotation kaa.dev/synchronous says \"two\", and may say a number from 0 to 16; until it does, it counts as 1"
    );
    let other = json!(
        "statefulset shop: annotation kaa.dev/primaries says \"2\", and is not supported: a database with roles has one primary"
    );
    assert_eq!(named, [(&code, &value), (&code, &other)]);
}

/// Its engine never registers, so that the domain knows nothing of it.
#[tokio::test]
async fn it_says_which_container_ends_with_an_error() {
    let said = "kaa: the data in /archive/pgdata is PostgreSQL 16's".to_owned();
    let ended = vec![Ended { id: "c1".into(), exit_code: Some(69), said }];
    let containers = vec![Container { name: "postgres".to_owned(), running: None, ended }];
    let pod = |name: &str, database: &str| Pod {
        name: name.to_owned(),
        uid: name.into(),
        database: Some(database.into()),
        containers: containers.clone(),
        ..Pod::default()
    };
    let mut source = fake::shop().source();
    source.observed.pods.apply(pod("shop-7", "shop"));
    source.observed.pods.apply(pod("new-0", "new"));
    let domain = Domain::new(source);
    let (_, shown) = domain.send(ELSEWHERE, get("shop")).await;
    let text = "has no engine: its container postgres ended with exit code 69: kaa: the data in /archive/pgdata is PostgreSQL 16's";
    let row = json!({
        "code": "container_failed",
        "text": format!("pod shop-7 {text}"),
        "ends": "what the message names; all of it: `kubectl logs shop-7 -c postgres`",
    });
    assert_eq!(shown["warnings"], json!([row]), "{shown}");
    let (status, shown) = domain.send(ELSEWHERE, get("new")).await;
    let expected = format!("there is no database new yet: pod new-0 {text}");
    assert_eq!((status, &shown["messages"][0]), (StatusCode::NOT_FOUND, &json!(expected)));
}
