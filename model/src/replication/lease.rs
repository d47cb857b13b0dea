//! The lease of a primary: kaa-core's decisions, and how time passes where it has no length.
//!
//! A lease may end at any moment. What matters is which leases are over once the wait of a winner is over: at least those that
//! were renewed from a moment before the wait began. So a moment is the number of waits that have begun and last, and a lease
//! ends one later, unless it ends sooner. When a wait ends, later moments are counted without it.

use super::model::{Action, Protocol};
use super::rules::Rules;
use super::state::{Late, OVER, SEVERAL, Server, Set, Sign, State, bit};
use super::step::spend;
use kaa_core::domain::ids::SetVersion;
use kaa_core::replication::{Lease, Released};

/// The length of a lease, in moments.
const LENGTH: u64 = 1;

impl Server {
    fn leased(&self) -> Lease {
        let mut lease = Lease::new(LENGTH);
        if let Some(from) = self.lease.checked_sub(LENGTH as u8) {
            lease.vouched(from.into());
        }
        lease
    }

    /// Whether clients are let in.
    pub fn serves(&self, rules: &Rules) -> bool {
        // The model itself drops what is over: what is left holds at the first moment.
        self.open && (!rules.lease_ends || self.leased().holds(&self.ruling(), 0))
    }

    /// Takes a rule of the domain, and begins a lease if it was alone.
    fn take_with_lease(&mut self, rules: &Rules, told: (u8, u8, Set), now: u8) {
        let (mut lease, was) = (self.leased(), self.ruling());
        let (generation, version, rule) = told;
        let before = self.version;
        self.take(rules, generation, version, rule);
        if self.version != before && rules.lease_begins {
            lease.changes(&was, &self.rule_of(version, rule), now.into());
            self.lease = lease.until() as u8;
        }
        self.release();
    }

    /// An own commit of which every member of a rule has flushed the record is released. While a rule is coming into force, any
    /// part of the engine may obey either.
    fn release(&mut self) {
        if let Sign::Commit { flushed, released: is_released @ false, .. } = &mut self.sign
            && (self.rule & !*flushed == 0 || self.changing && self.coming & !*flushed == 0)
        {
            (*flushed, *is_released) = (0, true);
        }
    }

    /// The sign has arrived.
    fn renew(&mut self, rules: &Rules, now: u8) -> Option<()> {
        let (mut lease, ruling) = (self.leased(), self.ruling());
        let from = self.sign.counts_from(rules).unwrap_or(now).into();
        match self.sign {
            Sign::Commit { version, released: true, .. } if rules.same_rule => {
                lease.released(Released { begun: from, version: SetVersion(version.into()) }, &ruling);
            }
            Sign::Word { .. } | Sign::Commit { released: true, .. } => lease.vouched(from),
            Sign::None | Sign::Commit { .. } => return None,
        }
        (self.sign, self.lease) = (Sign::None, lease.until() as u8);
        Some(())
    }
}

impl Sign {
    /// The moment from which it renews; `None` if that is when it arrives.
    fn counts_from(self, rules: &Rules) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Commit { begun, .. } => Some(begun).filter(|_| rules.commit_from_begin),
            Self::Word { asked } => Some(asked).filter(|_| rules.word_from_question),
        }
    }

    fn begun(&mut self) -> Option<&mut u8> {
        match self {
            Self::None => None,
            Self::Commit { begun, .. } => Some(begun),
            Self::Word { asked } => Some(asked),
        }
    }
}

impl Protocol {
    /// The moment: how many waits last.
    fn now(&self, t: &State) -> u8 {
        t.servers.iter().filter(|is| is.waits()).count() as u8
    }

    /// A primary is told generation, version and members of a rule.
    pub fn take(&self, t: &mut State, primary: u8, told: (u8, u8, Set)) {
        let now = self.now(t);
        let is = &mut t.servers[usize::from(primary)];
        if self.lease {
            is.take_with_lease(&self.rules, told, now);
        } else {
            is.take(&self.rules, told.0, told.1, told.2);
        }
    }

