//! Continuing by an operator's command, case by case: which server continues, what may be lost, when the command is
//! refused, and for which pods the founder waits.

use kaa_core::domain::ids::{MembershipEpoch, RaftId, ServerId, Uid};
use kaa_core::membership::quorum_override::Position;
use kaa_core::membership::recover::{Answer, InTheWay, Judgement, Look, Loss, Needless, Old, Survey};
use kaa_core::membership::recover::{founder, judge};
use std::collections::{BTreeMap, BTreeSet};

fn server(ordinal: u32) -> ServerId {
    format!("admin-{ordinal}").into()
}

fn at(term: u64, index: u64) -> Position {
    Position { term, index }
}

/// The log id of ordinal `n` is `n + 1`.
fn answer(ordinal: u32, last: Position) -> (ServerId, Answer) {
    let log = RaftId(u64::from(ordinal) + 1);
    (server(ordinal), Answer { ordinal, wanted: true, log, last, sealed: false, quorum: false })
}

/// The first `voters` servers vote, the first `wanted` servers are wanted, and these servers answer.
fn survey(voters: u32, wanted: u32, answers: &[(ServerId, Answer)]) -> Survey {
    let answers: BTreeMap<_, _> = answers.iter().cloned().collect();
    let answers = answers.into_iter().map(|(server, mut answer)| {
        answer.wanted = answer.ordinal < wanted;
        (server, answer)
    });
    Survey {
        halves: vec![(1..=u64::from(voters)).map(RaftId).collect()],
        holders: (0..voters).map(|ordinal| (RaftId(u64::from(ordinal) + 1), server(ordinal))).collect(),
        answers: answers.collect(),
        wanted: (0..wanted).map(server).collect(),
    }
}

