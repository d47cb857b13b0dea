//! The wrapper as a process, with agents that the test controls.

mod fake_agent;

use fake_agent::{DOMAIN, FakeAgent};
use kaa::proto::engine::{EngineState, ExitNoted, ExitNow, Refused, Stop, Tombstone, directive, to_engine};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::future::Future;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use testkit::wait::is;
use testkit::{PATIENCE, eventually_async};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const KAA: &str = env!("CARGO_BIN_EXE_kaa");
/// Long enough for something that must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(500);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

async fn soon_true(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_async(what, async || is(condition())).await;
}

/// A running `kaa engine`. Its log is shown if KAA_LOG is set.
struct Wrapper(Child);

impl Wrapper {
    fn te(agents: &[&FakeAgent], flags: &[&str], command: &[&str]) -> Self {
        Self::run("te", agents, &[&["--plaintext"], flags].concat(), command)
    }

    fn sm(agents: &[&FakeAgent], archive: &Path, command: &[&str]) -> Self {
        Self::run("sm", agents, &["--plaintext", "--archive", archive.to_str().unwrap()], command)
    }

    fn run(kind: &str, agents: &[&FakeAgent], flags: &[&str], command: &[&str]) -> Self {
        let agents: Vec<String> = agents.iter().map(|agent| agent.address.to_string()).collect();
        let mut kaa = Command::new(KAA);
        kaa.args(["engine", kind, "--database", "db", "--namespace", "ns", "--pod", "db-0", "--pod-uid", "uid-0"]);
        kaa.arg("--agents").arg(agents.join(",")).args(flags).arg("--").args(command);
        kaa.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("KAA_LABEL", "zone=a,rack=1");
        if std::env::var_os("KAA_LOG").is_none() {
            kaa.stdout(Stdio::null()).stderr(Stdio::null());
        }
        Self(kaa.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().unwrap().try_into().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    async fn code(mut self) -> i32 {
        soon("the wrapper to end", self.0.wait()).await.unwrap().code().expect("it exits by itself")
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// The number of its child processes, zombies included.
    fn children(&self) -> usize {
        let own = self.pid();
        std::fs::read_dir("/proc").unwrap().filter(|entry| parent(&entry.as_ref().unwrap().path()) == Some(own)).count()
    }
}

impl Drop for Wrapper {
    /// Sends SIGTERM. SIGKILL would leave the engine running.
    fn drop(&mut self) {
        if self.0.id().is_some() {
            self.signal(Signal::SIGTERM);
        }
    }
}

fn parent(process: &Path) -> Option<i32> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    kill(Pid::from_raw(pid.try_into().unwrap()), None).is_ok()
}

fn refusal(reason: &str) -> Refused {
    Refused { domain: DOMAIN.to_owned(), reason: reason.to_owned(), exited: None, lasting: false }
}

fn gone() -> Refused {
    Refused {
        exited: Some(Tombstone { start_id: 7, at_ms: 1, reason: "Pod was deleted".to_owned() }),
        ..refusal("gone")
    }
}

const NOTED: to_engine::Message = to_engine::Message::ExitNoted(ExitNoted {});

#[tokio::test]
async fn the_engine_starts_once_it_is_registered_and_start_is_said() {
    let mut agent = FakeAgent::start().await;
    let root = tempfile::tempdir().unwrap();
    let started = root.path().join("started");
    let command = format!("touch {}; sleep 60", started.display());
    let mut wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", &command]);

    let mut stream = agent.opened().await;
    let register = stream.register.clone();
    assert_eq!(("db", "ns", "db-0"), (&*register.database, &*register.namespace, &*register.pod));
    assert_eq!(("uid-0", "engine", 48006), (&*register.pod_uid, &*register.container, register.port));
    assert_eq!(
        (Some("1"), Some("a")),
        (register.labels.get("rack").map(|l| &**l), register.labels.get("zone").map(|l| &**l))
    );
    assert!(register.nonce != 0 && register.connection != 0 && register.started_ms != 0);
    assert_eq!((0, None), (register.start_id, register.marker));

    stream.admit().await;
    assert_eq!(0, stream.state(EngineState::Unknown).await.pid);
    sleep(A_WHILE).await;
    assert!(!started.exists(), "nobody has said Start");

    stream.start(5).await;
    assert_eq!(Ok(()), stream.result_of(5).await);
    let state = stream.state(EngineState::Running).await;
    assert!(is_alive(state.pid));
    // A second Start does not affect the running engine.
    stream.start(6).await;
    assert_eq!(Ok(()), stream.result_of(6).await);
    assert!(is_alive(state.pid) && wrapper.is_running());
}

#[tokio::test]
async fn a_lost_session_moves_to_another_agent_and_the_engine_does_not_notice() {
    let (mut one, mut other) = (FakeAgent::start().await, FakeAgent::start().await);
    let _wrapper = Wrapper::te(&[&one, &other], &[], &["sleep", "60"]);
    let first_to_one = soon("a stream to any", async {
        loop {
            match (one.has_opened(), other.has_opened()) {
                (false, false) => sleep(Duration::from_millis(10)).await,
                (to_one, _) => return to_one,
            }
        }
    })
    .await;
    let (first, second) = if first_to_one { (&mut one, &mut other) } else { (&mut other, &mut one) };
    let (stream, before) = first.running().await;
    let known = stream.register.clone();
    drop(stream);

    let mut stream = second.opened().await;
    assert_eq!((7, known.nonce), (stream.register.start_id, stream.register.nonce));
    assert_ne!(known.connection, stream.register.connection);
    stream.admit().await;
    let after = stream.state(EngineState::Running).await;
    assert_eq!(before.pid, after.pid);
    assert!(is_alive(after.pid));
}

#[tokio::test]
async fn an_agent_that_falls_silent_is_left() {
    let mut agent = FakeAgent::start().await;
    let _wrapper = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    // The stream stays open, but the agent does not answer heartbeats on it.
    let silent = agent.opened().await;
    silent.admit().await;
    assert_eq!(7, agent.opened().await.register.start_id);
}

#[tokio::test]
async fn a_refusal_that_may_pass_is_tried_again() {
    let mut agent = FakeAgent::start().await;
    let _wrapper = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    for _ in 0..3 {
        agent.opened().await.refuse(refusal("archive 3 is in use by process 5")).await;
    }
    agent.running().await;
}

#[tokio::test]
async fn a_lasting_refusal_ends_the_wrapper_with_a_code_of_its_own() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    agent.opened().await.refuse(Refused { lasting: true, ..refusal("the volume is of another domain") }).await;
    assert_eq!(77, wrapper.code().await);
}

#[tokio::test]
async fn a_running_engine_is_stopped_only_by_its_own_domain_that_shows_its_tombstone() {
    let mut agent = FakeAgent::start().await;
    let mut wrapper = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    let (stream, state) = agent.running().await;
    drop(stream);

    let mut of_another_process = gone();
    of_another_process.exited.as_mut().unwrap().start_id = 8;
    let harmless = [
        refusal("process 7 is not known"),
        Refused { lasting: true, ..refusal("never") },
        Refused { domain: "domain-2".to_owned(), ..gone() },
        of_another_process,
    ];
    for refused in harmless {
        agent.opened().await.refuse(refused).await;
    }
    let stream = agent.opened().await;
    assert!(is_alive(state.pid) && wrapper.is_running());

    stream.refuse(gone()).await;
    soon_true("the engine to end", || !is_alive(state.pid)).await;
    agent.opened().await.refuse(gone()).await;
    assert_eq!(128 + Signal::SIGTERM as i32, wrapper.code().await);
}

#[tokio::test]
async fn an_engine_is_never_taken_for_another_process() {
    let mut agent = FakeAgent::start().await;
    let mut wrapper = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    let (stream, state) = agent.running().await;
    drop(stream);
    let stream = agent.opened().await;
    let registered =
        kaa::proto::engine::Registered { domain: "domain-2".to_owned(), start_id: 1, ..Default::default() };
    stream.say(to_engine::Message::Registered(registered)).await;
    assert_eq!(7, agent.opened().await.register.start_id);
    assert!(is_alive(state.pid) && wrapper.is_running());
}

#[tokio::test]
async fn a_storage_manager_says_how_new_its_data_is_on_every_stream_and_waits() {
    let (mut agent, archive) = (FakeAgent::start().await, tempfile::tempdir().unwrap());
    let started = archive.path().join("started");
    let mut wrapper = Wrapper::sm(&[&agent], archive.path(), &["touch", started.to_str().unwrap()]);
    for _ in 0..2 {
        let mut stream = agent.opened().await;
        stream.admit().await;
        assert_eq!(0, stream.history().await);
        stream.hold("archive 4 goes first").await;
    }
    sleep(A_WHILE).await;
    assert!(wrapper.is_running() && !started.exists());
}

#[tokio::test]
async fn time_starts_no_engine_that_is_held() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &["--start-timeout", "1"], &["sleep", "60"]);
    let mut stream = agent.opened().await;
    stream.admit().await;
    stream.hold("an old reason").await;
    stream.hold("waiting for a running storage manager").await;
    let exit = stream.exit().await;
    let reason = "Not started within 1 s: waiting for a running storage manager";
    assert_eq!((None, false, reason), (exit.code, exit.graceful, &*exit.reason));
    stream.say(NOTED).await;
    assert_eq!(76, wrapper.code().await);
}

