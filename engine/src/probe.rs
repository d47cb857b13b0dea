//! The kubelet's probes of a database container: `kaa probe live|ready` asks the wrapper that runs in the same container, or in
//! another one of the same pod.
//!
//! The wrapper answers on an abstract Unix socket, which needs no file: a full or slow volume is no reason to restart a container.

use clap::ValueEnum;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// A wrapper whose task has done nothing for so long does not live. It does something at least twice a second.
const LIVES: Duration = Duration::from_secs(30);
/// How long either side waits for the other. A question and its answer need no disk and no network.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a failure to listen: a wrapper before this one may not have ended yet.
const AGAIN: Duration = Duration::from_secs(1);
/// An answer is a sentence; in bytes.
const MAX_ANSWER: u64 = 4096;

/// Asks the wrapper of a container how it fares, for the kubelet's probes.
///
/// `live`: the wrapper's task runs. `ready`: the engine serves; a PostgreSQL server does what the domain assigned to it. Otherwise it
/// prints why not, and exits with 1.
#[derive(Clone, Debug, clap::Args)]
pub struct ProbeArgs {
    /// What is asked.
    #[arg(value_enum)]
    question: Question,
    /// The UID of this pod.
    #[arg(long, value_name = "UID", env = "KAA_POD_UID")]
    pod_uid: String,
    /// The name of the container with the wrapper.
    #[arg(long, value_name = "NAME", env = "KAA_CONTAINER", default_value = "engine")]
    container: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Question {
    /// Whether the wrapper's task runs.
    Live,
    /// Whether the engine is as it should be.
    Ready,
}

/// What a wrapper knows of itself.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// When its task did something last; `None` if it does nothing without a reason.
    pub beat: Option<Instant>,
    /// Whether its engine is as it should be, or why not.
    pub ready: Result<(), String>,
}

impl Default for Health {
    fn default() -> Self {
        Self { beat: None, ready: Err("the wrapper has begun a moment ago".to_owned()) }
    }
}

impl Health {
    /// The line that is sent: how long ago its task did something, in milliseconds, and why the engine is not ready.
    fn line(&self) -> String {
        let silent = self.beat.map_or(0, |beat| beat.elapsed().as_millis());
        format!("{silent} {}", self.ready.as_ref().err().map_or("", String::as_str))
    }
}

/// Judges the line that a wrapper has sent.
fn judged(question: Question, line: &str) -> Result<(), String> {
    let (silent, why_not) = line.split_once(' ').unwrap_or((line, ""));
    let silent = silent.parse().map(Duration::from_millis).map_err(|_| format!("the wrapper answers {line:?}"))?;
    match question {
        Question::Live if silent < LIVES => Ok(()),
        Question::Live => Err(format!("the wrapper's task has done nothing for {} s", silent.as_secs())),
        Question::Ready if why_not.is_empty() => Ok(()),
        Question::Ready => Err(why_not.to_owned()),
    }
}

fn address(pod_uid: &str, container: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("kaa-engine/{pod_uid}/{container}"))
}

/// Answers probes until it is dropped, one after the other. It reads nothing of those who ask.
pub(super) async fn answer(pod_uid: String, container: String, health: watch::Receiver<Health>) {
    let mut said = false;
    loop {
        match listen(&pod_uid, &container) {
            Ok(listener) => answer_on(&listener, &health).await,
            Err(error) if !std::mem::replace(&mut said, true) => {
                tracing::warn!(%error, "probes are not answered: another wrapper of this pod may not have ended");
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

fn listen(pod_uid: &str, container: &str) -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&address(pod_uid, container)?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// Returns once it cannot be asked any more.
async fn answer_on(listener: &tokio::net::UnixListener, health: &watch::Receiver<Health>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let line = health.borrow().line();
        // One that does not take its answer is no concern of the next one.
        let _ = timeout(PATIENCE, stream.write_all(line.as_bytes())).await;
    }
}

/// The whole command.
pub fn main(args: &ProbeArgs) -> ExitCode {
    // Lists of processes tell it from the wrapper. Without the name it probes as well.
    let _ = nix::sys::prctl::set_name(c"kaa-probe");
    match ask(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn ask(probe: &ProbeArgs) -> Result<(), String> {
    let asked = || -> io::Result<String> {
        let stream = UnixStream::connect_addr(&address(&probe.pod_uid, &probe.container)?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        stream.take(MAX_ANSWER).read_to_string(&mut line)?;
        Ok(line)
    };
    let line = asked().map_err(|error| format!("no wrapper answers for container {}: {error}", probe.container))?;
    judged(probe.question, &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(pod_uid: &str) -> Result<(), String> {
        ask(&ProbeArgs { question: Question::Ready, pod_uid: pod_uid.to_owned(), container: "c".to_owned() })
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_wrapper_answers_what_it_knows_at_the_moment() {
        let pod = format!("pod-{}", std::process::id());
        let (say, health) = watch::channel(Health::default());
        assert!(ready(&pod).unwrap_err().starts_with("no wrapper answers for container c: "));
        let answers = tokio::spawn(answer(pod.clone(), "c".to_owned(), health));
        while ready(&pod).is_err_and(|why| why.starts_with("no wrapper")) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ready(&pod), Err("the wrapper has begun a moment ago".to_owned()));
        say.send_modify(|health| health.ready = Ok(()));
        assert_eq!(ready(&pod), Ok(()));
        answers.abort();
    }

    #[test]
    fn a_task_that_hangs_does_not_live_whatever_its_engine_does() {
        assert_eq!(judged(Question::Live, "29999 it follows nothing"), Ok(()));
        assert_eq!(judged(Question::Live, "30000 "), Err("the wrapper's task has done nothing for 30 s".to_owned()));
        assert_eq!(judged(Question::Ready, "30000 "), Ok(()));
        assert_eq!(judged(Question::Ready, "0 it follows nothing"), Err("it follows nothing".to_owned()));
        assert_eq!(judged(Question::Ready, ""), Err("the wrapper answers \"\"".to_owned()));
    }
}
