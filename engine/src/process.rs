//! A command that runs for long: its log, its threads, its exit code.

use std::future::Future;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Threads: what runs here waits for the network and the disk; more of them would only cost memory.
const WORKERS: usize = 2;
/// How long the end of a command waits for system calls that other threads are in. A name that no DNS server answers for
/// takes half a minute to look up, and a container that ends must not outlast its pod's grace period by that.
const CALLS_LIMIT: Duration = Duration::from_secs(1);

/// Runs a command, with a log on stderr: for people on a terminal, as JSON elsewhere unless KAA_LOG_FORMAT says `text`.
/// `default_log` is what KAA_LOG says if it is not set.
pub fn run(default_log: &str, command: impl Future<Output = ExitCode>) -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KAA_LOG").unwrap_or_else(|_| default_log.into());
    let text = match std::env::var("KAA_LOG_FORMAT").as_deref() {
        Ok("json") => false,
        Ok(_) => true,
        Err(_) => std::io::stderr().is_terminal(),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if text {
        log.init()
    } else {
        log.json().flatten_event(true).init()
    }
    match tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build() {
        Ok(runtime) => finish(runtime, command),
        Err(error) => {
            eprintln!("kaa: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

fn finish(runtime: Runtime, command: impl Future<Output = ExitCode>) -> ExitCode {
    let code = runtime.block_on(command);
    runtime.shutdown_timeout(CALLS_LIMIT);
    code
}

/// Runs a command that says its own exit code, or an error that has one.
pub fn coded<E: std::fmt::Display>(
    default_log: &str,
    command: impl Future<Output = Result<i32, E>>,
    code_of: impl FnOnce(&E) -> i32,
) -> ExitCode {
    run(default_log, async {
        let code = command.await.unwrap_or_else(|error| {
            eprintln!("kaa: {error}");
            code_of(&error)
        });
        // Exit codes are one byte wide, as the kernel has it.
        ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_call_that_does_not_return_does_not_delay_the_end() {
        let (release, released) = mpsc::sync_channel::<()>(1);
        let (tell, told) = mpsc::sync_channel(1);
        let ending = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
            finish(runtime, async {
                tokio::task::spawn_blocking(move || released.recv());
                ExitCode::SUCCESS
            });
            tell.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(30)).expect("the command ends");
        drop(release);
        ending.join().unwrap();
    }
}
