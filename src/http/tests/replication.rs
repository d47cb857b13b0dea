//! What an operator asks of a database with one primary.

use super::writes::{Domain, ELSEWHERE, POD};
use super::*;
use crate::http::fake::Fake;
use crate::http::replication::given_up;
use crate::http::source::{Heard, Reached, Routing};
use kaa_core::domain::change::Progress;
use kaa_core::domain::ids::{ArchiveId, Millis, SessionNumber};
use kaa_core::domain::replicated::{Ended, FailoverMode, Position, WhenAlone};
use kaa_core::replication::vitals::Expiry;
use serde_json::json;
use std::collections::BTreeSet;

const SHOP: &str = "/api/1/kaa/replication/shop";
/// In 2001.
const EXPIRED: Expiry =
    Expiry { certificate: Some(Millis(978_307_200_000)), authority: Some(Millis(1_009_843_200_000)) };

fn get(path: &str) -> Request {
    Request::get(path).body(Body::empty()).unwrap()
}

fn post(what: &str, body: &Value) -> Request {
    let request = Request::post(format!("{SHOP}/{what}")).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

/// What is answered to a request from the agent's pod: the text, or the reason of the refusal.
async fn asked(domain: &Domain, what: &str, body: Value) -> (StatusCode, String) {
    let (status, answer) = domain.send(POD, post(what, &body)).await;
    let text = if status.is_success() { &answer["text"] } else { &answer["messages"][0] };
    (status, text.as_str().unwrap().to_owned())
}

fn switchover_of(domain: &Domain) -> Option<Option<u64>> {
    let domain = domain.source.domain.lock().unwrap();
    let asked = domain.replicated(&"shop".into()).unwrap().switchover.as_ref()?;
    Some(asked.to.map(|to| to.0))
}

#[tokio::test]
async fn a_database_is_shown_with_codes_and_texts() {
    let domain = Domain::new(fake::shop().source());
    let (status, shown) = domain.send(ELSEWHERE, get(SHOP)).await;
    assert_eq!((status, &shown["kind"]["code"]), (StatusCode::OK, &json!("one_primary")), "{shown}");
    assert_eq!((&shown["generation"], &shown["primary"]["pod"]), (&json!(2), &json!("shop-0")));
    assert_eq!(shown["syncSet"]["pods"], json!(["shop-0", "shop-1"]));
    assert_eq!(shown["syncSet"]["inForce"], json!(true));
    let roles: Vec<_> = shown["archives"].as_array().unwrap().iter().map(|row| &row["role"]["code"]).collect();
    assert_eq!(roles, ["primary", "standby", "spare"]);
    let zones: Vec<_> = shown["archives"].as_array().unwrap().iter().map(|row| row["zone"].as_str().unwrap()).collect();
    assert_eq!((zones, &shown["preferredZone"]), (vec!["z1", "z2", "z1"], &json!("z1")));
    assert_eq!(shown["application"], json!({"user": "shop app", "database": "orders"}));
    let survival = json!({
        "continues": [["shop-0"], ["shop-1"], ["shop-2"], ["shop-0", "shop-2"], ["shop-1", "shop-2"]],
        "needsFailover": [],
        "waits": [],
        "loses": ["shop-0", "shop-1"],
        "zones": {"z1": "continues"},
    });
    assert_eq!(shown["survival"], survival);
    let (_, without) = domain.send(POD, get("/api/1/kaa/replication/demo")).await;
    assert_eq!((&without["kind"]["code"], &without["generation"]), (&json!("no_roles"), &Value::Null));
    assert_eq!(domain.send(POD, get("/api/1/kaa/replication/none")).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn it_says_whether_services_lead_to_the_servers() {
    let forbidden = Routing::Refused("no permission to get endpointslices.discovery.k8s.io shop-rw".to_owned());
    for (routing, code, text) in [
        (Routing::Unknown, "url", "target_session_attrs=read-write"),
        (
            Routing::Kept,
            "services",
            "host=shop-rw user='shop app' dbname=orders to write, host=shop-ro user='shop app' dbname=orders to read",
        ),
        (forbidden, "no_services", "no permission to get endpointslices.discovery.k8s.io shop-rw"),
    ] {
        let source = Fake { routing, ..fake::shop().source() };
        let (_, shown) = Domain::new(source).send(ELSEWHERE, get(SHOP)).await;
        let last = shown["connect"].as_array().unwrap().last().unwrap();
        assert!(last["code"] == code && last["text"].as_str().unwrap().contains(text), "{last}");
    }
}

#[tokio::test]
async fn a_port_is_forwarded_unless_the_pods_are_on_this_machine() {
    for (address, first) in [("10.0.0.9", "port_forward"), ("fd00::9", "port_forward"), ("127.77.0.9", "url")] {
        let source = fake::shop().source();
        for process in source.domain.lock().unwrap().processes.values_mut() {
            process.about.address = address.to_owned();
        }
        let (_, shown) = Domain::new(source).send(ELSEWHERE, get(SHOP)).await;
        assert_eq!(shown["connect"][0]["code"], first, "{shown}");
    }
}

/// A primary that has moved leaves no series behind.
#[tokio::test]
async fn the_metrics_name_one_primary() {
    let domain = Domain::new(fake::shop().source());
    let metrics = async || {
        let text = text(answer_by(domain.face.clone(), get("/metrics")).await).await;
        // Those of a reason are another test's.
        let of_others = |line: &&str| ["reason=", "role="].iter().any(|label| line.contains(label));
        let of_databases = text.lines().filter(|line| line.starts_with("kaa_database_") && !of_others(line));
        of_databases.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = |archive: u64, pod: &str, generation: u64, members: usize, open: u8| {
        let primary = format!(r#"kaa_database_primary{{database="shop",archive="{archive}",pod="{pod}"}} 1"#);
        let others = [
            ("generation", generation),
            ("sync_set_size", members as u64),
            ("open", open.into()),
            ("synchronous", 1),
            ("commits_wait", 0),
        ];
        let others = others.map(|(name, value)| format!(r#"kaa_database_{name}{{database="shop"}} {value}"#));
        [vec![primary], others.to_vec()].concat()
    };
    assert_eq!(metrics().await, expected(4, "shop-0", 2, 2, 1));
    fake::Shop::change(&domain.source, |shop| shop.exits(0));
    assert_eq!(asked(&domain, "failover", json!({"why": "x"})).await.0, StatusCode::OK);
    assert_eq!(metrics().await, expected(5, "shop-1", 3, 2, 0));
}

/// Every reason is exported, and is 1 while it holds.
#[tokio::test]
async fn the_metrics_say_what_a_database_waits_for_and_what_holds_a_failover_back() {
    let of = async |fake: fake::Fake, metric: &str| {
        let lines = metrics_of(fake, &format!("{metric}{{database=\"shop\",reason=")).await;
        assert!(lines.len() > 5 && lines.iter().all(|line| line.ends_with(" 0") || line.ends_with(" 1")), "{lines:?}");
        let holds = lines.into_iter().filter(|line| line.ends_with(" 1"));
        holds.map(|line| line.split('"').nth(3).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (waiting, held) = ("kaa_database_waiting", "kaa_database_failover_held");
    assert_eq!(of(fake::shop().source(), waiting).await, [""; 0]);
    assert_eq!(of(fake::shop().source(), held).await, [""; 0]);
    assert_eq!(of(fake::shop().lose(0).source(), waiting).await, ["primary_away"]);
    assert_eq!(of(fake::shop().lose(0).source(), held).await, ["still_heard"]);
    assert_eq!(of(fake::shop().lose(0).lose(1).source(), held).await, ["none_there"]);
    assert_eq!(of(fake::shop().exit(0).lose(1).source(), held).await, ["none_there"], "its end was seen");
    assert_eq!(of(fake::shop().exit(0).source(), held).await, [""; 0], "another one takes over");
    let paused = || {
        let fake = fake::shop().source();
        fake::Shop::change(&fake, |shop| shop.progress(0, Progress::Ended(Ended::Failed)));
        let mut domain = fake.domain.lock().unwrap();
        let replicated = domain.databases.get_mut(&"shop".into()).unwrap().replicated.as_mut().unwrap();
        replicated.settings.as_mut().unwrap().failover = FailoverMode::Paused;
        drop(domain);
        fake
    };
    assert_eq!(of(paused(), held).await, ["not_wanted"], "although its wrapper is connected");
    assert_eq!(of(paused(), waiting).await, ["primary_away"]);
}

#[tokio::test]
async fn the_metrics_say_what_each_server_is_and_what_is_to_be_seen_to() {
    let mut roles = metrics_of(fake::shop().source(), "kaa_database_role").await;
    roles.sort();
    let role = |(pod, role)| format!("kaa_database_role{{database=\"shop\",pod=\"{pod}\",role=\"{role}\"}} 1");
    assert_eq!(roles, [("shop-0", "primary"), ("shop-1", "standby"), ("shop-2", "spare")].map(role));
    let warnings = async |change: fn(&mut Heard)| {
        let mut fake = at_the_one_that_hears();
        fake::Shop::fares(&mut fake, "shop-1", change);
        let lines = metrics_of(fake, "kaa_database_server_warning{database=\"shop\",pod=\"shop-1\",").await;
        assert_eq!(lines.len(), kaa_core::replication::vitals::WARNINGS.len(), "{lines:?}");
        let so = lines.into_iter().filter(|line| line.ends_with(" 1"));
        so.map(|line| line.split('"').nth(5).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(warnings(|_| {}).await, [""; 0]);
    let trouble = |heard: &mut Heard| (heard.trouble, heard.vitals) = (Some("no room".to_owned()), None);
    assert_eq!(warnings(trouble).await, ["server_in_trouble"], "although it says nothing else");
    let overridden =
        |heard: &mut Heard| heard.vitals.as_mut().unwrap().overridden = vec!["primary_conninfo".to_owned()];
    assert_eq!(warnings(overridden).await, ["parameters_overridden"]);
    let silent = |heard: &mut Heard| heard.vitals.as_mut().unwrap().answers = false;
    assert_eq!(warnings(silent).await, ["server_silent"]);
    let expired = |heard: &mut Heard| heard.vitals.as_mut().unwrap().expiry = EXPIRED;
    assert_eq!(warnings(expired).await, ["certificate_expires"]);
}

#[tokio::test]
async fn the_status_and_the_metrics_say_when_the_certificates_of_a_server_expire() {
    let expired = || {
        let mut fake = at_the_one_that_hears();
        fake::Shop::fares(&mut fake, "shop-1", |heard| heard.vitals.as_mut().unwrap().expiry = EXPIRED);
        fake
    };
    let (_, shown) = Domain::new(expired()).send(ELSEWHERE, get(SHOP)).await;
    let server = &shown["archives"][1]["server"];
    let at = (&server["certificateExpires"], &server["authorityExpires"]);
    assert_eq!(at, (&json!(978_307_200_000_u64), &json!(1_009_843_200_000_u64)));
    let of_pod = "kaa_database_certificate_not_after_seconds{database=\"shop\",pod=\"shop-1\",";
    let mut lines = metrics_of(expired(), of_pod).await;
    lines.sort();
    let of = |file: &str, at: u64| format!("{of_pod}file=\"{file}\"}} {at}");
    assert_eq!(lines, [of("ca.crt", 1_009_843_200), of("tls.crt", 978_307_200)]);
}

#[tokio::test]
async fn the_metrics_say_that_a_primary_is_closed_and_that_commits_wait() {
    let closed = async |is_closed: bool| {
        let mut fake = at_the_one_that_hears();
        fake::Shop::fares(&mut fake, "shop-0", |heard| heard.vitals.as_mut().unwrap().closed = is_closed);
        metrics_of(fake, "kaa_database_primary_closed").await
    };
    let of = |value: u8| [format!("kaa_database_primary_closed{{database=\"shop\",pod=\"shop-0\"}} {value}")];
    assert_eq!((closed(false).await, closed(true).await), (of(0).to_vec(), of(1).to_vec()));
    let alone = |when_alone: WhenAlone| {
        let fake = fake::shop().source();
        let mut domain = fake.domain.lock().unwrap();
        let shop = domain.databases.get_mut(&"shop".into()).unwrap().replicated.as_mut().unwrap();
        shop.settings.as_mut().unwrap().when_alone = when_alone;
        let record = shop.record.as_mut().unwrap();
        record.sync_set = [record.primary].into();
        drop(domain);
        fake
    };
    let waits = "kaa_database_commits_wait";
    for (when_alone, value) in [(WhenAlone::Degrade, 0), (WhenAlone::Block, 1)] {
        assert_eq!(metrics_of(alone(when_alone), waits).await, [format!("{waits}{{database=\"shop\"}} {value}")]);
    }
}

/// The lines of the metrics of an agent that begin so.
async fn metrics_of(fake: fake::Fake, prefix: &str) -> Vec<String> {
    let domain = Domain::new(fake);
    domain.face.metrics.mirror_certificates(1, 1, false);
    let text = text(answer_by(domain.face.clone(), get("/metrics")).await).await;
    text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
}

/// The same source, asked at the agent that has the streams.
fn at_the_one_that_hears() -> fake::Fake {
    let mut fake = fake::shop().source();
    fake.peers.iter_mut().for_each(|peer| peer.is_local = peer.id.as_str() == "admin-1");
    fake
}

#[tokio::test]
async fn only_the_agent_that_hears_a_server_exports_its_metrics() {
    let lag = "kaa_database_replay_lag";
    assert_eq!(metrics_of(fake::shop().source(), lag).await, [""; 0]);
    let expected = ["bytes{database=\"shop\",pod=\"shop-1\"} 0", "bytes{database=\"shop\",pod=\"shop-2\"} 0"];
    let mut lags = metrics_of(at_the_one_that_hears(), "kaa_database_replay_lag_bytes").await;
    lags.sort();
    assert_eq!(lags, expected.map(|line| format!("kaa_database_replay_lag_{line}")));
    let mut earlier = at_the_one_that_hears();
    for pod in ["shop-0", "shop-1", "shop-2"] {
        fake::Shop::fares(&mut earlier, pod, |heard| heard.session = SessionNumber(0));
    }
    assert_eq!(metrics_of(earlier, "kaa_database_volume").await, [""; 0], "by an earlier session");
}

/// Of the lines of a YAML file, what follows this key.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(key)).collect()
}

#[tokio::test]
async fn the_alert_rules_name_metrics_that_are_exported_and_a_command_each() {
    let rules = include_str!("../../../manifests/alerts/postgres-rules.yaml");
    let reference = include_str!("../../../docs/reference.md");
    let exported = metrics_of(at_the_one_that_hears(), "kaa_").await;
    let name = |line: &str| line.split(['{', ' ']).next().unwrap().to_owned();
    let exported: BTreeSet<String> = exported.iter().map(|line| name(line)).collect();
    let metric = regex::Regex::new("kaa_[a-z_]+").unwrap();
    let named: BTreeSet<&str> = metric.find_iter(rules).map(|found| found.as_str()).collect();
    assert!(named.len() > 8, "{named:?}");
    for metric in named {
        assert!(exported.contains(metric), "{metric} is not exported");
    }
    for metric in exported.iter().filter(|metric| metric.starts_with("kaa_database_")) {
        assert!(reference.contains(&format!("`{metric}{{")), "docs/reference.md lacks {metric}");
    }
    for warning in kaa_core::replication::vitals::WARNINGS {
        assert!(reference.contains(&format!("| `{}` |", warning.code)), "docs/reference.md lacks {}", warning.code);
    }
    let (alerts, runbooks) = (values(rules, "alert: "), values(rules, "runbook: "));
    assert_eq!((alerts.len(), values(rules, "expr: ").len()), (runbooks.len(), alerts.len()));
    for runbook in runbooks {
        assert!(runbook.contains("`kubectl ") || runbook.contains("`kaa "), "no command: {runbook}");
    }
}

#[tokio::test]
async fn only_who_may_write_moves_a_primary() {
    let domain = Domain::new(fake::shop().source());
    let body = json!({"why": "node maintenance"});
    for what in ["switchover", "failover"] {
        assert_eq!(domain.send(ELSEWHERE, post(what, &body)).await.0, StatusCode::FORBIDDEN, "{what}");
        assert_eq!(asked(&domain, what, json!({"why": " "})).await.0, StatusCode::BAD_REQUEST, "{what}");
        assert_eq!(asked(&domain, what, json!({"why": "x", "dry": true})).await.0, StatusCode::BAD_REQUEST, "{what}");
    }
    assert_eq!(switchover_of(&domain), None);
}

#[tokio::test]
async fn a_switchover_is_requested_and_taken_back() {
    let domain = Domain::new(fake::shop().source());
    let dry = json!({"why": "x", "to": "shop-2", "dryRun": true});
    let text = "the primary moves from shop-0 to shop-2, which joins the sync set first; generation 3 follows 2";
    assert_eq!(asked(&domain, "switchover", dry).await, (StatusCode::OK, text.to_owned()));
    assert_eq!(switchover_of(&domain), None, "a dry run changes nothing");
    for (to, why) in [
        ("shop-7", "database shop has no pod or archive 'shop-7'; its pods are shop-0, shop-1, shop-2"),
        ("shop-0", "archive 4 is the primary's"),
    ] {
        let refused = asked(&domain, "switchover", json!({"why": "x", "to": to})).await;
        assert_eq!(refused, (StatusCode::CONFLICT, why.to_owned()));
    }
    let text = "no switchover is under way; shop-0 is the primary";
    assert_eq!(asked(&domain, "switchover", json!({"why": "x", "cancel": true})).await.1, text);
    let (status, answer) = domain.send(POD, post("switchover", &json!({"why": "node maintenance", "to": "5"}))).await;
    let entry = domain.source.domain.lock().unwrap().index;
    let expected = json!({
        "database": "shop",
        "generation": 2,
        "from": "shop-0",
        "to": "shop-1",
        "done": true,
        "entry": entry,
        "text": "the primary moves from shop-0 to shop-1; generation 3 follows 2",
    });
    assert_eq!((status, answer), (StatusCode::OK, expected));
    assert_eq!(domain.last("database/shop"), "loopback: switchover to archive 5 requested: node maintenance");
    let again = asked(&domain, "switchover", json!({"why": "x"})).await;
    let why = "a switchover of database shop is under way: `kaa switchover shop --cancel --reason WHY` takes it back";
    assert_eq!(again, (StatusCode::CONFLICT, why.to_owned()));
    let text = "the switchover to shop-1 is taken back; shop-0 stays the primary";
    assert_eq!(asked(&domain, "switchover", json!({"why": "not today", "cancel": true})).await.1, text);
    assert_eq!(switchover_of(&domain), None);
}

#[tokio::test]
async fn a_failover_that_is_refused_says_which_pod_or_flag_helps() {
    let refused = async |fake: fake::Shop, body: Value| {
        let (status, text) = asked(&Domain::new(fake.source()), "failover", body).await;
        assert_eq!(status, StatusCode::CONFLICT, "{text}");
        text
    };
    let plain = || json!({"why": "the node burnt"});
    let healthy = refused(fake::shop(), plain()).await;
    assert!(healthy.starts_with("the primary is open: archive 4, pod shop-0, open since 20"), "{healthy}");
    assert!(healthy.contains("`kaa switchover shop`"), "{healthy}");
    let may_run = refused(fake::shop().lose(0), plain()).await;
    assert!(
        may_run
            .starts_with("the primary may still run, and serve clients: archive 4, pod shop-0, session lost since 20"),
        "{may_run}"
    );
    assert!(may_run.contains("No acknowledged commit is lost by that, and the next primary opens once"), "{may_run}");
    let none = refused(fake::shop().exit(0).lose(1), plain()).await;
    assert!(
        none.starts_with("no server of the sync set is up: archive 4, pod shop-0, not registered since 20"),
        "{none}"
    );
    assert!(none.contains("(the primary); archive 5, pod shop-1, session lost since 20"), "{none}");
    assert!(none.contains("Start one of these pods"), "{none}");
    let spare = refused(fake::shop().exit(0), json!({"why": "x", "to": "shop-2"})).await;
    assert!(spare.starts_with("archive 6, pod shop-2, fenced since 20"), "{spare}");
    assert!(spare.contains("is not in the sync set: it may lack acknowledged commits"), "{spare}");
    let away = refused(fake::shop().exit(0).lose(1), json!({"why": "x", "to": "shop-1"})).await;
    assert!(away.starts_with("its server cannot take over: archive 5, pod shop-1, session lost"), "{away}");
}

#[tokio::test]
async fn a_failover_grants_the_next_generation_to_a_member_of_the_sync_set() {
    let domain = Domain::new(fake::shop().exit(0).source());
    let (dry, done) = (json!({"why": "x", "dryRun": true}), json!({"why": "the node burnt"}));
    let text = "shop-1 becomes the primary, after shop-0; generation 3 follows 2, sync set shop-0, shop-1; no acknowledged commit \
                is lost";
    for body in [dry, done] {
        assert_eq!(asked(&domain, "failover", body).await, (StatusCode::OK, text.to_owned()));
    }
    let last = "loopback: generation 3 granted to archive 5, after archive 4, sync set 4, 5: failover: the node burnt";
    assert_eq!(domain.last("database/shop"), last);
}

#[tokio::test]
async fn a_loss_is_accepted_by_the_name_of_the_database_and_what_is_left_stays() {
    let refused = async |fake: fake::Shop, name: &str, more: Value| {
        let mut body = json!({"why": "x", "acceptDataLoss": name});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked(&Domain::new(fake.source()), "failover", body).await.1
    };
    let to = json!({"to": "shop-2", "oldPrimaryIsOff": true});
    let gone = || fake::shop().exit(0).exit(1);
    let wrong = refused(gone(), "other", to.clone()).await;
    assert!(wrong.contains("has to be the name of the database, shop"), "{wrong}");
    assert!(refused(gone(), "shop", json!({})).await.contains("--to POD"));
    let both = refused(gone(), "shop", json!({"to": "shop-2", "oldPrimaryMayRun": true})).await;
    assert!(both.contains("it could acknowledge more"), "{both}");
    let may_run = refused(fake::shop().lose(0).exit(1), "shop", json!({"to": "shop-2"})).await;
    assert!(may_run.starts_with("the primary may still run") && may_run.contains("--old-primary-is-off"), "{may_run}");
    let nothing = refused(fake::shop().exit(0), "shop", to).await;
    let holds = "archive 5 holds every acknowledged commit, and the wrapper of its server is connected";
    assert!(nothing.starts_with(holds), "{nothing}");
    let domain = Domain::new(gone().source());
    let body = json!({"why": "the site burnt", "to": "shop-2", "acceptDataLoss": "shop", "oldPrimaryIsOff": true});
    let text = "shop-2 becomes the primary, after shop-0; generation 3 follows 2, sync set shop-2; acknowledged commits that had not \
                reached archive 6, pod shop-2, with data up to generation 2, log up to 7/3A0148B8 or more are lost. They may be on archive 4, pod shop-0, with \
                data up to generation 2, log up to 7/3A0148B8 or more when it was last heard, at 2026-11-21T16:31:30.000Z; archive 5, pod \
                shop-1, with data up to generation 2, log up to 7/3A0148B8 or more when it was last heard, at 2026-11-21T16:31:30.000Z: what is there is neither used nor \
                overwritten until `kaa database discard shop --archive ID --reason WHY`";
    assert_eq!(asked(&domain, "failover", body).await, (StatusCode::OK, text.to_owned()));
    assert!(
        domain
            .last("database/shop")
            .ends_with("the site burnt; the old primary is off; commits that only archives 4, 5 hold are given up")
    );
}

#[test]
fn who_accepts_a_loss_is_told_which_server_has_data_of_a_later_generation() {
    let mut shop = fake::shop();
    let said = |shop: fake::Shop| {
        let source = shop.source();
        let domain = source.domain.lock().unwrap();
        let winner = domain.active_archives(&"shop".into()).find(|it| domain.pod_of(it.id) == "shop-2").unwrap().id;
        let reached = |archive: ArchiveId| {
            (archive.0 != 4)
                .then_some(Reached { end: Position(0x7_3A01_0000 + archive.0), at: Millis(1_795_300_000_000) })
        };
        given_up(&domain, &"shop".into(), winner, reached)
    };
    let lost = said(fake::shop().lose(1));
    let expected = "acknowledged commits that had not reached archive 6, pod shop-2, with data up to generation 2, log up to 7/3A010006 or \
                    more are lost. They may be on archive 4, pod shop-0, with data up to generation 2; archive 5, pod shop-1, with data \
                    up to generation 2, log up to 7/3A010005 or more when it was last heard, at 2026-11-21T22:26:40.000Z: what is there";
    assert!(lost.starts_with(expected), "{lost}");
    assert!(said(fake::shop()).ends_with("--reason WHY`"), "all have generation 2");
    shop.has(1, 3);
    let text = said(shop);
    assert!(
        text.contains(
            "archive 5, pod shop-1, with data up to generation 3, log up to 7/3A010005 or more: what is there"
        ),
        "{text}"
    );
    assert!(text.ends_with(". shop-1 has data of a later generation: less may be lost with it"), "{text}");
}

#[tokio::test]
async fn an_old_primary_that_may_run_needs_the_operators_word() {
    let domain = Domain::new(fake::shop().lose(0).source());
    let body = json!({"why": "cut off", "oldPrimaryMayRun": true});
    let (status, text) = asked(&domain, "failover", body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(text.ends_with("it opens once the lease of shop-0 is over"), "{text}");
    assert!(domain.last("database/shop").ends_with("failover: cut off; the old primary may still run"));
}

/// A switchover to a pod that is lost meanwhile must not be in the way of a failover.
#[tokio::test]
async fn a_failover_ends_a_switchover() {
    let domain = Domain::new(fake::shop().source());
    assert_eq!(asked(&domain, "switchover", json!({"why": "x", "to": "shop-2"})).await.0, StatusCode::OK);
    fake::Shop::change(&domain.source, |shop| shop.exits(0));
    let (status, text) = asked(&domain, "failover", json!({"why": "x"})).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(switchover_of(&domain), None);
}

#[tokio::test]
async fn data_is_adopted_once() {
    let domain = Domain::new(fake::stranger());
    let (_, shown) = domain.send(POD, get(SHOP)).await;
    assert_eq!((&shown["generation"], &shown["warnings"][0]["code"]), (&Value::Null, &json!("data_not_adopted")));
    let ends = shown["warnings"][0]["ends"].as_str().unwrap();
    assert!(ends.contains("`kaa database adopt shop --archive 4 --reason WHY`"), "{ends}");
    let text = "the data of archive 4, pod shop-0, system 7451234567890123456, up to generation 5, is that of the database; \
                data that is on shop-1 is neither used nor overwritten until it is discarded";
    let body = |dry: bool| json!({"archive": 4, "why": "it ran without Kaa", "dryRun": dry});
    for dry in [true, false] {
        assert_eq!(asked(&domain, "adopt", body(dry)).await, (StatusCode::OK, text.to_owned()));
    }
    let last = domain.last("database/shop");
    assert!(last.ends_with("was adopted: it ran without Kaa"), "{last}");
    let again = asked(&domain, "adopt", body(true)).await;
    assert_eq!(again, (StatusCode::CONFLICT, "database shop has data that counts already".to_owned()));
    let none = asked(&Domain::new(fake::stranger()), "adopt", json!({"archive": 77, "why": "x"})).await;
    assert_eq!(none.0, StatusCode::CONFLICT, "{}", none.1);
}

/// There is nothing to overwrite it with, so the command that does it later is not named.
#[tokio::test]
async fn data_that_is_not_needed_goes_with_its_claim_before_there_is_a_primary() {
    let domain = Domain::new(fake::stranger());
    let (_, shown) = domain.send(POD, get(SHOP)).await;
    let warnings = shown["warnings"].as_array().unwrap();
    let text = "archive 4 holds data that the domain knows nothing of (pod shop-0, system 7451234567890123456, up to generation 5): it is \
                not touched, and no pod makes the first data meanwhile";
    assert_eq!((warnings.len(), &warnings[0]["text"]), (2, &json!(text)));
    let ends = warnings[0]["ends"].as_str().unwrap();
    assert!(
        ends.contains("`kubectl delete pvc/archive-volume-shop-0 pod/shop-0`") && !ends.contains("discard"),
        "{ends}"
    );
    let refused = asked(&domain, "discard", json!({"archive": 5, "why": "of a test", "dryRun": true})).await;
    let why = "database shop has no primary yet, so there is no data to overwrite that of archive 5, pod shop-1, of system \
               7451234567890123456, up to generation 5, with. If that is the data of the database: `kaa database adopt shop --archive 5 \
               --reason WHY`. If it is not needed: `kubectl delete pvc/archive-volume-shop-1 pod/shop-1`, and the pod comes back with an \
               empty volume";
    assert_eq!(refused, (StatusCode::CONFLICT, why.to_owned()));
    let refused = asked(&domain, "discard", json!({"archive": 77, "why": "x"})).await;
    assert_eq!(refused, (StatusCode::CONFLICT, "database shop has no archive 77".to_owned()));
}

#[tokio::test]
async fn data_outside_the_sync_set_is_given_up_by_an_operator_alone() {
    let domain = Domain::new(fake::shop().source());
    let body = |archive: u64, dry: bool| json!({"archive": archive, "why": "an old copy", "dryRun": dry});
    assert_eq!(domain.send(ELSEWHERE, post("discard", &body(6, false))).await.0, StatusCode::FORBIDDEN);
    let text = "the data of archive 6, pod shop-2, is overwritten with that of shop-0, and not kept";
    for dry in [true, false] {
        assert_eq!(asked(&domain, "discard", body(6, dry)).await, (StatusCode::OK, text.to_owned()));
        let given_up = domain.source.domain.lock().unwrap().replicated(&"shop".into()).unwrap().discarded.len();
        assert_eq!(given_up, usize::from(!dry));
    }
    let last = "loopback: the data on archive 6 is given up and may be overwritten: an old copy";
    assert_eq!(domain.last("database/shop"), last);
    for (archive, why) in [
        (
            5,
            "archive 5 is in the sync set of its database: it holds every commit that counts. Wait until it has left the set",
        ),
        (77, "database shop has no archive 77"),
    ] {
        for dry in [true, false] {
            let refused = asked(&domain, "discard", body(archive, dry)).await;
            assert_eq!(refused, (StatusCode::CONFLICT, why.to_owned()));
        }
    }
}
