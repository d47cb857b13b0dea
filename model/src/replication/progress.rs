//! L: from this state, if every server is up and reachable, the protocol's own steps lead to an open primary that has
//! acknowledged everything. Required only if the volume of an archive of the sync set is still there. The check takes these
//! steps; it does not assume that a possible action happens.

use super::model::{Action, Protocol};
use super::state::{Budget, Late, Sign, State, bit, ids};

/// The maximum number of steps of a walk.
const LONGEST_WALK: usize = 150;

impl Protocol {
    pub fn can_continue(&self, from: &State) -> bool {
        let set = from.record.sync_set;
        if set != 0 && set & self.present(from) == 0 {
            return true;
        }
        let walker = Self {
            max_generation: from.record.generation + 3,
            max_log: 8,
            max_version: 60,
            changes: true,
            ..self.clone()
        };
        let budget = Budget { joins: 20, leaves: 20, copies: 20, signs: 20, ..Budget::default() };
        let mut s = State { late: Late::None, budget, ..*from };
        for _ in 0..LONGEST_WALK {
            if self.has_arrived(&s) {
                return true;
            }
            let next = walker.useful(&s).into_iter().find_map(|action| walker.step(&s, action));
            match next {
                Some(next) => s = next,
                None => return false,
            }
        }
        false
    }

    /// The archives whose volumes are there, and not refused.
    fn present(&self, s: &State) -> u8 {
        let servers = s.servers[..self.servers.into()].iter();
        servers.filter(|is| !self.is_set_back(s, is)).fold(0, |all, is| all | bit(is.id))
    }

    fn has_arrived(&self, s: &State) -> bool {
        let record = &s.record;
        s.servers[..self.servers.into()].iter().any(|is| {
            let is_current = is.generation == record.generation && is.version == record.version && !is.changing;
            let is_complete = is.visible == is.log.len && record.joining == 0;
            let is_safe = record.sync_set.count_ones() >= self.least.into();
            let lets_in = is.open && (!self.lease || is.serves(&self.rules));
            is.leads() && lets_in && is_current && is_complete && is_safe
        })
    }

    /// The protocol's own steps, the more conclusive ones first.
    fn useful(&self, s: &State) -> Vec<Action> {
        let all = 0..self.servers;
        let server = |number: u8| &s.servers[usize::from(number)];
        let leader = all.clone().find(|one| server(*one).leads() && server(*one).generation == s.record.generation);
        let mut useful: Vec<Action> =
            all.clone().flat_map(|one| [Action::Start(one), Action::FinishOverwrite(one)]).collect();
        if let Some(leader) = leader {
            useful.extend([Action::Settle(leader), Action::WaitEnds(leader)]);
            useful.extend(all.clone().map(Action::Flush));
            useful.push(Action::Renew(leader));
            if server(leader).lease == 0 && server(leader).sign == Sign::None {
                useful.push(Action::Begin(leader));
            }
            useful.push(Action::Acknowledge(leader, false));
            useful.extend(all.clone().map(|one| Action::Reply(leader, one)));
        }
        let agrees = |one: u8| leader.is_none_or(|leader| server(leader).log.starts_with(server(one).log));
        for one in all.clone().filter(|one| server(*one).generation == s.record.generation) {
            useful.push(Action::Ship(one));
            if agrees(one) {
                useful.push(Action::EndOverwrite(one));
            } else {
                useful.extend([Action::BeginOverwrite(one), Action::PermitOverwrite(one)]);
            }
        }
        let Some(leader) = leader else {
            useful.extend(all.clone().map(Action::Promote));
            let present = self.present(s);
            for one in all.filter(|one| present & bit(server(*one).id) != 0) {
                let kept = if self.rules.kept_at_grant { s.record.sync_set & present } else { bit(server(one).id) };
                useful.push(Action::Grant(one, kept));
            }
            return useful;
        };
        useful.extend([Action::InForce(leader), Action::Tell(leader)]);
        useful.extend(all.clone().map(Action::Follow));
        for id in ids(s.record.sync_set | s.record.joining).filter(|id| *id != s.record.primary) {
            let of = all.clone().find(|one| server(*one).id == id);
            if of.is_none_or(|of| !agrees(of) || !server(of).up) {
                useful.push(Action::Leave(id));
            }
        }
        if s.record.sync_set.count_ones() < self.least.into() {
            useful.extend(all.filter(|one| server(*one).up).map(Action::Join));
        }
        useful
    }
}