    /// A winner begins to wait, or has no need to.
    pub fn begin_wait(&self, t: &mut State, server: u8, is_needed: bool) {
        t.servers[usize::from(server)].wait = 0;
        self.count_waits(t);
        let now = self.now(t);
        t.servers[usize::from(server)].wait = if is_needed { now + 1 } else { OVER };
    }

    /// Whether a winner has waited for as long as it has to.
    pub fn may_open(&self, t: &State, is: &Server) -> bool {
        let is_void = t.record.generation == is.generation && t.record.earlier == 0;
        !self.lease || is.open || is.wait == OVER || is_void || !self.rules.waits
    }

    /// What concerns the lease only.
    pub fn lease(&self, t: &mut State, action: Action) -> Option<()> {
        self.lease.then_some(())?;
        let now = self.now(t);
        let at = |server: u8| usize::from(server);
        match action {
            Action::Begin(server) => {
                let is = &mut t.servers[at(server)];
                is.leads().then_some(())?;
                spend(&mut t.budget.signs)?;
                let version = is.ruling().in_force.version.0 as u8;
                is.sign = Sign::Commit { begun: now, version, flushed: 0, released: false };
                is.release();
            }
            Action::Flush(standby) => {
                let is = t.servers[at(standby)];
                let source = self.source_of(t, &is)?;
                (!is.overwriting && source.log.starts_with(is.log)).then_some(())?;
                let primary = t.server_of(source.id)?;
                let Sign::Commit { flushed, released: false, .. } = &mut t.servers[at(primary)].sign else {
                    return None;
                };
                *flushed |= bit(is.id) & (source.rule | source.coming);
                t.servers[at(primary)].release();
            }
            Action::Ask(server) => {
                let is = &mut t.servers[at(server)];
                let is_it = t.record.generation == is.generation && t.record.primary == is.id && !t.record.ended;
                (is.leads() && (is_it || !self.rules.vouched_if_current)).then_some(())?;
                spend(&mut t.budget.signs)?;
                is.sign = Sign::Word { asked: now };
            }
            Action::Renew(server) => t.servers[at(server)].renew(&self.rules, now)?,
            Action::LeaseEnds(server) => t.servers[at(server)].lease = 0,
            Action::Close(server) => {
                let is = &mut t.servers[at(server)];
                (is.leads() && is.open && !is.serves(&self.rules)).then_some(())?;
                // A commit whose client is told to end shows, although no member may have it.
                (is.open, is.visible, is.wait) = (false, is.log.len, OVER);
            }
            Action::WaitEnds(server) => {
                let began = t.servers[at(server)].wait;
                t.servers[at(server)].waits().then_some(())?;
                for is in &mut t.servers {
                    if is.lease <= began {
                        is.lease = 0;
                    }
                    // A lease that it renews is over, too.
                    if is.sign.counts_from(&self.rules).is_some_and(|from| from < began) {
                        is.sign = Sign::None;
                    }
                }
                t.servers[at(server)].wait = OVER;
            }
            _ => return None,
        }
        Some(())
    }

    /// The record after a grant to the server of an archive: which earlier primaries may still let clients in. As in kaa-core's
    /// `Domain::may_serve`.
    pub fn note_grant(&self, t: &mut State, before: u8) {
        let record = &mut t.record;
        let earlier = if record.opened || !self.rules.earlier_kept { 0 } else { record.earlier };
        let own = if record.ended { 0 } else { before + 1 };
        record.earlier = match (earlier, own) {
            (0, other) | (other, 0) => other,
            _ if self.rules.several_noted => SEVERAL,
            _ => own,
        };
        (record.opened, record.ended) = (false, false);
    }

    /// The domain learns at once that a server lets clients in.
    pub fn note_opened(&self, t: &mut State, server: u8) {
        let is = &mut t.servers[usize::from(server)];
        if self.lease && is.open {
            is.wait = 0;
            t.record.opened |= t.record.generation == is.generation && t.record.primary == is.id;
        }
    }

    /// The domain learns at once that the server of an archive has ended. One that starts there later is another one.
    pub fn note_ended(&self, t: &mut State, id: u8) {
        if !self.lease {
            return;
        }
        t.record.ended |= t.record.primary == id;
        if t.record.earlier == id + 1 {
            t.record.earlier = 0;
        }
        // Nor does that one get what was under way to this one.
        if matches!(t.late, Late::Promote { id: of, .. } if of == id) {
            t.late = Late::None;
        }
    }

