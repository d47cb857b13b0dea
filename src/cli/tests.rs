//! Every command against a server in this process; the texts are in `tests/data/cli`.

mod domain;
mod https;
mod primary;

use super::*;
use crate::auth::pod_token::PodToken;
use crate::http::fake::{self, Fake};
use crate::http::{Face, OwnPod, router, serve};
use crate::metrics::{Metrics, group_waits};
use std::sync::Arc;
use tokio::net::TcpListener;

fn golden(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../tests/data/cli");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let token = regex::Regex::new("client token: [0-9a-f]{32}").unwrap();
    let text = token.replace(text, "client token: TOKEN");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// What a command line prints, asked of a server with this source.
async fn run_on(fake: Fake, line: &str) -> Result<String, api::Error> {
    let (server, address) = served(fake).await;
    let answer = run(line, &address).await;
    server.abort();
    answer
}

/// A server with this source, and where it is.
async fn served(fake: Fake) -> (tokio::task::AbortHandle, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let face = Face::new(Arc::new(fake), Arc::new(Metrics::new()));
    let server = tokio::spawn(serve(listener, router(face), None, std::future::pending()));
    (server.abort_handle(), address)
}

async fn run(line: &str, server: &str) -> Result<String, api::Error> {
    let words = ["kaa"].into_iter().chain(line.split(' ')).chain(["--api-server", server]);
    match Cli::try_parse_from(words).unwrap().command {
        Command::Show(noun) => noun.run().await,
        Command::Plan(plan) => plan.run().await,
        Command::Explain(explain) => explain.run().await,
        Command::Pause(pause) => pause.run().await,
        Command::Resume(resume) => resume.run().await,
        Command::Adopt(adopt) => adopt.run().await,
        Command::Drain(drain) => drain.run().await,
        Command::Recover(recover) => recover.run().await,
        Command::Task(task) => task.run().await,
        Command::Switchover(switchover) => switchover.run().await,
        Command::Failover(failover) => failover.run().await,
        Command::Database(database) => database.run().await,
        _ => unreachable!("the others ask no server"),
    }
}

async fn check(name: &str, fake: Fake, line: &str) {
    golden(name, &run_on(fake, line).await.unwrap());
}

#[test]
fn the_arguments_are_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[tokio::test]
async fn drain() {
    let text = run_on(fake::source(), "drain").await.unwrap();
    assert_eq!(text, "admin-0 is not scaled down, and keeps its vote; admin-1 leads.\n");
}

#[tokio::test]
async fn task() {
    check("task-list", fake::upgradable(true), "task list").await;
    check("task-show", fake::upgradable(true), "task show 1").await;
    assert_eq!(run_on(fake::upgradable(false), "task list").await.unwrap(), "There are no tasks.\n");
    let none = run_on(fake::source(), "task show 7").await.unwrap_err();
    assert_eq!(none.to_string(), "there is no task 7");
    let cancelled = run_on(fake::upgradable(true), "task cancel 1 --reason late").await.unwrap();
    assert!(cancelled.starts_with("task/1 [CANCELLED] 2 of 3 steps: upgrade database demo"), "{cancelled}");
}

#[tokio::test]
async fn recover() {
    check("recover-dry-run", fake::source(), "recover --dry-run").await;
    check("recover-done", fake::source(), "recover --accept-data-loss --yes").await;
    let mut needless = fake::source();
    needless.recover.as_mut().unwrap().refusal = Some("a majority answers".to_owned());
    let refused = run_on(needless, "recover --accept-data-loss --yes").await.unwrap_err();
    assert_eq!(refused.to_string(), "a majority answers");
    check("recover-retired-dry-run", fake::source(), "recover --dry-run --from-retired-log admin-1/retired-2-77").await;
    let line = "recover --accept-data-loss --yes --from-retired-log admin-1/retired-2-77";
    check("recover-retired-done", fake::source(), line).await;
    for wrong in [
        "recover",
        "recover --yes",
        "recover --dry-run --accept-data-loss",
        "recover --dry-run --yes",
        "recover --from-retired-log admin-1/retired-2-77",
        "recover --dry-run --from-retired-log retired-2-77",
    ] {
        let words = ["kaa"].into_iter().chain(wrong.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
    }
}

/// What an operator types decides, and a word that is wrong, or none, leaves everything as it is.
#[tokio::test]
async fn a_loss_is_accepted_by_the_domains_name_alone() {
    let asked = async |typed: &str| {
        let (fake, typed) = (fake::source(), typed.to_owned());
        let questions = fake.asked.clone();
        let (server, address) = served(fake).await;
        let words = ["kaa", "recover", "--accept-data-loss", "--api-server", &address];
        let Command::Recover(recover) = Cli::try_parse_from(words).unwrap().command else { unreachable!() };
        let answer = recover.asking(|| Ok(typed)).await;
        server.abort();
        let accepted = questions.lock().unwrap().iter().filter(|accepted_by| accepted_by.is_some()).count();
        (answer, accepted)
    };
    for wrong in ["", "\n", "yes\n", "nuod\n", "NUODB\n", "admin-0\n"] {
        let (answer, accepted) = asked(wrong).await;
        let expected = format!("'{}' is not the name of the domain: nothing was changed", wrong.trim());
        assert_eq!((answer.unwrap_err().to_string(), accepted), (expected, 0), "{wrong:?}");
    }
    let (answer, accepted) = asked("nuodb\n").await;
    assert!(answer.unwrap().starts_with("Epoch 4 begins with the log of admin-0"));
    assert_eq!(accepted, 1);
}

#[tokio::test]
async fn show() {
    check("show-domain", fake::source(), "show domain").await;
    check("show-archives", fake::source(), "show archives").await;
    check("show-archives-removed", fake::source(), "show archives --removed --db-name demo").await;
    assert_eq!(run_on(fake::source(), "show archives --db-name dem.").await.unwrap(), "");
}

/// What no server's line tells: why there is no leader, why Raft does not start, what is wrong with the anchor.
#[tokio::test]
async fn every_command_that_shows_the_group_says_what_it_waits_for() {
    let fake = || {
        let mut fake = fake::source();
        let awaits = |code, words: &str| crate::http::source::Awaits { code, server: None, words: words.to_owned() };
        let silent = "there is no leader until more of the voters answer: admin-1";
        fake.membership.waiting.insert(0, awaits(group_waits::NO_LEADER, silent));
        fake.membership.waiting.insert(1, awaits(group_waits::ANCHOR, "the lease nuodb-main-anchor is gone"));
        fake
    };
    let mut text = String::new();
    for line in ["show domain", "plan", "explain server/admin-2"] {
        text += &format!("$ kaa {line}\n{}", run_on(fake(), line).await.unwrap());
    }
    golden("waiting", &text);
}

#[tokio::test]
async fn a_server_that_has_joined_no_domain_yet_explains_itself() {
    let mut fake = fake::source();
    fake.domain = std::sync::Mutex::default();
    fake.peers.truncate(1);
    fake.peers[0].membership = crate::http::source::Membership::Learner;
    fake.peers[0].status = None;
    let words = "the server with the first ordinal founds it".to_owned();
    let awaits = crate::http::source::Awaits { code: group_waits::RAFT_NOT_STARTED, server: None, words };
    fake.membership = crate::http::source::MembershipReport { waiting: vec![awaits], ..Default::default() };
    let text = run_on(fake, "explain server/admin-0").await.unwrap();
    assert_eq!(text, "server/admin-0: LEARNER\n\nWaiting for:\n  the server with the first ordinal founds it\n");
}

#[tokio::test]
async fn show_before_anything_is_known() {
    let mut fake = fake::source();
    fake.domain = std::sync::Mutex::default();
    fake.peers.truncate(1);
    fake.peers[0].status = None;
    check("show-domain-empty", fake, "show domain").await;
}

#[tokio::test]
async fn json_is_what_the_api_says() {
    let archives: crate::http::Page =
        serde_json::from_str(&run_on(fake::source(), "show archives -o json").await.unwrap()).unwrap();
    assert_eq!(archives.data.len(), 2);
    let text = run_on(fake::source(), "show domain -o json").await.unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["peers"].as_array().unwrap().len(), 3);
    for line in ["plan -o json", "explain process/3 -o json"] {
        let text = run_on(fake::source(), line).await.unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap().is_object());
    }
}

