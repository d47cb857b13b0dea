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
use super::{Begins, Follows, Position, Role, Server, Settings, Source, histories};
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

/// What is found at once of a server that is to follow: a thread reads files, and each turn of it takes time on a busy machine.
struct Found {
    /// The last timeline of its log.
    timeline: u32,
    /// How that began, if its history is here.
    begins: Option<Begins>,
    /// How it connects.
    conninfo: String,
}

impl Found {
    fn of(settings: &Settings, timeline: u32, source: &Source, name: &str) -> Result<Self, Error> {
        let begins = histories::beginning(settings, timeline)?;
        Ok(Self { timeline, begins, conninfo: configuration::conninfo(settings, source, name)? })
    }
}

/// Why the timeline that is here is not that of the generation of its number, if that is known.
fn begins_elsewhere(found: &Found, history: &[Begins]) -> Option<String> {
    let timeline = found.timeline;
    let known = history.iter().find(|begins| begins.generation.0 == u64::from(timeline));
    let (own, known) = found.begins.zip(known).filter(|(own, known)| own != *known)?;
    Some(format!(
        "timeline {timeline} begins here at {} of timeline {}, and generation {timeline} begins at {} of {}: it was promoted, and not by Kaa",
        own.at, own.parent, known.at, known.parent
    ))
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
        let (to, name) = (source.clone(), configuration::member(own, generation));
        let (found, end) = match self.found_at_start(generation, to.clone(), name.clone()).await? {
            Some(found) => (found, None),
            None => match self.found_at_end(to, name).await? {
                Ok((found, end)) => (found, Some(end)),
                Err(why) => return Ok(Follows::NeedsOverwrite { why }),
            },
        };
        if let Some(why) = begins_elsewhere(&found, history) {
            return Ok(Follows::Outside { why });
        }
        let place = end.map(|end| Place { timeline: Generation(found.timeline.into()), end });
        if let Some(why) = place.and_then(|place| differs(place, Generation(generation.into()), history)) {
            return Ok(Follows::NeedsOverwrite { why });
        }
        // From here on it takes log, whether or not this future is completed.
        if let Some(running) = &mut self.running {
            running.role = Role::Follows { generation };
            running.process.messages().begin();
            running.follows = Some((own, source.clone()));
        }
        let connect = |changeable: &mut Changeable| {
            changeable.follows = Some((found.conninfo, configuration::slot(own)));
            NONE.clone_into(&mut changeable.rule);
        };
        match self.reload(connect).await {
            // Data that was rewound accepts no session before it has received more.
            Ok(_) | Err(Error::NoSql { .. }) => Ok(Follows::Streams),
            Err(error) => Err(error),
        }
    }

    /// What is found at a server that was fenced by its start, if it has data of this generation and of no later one: then its log is
    /// a prefix wherever it ends, since one primary alone has written this timeline. After a rewind its end is not known before it has
    /// received more.
    async fn found_at_start(&mut self, generation: u32, source: Source, name: String) -> Result<Option<Found>, Error> {
        if !self.is_fenced() {
            return Ok(None);
        }
        let settings = self.settings.clone();
        let look = move || {
            let control = ControlFile::read(&settings)?;
            let own = control.timeline.max(control.minimum_timeline);
            let is_of_it = own == generation && histories::latest(&settings, &control)? == generation;
            is_of_it.then(|| Found::of(&settings, generation, &source, &name)).transpose()
        };
        self.in_time(look).await
    }

    /// Fences the server: what is found there, and the exact end of its log; or why one of the two is not known.
    async fn found_at_end(&mut self, source: Source, name: String) -> Result<Result<(Found, Position), String>, Error> {
        let (end, session) = match self.fenced(NONE).await {
            Ok(fenced) => fenced,
            Err(error) if refuses_until_promoted(&error) => {
                return Ok(Err(format!("the end of its log is not known: {error}")));
            }
            Err(error) => return Err(error),
        };
        let written = timeline(&session).await?;
        let settings = self.settings.clone();
        let look = move || {
            let control = ControlFile::read(&settings)?;
            let before = histories::timeline_before(&settings, &control, end)?;
            before.map(|before| Found::of(&settings, before.max(written), &source, &name)).transpose()
        };
        let found = self.in_time(look).await?;
        let unknown = || format!("the timeline of its log before {end} is not known");
        Ok(found.map(|found| (found, end)).ok_or_else(unknown))
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