#[tokio::test]
async fn an_engine_that_was_held_and_started_runs_on() {
    let mut agent = FakeAgent::start().await;
    let mut wrapper = Wrapper::te(&[&agent], &["--start-timeout", "1"], &["sleep", "60"]);
    let mut stream = agent.opened().await;
    stream.admit().await;
    stream.hold("waiting for a running storage manager").await;
    stream.start(1).await;
    let state = stream.state(EngineState::Running).await;
    stream.hold("a late word").await;
    sleep(Duration::from_secs(1) + A_WHILE).await;
    assert!(is_alive(state.pid) && wrapper.is_running());
}

#[tokio::test]
async fn the_exit_code_is_reported_until_it_is_noted() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", "sleep 0.5; exit 3"]);
    let (mut stream, _) = agent.running().await;
    let exit = stream.exit().await;
    assert_eq!((Some(3), false, "Engine exited with code 3"), (exit.code, exit.graceful, &*exit.reason));
    drop(stream);

    let mut stream = agent.opened().await;
    stream.admit().await;
    assert_eq!(exit, stream.exit().await);
    let noted_at = Instant::now();
    stream.say(NOTED).await;
    assert_eq!(3, wrapper.code().await);
    assert!(noted_at.elapsed() < Duration::from_secs(5));
}

