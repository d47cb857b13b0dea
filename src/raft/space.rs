//! Room on the volume. Below a floor nothing new is taken into the log, so that what has to be written still can be: a
//! vote, a membership, the snapshot that lets the log be purged.
//!
//! A leader without room refuses proposals and hands over; a follower without room refuses what the leader sends, and
//! the others are the quorum. When there is room again, both continue without a restart.
//!
//! A disk that hangs is noticed here as well. Its server counts as none that has flushed an entry, and the others are the quorum. A leader
//! stays the leader: it needs the disks of the others, and not its own. Were it to hand over, it would have to write its next vote, and would
//! know nothing new of the domain before that.

use super::disk::Disk;
use super::handle::Handle;
use super::status::Role;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often the free space is read. The floor has to last for everything that any process writes in between.
const PERIOD: Duration = Duration::from_millis(500);
/// A leader without room hands over again only after this, so that two that are full do not play ball.
const HAND_OVER_PERIOD: Duration = Duration::from_secs(30);

/// Too little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the volume of the log has {free} bytes free, and nothing is written below {floor} (--min-free): make room or enlarge \
     its claim"
)]
pub struct NoRoom {
    /// How much is left.
    pub free: u64,
    /// How much has to be.
    pub floor: u64,
}

/// A write of the log that takes so long hangs.
const HANGS: Duration = Duration::from_secs(5);

/// Why nothing can be written to the log now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotWrite {
    /// There is too little room.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The disk does not answer.
    #[error("the disk of the log's volume has not taken a write for {seconds} s")]
    Hangs {
        /// For how long, in seconds.
        seconds: u64,
    },
}

/// The room on a volume; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Space(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    floor: u64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    free: u64,
    low: bool,
}

impl Space {
    /// Looks for the first time.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, floor: u64) -> Self {
        let space = Self(Arc::new(Shared { disk, dir, floor, seen: Mutex::default() }));
        space.look();
        space
    }

    /// Looks how much room there is.
    fn look(&self) {
        let Shared { disk, dir, floor, seen } = &*self.0;
        let free = match disk.free(dir) {
            Ok(free) => free,
            Err(error) => {
                return tracing::warn!(dir = %dir.display(), %error, "cannot read the free space of the volume");
            }
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let low = is_low(free, *floor, seen.low);
        match (seen.low, low) {
            (false, true) => tracing::error!("{}", NoRoom { free, floor: *floor }),
            (true, false) => tracing::info!(free, "the volume of the log has enough free space again"),
            _ => {}
        }
        *seen = Seen { free, low };
    }

    /// Says whether something of a size may be written.
    pub(super) fn check(&self, bytes: u64) -> Result<(), NoRoom> {
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (free, floor) = (seen.free, self.0.floor);
        let fits = !seen.low && floor.saturating_add(bytes) <= free;
        if fits { Ok(()) } else { Err(NoRoom { free, floor }) }
    }
}

/// Recovery takes a quarter more than the floor, so that nothing flaps on its edge.
fn is_low(free: u64, floor: u64, was_low: bool) -> bool {
    free < if was_low { floor.saturating_add(floor / 4) } else { floor }
}

impl Handle {
    /// Why nothing is written here now, if that is so.
    pub fn no_room(&self) -> Option<NoRoom> {
        self.space().check(0).err()
    }

    /// Why nothing can be written here now, if that is so.
    pub fn cannot_write(&self) -> Option<CannotWrite> {
        self.no_room().map(CannotWrite::from).or_else(|| self.hangs())
    }

    /// That the disk hangs, if it does.
    pub fn hangs(&self) -> Option<CannotWrite> {
        let commits_for = self.0.store.commits_for();
        (commits_for >= HANGS).then_some(CannotWrite::Hangs { seconds: commits_for.as_secs() })
    }
}

/// Looks again and again until Raft ends, and hands over while there is no room.
pub(super) async fn watch(handle: Handle) {
    let mut handed_over: Option<Instant> = None;
    let mut hung = false;
    while handle.status().role != Role::Stopped && handle.metrics().running_state.is_ok() {
        sleep(PERIOD).await;
        let space = handle.space().clone();
        // It fails only if it panicked, and then the next look tells.
        let _ = crate::clock::blocking(move || space.look()).await;
        let hangs = handle.hangs();
        match hangs {
            Some(why) if !hung => tracing::error!("{why}"),
            None if hung => tracing::info!("the disk of the log's volume takes writes again"),
            _ => {}
        }
        hung = hangs.is_some();
        let due = handed_over.is_none_or(|last| last.elapsed() > HAND_OVER_PERIOD);
        if due && handle.status().role == Role::Leader && handle.no_room().is_some() {
            tracing::warn!("transferring leadership: another server may have free space");
            handle.hand_over(None).await;
            handed_over = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_low;

    #[test]
    fn room_is_missed_below_the_floor_and_back_a_quarter_above_it() {
        let told = |frees: &[u64]| {
            let mut low = false;
            let told = frees.iter().map(|free| {
                low = is_low(*free, 100, low);
                if low { "low" } else { "ok" }
            });
            told.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(&[500, 100, 99, 100, 124, 125, 100, 0]), "ok ok low low low ok ok low");
        assert!(!is_low(0, 0, false), "a floor of 0 is none");
    }
}
