//! Waiting for a state that arrives later. One timeout serves all such waits: far longer than anything takes on an idle
//! machine, so that a busy machine fails no test. A limit on how *soon* something happens is a benchmark, and belongs
//! in `benches/`.

use std::fmt;
use std::time::Duration;

/// How long anything may take that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The shortest and the longest pause between two looks: each pause is one and a half times the one before, since a
/// look may start a process.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];

fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSES[1])
}

/// The expected state did not arrive.
#[derive(Debug)]
pub struct InVain {
    /// The state that was expected.
    pub what: String,
    /// What the last look saw.
    pub seen: String,
}

impl fmt::Display for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {} s in vain for {}\nlast seen: {}", PATIENCE.as_secs(), self.what, self.seen)
    }
}

/// Looks until the state has arrived: `look` returns the value, or what it saw instead.
///
/// # Errors
/// If the state does not arrive within [`PATIENCE`], with what the last look saw.
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

/// Looks until the state has arrived, and returns the value.
///
/// # Panics
/// If the state does not arrive within [`PATIENCE`], with what the last look saw.
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
/// If the state does not arrive within [`PATIENCE`], with what the last look saw.
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

/// Makes a result of yes or no, for [`eventually`].
///
/// # Errors
/// If the condition does not hold.
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