/// The agent behaves like one that has just lost its leader, or whose node failed without notice. The wrapper reports
/// the end to the next agent, long before it would leave this one because of its silence.
#[tokio::test]
async fn an_end_that_is_not_noted_is_told_to_another_agent() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", "sleep 0.5; exit 3"]);
    let (mut first, _) = agent.running().await;
    let exit = first.exit().await;
    // On the second stream the agent does not answer at all. The wrapper leaves this stream too.
    let second = agent.opened().await;
    let mut third = agent.opened().await;
    third.admit().await;
    assert_eq!(exit, third.exit().await);
    third.say(NOTED).await;
    assert_eq!(3, wrapper.code().await);
    drop((first, second));
}

#[tokio::test]
async fn a_pod_ends_even_if_nobody_notes_its_end() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", "sleep 0.2; kill -KILL $$"]);
    let (mut stream, _) = agent.running().await;
    assert_eq!(Some(137), stream.exit().await.code);
    let reported_at = Instant::now();
    assert_eq!(137, wrapper.code().await);
    assert!(reported_at.elapsed() > Duration::from_secs(3));
}

#[tokio::test]
async fn an_engine_ended_by_a_signal_without_a_name_is_noticed() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", "sleep 0.2; kill -40 $$"]);
    let (mut stream, _) = agent.running().await;
    assert_eq!("Engine ended by a real-time signal", stream.exit().await.reason);
    stream.say(NOTED).await;
    assert_eq!(255, wrapper.code().await);
}

#[tokio::test]
async fn a_running_engine_outlives_every_agent() {
    let mut agent = FakeAgent::start().await;
    let mut wrapper = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    let (stream, state) = agent.running().await;
    drop((stream, agent));
    // Long enough for several attempts to reach an agent.
    sleep(Duration::from_secs(3)).await;
    assert!(is_alive(state.pid) && wrapper.is_running());
    wrapper.signal(Signal::SIGTERM);
    assert_eq!(128 + Signal::SIGTERM as i32, wrapper.code().await);
}

#[tokio::test]
async fn sigterm_stops_the_engine_and_is_told_first() {
    let mut agent = FakeAgent::start().await;
    let root = tempfile::tempdir().unwrap();
    let wrapper =
        Wrapper::sm(&[&agent], root.path(), &[KAA, "stand-in", "sm", "--archive", root.path().to_str().unwrap()]);
    let (mut stream, state) = agent.running().await;
    soon_true("its data", || root.path().join("data.txt").exists()).await;
    wrapper.signal(Signal::SIGTERM);
    assert_eq!(state.pid, stream.state(EngineState::ShuttingDown).await.pid);
    let exit = stream.exit().await;
    assert_eq!((Some(0), true, ""), (exit.code, exit.graceful, &*exit.reason));
    stream.say(NOTED).await;
    assert_eq!(0, wrapper.code().await);
}

