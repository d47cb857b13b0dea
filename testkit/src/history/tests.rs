//! Tests of the check: readable cases, and random histories against a check that tries every order.

use super::{Event, History, Operation, Value};
use crate::{Chance, tier};

fn history(text: &str) -> History {
    text.parse().unwrap()
}

#[track_caller]
fn good(text: &str) {
    let verdict = history(text).check();
    assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
}

#[track_caller]
fn bad(text: &str) {
    assert!(history(text).check().is_err(), "{text}");
}

#[test]
fn one_after_the_other() {
    good("w 0..1 sets - -> a\n r 2..3 sees a\n w 4..5 sets a -> b\n r 6..7 sees b");
    good("r 0..1 sees -");
    good("");
}

#[test]
fn a_read_beside_a_write_may_see_either() {
    good("w 0..1 sets - -> a\n w 2..9 sets a -> b\n r 3..4 sees a\n r 5..6 sees b");
    good("w 0..1 sets - -> a\n w 2..9 sets a -> b\n r 3..4 sees b\n r 5..6 sees b");
}

#[test]
fn a_stale_read_is_found() {
    bad("w 0..1 sets - -> a\n w 2..3 sets a -> b\n r 4..5 sees a");
    bad("r 0..1 sees a\n w 2..3 sets - -> a");
}

#[test]
fn no_read_goes_back() {
    bad("w 0..1 sets - -> a\n w 2..9 sets a -> b\n r 3..4 sees b\n r 5..6 sees a");
}

#[test]
fn an_acknowledged_write_that_is_lost_is_found() {
    bad("w 0..1 sets - -> a\n r 2..3 sees -");
    bad("w 0..1 sets - -> a\n w 2..3 sets a -> b\n v 4..5 sets a -> c\n r 6..7 sees c");
}

#[test]
fn two_that_expect_the_same_cannot_both_have_it() {
    bad("w 0..1 sets - -> a\n w 2..9 sets a -> b\n v 2..9 sets a -> c");
    good("w 0..1 sets - -> a\n w 2..9 sets a -> b\n v 2..9 sees b");
}

#[test]
fn an_unknown_outcome_may_have_happened_or_not() {
    good("w 0..1 sets - -> a\n w 2.. sets a -> b\n r 5..6 sees a\n r 7..8 sees a");
    good("w 0..1 sets - -> a\n w 2.. sets a -> b\n r 5..6 sees b");
}

#[test]
fn an_unknown_outcome_may_come_long_after_but_not_before_it_was_asked_for_and_only_once() {
    good("w 0..1 sets - -> a\n w 2.. sets a -> b\n r 5..6 sees a\n r 90..91 sees b");
    bad("w 0..1 sets - -> a\n r 2..3 sees b\n w 4.. sets a -> b");
    bad("w 0..1 sets - -> a\n w 2.. sets a -> b\n v 5..6 sets b -> a\n r 7..8 sees b");
}

#[test]
fn an_unknown_outcome_happens_only_where_it_fits() {
    bad("w 0..1 sets - -> a\n w 2..3 sets a -> c\n v 4.. sets a -> b\n r 5..6 sees b");
}

#[test]
fn what_is_stuck_is_told() {
    let verdict = history("w 0..1 sets - -> a\n r 2..3 sees -").check().unwrap_err();
    assert_eq!(
        verdict.to_string(),
        "after\n  w 0..1 sets - -> a\nit holds a, and one of these would be next:\n  r 2..3 sees -\n"
    );
}

#[test]
fn a_history_is_the_same_after_it_was_written_and_read() {
    let text = "w 0..1 sets - -> a\nv 2.. sets a -> b\nr 3..4 sees b\n";
    assert_eq!(history(text).to_string(), text);
}

/// The check of thousands of operations, many with an unknown outcome, takes a moment: the search does not branch at
/// each.
#[test]
fn a_long_history_is_judged_soon() {
    let mut long = History::default();
    let mut now: Value = None;
    for step in 0..2000_u64 {
        let (new, at) = (Some(step.to_string()), step * 10);
        let unknown = step % 7 == 3;
        let operation = Operation::Set { expected: now.clone(), new: new.clone() };
        let completed = (!unknown).then_some(at + 25);
        long.push(Event { client: "w".to_owned(), invoked: at, completed, operation });
        // Half of the operations with an unknown outcome had no effect.
        if step % 14 != 3 {
            now = new;
        }
        long.push(Event {
            client: "r".to_owned(),
            invoked: at + 8,
            completed: Some(at + 30),
            operation: Operation::Observed(now.clone()),
        });
    }
    long.check().unwrap_or_else(|why| panic!("{why}"));
}

/// Tries every order of every selection.
fn judged_by_brute_force(events: &[Event]) -> bool {
    fn goes_on(events: &[Event], done: &mut Vec<bool>, holds: &Value) -> bool {
        if events.iter().zip(done.iter()).all(|(event, done)| *done || event.completed.is_none()) {
            return true;
        }
        for at in 0..events.len() {
            let is_late = |other: &Event| other.completed.is_some_and(|completed| completed < events[at].invoked);
            let overtakes = events.iter().zip(done.iter()).any(|(other, done)| !done && is_late(other));
            if done[at] || overtakes {
                continue;
            }
            let after = match &events[at].operation {
                Operation::Observed(seen) if seen == holds => holds.clone(),
                Operation::Set { expected, new } if expected == holds => new.clone(),
                _ => continue,
            };
            done[at] = true;
            let explained = goes_on(events, done, &after);
            done[at] = false;
            if explained {
                return true;
            }
        }
        false
    }
    goes_on(events, &mut vec![false; events.len()], &None)
}

fn random(chance: &mut Chance) -> History {
    let mut made = History::default();
    let length = 1 + chance.below(7);
    for new in 0..length {
        let invoked = chance.below(12) as u64;
        // Most expected and observed values are values of another operation.
        let other = |chance: &mut Chance| (chance.below(4) > 0).then(|| chance.below(length).to_string());
        let operation = if chance.below(3) == 0 {
            Operation::Observed(other(chance))
        } else {
            Operation::Set { expected: other(chance), new: Some(new.to_string()) }
        };
        let unknown = matches!(operation, Operation::Set { .. }) && chance.below(4) == 0;
        let completed = (!unknown).then(|| invoked + chance.below(8) as u64);
        made.push(Event { client: "c".to_owned(), invoked, completed, operation });
    }
    made
}

#[test]
fn random_histories_are_judged_as_by_trying_every_order() {
    let histories = tier().of(2_000, 5_000, 20_000, 100_000);
    let mut chance = Chance::new("random histories");
    let mut linearizable = 0;
    for _ in 0..histories {
        let made = random(&mut chance);
        let expected = judged_by_brute_force(made.events());
        assert_eq!(made.check().is_ok(), expected, "{made}");
        linearizable += u64::from(expected);
    }
    println!("{linearizable} of {histories} are linearizable");
    assert!(linearizable > histories / 50 && linearizable < histories, "one verdict was hardly asked for");
}
