//! Watches the engines themselves: that none ends without a cause, and that no two are on one archive.

use super::truth::Truth;
use crate::domain::processes::{self, Id, Process, Role};
use kaa::clock;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it is looked.
const PERIOD: Duration = Duration::from_millis(50);

/// Why engines of a pod may end: when it was killed, by UID.
#[derive(Clone, Default)]
pub struct Causes(Arc<Mutex<Vec<(String, u64)>>>);

impl Causes {
    /// Notes that a process of this pod is killed now; to be called before it is.
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

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How many engines ran.
    pub started: usize,
    /// Those that ended: since when they were seen, and when they were not any more.
    pub ended: Vec<(Process, u64, u64)>,
    /// What must not be.
    pub wrong: Vec<String>,
}

/// Watches until it is asked.
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

    /// Ends, and judges the ends of the engines: by now the truth about them is noted.
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

/// One look. `alive`: the engines that the last one saw, and since when.
fn look(dir: &Path, alive: &mut BTreeMap<Id, (Process, u64)>, seen: &mut Seen) {
    let (now, engines) = (clock::now().0, processes::of(dir, Role::Engine));
    let mut on = BTreeMap::new();
    for engine in &engines {
        let Some(archive) = &engine.archive else { continue };
        // The first may have ended since it was found.
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