#[tokio::test]
async fn an_engine_that_does_not_stop_is_killed_after_its_grace() {
    let mut agent = FakeAgent::start().await;
    let command = [KAA, "stand-in", "te", "--ignore-term", "--port", "0"];
    let wrapper = Wrapper::te(&[&agent], &["--grace", "1"], &command);
    let (mut stream, state) = agent.running().await;
    // The stand-in ignores SIGTERM only a moment after its start.
    sleep(A_WHILE).await;
    wrapper.signal(Signal::SIGTERM);
    sleep(A_WHILE).await;
    assert!(is_alive(state.pid));
    let exit = stream.exit().await;
    assert_eq!((Some(137), true), (exit.code, exit.graceful));
    stream.say(NOTED).await;
    assert_eq!(137, wrapper.code().await);
}

#[tokio::test]
async fn sigterm_before_the_start_ends_at_once() {
    let mut agent = FakeAgent::start().await;
    let unregistered = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
    let stream = agent.opened().await;
    unregistered.signal(Signal::SIGTERM);
    assert_eq!(0, unregistered.code().await);
    drop(stream);

    // The wrapper waits three seconds for an agent to acknowledge the end, and then exits. A busy machine may take
    // longer, so the test tries up to three times.
    for tries_left in (0..3).rev() {
        let mut registered = Wrapper::te(&[&agent], &[], &["sleep", "60"]);
        let mut stream = agent.opened().await;
        stream.admit().await;
        stream.state(EngineState::Unknown).await;
        registered.signal(Signal::SIGTERM);
        let exit = tokio::select! {
            biased;
            exit = stream.exit() => exit,
            ended = registered.0.wait() => {
                assert!(tries_left > 0, "the wrapper ends with {ended:?} without telling that its engine did");
                continue;
            }
        };
        assert_eq!((None, true), (exit.code, exit.graceful));
        stream.say(NOTED).await;
        assert_eq!(0, registered.code().await);
        return;
    }
}

#[tokio::test]
async fn stop_and_exit_are_answered_when_the_engine_has_stopped() {
    for action in [directive::Action::Stop(Stop {}), directive::Action::Exit(ExitNow {})] {
        let mut agent = FakeAgent::start().await;
        let wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", "trap 'exit 4' TERM; while :; do sleep 0.1; done"]);
        let (mut stream, state) = agent.running().await;
        sleep(A_WHILE).await;
        stream.direct(9, action).await;
        assert_eq!(Ok(()), stream.result_of(9).await);
        assert!(!is_alive(state.pid));
        assert_eq!(Some(4), stream.exit().await.code);
        stream.say(NOTED).await;
        assert_eq!(4, wrapper.code().await);
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_told_and_named() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["no-such-engine"]);
    let mut stream = agent.opened().await;
    stream.admit().await;
    stream.start(1).await;
    let why = stream.result_of(1).await.unwrap_err();
    assert!(why.starts_with("Cannot start no-such-engine: "), "{why}");
    let exit = stream.exit().await;
    assert_eq!((None, why), (exit.code, exit.reason));
    stream.say(NOTED).await;
    assert_eq!(127, wrapper.code().await);
}

#[tokio::test]
async fn the_marker_is_there_before_the_engine_and_is_shown_by_the_next_start() {
    let mut agent = FakeAgent::start().await;
    let root = tempfile::tempdir().unwrap();
    let archive = root.path().join("archive");
    let marker = archive.join(".kaa-archive.json");
    let command = format!("grep -q '\"archive\":3' {} && exit 11", marker.display());
    for known in [None, Some((DOMAIN, 3))] {
        let wrapper = Wrapper::sm(&[&agent], &archive, &["sh", "-c", &command]);
        let mut stream = agent.opened().await;
        let shown = stream.register.marker.clone();
        assert_eq!(known, shown.as_ref().map(|marker| (&*marker.domain, marker.archive)));
        assert_eq!(archive.to_str().unwrap(), stream.register.path);
        stream.admit().await;
        stream.start(1).await;
        assert_eq!(Some(11), stream.exit().await.code);
        stream.say(NOTED).await;
        assert_eq!(11, wrapper.code().await);
    }
}

