//! Work with files in a thread: a disk that is slow or hangs must not hold up who decides.

use super::error::Error;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Does one piece of work after the other. What was given up may still be under way: it ends before the next begins, so that
/// it never comes later, and a disk that hangs takes one thread.
#[derive(Debug, Default)]
pub(super) struct Worker(Option<JoinHandle<()>>);

impl Worker {
    /// Does it. Dropped, it may still be done.
    ///
    /// # Errors
    /// Those of the work, and if it panics.
    pub async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if let Some(earlier) = &mut self.0 {
            // Its result was given up with it.
            let _ = earlier.await;
            self.0 = None;
        }
        let (tell, done) = oneshot::channel();
        let thread = tokio::task::spawn_blocking(move || {
            let _ = tell.send(work());
        });
        let ended = self.0.insert(thread).await;
        self.0 = None;
        let why = || ended.err().map_or_else(String::new, |error| format!(": {error}"));
        done.await.unwrap_or_else(|_| Err(Error::Stuck(format!("work with the server's files was not done{}", why()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn what_was_given_up_ends_before_the_next_begins() {
        let (release, hangs) = mpsc::sync_channel::<()>(1);
        let (log, seen) = mpsc::sync_channel(2);
        let (first, second) = (log.clone(), log);
        let mut worker = Worker::default();
        let work = worker.run(move || {
            let _ = hangs.recv();
            Ok(first.send("given up").is_ok())
        });
        timeout(Duration::from_millis(20), work).await.unwrap_err();
        let next = worker.run(move || Ok(second.send("next").is_ok()));
        let free = async {
            tokio::task::yield_now().await;
            release.send(()).unwrap();
        };
        let (next, ()) = tokio::join!(next, free);
        assert!(next.unwrap());
        assert_eq!(seen.iter().collect::<Vec<_>>(), ["given up", "next"]);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        let mut worker = Worker::default();
        let panics = worker.run::<()>(|| panic!("of a test")).await;
        assert!(matches!(panics, Err(Error::Stuck(why)) if why.contains("was not done")));
        assert_eq!(worker.run(|| Ok(1)).await.unwrap(), 1);
    }
}
