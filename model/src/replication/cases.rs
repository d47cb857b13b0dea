//! The initial states of the model, and how much may happen from there.

use super::model::Protocol;
use super::rules::{CORRECTED, Rules};
use super::state::{Budget, Log, Mode, NONE, Promised, Record, SERVERS, Server, State, bit};

/// An initial state, with the bounds of the exploration.
pub struct Case {
    /// One word, a colon, and a description.
    pub name: &'static str,
    /// Whether it takes too long to run for every change of the project.
    pub large: bool,
    protocol: Protocol,
}

impl Case {
    /// The protocol to explore: this case under these rules.
    pub fn protocol(&self, rules: Rules) -> Protocol {
        Protocol { rules, ..self.protocol.clone() }
    }

    /// The first word of the name.
    pub fn word(&self) -> &'static str {
        self.name.split(':').next().unwrap_or(self.name)
    }

    fn large(mut self) -> Self {
        self.large = true;
        self
    }

    /// With other bounds.
    fn with(mut self, change: impl FnOnce(&mut Protocol)) -> Self {
        change(&mut self.protocol);
        self
    }
}

/// Every case, in the order of exploration.
pub fn all() -> Vec<Case> {
    vec![
        three().large(),
        writes(),
        change(),
        join(),
        copy(),
        join_copy(),
        permissions(),
        generations().large(),
        late(),
        late_pair(),
        late_three(),
        wipe().large(),
        back(),
        block(),
        four(),
        can_continue(),
        continue_block(),
        lease(),
        lease_earlier(),
        lease_change(),
        lease_late(),
        lease_closes(),
        lease_late_three().large(),
        lease_signs().large(),
        lease_grants().large(),
        lease_continue(),
    ]
}

const NOTHING: Budget =
    Budget { writes: 0, crashes: 0, wipes: 0, late: 0, joins: 0, leaves: 0, snapshots: 0, copies: 0, signs: 0 };

pub fn three() -> Case {
    let budget = Budget { writes: 1, crashes: 1, leaves: 1, ..NOTHING };
    new("three: 3 in the set, a crash, one leaves", 3, 3, budget)
}

pub fn writes() -> Case {
    let budget = Budget { writes: 3, crashes: 1, leaves: 1, ..NOTHING };
    new("writes: 3 in the set, 3 writes", 3, 3, budget).with(|p| p.max_generation = 2)
}

pub fn change() -> Case {
    new("change: 2 in the set, one joins, 2 leave", 3, 2, Budget { writes: 1, joins: 1, leaves: 2, ..NOTHING })
}

pub fn join() -> Case {
    let budget = Budget { writes: 1, crashes: 1, joins: 1, leaves: 1, ..NOTHING };
    new("join: 2 in the set, one joins, a crash", 3, 2, budget).with(|p| p.max_generation = 2)
}

pub fn copy() -> Case {
    new("copy: 3 in the set, one is overwritten", 3, 3, Budget { writes: 1, leaves: 1, copies: 1, ..NOTHING })
}

pub fn join_copy() -> Case {
    let budget = Budget { crashes: 1, joins: 1, leaves: 1, copies: 1, ..NOTHING };
    new("overwritten: it joins and leaves, a crash", 3, 2, budget).with(|p| p.max_generation = 2)
}

pub fn permissions() -> Case {
    let case =
        new("permissions: 2 to overwrite, a late message", 3, 2, Budget { joins: 1, late: 1, copies: 2, ..NOTHING });
    case.with(|p| p.max_generation = 2)
}

pub fn generations() -> Case {
    let case = new("generations: 3 grants", 3, 3, Budget { writes: 1, leaves: 1, ..NOTHING });
    case.with(|p| (p.max_generation, p.max_log) = (4, 6))
}

pub fn late() -> Case {
    let budget = Budget { writes: 1, joins: 1, leaves: 1, late: 1, ..NOTHING };
    new("late: a late message, one joins, one leaves", 3, 2, budget).with(|p| p.max_generation = 2)
}

pub fn late_pair() -> Case {
    let budget = Budget { writes: 1, crashes: 1, joins: 1, leaves: 1, late: 1, ..NOTHING };
    new("pair: 2 servers, a late message, a crash", 2, 2, budget)
}

pub fn late_three() -> Case {
    let case = new("fixed: 3 in the set, a late message", 3, 3, Budget { writes: 1, crashes: 1, late: 1, ..NOTHING });
    case.with(|p| (p.max_generation, p.changes) = (2, false))
}

pub fn wipe() -> Case {
    let budget = Budget { writes: 1, crashes: 1, wipes: 1, joins: 1, leaves: 1, copies: 1, ..NOTHING };
    new("wipe: 3 in the set, a volume is deleted", 3, 3, budget).with(|p| p.max_generation = 2)
}

pub fn back() -> Case {
    let budget = Budget { writes: 1, crashes: 2, snapshots: 1, joins: 1, leaves: 1, ..NOTHING };
    new("back: 2 servers, a volume is set back", 2, 2, budget).with(|p| p.max_generation = 2)
}

pub fn block() -> Case {
    let budget = Budget { writes: 1, crashes: 1, joins: 1, leaves: 1, ..NOTHING };
    new("block: at least 2 hold each commit", 3, 2, budget).with(|p| (p.max_generation, p.least) = (2, 2))
}

