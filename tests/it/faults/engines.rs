//! Watches the engine processes: none may end without a cause, and no two may use one archive.

use super::truth::Truth;
use crate::domain::processes::{self, Id, Process, Role};
use kaa::clock;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the watcher looks at the processes.
const PERIOD: Duration = Duration::from_millis(50);

/// Causes for the end of engines: the UID of the pod, and when a process of this pod was killed.
#[derive(Clone, Default)]
pub struct Causes(Arc<Mutex<Vec<(String, u64)>>>);

impl Causes {
    /// Records that a process of this pod is killed now. Call it before the kill.
    pub fn note(&self, pod_uid: &str) {
        self.0.lock().unwrap().push((pod_uid.to_owned(), clock::now().0));
    }

    /// How often a process of this pod was killed.
    pub fn of(&self, pod_uid: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|(uid, _)| uid == pod_uid).count()
    }

    fn since(&self, pod_uid: &str, from: u64) -> bool {
        self.0.lock().unwrap().iter().any(|(uid, at)| uid == pod_uid && *at >= from)
    }
}

/// What the watcher saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How many engines ran.
    pub started: usize,
    /// The engines that ended: when the watcher saw each first, and when it no longer did.
    pub ended: Vec<(Process, u64, u64)>,
    /// Violations.
    pub wrong: Vec<String>,
}

/// Watches until `end`.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Watcher {
    pub fn begin(dir: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut seen, mut alive) = (Seen::default(), BTreeMap::new());
            while !stopped.load(Ordering::Relaxed) {
                look(&dir, &mut alive, &mut seen);
                std::thread::sleep(PERIOD);
            }
            seen
        });
        Self { stop, thread }
    }

    /// Stops the watcher and judges the ends of the engines. By now `truth` has recorded the state at each end.
    pub fn end(self, truth: &Truth, causes: &Causes) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let mut seen = self.thread.join().unwrap();
        for (process, since, at) in &seen.ended {
            if !truth.is_going(&process.pod, &process.pod_uid, *at) && !causes.since(&process.pod_uid, *since) {
                seen.wrong.push(format!("{at}: an engine ended without a cause: {process:?}"));
            }
        }
        seen
    }
}

/// One look at the processes. `alive`: the engines that the previous look saw, and when each was seen first.
fn look(dir: &Path, alive: &mut BTreeMap<Id, (Process, u64)>, seen: &mut Seen) {
    let (now, engines) = (clock::now().0, processes::of(dir, Role::Engine));
    let mut on = BTreeMap::new();
    for engine in &engines {
        let Some(archive) = &engine.archive else { continue };
        // The first one may have ended since `processes::of` found it.
        if let Some(other) = on.insert(archive, engine)
            && other.lives()
            && engine.lives()
        {
            seen.wrong.push(format!("{now}: two engines are on {}: {other:?} and {engine:?}", archive.display()));
        }
    }
    alive.retain(|id, (process, since)| {
        let lives = engines.iter().any(|engine| engine.id == *id);
        if !lives {
            seen.ended.push((process.clone(), *since, now));
        }
        lives
    });
    for engine in engines {
        alive.entry(engine.id).or_insert_with(|| {
            seen.started += 1;
            (engine, now)
        });
    }
}
