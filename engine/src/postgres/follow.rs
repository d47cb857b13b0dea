//! Lets a server follow a primary, if its log is a prefix of the primary's.
//!
//! The comparison comes before the connection, and is a matter of safety: a standby reports how far it has flushed as a
//! bare number. A primary would take that of another history for its own, and release commits that the standby does not
//! have.

use super::configuration::{self, Changeable, NONE};
use super::control_file::ControlFile;
use super::error::Error;
use super::grant::{HAS_GENERATIONS, LAST_GENERATION};
use super::hba::Admits;
use super::session::Session;
use super::start::refuses_until_promoted;
use super::{Begins, Follows, Position, Role, Server, Source, histories};
use kaa_core::domain::ids::{ArchiveId, Generation};

/// Where a server that is fenced is in the histories: the timeline of which it holds the first own record, and its
/// exact end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The timeline.
    pub timeline: Generation,
    /// The end.
    pub end: Position,
}

/// Why a log that is here may not be a prefix of the log of a generation; `None` if it is one. `history` are the grants
/// that came into being, in any order.
pub fn differs(place: Place, generation: Generation, history: &[Begins]) -> Option<String> {
    let Place { timeline, end } = place;
    let (mut at, mut left) = (generation, Position(u64::MAX));
    while at != timeline {
        let Some(begins) = history.iter().find(|it| it.generation == at && it.parent < at) else {
            return Some(format!("timeline {timeline} is no known ancestor of generation {generation}"));
        };
        // Should a later one have begun before its parent, all between the two is on a branch that was left.
        left = left.min(begins.at);
        if begins.parent == timeline && end > left {
            return Some(format!("timeline {timeline} ends at {end} here, and timeline {at} continued it from {left}"));
        }
        at = begins.parent;
    }
    None
}

impl Server {
    /// Fences the server, compares its log with the history, and only then connects it to the source under the name of
    /// the generation. The caller has recorded durably that the server follows this generation. `history` are the
    /// grants that came into being, this one among them.
    ///
    /// # Errors
    /// If the server does not run, or cannot be fenced.
    pub async fn follow(
        &mut self,
        own: ArchiveId,
        source: &Source,
        generation: u32,
        history: &[Begins],
    ) -> Result<Follows, Error> {
        if self.is_of(generation).await? {
            if let Some(why) = self.begins_elsewhere(generation, history).await? {
                return Ok(Follows::Outside { why });
            }
        } else {
            let end = match self.fence().await {
                Ok(end) => end,
                Err(error) if refuses_until_promoted(&error) => {
                    return Ok(Follows::NeedsOverwrite { why: format!("the end of its log is not known: {error}") });
                }
                Err(error) => return Err(error),
            };
            let session = Session::connect(&self.settings).await?;
            let written = timeline(&session).await?;
            let settings = self.settings.clone();
            let before = self.in_time(move || {
                let control = ControlFile::read(&settings)?;
                histories::timeline_before(&settings, &control, end)
            });
            let Some(timeline) = before.await? else {
                return Ok(Follows::NeedsOverwrite {
                    why: format!("the timeline of its log before {end} is not known"),
                });
            };
            let timeline = timeline.max(written);
            if let Some(why) = self.begins_elsewhere(timeline, history).await? {
                return Ok(Follows::Outside { why });
            }
            let place = Place { timeline: Generation(timeline.into()), end };
            if let Some(why) = differs(place, Generation(generation.into()), history) {
                return Ok(Follows::NeedsOverwrite { why });
            }
        }
        let conninfo = self.conninfo(source, configuration::member(own, generation)).await?;
        // From here on it takes log, whether or not this future is completed.
        if let Some(running) = &mut self.running {
            running.role = Role::Follows { generation };
            running.process.messages().begin();
            running.follows = Some((own, source.clone()));
        }
        let connect = |changeable: &mut Changeable| {
            changeable.follows = Some((conninfo, configuration::slot(own)));
            NONE.clone_into(&mut changeable.rule);
        };
        match self.reload(connect).await {
            // Data that was rewound accepts no session before it has received more.
            Ok(_) | Err(Error::NoSql { .. }) => Ok(Follows::Streams),
            Err(error) => Err(error),
        }
    }

    /// Why a timeline that is here is not that of the generation of its number, if that is known.
    async fn begins_elsewhere(&mut self, timeline: u32, history: &[Begins]) -> Result<Option<String>, Error> {
        let settings = self.settings.clone();
        let own = self.in_time(move || histories::beginning(&settings, timeline)).await?;
        let known = history.iter().find(|begins| begins.generation.0 == u64::from(timeline));
        let Some((own, known)) = own.zip(known).filter(|(own, known)| own != *known) else { return Ok(None) };
        Ok(Some(format!(
            "timeline {timeline} begins here at {} of timeline {}, and generation {timeline} begins at {} of {}: it was promoted, and not by Kaa",
            own.at, own.parent, known.at, known.parent
        )))
    }