#[tokio::test]
async fn plan() {
    check("plan", fake::source(), "plan").await;
    let mut fake = fake::source();
    fake.plan.leading = false;
    fake.plan.resync_leader = Some("admin-1".into());
    fake.plan.last_pass = None;
    check("plan-follower", fake, "plan").await;
    let mut fake = fake::source();
    fake.plan = crate::http::source::PlanReport::default();
    check("plan-unsynced", fake, "plan").await;
}

#[tokio::test]
async fn what_if() {
    for (name, line) in [
        ("what-if-scaled-down", "plan --scale statefulset/sm-demo=1"),
        ("what-if-scaled-up", "plan --scale statefulset/sm-demo=4"),
        ("what-if-scaled-to-nothing", "plan --scale sts/sm-demo=0 --delete pvc/archive-volume-sm-demo-2"),
        ("what-if-admin-servers", "plan --scale statefulset/admin=1"),
        ("what-if-claim-in-use", "plan --delete pvc/archive-volume-sm-demo-0"),
        ("what-if-claim-of-a-removed-archive", "plan --delete pvc/archive-volume-sm-demo-1"),
    ] {
        check(name, fake::source(), line).await;
    }
    let json = run_on(fake::source(), "plan --scale statefulset/sm-demo=2 -o json").await.unwrap();
    let answer: crate::http::WhatIfAnswer = serde_json::from_str(&json).unwrap();
    assert_eq!(answer.changes, ["statefulset/sm-demo had 2 replicas"]);
    let error = run_on(fake::source(), "plan --scale statefulset/sm-dmo=1").await.unwrap_err();
    assert_eq!(error.to_string(), "there is no sm-dmo among the statefulsets; there are: admin, sm-demo");
}

