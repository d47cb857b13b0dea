//! Load balancing, as the published client asks for it.

use super::writes::{Domain, ELSEWHERE, POD};
use super::*;
use serde_json::json;

fn post(path: &str, body: &Value) -> Request {
    let request = Request::post(format!("/api/1/databases/{path}")).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

fn ask_for(path: &str) -> Request {
    Request::get(format!("/api/1/{path}")).body(Body::empty()).unwrap()
}

impl Domain {
    async fn policies(&self) -> Vec<String> {
        let (_, page) = self.send(POD, ask_for("databases/loadBalancerPolicies?orderBy=policyName")).await;
        let rows = page["data"].as_array().unwrap().iter();
        rows.map(|row| format!("{}: {}", row["policyName"].as_str().unwrap(), row["lbQuery"].as_str().unwrap()))
            .collect()
    }
}

#[tokio::test]
async fn what_is_set_is_listed_and_decides() {
    let domain = Domain::new(fake::source());
    let near = json!({"policyName": "near", "lbQuery": "random(label(zone ${zone}))"});
    assert_eq!(domain.send(POD, post("loadBalancerPolicy/near", &near)).await, (StatusCode::OK, Value::Null));
    let global = json!({"isGlobal": true, "dbName": null, "defaultLbQuery": "round_robin(any)", "prefilter": "any"});
    assert_eq!(domain.send(POD, post("loadBalancerConfig", &global)).await.0, StatusCode::OK);
    let demo = json!({"isGlobal": false, "dbName": "demo", "defaultLbQuery": null, "prefilter": "not(start_id(999))"});
    assert_eq!(domain.send(POD, post("loadBalancerConfig", &demo)).await.0, StatusCode::OK);
    let listed = [
        "database/demo/prefilter: not(start_id(999))",
        "global/default: round_robin(any)",
        "global/prefilter: any",
        "near: random(label(zone ${zone}))",
    ];
    assert_eq!(domain.policies().await, listed);
    let (_, configs) = domain.send(POD, ask_for("databases/loadBalancerConfigs?orderBy=dbName")).await;
    let of_demo = configs["data"].as_array().unwrap().iter().find(|row| row["dbName"] == "demo").unwrap();
    assert_eq!((&of_demo["prefilter"], &of_demo["defaultLbQuery"]), (&"not(start_id(999))".into(), &Value::Null));
    let (status, row) = domain.send(POD, ask_for("databases/demo/sqlConnection?LBPolicy=near&zone=z1")).await;
    assert_eq!((status, &row["type"], &row["durableState"]), (StatusCode::OK, &"TE".into(), &"MONITORED".into()));
    let answer = answer_by(domain.face.clone(), ask_for("databases/demo/sqlConnection?LBPolicy=near&zone=z9")).await;
    assert_eq!((answer.status(), text(answer).await.as_str()), (StatusCode::OK, ""));
    let (_, routed) = domain.send(POD, ask_for("kaa/route/demo?LBQuery=random(label(zone%20z9))")).await;
    assert_eq!((&routed["origin"], &routed["query"]), (&"the client's query".into(), &"random(label(zone z9))".into()));
    assert!(routed["processes"].as_array().unwrap().iter().all(|row| row["chosen"] == false), "{routed}");

    let unset =
        post("loadBalancerConfig?unregisterDefaultLbQuery=True&unregisterPrefilter=True", &json!({"isGlobal": true}));
    assert_eq!(domain.send(POD, unset).await.0, StatusCode::OK);
    let delete = || Request::delete("/api/1/databases/loadBalancerPolicy/near").body(Body::empty()).unwrap();
    assert_eq!(domain.send(POD, delete()).await.0, StatusCode::OK);
    assert_eq!(domain.send(POD, delete()).await.0, StatusCode::NOT_FOUND);
    assert_eq!(domain.policies().await, listed[..1]);
    assert!(domain.last("load-balancer/policy/near").ends_with("removed, as far as an operator had set it"));
}

#[tokio::test]
async fn errors_point_at_the_character_and_only_operators_set() {
    let domain = Domain::new(fake::source());
    let wrong = json!({"lbQuery": "random(all)"});
    let (status, body) = domain.send(POD, post("loadBalancerPolicy/near", &wrong)).await;
    let message = body["messages"][0].as_str().unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(message.starts_with("parameter 'lbQuery' is no query: character 8: expected"), "{message}");
    let good = json!({"lbQuery": "random(any)"});
    assert_eq!(domain.send(POD, post("loadBalancerPolicy/a%2Fb", &good)).await.0, StatusCode::BAD_REQUEST);
    assert!(domain.send(ELSEWHERE, post("loadBalancerPolicy/near", &good)).await.0.is_client_error());
    let none = json!({"dbName": "other", "prefilter": "any"});
    assert_eq!(domain.send(POD, post("loadBalancerConfig", &none)).await.0, StatusCode::NOT_FOUND);
    for (config, query) in [
        (json!({"isGlobal": true, "dbName": "demo", "prefilter": "any"}), ""),
        (json!({"prefilter": "any"}), ""),
        (json!({"isGlobal": true}), ""),
        (json!({"isGlobal": true, "prefilter": "random(any)"}), ""),
        (json!({"isGlobal": true, "prefilter": "any"}), "?unregisterPrefilter=True"),
    ] {
        let (status, body) = domain.send(POD, post(&format!("loadBalancerConfig{query}"), &config)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{config} {body}");
    }
    assert_eq!(domain.policies().await, Vec::<String>::new());
    for (path, status, words) in [
        ("databases/other/sqlConnection", StatusCode::NOT_FOUND, "there is no database other"),
        ("databases/demo/sqlConnection?LBQuery=random(", StatusCode::BAD_REQUEST, "character 8"),
        ("databases/demo/sqlConnection?LBPolicy=near", StatusCode::BAD_REQUEST, "LBPolicy"),
        ("databases/demo/sqlConnection?PreferInternalAddress=maybe", StatusCode::BAD_REQUEST, "PreferInternalAddress"),
        ("kaa/route/other", StatusCode::NOT_FOUND, "there is no database other"),
        ("processes?filterQuery=random(any)", StatusCode::BAD_REQUEST, "character 1"),
    ] {
        let (got, body) = domain.send(POD, ask_for(path)).await;
        assert!(got == status && body["messages"][0].as_str().unwrap().contains(words), "{path}: {got} {body}");
    }
}

#[tokio::test]
async fn a_filter_lists_the_processes_that_it_lets_pass() {
    let count = async |query: &str| json(&format!("/api/1/processes?{query}")).await["data"].as_array().unwrap().len();
    let all = count("").await;
    assert_eq!((count("filterQuery=any").await, count("filterQuery=not(any)").await), (all, 0));
    assert_eq!(count("filterQuery=start_id(1)").await + count("filterQuery=not(start_id(1))").await, all);
}

#[tokio::test]
async fn a_client_outside_is_sent_to_the_external_address_unless_it_prefers_the_internal_one() {
    let domain = Domain::new(fake::source());
    let labels = |pairs: &[(&str, &str)]| {
        let mut known = domain.source.domain.lock().unwrap();
        let labels = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        known.processes.values_mut().for_each(|process| process.about.labels = Clone::clone(&labels));
    };
    let to = async |query: &str| {
        let (status, row) = domain.send(POD, ask_for(&format!("databases/demo/sqlConnection?{query}"))).await;
        assert_eq!(status, StatusCode::OK, "{row}");
        (row["address"].clone(), row["port"].clone())
    };
    let internal = to("a=b").await;
    for (port, external) in [("31000", json!(31000)), ("no-port", internal.1.clone()), ("70000", internal.1.clone())] {
        labels(&[("external-address", "db.example.org"), ("external-port", port)]);
        assert_eq!(to("a=b").await, (json!("db.example.org"), external));
        assert_eq!(to("PreferInternalAddress=true").await, internal);
    }
    labels(&[("external-address", ""), ("external-port", "31000")]);
    assert_eq!(to("a=b").await, internal, "a port alone is not an address");
}
