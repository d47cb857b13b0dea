//! Which actions to try in a state. Most of them are not possible there: `step` decides.

use super::model::{Action, Protocol};
use super::state::{Late, Mode, Set, State, bit, ids};

impl Protocol {
    pub fn possible(&self, s: &State, actions: &mut Vec<Action>) {
        let all = 0..self.servers;
        if s.record.generation < self.max_generation {
            for server in all.clone() {
                let sets = self.sets(s, server);
                actions.extend(sets.into_iter().map(|set| Action::Grant(server, set)));
            }
        }
        if self.changes {
            actions.extend(all.clone().map(Action::Join));
            actions.extend(ids(s.record.sync_set | s.record.joining).map(Action::Leave));
        }
        for server in all.clone() {
            let is = &s.servers[usize::from(server)];
            if !is.up {
                actions.extend([Action::Start(server), Action::Wipe(server), Action::SetBack(server)]);
                continue;
            }
            actions.extend([Action::Snapshot(server), Action::Crash(server)]);
            actions.extend([Action::Promote(server), Action::Follow(server)]);
            match is.mode {
                Mode::Fenced => {}
                Mode::Standby => {
                    actions.extend([Action::Ship(server), Action::PermitOverwrite(server)]);
                    actions.extend([Action::BeginOverwrite(server), Action::FinishOverwrite(server)]);
                    actions.push(Action::EndOverwrite(server));
                }
                Mode::Primary => {
                    actions.extend([Action::Write(server), Action::Acknowledge(server, false)]);
                    actions.extend([Action::Tell(server), Action::Settle(server), Action::InForce(server)]);
                    if is.changing {
                        actions.push(Action::Acknowledge(server, true));
                    }
                    for other in all.clone().filter(|other| *other != server) {
                        actions.push(Action::Reply(server, other));
                        if !self.rules.leave_first {
                            actions.push(Action::Drop(server, other));
                        }
                    }
                }
            }
            if s.budget.late > 0 && s.late == Late::None {
                actions.extend([Action::LateInForce(server), Action::LatePromote(server)]);
                actions.extend([Action::LateFollow(server), Action::LateTell(server)]);
                actions.extend([Action::LateReturned(server), Action::LatePermitted(server)]);
            }
        }
        if s.late != Late::None {
            actions.push(Action::Arrive);
        }
        if self.lease {
            for server in all {
                self.of_lease(s, server, actions);
            }
        }
    }

    fn of_lease(&self, s: &State, server: u8, actions: &mut Vec<Action>) {
        let is = &s.servers[usize::from(server)];
        if is.waits() {
            actions.push(Action::WaitEnds(server));
        }
        match is.mode {
            Mode::Primary if is.up => {
                actions.extend([Action::Begin(server), Action::Ask(server), Action::Renew(server)]);
                actions.extend([Action::LeaseEnds(server), Action::Close(server)]);
            }
            Mode::Standby if is.up => actions.push(Action::Flush(server)),
            Mode::Primary | Mode::Standby | Mode::Fenced => {}
        }
    }

    /// The sync sets that a grant to a server may have.
    fn sets(&self, s: &State, server: u8) -> Vec<Set> {
        let own = bit(s.servers[usize::from(server)].id);
        let from = match (self.rules.kept_at_grant, self.rules.part_at_grant) {
            (false, _) => 0,
            (true, true) => s.record.sync_set & !own,
            (true, false) => s.servers[..self.servers.into()].iter().fold(0, |all, one| all | bit(one.id)) & !own,
        };
        let parts = (0..=from).filter(|part| part & !from == 0);
        let parts = parts.filter(|part| self.any_part || *part == 0 || *part == from);
        parts.flat_map(|part| [Some(part | own), (!self.rules.winner_stays).then_some(part)]).flatten().collect()
    }
}
