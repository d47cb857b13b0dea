//! The decisions of the agents. Under the corrected rules, a function of kaa-core makes every decision here. A mutation
//! calls it with changed arguments, or replaces its answer.

use super::log::{Entry, Ids};
use super::model::Protocol;
use super::rules::Block;
use super::state::{Anchor, Node, State};
use kaa_core::membership::change::{self, Step, View};
use kaa_core::membership::logs::{self, Logs};
use kaa_core::membership::quorum_override::{self, Call, Position, Sealed, Verdict};
use kaa_core::membership::{self, Gate, Seen, Traces};

/// Which logs a leader takes to be caught up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The logs that acknowledged everything committed. An agent knows these if no server is away.
    Acknowledged,
    /// Also the wanted voters from which the leader heard nothing. An agent waits for a majority of the new voters
    /// ([`change::Reason::Silent`]). But its information that they answer may be old, and they may be gone a moment
    /// later. So the search for failures assumes that no leader waits for this.
    Hoped,
}

impl Protocol {
    /// The decision of an agent at the gate, after it read this anchor.
    pub fn at_the_gate(&self, server: u8, node: &Node, anchor: Anchor) -> Gate {
        let traces = Traces { first: server == 0, ..Traces::default() };
        match membership::gate(anchor.as_read().as_ref(), &node.local(), &traces) {
            Gate::Found(anchor) if !self.rules.resume && !node.won => Gate::Join(anchor),
            decided => decided,
        }
    }

    /// Whether a running agent that sees this anchor stops Raft and passes the gate again.
    pub fn is_behind(&self, node: &Node, anchor: Anchor) -> bool {
        membership::seen(anchor.as_read().as_ref(), &node.local()) == Seen::Newer
    }

    /// The next change of the voters by a leader that sees `replicas`.
    pub fn next_change(&self, s: &State, leader: u8, replicas: u8, heard: Heard) -> Option<Step<Ids>> {
        let node = s.node(leader);
        let (at, last) = node.log.membership()?;
        let own_term = node.log.up_to(node.commit).iter().any(|entry| entry.term == node.term);
        let wanted: Ids = s.wanted(replicas).iter().map(|node| node.id).collect();
        let mut caught_up = self.caught_up(s, node);
        if heard == Heard::Hoped {
            caught_up = caught_up.union(&wanted.common(&last.all_voters()));
        }
        Some(change::step(&View {
            halves: last.halves().to_vec(),
            settled: node.commit >= at && (own_term || !self.rules.own_term),
            // A leader with all ids is part of every goal, and so never transfers the leadership.
            me: if self.rules.stay { Ids::of(node.id) } else { Ids::ALL },
            wanted: Some(wanted),
            caught_up,
        }))
    }

    /// The logs that are known to have everything committed, and whose servers answer.
    fn caught_up(&self, s: &State, leader: &Node) -> Ids {
        let caught_up = |node: &&Node| {
            self.can_talk(leader, node) && !node.sealed && leader.acked[node.id as usize - 1] >= leader.commit.max(1)
        };
        s.nodes.iter().filter(caught_up).map(|node| node.id).collect()
    }

    /// Whether a server that sees `replicas` judges that an override is necessary: the wanted servers can commit
    /// nothing, and the others can commit nothing without them.
    pub fn called_for(&self, s: &State, node: &Node, replicas: u8) -> bool {
        let Some((_, last)) = node.log.membership() else { return false };
        let wanted = s.wanted(replicas);
        let of_today: Ids = wanted.iter().map(|node| node.id).collect();
        let wanted = wanted.iter().fold(of_today, |all, node| all.union(&node.former));
        if self.rules.block == Block::EachHalf && !self.rules.alone {
            return quorum_override::called_for(last.halves(), &wanted) == Call::Override;
        }
        let counted = if self.rules.alone { Ids::of(node.id) } else { wanted };
        !logs::commit(last.halves(), &wanted)
            && self.to_block(last, node.id).iter().any(|halves| logs::block(halves, &counted))
    }

    /// Lists of voter sets. It is enough to block all voter sets of one list.
    fn to_block(&self, last: Entry, me: u8) -> Vec<Vec<Ids>> {
        let halves = last.halves();
        match self.rules.block {
            Block::EachHalf => vec![halves.to_vec()],
            Block::JointQuorum => halves.iter().map(|half| vec![*half]).collect(),
            Block::OldHalf => halves.first().map(|half| vec![*half]).into_iter().collect(),
            Block::NewHalf => halves.last().map(|half| vec![*half]).into_iter().collect(),
            // The server itself is one of the sealed ones.
            Block::Off => vec![vec![Ids::of(me)]],
        }
    }