    /// Whether a server that was fenced by its start has data of this generation, and of no later one: then its log is
    /// a prefix wherever it ends, since one primary alone has written this timeline. After a rewind its end is not
    /// known before it has received more.
    async fn is_of(&mut self, generation: u32) -> Result<bool, Error> {
        if !self.living().is_ok_and(|running| running.role == Role::Fenced) {
            return Ok(false);
        }
        let settings = self.settings.clone();
        let is_of = move || {
            let control = ControlFile::read(&settings)?;
            let own = control.timeline.max(control.minimum_timeline);
            Ok(own == generation && histories::latest(&settings, &control)? == generation)
        };
        self.in_time(is_of).await
    }

    /// Admits clients to a standby that streams and is past the beginning of its generation.
    ///
    /// # Errors
    /// [`Error::State`] if it is not so far: what it shows may never have been acknowledged.
    pub async fn admit_readers(&mut self) -> Result<(), Error> {
        let Role::Follows { generation } = self.living()?.role else {
            return Err(Error::State("the server is no standby that follows".to_owned()));
        };
        let session = Session::connect(&self.settings).await?;
        let receives = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming' AND received_tli = ";
        let streams: i64 = session.row("look at the receiver", &format!("{receives}{generation}")).await?.get(0);
        let timeline = timeline(&session).await?;
        if streams == 0 || timeline != generation {
            return Err(Error::State(format!(
                "the standby does not stream generation {generation}, or has not replayed its first record: it is at {timeline}"
            )));
        }
        self.reload(|changeable| changeable.admits = Admits::Readers).await.map(drop)
    }
}

/// The timeline of which the server holds the first own record: what the primaries wrote, or the last checkpoint's.
pub(super) async fn timeline(session: &Session) -> Result<u32, Error> {
    let control =
        "SELECT greatest(timeline_id, min_recovery_end_timeline) FROM pg_control_checkpoint(), pg_control_recovery()";
    let control: i32 = session.row_again("learn the timeline", control).await?.get(0);
    let mut written = 0;
    if session.row_again("look for the generations", HAS_GENERATIONS).await?.get(0) {
        written = session.row_again("learn the generation", LAST_GENERATION).await?.get(0);
    }
    Ok(control.max(written).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn begins(generation: u64, parent: u64, at: u64) -> Begins {
        Begins { generation: Generation(generation), parent: Generation(parent), at: Position(at) }
    }

    const HISTORY: [Begins; 3] = [begins(2, 1, 0x10), begins(5, 2, 0x50), begins(7, 5, 0x70)];

    fn place(timeline: u64, end: u64) -> Place {
        Place { timeline: Generation(timeline), end: Position(end) }
    }

    fn is_prefix(timeline: u64, end: u64, generation: u64) -> bool {
        differs(place(timeline, end), Generation(generation), &HISTORY).is_none()
    }

    #[test]
    fn a_log_of_the_same_generation_is_a_prefix() {
        assert!(is_prefix(7, 0x999, 7), "the primary has all of it: nothing else wrote this timeline");
        assert!(is_prefix(2, 0, 2));
    }

    #[test]
    fn a_log_of_an_ancestor_is_a_prefix_up_to_the_point_where_it_was_left() {
        assert!(is_prefix(5, 0x70, 7));
        assert!(!is_prefix(5, 0x71, 7));
        assert!(is_prefix(2, 0x50, 7), "the parent's parent");
        assert!(!is_prefix(2, 0x51, 7), "it may be below 0x70, and is on a branch that was left at 0x50");
        assert!(is_prefix(1, 0x10, 7));
        assert!(!is_prefix(1, 0x11, 7));
    }

    #[test]
    fn a_log_past_the_beginning_of_a_descendant_is_no_prefix() {
        let history = [begins(2, 1, 0x10), begins(4, 2, 0x50), begins(6, 4, 0x30)];
        let differs = |end| differs(place(2, end), Generation(6), &history).is_some();
        assert_eq!([false, true, true], [0x30, 0x31, 0x50].map(differs));
    }

    #[test]
    fn a_log_of_another_branch_or_an_unknown_one_is_none() {
        assert!(!is_prefix(4, 0, 7), "no ancestor");
        assert!(!is_prefix(7, 0, 5), "later than the primary");
        assert!(!is_prefix(5, 0, 9), "the primary's own beginning is not known");
        assert!(differs(place(1, 0), Generation(3), &[begins(3, 3, 0)]).is_some(), "nonsense does not hang");
    }
}
