//! What the agents decide. Under the corrected rules every answer here is one of kaa-core's own functions; a mutation asks
//! it with something changed, or puts another answer in its place.

use crate::log::{Entry, Ids};
use crate::model::Protocol;
use crate::rules::Block;
use crate::state::{Anchor, Node, State};
use kaa_core::membership::change::{self, Step, View};
use kaa_core::membership::logs::{self, Logs};
use kaa_core::membership::quorum_override::{self, Call, Position, Sealed, Verdict};
use kaa_core::membership::{self, Gate, Seen, Traces};

/// Which logs a leader takes to be caught up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Those that acknowledged what is committed; what an agent knows if no server is away.
    Acknowledged,
    /// These, and wanted voters from which nothing was heard. An agent waits for a majority of those that would vote
    /// ([`change::Reason::Silent`]); but its word that they answer may be old, and they may be gone the moment after. So
    /// where it is asked what may go wrong, no leader waits for this.
    Hoped,
}

impl Protocol {
    /// What an agent does at the gate that read this anchor.
    pub fn at_the_gate(&self, server: u8, node: &Node, anchor: Anchor) -> Gate {
        let traces = Traces { first: server == 0, ..Traces::default() };
        match membership::gate(anchor.as_read().as_ref(), &node.local(), &traces) {
            Gate::Found(anchor) if !self.rules.resume && !node.won => Gate::Join(anchor),
            decided => decided,
        }
    }

    /// Whether a running agent stops Raft when it sees this anchor, and passes the gate again.
    pub fn is_behind(&self, node: &Node, anchor: Anchor) -> bool {
        membership::seen(anchor.as_read().as_ref(), &node.local()) == Seen::Newer
    }

    /// What a leader that sees `replicas` does next about who votes.
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
            // A leader with all ids finds itself in every goal, and so never hands over.
            me: if self.rules.stay { Ids::of(node.id) } else { Ids::ALL },
            wanted: Some(wanted),
            caught_up,
        }))
    }

    /// The logs that are known to have what is committed, and answer.
    fn caught_up(&self, s: &State, leader: &Node) -> Ids {
        let caught_up = |node: &&Node| {
            self.can_talk(leader, node) && !node.sealed && leader.acked[node.id as usize - 1] >= leader.commit.max(1)
        };
        s.nodes.iter().filter(caught_up).map(|node| node.id).collect()
    }

    /// Whether an override is called for, as a server that sees `replicas` judges: the wanted servers can commit nothing, and
    /// no others can without them.
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

    /// The voter sets of which all have to be blocked; several, if it is enough to do so with one of them.
    fn to_block(&self, last: Entry, me: u8) -> Vec<Vec<Ids>> {
        let halves = last.halves();
        match self.rules.block {
            Block::EachHalf => vec![halves.to_vec()],
            Block::JointQuorum => halves.iter().map(|half| vec![*half]).collect(),
            Block::OldHalf => halves.first().map(|half| vec![*half]).into_iter().collect(),
            Block::NewHalf => halves.last().map(|half| vec![*half]).into_iter().collect(),
            // The server that asks is among the sealed ones.
            Block::Off => vec![vec![Ids::of(me)]],
        }
    }

    /// Whether a sealed server that sees `replicas` may swap the anchor, by the answers of some of those that are sealed
    /// too: any of them may be out of reach.
    pub fn may_found(&self, s: &State, server: u8, replicas: u8) -> bool {
        let node = s.node(server);
        let Some((_, last)) = node.log.membership() else { return false };
        let others = self.sealed_others(s, server, replicas);
        self.to_block(last, node.id).into_iter().any(|halves| {
            let me = Sealed { id: Ids::of(node.id), last: node.log.last(), halves, wanted: server < replicas };
            // All of them first, which mostly settles it.
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

    /// Whether messages between the two are served.
    pub fn can_talk(&self, from: &Node, to: &Node) -> bool {
        let epochs_agree =
            !self.rules.message_epoch || from.epoch == to.epoch || (!self.rules.retired && from.epoch > to.epoch);
        from.up && to.up && from.domain == to.domain && from.domain != 0 && epochs_agree
    }

    /// The index up to which a leader can commit more than it has, if it can.
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