    /// Whether a sealed server that sees `replicas` may swap the anchor, with the answers of any subset of the other
    /// sealed servers: each of them may be unreachable.
    pub fn may_found(&self, s: &State, server: u8, replicas: u8) -> bool {
        let node = s.node(server);
        let Some((_, last)) = node.log.membership() else { return false };
        let others = self.sealed_others(s, server, replicas);
        self.to_block(last, node.id).into_iter().any(|halves| {
            let me = Sealed { id: Ids::of(node.id), last: node.log.last(), halves, wanted: server < replicas };
            // The full subset first, which usually decides it.
            (0u32..1 << others.len()).rev().any(|answered| {
                let within = others.iter().enumerate().filter(|(at, _)| answered >> at & 1 == 1);
                let answers: Vec<Sealed<Ids>> = within.map(|(_, sealed)| sealed.clone()).collect();
                quorum_override::may_found(&me, &answers) == Verdict::Found
            })
        })
    }

    fn sealed_others(&self, s: &State, server: u8, replicas: u8) -> Vec<Sealed<Ids>> {
        if self.rules.alone {
            return Vec::new();
        }
        let me = s.node(server);
        let answer = |(other, node): (u8, &Node)| {
            let (_, last) = node.log.membership()?;
            let stopped = if self.rules.seal { node.sealed } else { node.up };
            (other != server && node.of_the_same_epoch(me) && stopped).then(|| Sealed {
                id: Ids::of(node.id),
                last: if self.rules.best { node.log.last() } else { Position::default() },
                halves: last.halves().to_vec(),
                wanted: other < replicas,
            })
        };
        s.servers().filter_map(answer).collect()
    }

    /// Whether `to` serves messages from `from`.
    pub fn can_talk(&self, from: &Node, to: &Node) -> bool {
        let epochs_agree =
            !self.rules.message_epoch || from.epoch == to.epoch || (!self.rules.retired && from.epoch > to.epoch);
        from.up && to.up && from.domain == to.domain && from.domain != 0 && epochs_agree
    }

    /// The highest index up to which a leader can commit more than before, if there is one.
    pub fn committable(&self, leader: &Node) -> Option<u8> {
        let (_, last) = leader.log.membership()?;
        (leader.commit + 1..=leader.log.len()).rev().find(|index| {
            let has = (1u8..).zip(leader.acked).filter(|(_, acked)| acked >= index).map(|(id, _)| id).collect();
            leader.log.all()[*index as usize - 1].term == leader.term && logs::commit(last.halves(), &has)
        })
    }

    /// The smallest sets of servers whose votes make this one the leader, as bits by ordinal.
    pub fn electorates(&self, s: &State, server: u8) -> Vec<u16> {
        let candidate = s.node(server);
        let Some((_, last)) = candidate.log.membership() else { return Vec::new() };
        if !candidate.up || candidate.sealed || candidate.inject || !self.may_stand(candidate, last) {
            return Vec::new();
        }
        let votes = |(other, node): &(u8, &Node)| {
            let grants = self.can_talk(candidate, node) && !node.sealed && node.log.last() <= candidate.log.last();
            *other == server || (last.all_voters().contains(node.id) && grants)
        };
        let voting = s.servers().filter(votes).fold(0, |all, (other, _)| all | 1u16 << other);
        let with = |who: u16, other: u8| who >> other & 1 == 1;
        let wins = |who: u16| {
            let ids = s.servers().filter(|(other, _)| with(who, *other)).map(|(_, node)| node.id).collect();
            with(who, server) && logs::commit(last.halves(), &ids)
        };
        if !wins(voting) {
            return Vec::new();
        }
        let smallest = |who: &u16| {
            s.servers().all(|(other, _)| !with(*who, other) || other == server || !wins(who & !(1 << other)))
        };
        (1..1u16 << s.nodes.len()).filter(|who| who & !voting == 0 && wins(*who)).filter(smallest).collect()
    }

    fn may_stand(&self, candidate: &Node, last: Entry) -> bool {
        let committed = candidate.log.up_to(candidate.commit);
        let stood = || committed.iter().rfind(|entry| !entry.halves().is_empty()).map(Entry::all_voters);
        last.all_voters().contains(candidate.id)
            || (self.rules.stand && stood().is_some_and(|voters| voters.contains(candidate.id)))
    }
}
