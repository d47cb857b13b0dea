//! Faults without a socket, by the clock of a test.

use super::{Answered, Cut, Fate, Faults, Injector};
use crate::server::streams::{Body, whole};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use std::cell::Cell;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// An answer's status, whether the request was carried out, and how long it took.
async fn ask(injector: &Injector) -> (Result<u16, Cut>, bool, Duration) {
    let (acted, began) = (Cell::new(false), Instant::now());
    let act = || {
        acted.set(true);
        Response::new(whole("done"))
    };
    let answer = injector.pass(act).await.map(|answer| answer.status().as_u16());
    (answer, acted.get(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn without_faults_everything_comes_through_at_once() {
    let injector = Injector::default();
    for _ in 0..100 {
        let (answer, acted, took) = ask(&injector).await;
        assert!(matches!(answer, Ok(200)) && acted && took.is_zero());
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_of_the_answers_are_errors_and_some_of_those_were_carried_out() {
    let injector = Injector::default();
    injector.seed(7);
    injector.set(Faults { errors_percent: 50, ..Faults::default() });
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..1000 {
        let (answer, acted, _) = ask(&injector).await;
        *counts.entry((answer.unwrap(), acted)).or_insert(0) += 1;
    }
    let seen: Vec<(u16, bool)> = counts.keys().copied().collect();
    let expected = [(200, true), (429, false), (500, false), (500, true), (503, false), (504, false), (504, true)];
    assert_eq!(seen, expected, "{counts:?}");
    assert!((400..600).contains(&counts[&(200, true)]), "{counts:?}");
}

#[test]
fn the_same_seed_decides_the_same() {
    let decide = |seed| {
        let injector = Injector::default();
        injector.seed(seed);
        let faults = Faults { errors_percent: 30, lost_percent: 30, ..Faults::default() };
        (0..100).map(|_| injector.decide(&faults)).collect::<Vec<Fate>>()
    };
    assert_eq!(decide(1), decide(1));
    assert_ne!(decide(1), decide(2));
    assert!(decide(1).iter().any(|fate| fate.answered == Answered::Never));
}

#[tokio::test(start_paused = true)]
async fn answers_take_their_time_and_some_show_what_was_before() {
    let injector = Injector::default();
    injector.set(Faults { delay: 30 * SECOND, ..Faults::default() });
    let mut early = 0;
    for _ in 0..20 {
        let (began, acted_at) = (Instant::now(), Cell::new(None));
        let act = || {
            acted_at.set(Some(Instant::now()));
            Response::new(whole("done"))
        };
        injector.pass(act).await.unwrap();
        assert_eq!(began.elapsed(), 30 * SECOND);
        early += u32::from(acted_at.get() == Some(began));
    }
    assert!((1..20).contains(&early), "{early} of 20 were carried out before the delay");
}

#[tokio::test(start_paused = true)]
async fn what_is_never_answered_is_cut_when_the_faults_are_over() {
    let injector = Injector::default();
    injector.set(Faults { lost_percent: 100, ..Faults::default() });
    assert!(timeout(3600 * SECOND, ask(&injector)).await.is_err(), "there was an answer");
    let over = async {
        sleep(SECOND).await;
        injector.set(Faults::default());
    };
    let ((answer, _, took), ()) = tokio::join!(ask(&injector), over);
    assert!(answer.is_err());
    assert_eq!(took, SECOND);
}

#[tokio::test(start_paused = true)]
async fn while_it_is_down_there_is_no_answer_and_what_waits_is_cut() {
    let injector = Injector::default();
    injector.set(Faults { delay: 30 * SECOND, ..Faults::default() });
    let down = async {
        sleep(SECOND).await;
        injector.set(Faults { down: true, ..Faults::default() });
    };
    let ((answer, _, took), ()) = tokio::join!(ask(&injector), down);
    assert!(answer.is_err());
    assert_eq!(took, SECOND);
    let (answer, acted, _) = ask(&injector).await;
    assert!(answer.is_err() && !acted);
    injector.set(Faults::default());
    assert!(matches!(ask(&injector).await.0, Ok(200)));
}

/// A watch that says what is sent.
fn watch(injector: &Injector) -> (mpsc::Sender<&'static str>, Body) {
    let (say, said) = mpsc::channel::<&'static str>(8);
    let pieces = stream::unfold(said, |mut said| async {
        let piece = said.recv().await?;
        Some((Ok(Frame::data(Bytes::from(piece))), said))
    });
    (say, injector.late(StreamBody::new(pieces).boxed_unsync()))
}

/// The next piece, and how long it took; `None` if the watch has ended.
async fn next(body: &mut Body) -> (Option<Bytes>, Duration) {
    let began = Instant::now();
    let piece = body.frame().await.map(|frame| frame.unwrap().into_data().unwrap());
    (piece, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_tells_everything_late_but_not_later_and_later() {
    let injector = Injector::default();
    injector.set(Faults { lag: 10 * SECOND, ..Faults::default() });
    let (say, mut body) = watch(&injector);
    let saying = async {
        say.send("one").await.unwrap();
        sleep(SECOND).await;
        say.send("two").await.unwrap();
    };
    let (one, ()) = tokio::join!(next(&mut body), saying);
    assert_eq!(one, (Some(Bytes::from("one")), 10 * SECOND));
    assert_eq!(next(&mut body).await, (Some(Bytes::from("two")), SECOND));
    say.send("three").await.unwrap();
    let over = async {
        sleep(SECOND).await;
        injector.set(Faults::default());
    };
    let (three, ()) = tokio::join!(next(&mut body), over);
    assert_eq!(three, (Some(Bytes::from("three")), SECOND), "what is held is told when the lag is over");
    drop(say);
    assert_eq!(next(&mut body).await.0, None);
}

#[tokio::test(start_paused = true)]
async fn watches_end_early_and_when_the_server_goes_down() {
    let injector = Injector::default();
    injector.set(Faults { watch_life: Some(5 * SECOND), ..Faults::default() });
    let (_say, mut body) = watch(&injector);
    assert_eq!(next(&mut body).await, (None, 5 * SECOND));
    injector.set(Faults::default());
    let (_say, mut body) = watch(&injector);
    let down = async {
        sleep(SECOND).await;
        injector.set(Faults { down: true, ..Faults::default() });
    };
    let (ended, ()) = tokio::join!(next(&mut body), down);
    assert_eq!(ended, (None, SECOND));
}
