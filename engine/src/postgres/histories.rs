//! The history files of the log: which timeline continues which one, and from where.
//!
//! A promoted server takes the first number without a file. So a file without content takes a number out of use: it
//! names no timeline as a parent, hence no server takes it for a continuation of its own.

use super::control_file::{ControlFile, segment_name, timeline_of};
use super::error::Error;
use super::files;
use super::{Begins, Position, Settings};
use kaa_core::domain::ids::Generation;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A history: each ancestor with the position at which it was left, the oldest first.
type History = Vec<(u32, Position)>;

fn directory(settings: &Settings) -> PathBuf {
    settings.pgdata().join("pg_wal")
}

fn path(settings: &Settings, timeline: u32) -> PathBuf {
    directory(settings).join(format!("{timeline:08X}.history"))
}

fn parse(text: &str) -> History {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let entries = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    });
    entries.collect()
}

/// The timeline that has this position in the history of `timeline`.
fn holds(timeline: u32, history: &History, position: Position) -> u32 {
    history.iter().find(|(_, end)| position < *end).map_or(timeline, |(ancestor, _)| *ancestor)
}

/// Whether a server with this control file may recover along this history: what PostgreSQL checks at a start, which
/// fails if not.
fn continues(control: &ControlFile, timeline: u32, history: &History) -> bool {
    let consistent = Position(control.minimum.0.saturating_sub(1));
    holds(timeline, history, control.checkpoint) == control.timeline
        && (control.minimum == Position(0) || holds(timeline, history, consistent) == control.minimum_timeline)
}

fn all(settings: &Settings) -> Result<BTreeMap<u32, History>, Error> {
    let wal = directory(settings);
    let failed = |source| Error::File { path: wal.clone(), source };
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(&wal).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(timeline) = timeline_of(&name).filter(|_| name.ends_with(".history")) {
            found.insert(timeline, parse(&files::read(&entry.path())?.unwrap_or_default()));
        }
    }
    Ok(found)
}

/// Before a start: the server recovers along the latest history that continues its data, and finds no later one, which
/// would keep it from starting. It looks for one number after the other, so that no number before that may be missing.
pub(super) fn tidy(settings: &Settings, control: &ControlFile) -> Result<(), Error> {
    let base = control.timeline.max(control.minimum_timeline);
    let found = all(settings)?;
    let last = last_continuing(&found, control, base);
    for timeline in found.range(last + 1..).map(|(timeline, _)| *timeline) {
        tracing::info!(timeline, "a history that does not continue this data: removed");
        files::remove(&path(settings, timeline))?;
    }
    for timeline in (base + 1..last).filter(|it| !found.contains_key(it)) {
        files::replace(&path(settings, timeline), b"", settings.user)?;
    }
    Ok(())
}

/// The latest timeline along which a server with this control file recovers.
pub(super) fn latest(settings: &Settings, control: &ControlFile) -> Result<u32, Error> {
    let base = control.timeline.max(control.minimum_timeline);
    let found = all(settings)?;
    Ok(last_continuing(&found, control, base))
}

fn last_continuing(found: &BTreeMap<u32, History>, control: &ControlFile, base: u32) -> u32 {
    let later = found.range(base + 1..);
    later.filter(|(it, history)| continues(control, **it, history)).map(|(it, _)| *it).next_back().unwrap_or(base)
}

/// The timeline of the last byte before `end`, of a server that has recovered along the latest history that continues
/// its data. `None` if the files do not say.
///
/// A server that was promoted, and ended before its first own commit, has log of its generation and no row that says
/// so.
pub(super) fn timeline_before(settings: &Settings, control: &ControlFile, end: Position) -> Result<Option<u32>, Error> {
    let base = control.timeline.max(control.minimum_timeline);
    let found = all(settings)?;
    let latest = found.range(base..).rfind(|(it, history)| continues(control, **it, history));
    let last = Position(end.0.saturating_sub(1));
    let Some(timeline) = latest.map(|(it, history)| holds(*it, history, last)) else { return Ok(Some(base)) };
    // It may hold log of an ancestor instead, past the point where that was left.
    let name = segment_name(timeline, last, control.segment);
    Ok(directory(settings).join(name).exists().then_some(timeline))
}

/// The timelines that begin past this end of a server's log. A receiver fetches their histories before their log, and may
/// end between the two.
pub(super) fn unreached(settings: &Settings, end: Position) -> Result<Vec<u32>, Error> {
    let found = all(settings)?.into_iter();
    Ok(found.filter(|(_, history)| history.last().is_some_and(|(_, at)| *at > end)).map(|(it, _)| it).collect())
}

/// Removes the histories of these timelines. The server does not run.
pub(super) fn forget(settings: &Settings, timelines: &[u32]) -> Result<(), Error> {
    timelines.iter().try_for_each(|timeline| files::remove(&path(settings, *timeline)))
}