fn possible(survey: &Survey) -> Loss {
    match judge(survey) {
        Judgement::Possible(loss) => loss,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_log_that_goes_furthest_goes_on() {
    let founder_of = |answers: &[(ServerId, Answer)]| founder(&answers.iter().cloned().collect()).cloned();
    assert_eq!(founder_of(&[answer(0, at(2, 9)), answer(1, at(3, 1))]), Some(server(1)), "the term counts first");
    assert_eq!(founder_of(&[answer(0, at(3, 1)), answer(1, at(3, 2))]), Some(server(1)));
    assert_eq!(
        founder_of(&[answer(10, at(3, 1)), answer(2, at(3, 1))]),
        Some(server(2)),
        "ties: by number, not by name"
    );
    assert_eq!(founder_of(&[answer(0, at(0, 0))]), None, "an empty log founds nothing");
    let (unwanted, mut better) = answer(1, at(3, 2));
    better.wanted = false;
    assert_eq!(founder_of(&[answer(0, at(3, 1)), (unwanted, better)]), Some(server(0)));
}

#[test]
fn it_is_said_what_may_be_lost() {
    let loss = possible(&survey(3, 1, &[answer(0, at(3, 17))]));
    assert_eq!((loss.founder.clone(), loss.last, loss.nothing), (server(0), at(3, 17), false));
    assert_eq!(loss.to_string(), "entries after 17 that only admin-1, admin-2 may hold");
    let loss = possible(&survey(5, 2, &[answer(0, at(3, 17)), answer(1, at(3, 20))]));
    assert_eq!(loss.to_string(), "entries after 20 that only admin-2, admin-3, admin-4 may hold");
    // A server that is not wanted answers, and its log is more advanced: that part is lost as well.
    let loss = possible(&survey(5, 1, &[answer(0, at(3, 17)), answer(1, at(3, 20))]));
    assert!(loss.founder == server(0) && loss.outside.contains(&server(1)), "{loss:?}");
    // A log whose server is not known.
    let mut nameless = survey(3, 1, &[answer(0, at(3, 17))]);
    nameless.holders.remove(&RaftId(3));
    assert_eq!(
        possible(&nameless).to_string(),
        "entries after 17 that only admin-1, and 1 logs of unknown servers, may hold"
    );
}

#[test]
fn wanted_servers_that_never_come_back_are_given_up_too() {
    // All three are wanted, and two lie on nodes that are gone.
    let loss = possible(&survey(3, 3, &[answer(0, at(3, 17))]));
    assert_eq!(loss.outside, BTreeSet::from([server(1), server(2)]));
    // Two of four: whichever two they are, they have everything committed.
    let loss = possible(&survey(4, 4, &[answer(0, at(3, 17)), answer(1, at(3, 16))]));
    assert!(loss.nothing && loss.to_string() == "nothing that was committed", "{loss:?}");
}

#[test]
fn what_needs_no_loss_is_refused() {
    let needless = |survey: &Survey| match judge(survey) {
        Judgement::Needless(why) => why,
        other => panic!("{other:?}"),
    };
    let mut led = answer(1, at(3, 9));
    led.1.quorum = true;
    assert_eq!(needless(&survey(3, 1, &[answer(0, at(3, 9)), led])), Needless::Leader(server(1)));
    assert_eq!(needless(&survey(3, 1, &[answer(0, at(3, 9)), answer(1, at(3, 9))])), Needless::Majority);
    assert_eq!(needless(&survey(2, 1, &[answer(0, at(3, 9))])), Needless::Override);
    // An override that was started and is no longer necessary: it is completed nevertheless.
    let mut sealed = answer(0, at(3, 9));
    sealed.1.sealed = true;
    assert_eq!(needless(&survey(2, 2, &[sealed])), Needless::Override);
    assert!(matches!(judge(&survey(3, 1, &[])), Judgement::NoLog));
    assert!(matches!(judge(&survey(3, 1, &[answer(0, at(0, 0))])), Judgement::NoLog));
    assert!(matches!(judge(&survey(3, 0, &[answer(0, at(3, 9))])), Judgement::NoLog), "nobody is wanted");
}

fn look(ordinal: u32, pod: Option<&str>, epoch: Option<u64>) -> (ServerId, Look) {
    (server(ordinal), Look { pod: Ok(pod.map(Uid::from)), epoch: epoch.map(MembershipEpoch) })
}

fn in_the_way(old: &mut Old, looks: &[(ServerId, Look)]) -> Vec<String> {
    let judged = old.in_the_way(looks.iter().cloned().collect(), MembershipEpoch(2));
    judged.into_iter().map(|(server, why)| format!("{server}: {why}")).collect()
}

#[test]
fn the_founder_waits_until_the_old_pods_are_gone() {
    let mut old = Old::default();
    let first = [look(1, Some("a"), None), look(2, Some("b"), Some(1)), look(3, None, None)];
    // The founder looks after the swap, so that a pod counts that started before it, in the old epoch. The model's
    // mutation `pods gone checked before the swap` shows why.
    let waits = ["admin-1: its pod (uid a) is still there", "admin-2: its pod (uid b) is still there"];
    assert_eq!(in_the_way(&mut old, &first), waits);
    assert_eq!(in_the_way(&mut old, &first), waits, "whoever is merely looked at twice is still there");
    let gone = [look(1, None, None), look(2, Some("b"), Some(2)), look(3, Some("c"), None)];
    assert!(in_the_way(&mut old, &gone).is_empty(), "gone; answers with the new epoch; came after the swap");
    assert!(in_the_way(&mut old, &[look(1, Some("d"), None)]).is_empty(), "another pod came after the swap");
    // A founder that restarts may wait for more pods, but never for fewer.
    assert_eq!(in_the_way(&mut Old::default(), &gone), ["admin-3: its pod (uid c) is still there"]);
}

#[test]
fn what_is_not_known_is_in_the_way() {
    let mut old = Old::default();
    let why = || "no permission to get pods".to_owned();
    let unknown = [(server(1), Look { pod: Err(why()), epoch: None })];
    assert_eq!(
        in_the_way(&mut old, &unknown),
        ["admin-1: it is not known whether its pod is gone: no permission to get pods"]
    );
    assert_eq!(in_the_way(&mut old, &[look(1, Some("a"), None)]).len(), 1, "the first that is read counts as old");
    assert!(matches!(
        old.in_the_way(unknown.into_iter().collect(), MembershipEpoch(2)).values().next(),
        Some(InTheWay::Unknown(_))
    ));
    let answers = [(server(1), Look { pod: Err(why()), epoch: Some(MembershipEpoch(2)) })];
    assert!(in_the_way(&mut old, &answers).is_empty(), "its own word suffices");
}