#[test]
fn what_is_no_change_is_said_before_anybody_is_asked() {
    for (flag, value, wrong) in [
        ("--scale", "sm-demo=1", "'sm-demo=1' is not statefulset/NAME=N or deployment/NAME=N"),
        ("--scale", "statefulset/sm=x", "'statefulset/sm=x' scales to 'x', which is not a number from 0 to 1000"),
        ("--delete", "statefulset/sm", "'statefulset/sm' is not pvc/NAME or pod/NAME"),
    ] {
        let error = Cli::try_parse_from(["kaa", "plan", flag, value]).unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}

#[tokio::test]
async fn explain() {
    for subject in ["archive/2", "process/2", "process/3", "server/admin-0", "database/demo", "domain"] {
        check(&format!("explain-{}", subject.replace('/', "-")), fake::source(), &format!("explain {subject}")).await;
    }
    check("explain-value", fake::source(), "explain value/nuodb/nuosm/readiness").await;
    let error = run_on(fake::source(), "explain archive/77").await.unwrap_err();
    assert_eq!(error.to_string(), "nothing is known of archive/77");
}

/// The loopback address that these tests ask from is the agent's own pod's.
#[tokio::test]
async fn every_command_that_shows_a_pause_says_who_and_why() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let face = Face::new(Arc::new(fake::source()), Arc::new(Metrics::new()));
    let server = tokio::spawn(serve(listener, router(face), None, std::future::pending()));
    let mut text = String::new();
    for line in ["resume", "pause --reason moving-the-storage", "show domain", "explain domain", "resume"] {
        text += &format!("$ kaa {line}\n{}", run(line, &address).await.unwrap());
    }
    let ready = reqwest::get(format!("http://{address}/readyz?verbose")).await.unwrap();
    assert!(!ready.text().await.unwrap().contains("paused"));
    run("pause --reason again", &address).await.unwrap();
    let ready = reqwest::get(format!("http://{address}/readyz?verbose")).await.unwrap();
    assert_eq!(ready.status(), 200, "a pause does not make an agent unready");
    text += &ready.text().await.unwrap();
    server.abort();
    golden("pause", &text);
    let error = Cli::try_parse_from(["kaa", "pause"]).unwrap_err().to_string();
    assert!(error.contains("--reason <WHY>"), "{error}");
}

