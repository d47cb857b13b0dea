//! Keeps, at every server, the log that another one still lacks, so that a standby which is behind can stream from whichever server
//! is the primary next.
//!
//! What a slot retains is known at the primary only: slots are neither in the log nor in a copy. So the primary writes how far each
//! member is into a table, and a standby, which has all that the primary writes, moves slots of its own there. It needs no agent
//! for that, and what it reads is never ahead of its own log. A value is as new as the last whole [`UNIT`]: this writes a few rows
//! for each of them, and nothing in a database that rests.

use super::configuration::{self, PREFIX};
use super::error::Error;
use super::session::Session;
use super::{Position, Role, Server, Settings};
use kaa_core::domain::ids::ArchiveId;
use std::collections::BTreeMap;

/// Positions are told in whole units, in bytes: those of the files of the log.
const UNIT: u64 = 16 << 20;
/// No server has more slots.
const MOST: usize = 64;
/// The slots of members. One that holds back vacuum is of a time as primary.
const SLOTS: &str = "SELECT slot_name::text, restart_lsn::text, active, coalesce(wal_status = 'lost', false), \
    xmin IS NOT NULL FROM pg_replication_slots WHERE slot_type = 'physical'";
const IS_TOLD: &str = "SELECT to_regclass('kaa.received') IS NOT NULL";
const MAKE_TABLE: &str = "CREATE SCHEMA IF NOT EXISTS kaa; CREATE TABLE IF NOT EXISTS kaa.received \
    (archive bigint PRIMARY KEY, position pg_lsn NOT NULL, generation integer NOT NULL)";

/// How far each member has the log.
type Received = BTreeMap<ArchiveId, Position>;

/// The slot of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub name: String,
    /// From where on it retains log; `None` if it has lost it.
    at: Option<Position>,
    pub active: bool,
    /// Whether what it retained is gone, or it holds back vacuum too.
    spoilt: bool,
    pub lost: bool,
}

/// What is done about a slot at a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Make(String),
    Drop(String),
    Advance(String, Position),
}

/// Looks after the slots of a server, of the role that it had when this was made, while something else is done with it.
#[derive(Clone, Debug)]
pub struct Slots {
    settings: Settings,
    own: ArchiveId,
    role: Role,
}

impl Server {
    /// What looks after the slots of this server, on the volume of the archive `own`.
    ///
    /// # Errors
    /// If the server does not run.
    pub fn slots(&self, own: ArchiveId) -> Result<Slots, Error> {
        Ok(Slots { settings: self.settings.clone(), own, role: self.living()?.role })
    }
}

