//! Waiting for a state that arrives later. There is one timeout for all of it: far longer than anything takes on an idle
//! machine, so that a busy machine fails no test. What must happen *soon* is a figure, and belongs into `benches/`.

use std::fmt;
use std::time::Duration;

/// How long anything may take that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The pauses between two looks: each is half as long again as the one before, since a look may start a process.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];

fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSES[1])
}

/// It did not happen.
#[derive(Debug)]
pub struct InVain {
    /// What was waited for.
    pub what: String,
    /// What was seen last.
    pub seen: String,
}

impl fmt::Display for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {} s in vain for {}\nlast seen: {}", PATIENCE.as_secs(), self.what, self.seen)
    }
}

/// Looks until it is so: `look` gives the value, or what it saw instead.
///
/// # Errors
/// If it is not so within [`PATIENCE`], with what was seen last.
pub fn try_eventually<T, E: fmt::Display>(what: &str, mut look: impl FnMut() -> Result<T, E>) -> Result<T, InVain> {
    let (began, mut pause) = (std::time::Instant::now(), PAUSES[0]);
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(seen) if began.elapsed() > PATIENCE => return Err(in_vain(what, &seen)),
            Err(_) => std::thread::sleep(pause),
        }
        pause = longer(pause);
    }
}

/// Looks until it is so, and gives the value.
///
/// # Panics
/// If it is not so within [`PATIENCE`], with what was seen last.
#[track_caller]
pub fn eventually<T, E: fmt::Display>(what: &str, look: impl FnMut() -> Result<T, E>) -> T {
    match try_eventually(what, look) {
        Ok(value) => value,
        Err(why) => panic!("{why}"),
    }
}

/// The same in a task, by the clock of its runtime.
///
/// # Panics
/// If it is not so within [`PATIENCE`], with what was seen last.
pub async fn eventually_async<T, E: fmt::Display>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let (began, mut pause) = (tokio::time::Instant::now(), PAUSES[0]);
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) if began.elapsed() > PATIENCE => panic!("{}", in_vain(what, &seen)),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = longer(pause);
    }
}

fn in_vain(what: &str, seen: &impl fmt::Display) -> InVain {
    InVain { what: what.to_owned(), seen: seen.to_string() }
}

/// For a look that gives yes or no.
///
/// # Errors
/// If it is not so.
pub fn is(so: bool) -> Result<(), &'static str> {
    if so { Ok(()) } else { Err("it is not so") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_arrives_later_is_seen() {
        let mut looks = 0;
        let seen = eventually("the third look", || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(format!("look {looks}")) }
        });
        assert_eq!(seen, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 120 s in vain for rain\nlast seen: sun")]
    async fn what_was_seen_last_is_told() {
        eventually_async("rain", async || Err::<(), _>("sun")).await;
    }
}
