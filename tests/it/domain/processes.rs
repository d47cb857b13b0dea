//! The processes in the containers of a stage: agents, wrappers, and the engines that wrappers start.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Agent,
    Wrapper,
    Engine,
}

/// Identifies a process: the system may reuse a process id, but not together with the time of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub pid: i32,
    pub started: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: Id,
    pub role: Role,
    pub pod: String,
    pub pod_uid: String,
    /// Where the data of an engine is, if it has any.
    pub archive: Option<PathBuf>,
}

impl Process {
    /// Sends a signal. Ignores errors: the purpose of most signals is that the process ends.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.id.pid), signal);
    }

    /// Whether the process exists. A zombie does not count.
    pub fn lives(&self) -> bool {
        started(self.id.pid) == Some(self.id.started)
    }
}

/// All processes of the containers whose files are below this directory.
pub fn all(dir: &Path) -> Vec<Process> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| process(dir, pid)).collect()
}

/// The processes of a role, sorted by the names of their pods.
pub fn of(dir: &Path, role: Role) -> Vec<Process> {
    let mut found: Vec<_> = all(dir).into_iter().filter(|process| process.role == role).collect();
    found.sort_by(|a, b| (&a.pod, a.id).cmp(&(&b.pod, b.id)));
    found
}

fn process(dir: &Path, pid: i32) -> Option<Process> {
    let text = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).ok();
    let words = |bytes: Vec<u8>| -> Vec<String> {
        bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    let environment: BTreeMap<String, String> = words(text("environ")?)
        .iter()
        .filter_map(|variable| variable.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    if !environment.get("EMBEDDED_CONTAINER")?.starts_with(&format!("{}#", dir.display())) {
        return None;
    }
    let command = words(text("cmdline")?);
    let role = match command.get(1)?.as_str() {
        "agent" => Role::Agent,
        "engine" => Role::Wrapper,
        "stand-in" => Role::Engine,
        _ => return None,
    };
    let archive = command.iter().position(|word| word == "--archive").and_then(|at| command.get(at + 1));
    let archive = archive.filter(|_| role == Role::Engine).map(PathBuf::from);
    let pod = environment.get(if role == Role::Agent { "KAA_SERVER" } else { "KAA_POD" })?.clone();
    let pod_uid = environment.get("KAA_POD_UID")?.clone();
    Some(Process { id: Id { pid, started: started(pid)? }, role, pod, pod_uid, archive })
}

/// When a process that has not ended was started, in ticks of its machine.
fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