/// Has the next promotion take this number. `from` is a timeline that the server's is not before.
pub(super) fn plant(settings: &Settings, from: u32, generation: u32) -> Result<(), Error> {
    let found = all(settings)?;
    if let Some((later, _)) = found.range(generation..).next() {
        return Err(Error::State(format!(
            "timeline {later} exists, so generation {generation} cannot be promoted here"
        )));
    }
    for timeline in (from + 1..generation).filter(|it| !found.contains_key(it)) {
        files::replace(&path(settings, timeline), b"", settings.user)?;
    }
    Ok(())
}

/// Gives a server that does not run the histories that it lacks. A standby asks its primary for all of them from its own timeline on,
/// also for numbers that are no ancestors, and connects to none that lacks one. Data that was copied has only the last one.
pub(super) fn complete(settings: &Settings) -> Result<(), Error> {
    let found = all(settings)?;
    let Some((latest, _)) = found.last_key_value() else { return Ok(()) };
    let text = files::read(&path(settings, *latest))?.unwrap_or_default();
    for timeline in (2..*latest).filter(|it| !found.contains_key(it)) {
        files::replace(&path(settings, timeline), of_ancestor(&text, timeline).as_bytes(), settings.user)?;
    }
    Ok(())
}

/// The history of an ancestor, as it was written: each server puts an empty line and one of its own behind that of the one before.
/// Empty if it is no ancestor.
fn of_ancestor(text: &str, timeline: u32) -> &str {
    let own = format!("{timeline}\t");
    let mut places = text.match_indices(&own).map(|(at, _)| &text[..at]);
    let before = places.find(|before| before.is_empty() || before.ends_with('\n')).unwrap_or_default();
    before.strip_suffix('\n').unwrap_or_default()
}

/// A generation has the number of its timeline.
fn begins(timeline: u32, parent: u32, at: Position) -> Begins {
    Begins { generation: Generation(timeline.into()), parent: Generation(parent.into()), at }
}

/// A file of the log that a server needs to recover from there until it is consistent, and does not have although it has
/// a later one. Those after all that it has can be streamed: the source wrote them meanwhile.
///
/// It looks for each one on the latest timeline that has a part of it, and takes an older timeline's if there is none,
/// although that one continues another branch.
pub(super) fn missing(settings: &Settings, control: &ControlFile, from: Position) -> Result<Option<String>, Error> {
    let latest = control.minimum_timeline;
    let history = parse(&files::read(&path(settings, latest))?.unwrap_or_default());
    let segments = from.0 / control.segment..=control.minimum.0.saturating_sub(1) / control.segment;
    let names = segments.rev().map(|number| {
        let last = Position((number + 1) * control.segment - 1);
        segment_name(holds(latest, &history, last), last, control.segment)
    });
    let exists = |name: &String| directory(settings).join(name).exists();
    Ok(names.skip_while(|name| !exists(name)).find(|name| !exists(name)))
}

/// How the ancestors of a timeline began, the last one last. The first of them has no beginning.
pub(super) fn ancestors(settings: &Settings, generation: u32) -> Result<Vec<Begins>, Error> {
    let text = files::read(&path(settings, generation))?.unwrap_or_default();
    let history = parse(&text);
    let pairs = history.iter().zip(history.iter().skip(1));
    Ok(pairs.map(|((parent, at), (timeline, _))| begins(*timeline, *parent, *at)).collect())
}