    /// Counts the moments by the waits that last, in the order in which they began.
    pub fn count_waits(&self, t: &mut State) {
        let mut began: Vec<u8> = t.servers.iter().filter(|is| is.waits()).map(|is| is.wait).collect();
        began.sort_unstable();
        let moment = |begun: u8| began.iter().filter(|wait| **wait <= begun).count() as u8;
        for is in &mut t.servers {
            if let Some(begun) = is.sign.begun() {
                *begun = moment(*begun);
            }
            if is.waits() {
                is.wait = moment(is.wait);
            }
            if let Some(from) = is.lease.checked_sub(LENGTH as u8) {
                is.lease = moment(from) + LENGTH as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{self, Case};
    use super::super::rules::CORRECTED;
    use super::*;

    /// The state after these steps, each of which has to be possible.
    fn after(case: Case, steps: &[Action]) -> (Protocol, State) {
        let protocol = case.protocol(CORRECTED);
        let mut state = protocol.init;
        for step in steps {
            state = protocol.step(&state, *step).unwrap_or_else(|| panic!("{step:?} is not possible"));
        }
        (protocol, state)
    }

    fn serves(state: &State, server: usize) -> bool {
        state.servers[server].serves(&CORRECTED)
    }

    #[test]
    fn a_lease_that_is_over_is_renewed_in_the_same_generation() {
        let mut steps = vec![Action::LeaseEnds(0), Action::Begin(0)];
        let (protocol, state) = after(cases::lease(), &steps);
        assert!(!serves(&state, 0));
        assert_eq!(protocol.step(&state, Action::Renew(0)), None, "the commit was not released");
        steps.extend([Action::Flush(1), Action::Renew(0)]);
        assert!(serves(&after(cases::lease(), &steps).1, 0));
        steps.extend([Action::LeaseEnds(0), Action::Ask(0)]);
        assert!(!serves(&after(cases::lease(), &steps).1, 0));
        steps.push(Action::Renew(0));
        assert!(serves(&after(cases::lease(), &steps).1, 0));
    }

    #[test]
    fn when_the_winner_has_waited_an_earlier_sign_renews_no_more() {
        let begun = [Action::Begin(0), Action::Grant(1, bit(1)), Action::Flush(1), Action::Promote(1)];
        let mut steps = begun.to_vec();
        steps.extend([Action::LeaseEnds(0), Action::Renew(0)]);
        let (protocol, state) = after(cases::lease(), &steps);
        assert!(serves(&state, 0), "the winner waits");
        assert_eq!(protocol.step(&state, Action::Acknowledge(1, false)), None);
        steps.extend([Action::WaitEnds(1), Action::Acknowledge(1, false)]);
        let (_, state) = after(cases::lease(), &steps);
        assert_eq!((serves(&state, 0), serves(&state, 1)), (false, true));
        let (protocol, state) = after(cases::lease(), &[&begun[..], &[Action::WaitEnds(1)]].concat());
        assert_eq!(protocol.step(&state, Action::Renew(0)), None);
    }

    #[test]
    fn a_winner_waits_for_each_earlier_primary_that_may_serve() {
        let one = [Action::Grant(1, bit(1) | bit(2)), Action::Crash(0)];
        assert_eq!(after(cases::lease_earlier(), &one).1.record.earlier, 0, "it has ended");
        let two = [Action::Grant(1, bit(1) | bit(2)), Action::Grant(2, bit(2)), Action::Crash(1), Action::Promote(2)];
        let (protocol, state) = after(cases::lease_earlier(), &two);
        assert_eq!(state.record.earlier, SEVERAL);
        assert_eq!(protocol.step(&state, Action::Acknowledge(2, false)), None);
        let ended = [Action::Grant(1, bit(1) | bit(2)), Action::Crash(1), Action::Grant(2, bit(2))];
        assert_eq!(
            after(cases::lease_earlier(), &ended).1.record.earlier,
            1,
            "the second one has ended, the first one has not"
        );
    }
}