#[tokio::test]
async fn a_volume_that_the_domain_gives_another_archive_is_marked_anew() {
    let mut agent = FakeAgent::start().await;
    let root = tempfile::tempdir().unwrap();
    let marker = root.path().join(".kaa-archive.json");
    std::fs::write(&marker, r#"{"domain":"domain-0","archive":9}"#).unwrap();
    let _wrapper = Wrapper::sm(&[&agent], root.path(), &["sleep", "60"]);
    let stream = agent.opened().await;
    assert_eq!(9, stream.register.marker.as_ref().unwrap().archive);
    stream.admit().await;
    soon_true("the new marker", || std::fs::read_to_string(&marker).unwrap().contains(r#""archive":3"#)).await;
    drop(stream);
    assert_eq!(3, agent.opened().await.register.marker.unwrap().archive);
}

#[tokio::test]
async fn a_second_wrapper_on_an_archive_waits_for_the_first_to_end() {
    let (mut one, mut other) = (FakeAgent::start().await, FakeAgent::start().await);
    let root = tempfile::tempdir().unwrap();
    let first = Wrapper::sm(&[&one], root.path(), &["sleep", "60"]);
    let (mut stream, _) = one.running().await;
    let mut second = Wrapper::sm(&[&other], root.path(), &["sleep", "60"]);
    sleep(A_WHILE).await;
    assert!(!other.has_opened() && second.is_running(), "it does not even register");

    first.signal(Signal::SIGTERM);
    stream.exit().await;
    sleep(A_WHILE).await;
    assert!(!other.has_opened(), "the lock is held to the very end");
    stream.say(NOTED).await;
    first.code().await;
    assert_eq!(3, other.opened().await.register.marker.unwrap().archive);
    second.signal(Signal::SIGTERM);
    assert_eq!(0, second.code().await);
}

#[tokio::test]
async fn orphans_are_reaped_and_do_not_pass_for_the_engine() {
    let mut agent = FakeAgent::start().await;
    let wrapper = Wrapper::te(&[&agent], &[], &["sh", "-c", "(sleep 1 &); (exit 5 &); exec sleep 60"]);
    let (stream, state) = agent.running().await;
    soon_true("the orphan to be adopted", || wrapper.children() == 2).await;
    soon_true("the orphan to be reaped", || wrapper.children() == 1).await;
    assert!(is_alive(state.pid));
    drop(stream);
}

#[tokio::test]
async fn other_signals_are_passed_on() {
    let mut agent = FakeAgent::start().await;
    let root = tempfile::tempdir().unwrap();
    let ready = root.path().join("ready");
    let command = format!("trap 'exit 21' USR1; touch {}; while :; do sleep 0.1; done", ready.display());
    let when = format!("file:{}", ready.display());
    let wrapper = Wrapper::te(&[&agent], &["--ready-when", &when], &["sh", "-c", &command]);
    let (mut stream, _) = agent.running().await;
    wrapper.signal(Signal::SIGUSR1);
    assert_eq!(Some(21), stream.exit().await.code);
    stream.say(NOTED).await;
    assert_eq!(21, wrapper.code().await);
}

#[tokio::test]
async fn an_agent_is_verified_and_shown_the_token() {
    let root = tempfile::tempdir().unwrap();
    let (ca, token) = (root.path().join("ca.crt"), root.path().join("token"));
    let issued = rcgen::generate_simple_self_signed(vec!["admin.ns.svc".to_owned()]).unwrap();
    std::fs::write(&ca, issued.cert.pem()).unwrap();
    std::fs::write(&token, "the-token\n").unwrap();
    let identity = tonic::transport::Identity::from_pem(issued.cert.pem(), issued.signing_key.serialize_pem());
    let mut agent = FakeAgent::start_tls(tonic::transport::ServerTlsConfig::new().identity(identity)).await;
    let flags = ["--ca", ca.to_str().unwrap(), "--token-file", token.to_str().unwrap(), "--server-name"];

    let named = Wrapper::run("te", &[&agent], &[&flags[..], &["admin.ns.svc"]].concat(), &["sleep", "60"]);
    assert_eq!(Some("Bearer the-token"), agent.opened().await.authorization.as_deref());
    drop(named);
    let _mistaken = Wrapper::run("te", &[&agent], &[&flags[..], &["another"]].concat(), &["sleep", "60"]);
    sleep(A_WHILE).await;
    assert!(!agent.has_opened(), "the certificate bears another name");
}