/// As `kubectl exec` has it, with the variable KAA_POD_TOKEN_FILE of the pod, where a loopback address alone proves nothing.
#[tokio::test]
async fn in_the_agents_own_pod_its_token_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let token = PodToken::make(&path).unwrap();
    let own_pod = OwnPod { by_address: false, token: Some(Arc::new(token)) };
    let face = Face { own_pod, ..Face::new(Arc::new(fake::source()), Arc::new(Metrics::new())) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(serve(listener, router(face), None, std::future::pending()));
    let error = run("pause --reason moving", &address).await.unwrap_err().to_string();
    assert!(error.contains("kubectl exec POD -- kaa"), "{error}");
    let with_file = format!("pause --reason moving --pod-token-file {}", path.display());
    assert!(run(&with_file, &address).await.unwrap().contains("by loopback: moving"));
    // Over a forwarded port, with what `kaa pod-token` prints there.
    let printed = crate::auth::pod_token::read(&path).unwrap();
    assert!(run(&format!("resume --basic-creds {printed}"), &address).await.is_ok());
    let gone = dir.path().join("gone");
    let error = run(&format!("resume --pod-token-file {}", gone.display()), &address).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot read the pod's token in {}", gone.display())), "{error}");
    server.abort();
}

#[test]
fn the_token_of_the_pod_is_shown_to_loopback_only() {
    let is_loopback = |url: &str| api::is_loopback(&url.parse().unwrap());
    for url in
        ["http://localhost:8888", "https://LOCALHOST", "http://127.9.8.7:1", "http://[::1]", "http://[::ffff:7f00:1]"]
    {
        assert!(is_loopback(url), "{url}");
    }
    for url in ["http://kaa-admin-0:8888", "http://10.0.0.9:8888", "http://[::2]", "http://localhost.example"] {
        assert!(!is_loopback(url), "{url}");
    }
}

#[tokio::test]
async fn adopt_tells_from_which_kubernetes_to_which() {
    let line = "adopt --reason restored";
    let text = run_on(fake::source(), line).await.unwrap();
    assert_eq!(text, "The domain is anchored to this cluster now (anchor anchor-2, before: anchor-1).\n");
    let fake = fake::source();
    fake.domain.lock().unwrap().anchor = Some("anchor-2".into());
    let text = run_on(fake, line).await.unwrap();
    assert_eq!(text, "The domain is anchored to this cluster already (anchor anchor-2).\n");
    let mut fake = fake::source();
    fake.anchor = Ok(fake::anchor("d-2"));
    let error = run_on(fake, line).await.unwrap_err();
    assert_eq!(error.to_string(), "lease nuodb-main-anchor names domain d-2, and this is domain d-1");
    let mut fake = fake::source();
    fake.anchor = Err("no permission to get leases".to_owned());
    assert_eq!(run_on(fake, line).await.unwrap_err().to_string(), "no permission to get leases");
}

#[tokio::test]
async fn a_database_that_was_deleted_is_not_shown() {
    let fake = fake::source();
    let demo: kaa_core::domain::ids::DatabaseName = "demo".into();
    fake.domain.lock().unwrap().databases.get_mut(&demo).unwrap().state =
        kaa_core::domain::database::DatabaseState::Tombstone;
    let text = run_on(fake, "show domain").await.unwrap();
    assert!(!text.contains("demo [state"), "{text}");
}

#[tokio::test]
async fn what_was_forgotten_is_said() {
    let mut fake = fake::source();
    fake.domain.get_mut().unwrap().audit.dropped = 7;
    let text = run_on(fake, "explain archive/1").await.unwrap();
    assert!(text.contains("Records from before 2026-11-21T16:30:01.000Z have been deleted (7)."), "{text}");
}

#[tokio::test]
async fn no_agent_is_said_plainly() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = run("plan", &closed.to_string()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("no agent answers at http://{closed}: connection refused"));
    let error = run("plan", "ftp://agent").await.unwrap_err();
    assert!(error.to_string().starts_with("'ftp://agent' is not the URL of an agent"), "{error}");
}
