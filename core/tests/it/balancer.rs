//! Load balancing: readable cases in `tests/data/balancer`, random texts and processes judged by a second evaluator, and
//! round robin under concurrency. `cargo test -p kaa-core --test it balancer`.

mod naive;
mod prepared;
mod random;
mod script;
mod turns;

use super::{cases_in, directory, plays_as_written};
use kaa_core::domain::ids::{Millis, NodeId, SessionNumber, StartId};
use kaa_core::domain::process::{
    About, DurableState, EngineKind, EngineState, Identity, Process, Session, SessionState,
};

/// One test for each file.
macro_rules! cases {
    ($($name:ident)*) => {
        const CASES: &[&str] = &[$(stringify!($name)),*];
        mod case {
            $(
                #[test]
                fn $name() {
                    let file = super::directory().join("balancer").join(stringify!($name).replace('_', "-"));
                    super::plays_as_written(&file.with_extension("txt"), super::script::run);
                }
            )*
        }
    };
}

cases! {
    draws
    errors
    examples
    explained
    filters
    offered
    patterns
    policies
    printed
}

#[test]
fn every_file_is_a_case() {
    assert_eq!(cases_in(&directory().join("balancer")), CASES, "the list in balancer.rs, in order");
}

/// A process that is offered to clients, of database `demo`.
fn process(id: u64, kind: EngineKind) -> Process {
    let identity = Identity {
        namespace: "default".to_owned(),
        pod: format!("te-{id}"),
        pod_uid: format!("P{id}").into(),
        container: "engine".to_owned(),
        nonce: id,
        started: Millis(id),
    };
    Process {
        id: StartId(id),
        node: NodeId(id),
        database: "demo".into(),
        kind,
        archive: None,
        cluster: "c1".into(),
        identity,
        container_id: None,
        session: Session {
            server: "admin-0".into(),
            number: SessionNumber(1),
            connection: id,
            state: SessionState::Live,
        },
        durable: DurableState::Monitored,
        engine: EngineState::Running,
        about: About::default(),
        registered: Millis(id),
        entry: id,
        stop: None,
        started: None,
        history: None,
        claim_unread: false,
        interrupted: None,
        data: None,
        handicap: Default::default(),
    }
}