/// How a timeline began; `None` while there is no history of it, or if it begins before its parent did.
pub(super) fn beginning(settings: &Settings, generation: u32) -> Result<Option<Begins>, Error> {
    let history = parse(&files::read(&path(settings, generation))?.unwrap_or_default());
    let last = history.last().filter(|_| history.is_sorted_by_key(|(_, at)| *at));
    Ok(last.map(|(parent, at)| begins(generation, *parent, *at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_of_an_ancestor_is_the_begin_of_a_later_one() {
        let (second, fourth) = ("1\t0/1741568\tno target\n", "1\t0/1741568\tno target\n\n2\t0/5000000\tno target\n");
        let twelfth = format!("{fourth}\n4\t0/506DA68\tno target\n");
        assert_eq!([2, 3, 4, 5].map(|timeline| of_ancestor(&twelfth, timeline)), [second, "", fourth, ""]);
        assert_eq!(of_ancestor("", 2), "");
    }

    fn control(timeline: u32, checkpoint: u64, minimum_timeline: u32, minimum: u64) -> ControlFile {
        let (checkpoint, minimum) = (Position(checkpoint), Position(minimum));
        let state = String::new();
        ControlFile {
            system: 1,
            state,
            checkpoint,
            redo: checkpoint,
            timeline,
            minimum,
            minimum_timeline,
            segment: 16 << 20,
            limits: [0; 5],
        }
    }

    #[test]
    fn a_history_is_read_without_its_comments() {
        let text =
            "1\t0/3000110\tno recovery target specified\n\n# a comment\n2\t0/4000000\tno recovery target specified\n";
        assert_eq!(vec![(1, Position(0x300_0110)), (2, Position(0x400_0000))], parse(text));
        assert_eq!(History::new(), parse(""));
    }

    #[test]
    fn a_history_continues_data_that_it_contains() {
        let history = vec![(1, Position(100)), (2, Position(200))];
        assert!(continues(&control(1, 99, 0, 0), 7, &history));
        assert!(
            !continues(&control(1, 100, 0, 0), 7, &history),
            "the checkpoint is past the point where 7 left timeline 1"
        );
        assert!(continues(&control(1, 50, 1, 100), 7, &history), "consistent at the end of timeline 1");
        assert!(!continues(&control(1, 50, 1, 101), 7, &history));
        assert!(continues(&control(2, 150, 7, 300), 7, &history));
        assert!(!continues(&control(1, 50, 0, 0), 7, &History::new()), "a number taken out of use");
    }

    #[test]
    fn a_start_finds_the_latest_history_that_continues_its_data() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(root.path());
        std::fs::create_dir_all(directory(&settings)).unwrap();
        for (timeline, text) in [(3, ""), (5, "1\t0/100\tx\n"), (6, ""), (7, "1\t0/10\tx\n")] {
            std::fs::write(path(&settings, timeline), text).unwrap();
        }
        tidy(&settings, &control(1, 0x80, 1, 0x100)).unwrap();
        let kept: Vec<u32> = all(&settings).unwrap().into_keys().collect();
        assert_eq!(vec![2, 3, 4, 5], kept, "6 and 7 do not continue the data, and no number before 5 is missing");
    }

    #[test]
    fn the_last_byte_is_of_the_timeline_that_has_a_file_with_it() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(root.path());
        std::fs::create_dir_all(directory(&settings)).unwrap();
        let before = |end| timeline_before(&settings, &control(1, 0x80, 0, 0), Position(end)).unwrap();
        assert_eq!(Some(1), before(0x1_0200));
        std::fs::write(path(&settings, 5), "1\t0/10100\tx\n").unwrap();
        std::fs::write(directory(&settings).join("000000010000000000000000"), "").unwrap();
        assert_eq!(Some(1), before(0x1_0100), "the end is where 5 left timeline 1");
        assert_eq!(None, before(0x1_0101), "it is not of timeline 5, of which there is no file");
        std::fs::write(directory(&settings).join("000000050000000000000000"), "").unwrap();
        assert_eq!(Some(5), before(0x1_0101));
    }

    #[test]
    fn timelines_that_begin_past_the_end_are_no_part_of_the_log() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(root.path());
        std::fs::create_dir_all(directory(&settings)).unwrap();
        for (timeline, text) in [(3, ""), (4, "1\t0/100\tx\n"), (6, "1\t0/100\tx\n4\t0/200\tx\n")] {
            std::fs::write(path(&settings, timeline), text).unwrap();
        }
        let unreached = |end| unreached(&settings, Position(end)).unwrap();
        assert_eq!([vec![4, 6], vec![6], vec![6], vec![]], [0xFF, 0x100, 0x1FF, 0x200].map(unreached));
        forget(&settings, &[6]).unwrap();
        assert_eq!(vec![3, 4], all(&settings).unwrap().into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn a_timeline_that_begins_before_its_parent_is_none() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(root.path());
        std::fs::create_dir_all(directory(&settings)).unwrap();
        std::fs::write(path(&settings, 6), "1\t0/100\tx\n4\t0/FF\tx\n").unwrap();
        assert_eq!(None, beginning(&settings, 6).unwrap());
    }

    #[test]
    fn each_file_of_the_log_is_needed_of_the_latest_timeline_in_it() {
        const SEGMENT: u64 = 16 << 20;
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(root.path());
        std::fs::create_dir_all(directory(&settings)).unwrap();
        std::fs::write(path(&settings, 4), "2\t0/4058C38\tx\n").unwrap();
        let missing = || missing(&settings, &control(2, 0, 4, 5 * SEGMENT + 1), Position(3 * SEGMENT + 0x28)).unwrap();
        let add = |name: &str| std::fs::write(directory(&settings).join(name), "").unwrap();
        add("000000020000000000000003");
        add("000000020000000000000004");
        assert_eq!(None, missing(), "all after the first one can be streamed");
        add("000000040000000000000005");
        assert_eq!(Some("000000040000000000000004"), missing().as_deref());
        add("000000040000000000000004");
        assert_eq!(None, missing());
    }

    #[test]
    fn a_promotion_finds_the_number_of_its_generation() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::of_test(root.path());
        std::fs::create_dir_all(directory(&settings)).unwrap();
        plant(&settings, 1, 4).unwrap();
        assert_eq!(vec![2, 3], all(&settings).unwrap().into_keys().collect::<Vec<_>>());
        assert!(plant(&settings, 1, 3).is_err(), "timeline 3 exists");
        assert_eq!(None, beginning(&settings, 3).unwrap());
        std::fs::write(path(&settings, 4), "1\t0/100\tx\n").unwrap();
        let begins = begins(4, 1, Position(0x100));
        assert_eq!(Some(begins), beginning(&settings, 4).unwrap());
    }
}
