//! The replication of a database with one primary. `model.rs` says where each rule is.

mod cases;
mod decide;
mod lease;
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
        match (self.lease, self.liveness) {
            (false, false) => "S1 to S7 hold",
            (false, true) => "S1 to S7 and L hold",
            (true, false) => "S1 to S8 hold",
            (true, true) => "S1 to S8 and L hold",
        }
    }

    fn print(&self, steps: &[Action]) {
        trace::print(self, steps);
    }
}

/// The protocol as it is, in all of its cases.
pub fn cases() -> Vec<Case<Protocol>> {
    let case = |case: cases::Case| Case { name: case.name, large: case.large, protocol: case.protocol(CORRECTED) };
    cases::all().into_iter().map(case).collect()
}

/// One safeguard removed at a time.
pub fn mutations() -> Vec<Mutation<Protocol>> {
    let mutation = |mutation: mutations::Mutation| {
        let case = (mutation.case)();
        let (name, expected) = (mutation.name, mutation.expected);
        let protocol = Protocol { inner: false, ..case.protocol(mutation.rules) };
        Mutation { name, case: case.word(), expected, large: false, protocol }
    };
    mutations::all().into_iter().map(mutation).collect()
}
