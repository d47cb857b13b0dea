//! The membership of an admin StatefulSet. `model.rs` says where each rule is.

mod cases;
mod decide;
mod log;
mod model;
mod mutations;
mod possible;
mod progress;
mod rules;
mod state;
mod step;
mod trace;

use crate::check::{Case, Explored, Mutation};
use model::{Action, Protocol};
use rules::CORRECTED;

impl Explored for Protocol {
    fn hold(&self) -> &'static str {
        "S1 S2 S3 S4 S5 L hold"
    }

    fn print(&self, steps: &[Action]) {
        trace::print(self, steps);
    }
}

/// The protocol as it is, in all of its cases.
pub fn cases() -> Vec<Case<Protocol>> {
    let case =
        |case: cases::Case| Case { name: case.name, large: case.large, protocol: case.protocol(CORRECTED, true) };
    cases::all().into_iter().map(case).collect()
}

/// One safeguard removed at a time. If an unsafe state is expected, the search does not look for a standstill, because that
/// takes longer to detect.
pub fn mutations() -> Vec<Mutation<Protocol>> {
    let mutation = |mutation: mutations::Mutation| {
        let case = (mutation.case)();
        Mutation {
            name: mutation.name,
            case: case.word(),
            expected: mutation.expected,
            large: mutation.large,
            protocol: case.protocol(mutation.rules, mutation.expected != crate::check::Expected::Unsafe),
        }
    };
    mutations::all().into_iter().map(mutation).collect()
}