impl Slots {
    /// Does it once: a primary tells how far each member is, a standby moves its slots there, and makes and drops them as they are
    /// at the primary. Does nothing at a server that has no such role. It may be dropped, and called again. `members` are the archives that
    /// have a slot at a primary: one that was dropped by hand is made again.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub async fn tend(&self, members: &[ArchiveId]) -> Result<(), Error> {
        match self.role {
            Role::Fenced => Ok(()),
            Role::Primary { generation } => self.tell(generation, members).await,
            Role::Follows { generation } => self.keep(generation).await,
        }
    }

    /// At a primary. No client waits for what is written, and it may be lost.
    async fn tell(&self, generation: u32, members: &[ArchiveId]) -> Result<(), Error> {
        let session = Session::connect(&self.settings).await?;
        let flushed = super::grant::flushed(&session).await?;
        let slots = list(&session).await?;
        for slot in slots.iter().filter(|slot| slot.lost && !slot.active) {
            renew(&session, &slot.name).await?;
        }
        let received = received(self.own, flushed, &slots);
        let wanted = members.iter().map(|member| configuration::slot(*member));
        for name in wanted.filter(|name| !slots.iter().any(|slot| slot.name == *name)) {
            tracing::warn!(name, "the slot of a member was dropped: it is made again");
            if let Err(error) = make(&session, &name).await {
                tracing::warn!(%error, name, "it is tried again");
            }
        }
        if told(&session, generation).await? == received {
            return Ok(());
        }
        let rows: Vec<String> =
            received.iter().map(|(archive, at)| format!("({archive}, '{at}', {generation})")).collect();
        let write = format!(
            "SET synchronous_commit = off; BEGIN; {MAKE_TABLE}; DELETE FROM kaa.received; \
                INSERT INTO kaa.received VALUES {}; COMMIT",
            rows.join(", ")
        );
        session.run("tell how far the members are", &write).await
    }

    /// At a standby.
    async fn keep(&self, generation: u32) -> Result<(), Error> {
        let session = Session::connect(&self.settings).await?;
        let (told, slots) = (told(&session, generation).await?, list(&session).await?);
        for Slot { name, .. } in slots.iter().filter(|slot| slot.lost) {
            tracing::warn!(
                name,
                "too much log was kept for a member that is away: it may have to be copied after a failover"
            );
        }
        for change in changes(self.own, &told, &slots) {
            match change {
                Change::Make(name) => make(&session, &name).await?,
                Change::Drop(name) => remove(&session, &name).await?,
                Change::Advance(name, to) => {
                    let advance = format!("SELECT pg_replication_slot_advance('{name}', '{to}')");
                    session.rows("advance a slot", &advance).await?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a slot, which keeps log from now on.
pub(super) async fn make(session: &Session, name: &str) -> Result<(), Error> {
    let make = format!("SELECT pg_create_physical_replication_slot('{name}', true)");
    session.rows("make a slot", &make).await.map(drop)
}

/// Drops a slot that is not in use.
pub(super) async fn remove(session: &Session, name: &str) -> Result<(), Error> {
    session.rows("drop a slot", &format!("SELECT pg_drop_replication_slot('{name}')")).await.map(drop)
}

/// Makes a slot again that has lost its log. Without it its member would not learn that it lacks log, and nothing would be kept for it
/// while it is copied.
pub(super) async fn renew(session: &Session, name: &str) -> Result<(), Error> {
    tracing::warn!(name, "too much log was kept for a member that is away: it has to be copied");
    // In one statement: should this be dropped between two, the slot would be missing.
    let renew =
        format!("SELECT pg_drop_replication_slot('{name}'), pg_create_physical_replication_slot('{name}', true)");
    session.rows("make a slot again", &renew).await.map(drop)
}

/// The slots of members at a server.
pub(super) async fn list(session: &Session) -> Result<Vec<Slot>, Error> {
    let mut slots = Vec::new();
    for row in session.rows("list the slots", SLOTS).await? {
        let (name, at, lost): (String, Option<String>, bool) = (row.get(0), row.get(1), row.get(3));
        if name.starts_with(PREFIX) {
            let at = at.and_then(|at| at.parse().ok());
            slots.push(Slot { name, at, active: row.get(2), spoilt: lost || row.get(4), lost });
        }
    }
    Ok(slots)
}

/// What the primary of a generation has told; nothing if it has not yet.
async fn told(session: &Session, generation: u32) -> Result<Received, Error> {
    if !session.row("look for what is told", IS_TOLD).await?.get::<_, bool>(0) {
        return Ok(Received::new());
    }
    let rows = format!(
        "SELECT archive::text, position::text FROM kaa.received WHERE generation = {generation} ORDER BY archive LIMIT {MOST}"
    );
    let mut received = Received::new();
    for row in session.rows("learn how far the members are", &rows).await? {
        let (archive, at): (String, String) = (row.get(0), row.get(1));
        if let (Ok(archive), Ok(at)) = (archive.parse(), at.parse()) {
            received.insert(ArchiveId(archive), at);
        }
    }
    Ok(received)
}

/// How far each member is, by the slots of the primary, which is one of them. A slot that has lost its log keeps nothing anywhere.
fn received(own: ArchiveId, flushed: Position, slots: &[Slot]) -> Received {
    let whole = |at: Position| Position(at.0 / UNIT * UNIT);
    let of = |slot: &Slot| {
        let archive = slot.name.strip_prefix(PREFIX)?.parse().ok()?;
        Some((ArchiveId(archive), whole(slot.at?)))
    };
    slots.iter().filter_map(of).take(MOST - 1).chain([(own, whole(flushed))]).collect()
}

/// What a standby does about its slots. Where nothing is told they stay as they are; one that has more than is told stays too, since
/// the member had it.
fn changes(own: ArchiveId, told: &Received, slots: &[Slot]) -> Vec<Change> {
    let mut changes = Vec::new();
    if told.is_empty() {
        return changes;
    }
    let wanted: BTreeMap<String, Position> =
        told.iter().filter(|(it, _)| **it != own).map(|(it, at)| (configuration::slot(*it), *at)).collect();
    for slot in slots.iter().filter(|slot| !slot.active && !wanted.contains_key(&slot.name)) {
        changes.push(Change::Drop(slot.name.clone()));
    }
    for (name, at) in wanted {
        match slots.iter().find(|slot| slot.name == name) {
            None => changes.push(Change::Make(name)),
            Some(slot) if slot.active => {}
            Some(slot) if slot.spoilt => changes.extend([Change::Drop(name.clone()), Change::Make(name)]),
            Some(slot) if slot.at.is_some_and(|before| before < at) => changes.push(Change::Advance(name, at)),
            Some(_) => {}
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(archive: u64, at: u64) -> Slot {
        let name = configuration::slot(ArchiveId(archive));
        Slot { name, at: Some(Position(at)), active: false, spoilt: false, lost: false }
    }

    fn told(members: &[(u64, u64)]) -> Received {
        members.iter().map(|(archive, at)| (ArchiveId(*archive), Position(*at))).collect()
    }

    /// What the standby on archive 2 does.
    fn done(told: &Received, slots: &[Slot]) -> Vec<String> {
        let words = |change| match change {
            Change::Make(name) => format!("make {name}"),
            Change::Drop(name) => format!("drop {name}"),
            Change::Advance(name, at) => format!("{name} to {at}"),
        };
        changes(ArchiveId(2), told, slots).into_iter().map(words).collect()
    }

    #[test]
    fn a_standby_has_the_slots_of_all_others_where_the_primary_says_that_they_are() {
        let told = told(&[(1, 0x50), (2, 0x40), (3, 0x20)]);
        assert_eq!(done(&told, &[]), ["make kaa_1", "make kaa_3"]);
        assert_eq!(done(&told, &[slot(1, 0x30), slot(3, 0x20)]), ["kaa_1 to 0/50"]);
        assert_eq!(done(&told, &[slot(1, 0x60), slot(3, 0x30)]), [""; 0], "never back");
    }

    #[test]
    fn the_slot_of_a_member_that_is_gone_is_dropped_and_nothing_else() {
        let here = [slot(1, 0x50), slot(2, 0x10), slot(4, 0x10)];
        assert_eq!(done(&told(&[(1, 0x50), (2, 0x40)]), &here), ["drop kaa_2", "drop kaa_4"]);
        let active = Slot { active: true, ..slot(4, 0x10) };
        assert_eq!(done(&told(&[(1, 0x50)]), &[slot(1, 0x50), active]), [""; 0], "it is in use");
        assert_eq!(done(&told(&[]), &here), [""; 0], "the primary has said nothing yet");
    }

    #[test]
    fn a_slot_that_lost_its_log_or_holds_back_vacuum_is_recreated() {
        let lost = Slot { at: None, spoilt: true, lost: true, ..slot(1, 0) };
        assert_eq!(done(&told(&[(1, 0x50)]), &[lost]), ["drop kaa_1", "make kaa_1"]);
        let vacuum = Slot { spoilt: true, ..slot(1, 0x60) };
        assert_eq!(done(&told(&[(1, 0x50)]), &[vacuum]), ["drop kaa_1", "make kaa_1"]);
    }

    #[test]
    fn a_primary_tells_whole_files_of_itself_and_of_those_whose_log_it_has() {
        let lost = Slot { at: None, lost: true, ..slot(3, 0) };
        let other = Slot { name: "kaa_backup".to_owned(), ..slot(9, UNIT) };
        let found = received(ArchiveId(1), Position(5 * UNIT + 7), &[slot(2, 4 * UNIT - 1), lost, other]);
        assert_eq!(found, told(&[(1, 5 * UNIT), (2, 3 * UNIT)]));
    }
}