pub fn four() -> Case {
    let case = new("four: 4 servers, 3 in the set", 4, 3, Budget { writes: 1, joins: 1, leaves: 1, ..NOTHING });
    case.with(|p| (p.max_generation, p.any_part) = (2, false))
}

pub fn can_continue() -> Case {
    let budget = Budget { crashes: 1, wipes: 1, joins: 1, leaves: 1, copies: 1, ..NOTHING };
    let case = new("continue: 3 servers, a volume is deleted", 3, 2, budget);
    case.with(|p| (p.max_generation, p.liveness) = (2, true))
}

pub fn continue_block() -> Case {
    let budget = Budget { writes: 1, crashes: 1, wipes: 1, joins: 1, leaves: 1, copies: 1, ..NOTHING };
    let case = new("continue, block: 2 servers", 2, 2, budget);
    case.with(|p| (p.liveness, p.least) = (true, 2))
}

pub fn lease() -> Case {
    let budget = Budget { crashes: 1, joins: 1, leaves: 1, signs: 2, ..NOTHING };
    new("lease: 2 servers, a crash, 2 signs", 2, 2, budget).with(leased)
}

pub fn lease_earlier() -> Case {
    let case = new("earlier: 3 in the set, a crash, a sign", 3, 3, Budget { crashes: 1, signs: 1, ..NOTHING });
    case.with(leased).with(|p| p.any_part = false)
}

pub fn lease_change() -> Case {
    let case = new("alone: one joins, 2 leave, 2 signs", 3, 2, Budget { joins: 1, leaves: 2, signs: 2, ..NOTHING });
    case.with(leased).with(|p| p.max_generation = 2)
}

pub fn lease_closes() -> Case {
    let case = new("closes: 2 servers, a write, a sign", 2, 2, Budget { writes: 1, signs: 1, ..NOTHING });
    case.with(leased).with(|p| p.max_generation = 2)
}

pub fn lease_late() -> Case {
    let budget = Budget { joins: 1, late: 1, signs: 1, ..NOTHING };
    new("word: 2 servers, a late message, a sign", 2, 2, budget).with(leased)
}

pub fn lease_late_three() -> Case {
    let case = new("words: 3 in the set, a late message", 3, 3, Budget { late: 1, signs: 1, ..NOTHING }).with(leased);
    case.with(|p| (p.any_part, p.changes) = (false, false))
}

pub fn lease_signs() -> Case {
    let budget = Budget { writes: 1, crashes: 1, joins: 1, leaves: 1, signs: 3, ..NOTHING };
    new("signs: 2 servers, 3 signs", 2, 2, budget).with(leased)
}

pub fn lease_grants() -> Case {
    let budget = Budget { crashes: 1, leaves: 1, signs: 2, ..NOTHING };
    let case = new("leases: 3 in the set, one leaves, 2 signs", 3, 3, budget).with(leased);
    case.with(|p| p.any_part = false)
}

pub fn lease_continue() -> Case {
    let budget = Budget { crashes: 1, joins: 1, leaves: 1, signs: 1, ..NOTHING };
    let case = new("continue, lease: 3 servers, a crash", 3, 2, budget).with(leased);
    case.with(|p| (p.max_generation, p.liveness) = (2, true))
}

/// Primaries keep leases. That of the first one lasts.
fn leased(protocol: &mut Protocol) {
    protocol.lease = true;
    protocol.init.servers[0].lease = 1;
    protocol.init.record.opened = true;
}

/// Server 0 is the primary of generation 1, the first `inside` are in the sync set, and all have its first record.
fn new(name: &'static str, servers: u8, inside: u8, budget: Budget) -> Case {
    let mut log = Log::default();
    log.push(1);
    let set = (0..inside).fold(0, |set, id| set | bit(id));
    let mut all = [Server { id: NONE, ..Server::default() }; SERVERS];
    for (id, server) in (0..servers).zip(&mut all) {
        *server = Server { id, up: true, log, ..Server::default() };
        if id == 0 {
            (server.taken_up, server.mode, server.generation) = (1, Mode::Primary, 1);
            (server.open, server.visible) = (true, 1);
            server.begin(1, set & !1);
            (1..servers).for_each(|other| server.hear(other, 1));
        } else {
            (server.mode, server.generation, server.source, server.followed) = (Mode::Standby, 1, 1, 1);
        }
    }
    let record = Record { generation: 1, primary: 0, sync_set: set, version: 1, ..Record::default() };
    let promised = Promised { counts: log, acknowledged: 1, generation: 1 };
    let init = State { servers: all, record, promised, budget, next_id: servers, ..State::default() };
    let protocol = Protocol {
        rules: CORRECTED,
        init,
        servers,
        max_generation: 3,
        max_log: 5,
        max_version: 5,
        least: 1,
        any_part: true,
        changes: true,
        inner: true,
        lease: false,
        liveness: false,
    };
    Case { name, large: false, protocol }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stateright::Model;

    #[test]
    fn the_initial_states_hold() {
        for case in all() {
            let protocol = case.protocol(CORRECTED);
            for state in protocol.init_states() {
                for property in protocol.properties() {
                    assert!((property.condition)(&protocol, &state), "{}: {}", case.name, property.name);
                }
            }
        }
    }
}
