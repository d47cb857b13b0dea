//! A switchover that takes long.

use super::*;
use kaa_core::replication::Replication;

impl Play {
    fn record(&mut self) -> &mut Replication {
        let database = self.domain.databases.get_mut(&SHOP.into()).unwrap();
        database.replicated.as_mut().unwrap().record.as_mut().unwrap()
    }
}

/// What is planned so long after now: why a request is given up.
fn given_up(play: &Play, ms: u64) -> Vec<String> {
    let planned = grants::plan(&play.domain, Millis(play.domain.time.0 + ms), &Timing::default());
    let why = |command: &Command| match command {
        Command::RequestSwitchover(RequestSwitchover { what: Asked::Cancel, why, .. }) => why.clone(),
        other => panic!("{other:?}"),
    };
    planned.iter().map(why).collect()
}

#[test]
fn it_waits_for_the_checkpoint_of_the_primary_and_not_for_long_for_its_target() {
    let mut play = running(WhenAlone::Degrade);
    assert_eq!(play.switchover(Some(2)), "Changed");
    assert_eq!(
        play.said_waits(),
        ["a switchover was requested, and its target is ready: the primary writes a checkpoint before it closes"]
    );
    assert_eq!(given_up(&play, 599_000), [""; 0]);
    let why = "it did not begin within 600 s: the primary, which writes a checkpoint first, has not stood down";
    assert_eq!(given_up(&play, 600_000), [why]);
    // A third server joins meanwhile, so that the target does not begin alone.
    play.record().joining = Some(ArchiveId(3));
    assert_eq!(given_up(&play, 599_000), [""; 0]);
    play.record().joining = None;
    play.lose(1);
    let waits = play.said_waits();
    assert!(waits.contains(&"a switchover was requested and has not begun".to_owned()), "{waits:?}");
    assert_eq!(given_up(&play, 59_000), [""; 0]);
    let why = "it did not begin within 60 s: its target is not in the sync set or not up, or the primary is not";
    assert_eq!(given_up(&play, 60_000), [why]);
    play.returns(1);
    play.lose(0);
    assert_eq!(given_up(&play, 60_000), [why], "the primary is away");
}
