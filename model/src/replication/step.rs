//! What an action does, if it is possible.

use super::model::{Action, Protocol};
use super::state::{Broken, Late, Log, Mode, Server, Set, Snapshot, State, bit};

pub fn spend(budget: &mut u8) -> Option<()> {
    *budget = budget.checked_sub(1)?;
    Some(())
}

impl Protocol {
    /// The next state, with the names as they are. `None` if the action is not possible, or changes nothing.
    pub fn step(&self, s: &State, action: Action) -> Option<State> {
        let mut next = *s;
        self.act(&mut next, action)?;
        if next == *s {
            return None;
        }
        if self.lease {
            self.count_waits(&mut next);
        }
        if next.broken == Broken::Nothing {
            self.look(&mut next);
        }
        Some(next)
    }

    fn act(&self, t: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Write(..)
            | Action::Ship(..)
            | Action::Reply(..)
            | Action::Acknowledge(..)
            | Action::Promote(..)
            | Action::Follow(..)
            | Action::Settle(..)
            | Action::Drop(..) => self.serve(t, action),
            Action::Grant(..)
            | Action::Tell(..)
            | Action::InForce(..)
            | Action::Join(..)
            | Action::Leave(..)
            | Action::PermitOverwrite(..)
            | Action::EndOverwrite(..) => self.change(t, action),
            Action::Crash(..)
            | Action::Start(..)
            | Action::Wipe(..)
            | Action::BeginOverwrite(..)
            | Action::FinishOverwrite(..)
            | Action::Snapshot(..)
            | Action::SetBack(..) => self.disturb(t, action),
            Action::LateReturned(..)
            | Action::LatePermitted(..)
            | Action::LateInForce(..)
            | Action::LatePromote(..)
            | Action::LateFollow(..)
            | Action::LateTell(..)
            | Action::Arrive => self.exchange(t, action),
            Action::Begin(..)
            | Action::Flush(..)
            | Action::Ask(..)
            | Action::Renew(..)
            | Action::LeaseEnds(..)
            | Action::Close(..)
            | Action::WaitEnds(..) => self.lease(t, action),
        }
    }

    /// What servers do with the log and with each other.
    fn serve(&self, t: &mut State, action: Action) -> Option<()> {
        let at = |server: u8| usize::from(server);
        match action {
            Action::Write(server) => {
                let is = &mut t.servers[at(server)];
                (is.leads() && is.open && is.log.len < self.max_log).then_some(())?;
                spend(&mut t.budget.writes)?;
                is.log.push(is.generation);
            }
            Action::Ship(server) => {
                let is = t.servers[at(server)];
                let source = if self.rules.no_cascade { self.source_of(t, &is)? } else { self.any_source(t, &is)? };
                let has_more = source.log.len > is.log.len && source.log.starts_with(is.log);
                (!is.overwriting && has_more).then_some(())?;
                t.servers[at(server)].log.push(source.log.get(is.log.len));
            }
            Action::Reply(primary, standby) => {
                let is = t.servers[at(standby)];
                let source = self.source_of(t, &is)?;
                let is_news = t.servers[at(primary)].heard_of(is.id) < is.log.len;
                (source.id == t.servers[at(primary)].id && is_news).then_some(())?;
                (!is.overwriting && source.log.starts_with(is.log)).then_some(())?;
                t.servers[at(primary)].hear(is.id, is.log.len);
            }
            Action::Acknowledge(primary, before) => self.acknowledge(t, primary, before)?,
            Action::Promote(server) => {
                let (is_it, waits) = (t.record.primary == t.servers[at(server)].id, t.record.earlier != 0);
                // A generation is granted to one process.
                (is_it && !t.record.ended).then_some(())?;
                self.promote(t, server, (t.record.generation, t.record.version, t.record.rule()), waits)?;
            }
            Action::Follow(server) => self.follow(t, server, t.record.generation, t.record.primary)?,
            Action::Settle(primary) => {
                let is = &mut t.servers[at(primary)];
                (is.leads() && is.changing).then_some(())?;
                is.settle();
            }
            Action::Drop(primary, standby) => {
                let id = bit(t.servers[at(standby)].id);
                let is = &mut t.servers[at(primary)];
                (is.leads() && !is.changing && is.rule & id != 0).then_some(())?;
                is.rule &= !id;
            }
            _ => return None,
        }
        Some(())
    }

    /// What changes the record, or comes from it at once.
    fn change(&self, t: &mut State, action: Action) -> Option<()> {
        let at = |server: u8| usize::from(server);
        match action {
            Action::Grant(winner, set) => {
                (t.record.generation < self.max_generation).then_some(())?;
                let (id, before) = (t.servers[at(winner)].id, t.record.primary);
                (t.servers[at(winner)].up || !self.lease).then_some(())?;
                t.record.grant(&self.rules, id, set)?;
                if self.lease {
                    self.note_grant(t, before);
                    if !self.rules.waits_from_stop {
                        self.begin_wait(t, winner, t.record.earlier != 0);
                    }
                }
            }
            Action::Tell(primary) => {
                let (version, rule) = self.wanted(t, primary)?;
                self.take(t, primary, (t.record.generation, version, rule));
            }
            Action::InForce(primary) => {
                let (generation, version) = self.word(t, primary)?;
                t.record.note_in_force(&self.rules, generation, version)?;
            }
            Action::Join(server) => {
                (t.record.version < self.max_version).then_some(())?;
                spend(&mut t.budget.joins)?;
                let id = t.servers[at(server)].id;
                t.record.ask_to_join(&self.rules, id)?;
            }
            Action::Leave(id) => {
                (t.record.version < self.max_version).then_some(())?;
                spend(&mut t.budget.leaves)?;
                t.record.leave(&self.rules, id)?;
            }
            Action::PermitOverwrite(server) => {
                let is = t.servers[at(server)];
                let asks = is.mode == Mode::Standby && is.generation == t.record.generation && !is.overwriting;
                asks.then_some(())?;
                // A server that has forgotten its permission learns it again.
                let mut permission = t.record.overwriting(is.id);
                if permission == 0 {
                    spend(&mut t.budget.copies)?;
                    permission = t.record.permit_overwrite(&self.rules, is.id)?;
                }
                t.servers[at(server)].permission = permission;
            }
            Action::EndOverwrite(server) => {
                let (id, permission) = self.return_permission(t, server)?;
                t.record.end_overwrite(&self.rules, id, permission)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// What happens to servers and to their volumes.
    fn disturb(&self, t: &mut State, action: Action) -> Option<()> {
        let at = |server: u8| usize::from(server);
        match action {
            Action::Crash(server) => {
                t.servers[at(server)].up.then_some(())?;
                spend(&mut t.budget.crashes)?;
                self.crash(&mut t.servers[at(server)]);
                self.note_ended(t, t.servers[at(server)].id);
            }
            Action::Start(server) => self.start(t, server)?,
            Action::Wipe(server) => {
                spend(&mut t.budget.wipes)?;
                let mut id = t.servers[at(server)].id;
                if self.rules.new_id {
                    id = t.next_id;
                    t.next_id += 1;
                }
                // A new archive has to be copied first.
                t.servers[at(server)] = Server { id, overwriting: self.rules.new_id, ..Server::default() };
            }
            Action::BeginOverwrite(server) => {
                let is = t.servers[at(server)];
                (is.permission != 0 && !is.overwriting).then_some(())?;
                self.source_of(t, &is)?;
                let is = &mut t.servers[at(server)];
                is.begin_overwrite(&self.rules)?;
                is.log = Log::default();
            }
            Action::FinishOverwrite(server) => {
                let is = t.servers[at(server)];
                is.overwriting.then_some(())?;
                let source = self.source_of(t, &is)?;
                let is = &mut t.servers[at(server)];
                is.end_overwrite(&self.rules);
                is.log = source.log;
            }
            Action::Snapshot(server) => {
                let is = t.servers[at(server)];
                (is.up && !is.overwriting).then_some(())?;
                spend(&mut t.budget.snapshots)?;
                let Server { id, log, taken_up, followed, returned, start, .. } = is;
                t.snapshot = Snapshot { is_taken: true, id, log, taken_up, followed, returned, start };
            }
            Action::SetBack(server) => {
                let Snapshot { is_taken, id, log, taken_up, followed, returned, start } = t.snapshot;
                let is = &mut t.servers[at(server)];
                (!is.up && is_taken && id == is.id).then_some(())?;
                // A snapshot of the last run looks like a crash: docs/replication.md, "Not covered".
                (start < is.start || !self.rules.starts_known || !self.rules.other_run).then_some(())?;
                (is.log, is.taken_up, is.followed, is.start) = (log, taken_up, followed, start);
                is.returned = returned;
                t.snapshot = Snapshot::default();
            }
            _ => return None,
        }
        Some(())
    }

    /// Messages that arrive later.
    fn exchange(&self, t: &mut State, action: Action) -> Option<()> {
        let at = |server: u8| usize::from(server);
        match action {
            Action::LateReturned(server) => {
                let (id, permission) = self.return_permission(t, server)?;
                self.send(t, Late::Returned { id, permission })?;
            }
            Action::LatePermitted(server) => {
                let id = t.servers[at(server)].id;
                let permission = t.record.overwriting(id);
                (permission != 0).then_some(())?;
                self.send(t, Late::Permitted { id, permission })?;
            }
            Action::LateInForce(primary) => {
                let (generation, version) = self.word(t, primary)?;
                self.send(t, Late::InForce { generation, version })?;
            }
            Action::LatePromote(server) => {
                let id = t.servers[at(server)].id;
                let (generation, version, rule) = (t.record.generation, t.record.version, t.record.rule());
                (t.record.primary == id && !t.record.ended).then_some(())?;
                self.send(t, Late::Promote { id, generation, version, rule, waits: t.record.earlier != 0 })?;
            }
            Action::LateFollow(server) => {
                let id = t.servers[at(server)].id;
                let (generation, source) = (t.record.generation, t.record.primary);
                (source != id).then_some(())?;
                self.send(t, Late::Follow { id, generation, source })?;
            }
            Action::LateTell(primary) => {
                let (version, rule) = self.wanted(t, primary)?;
                let is = &t.servers[at(primary)];
                self.send(t, Late::Tell { id: is.id, generation: is.generation, version, rule })?;
            }
            Action::Arrive => {
                let late = std::mem::take(&mut t.late);
                // A message that changes nothing is gone as well.
                let _ = self.arrive(t, late);
            }
            _ => return None,
        }
        Some(())
    }

    /// A server's word that it makes no more use of the permission that the record has: first it remembers that.
    fn return_permission(&self, t: &mut State, server: u8) -> Option<(u8, u8)> {
        let is = &mut t.servers[usize::from(server)];
        let permission = t.record.overwriting(is.id);
        (permission != 0 && is.up).then_some(())?;
        is.return_permission(&self.rules, permission)?;
        Some((is.id, permission))
    }

    fn send(&self, t: &mut State, late: Late) -> Option<()> {
        spend(&mut t.budget.late)?;
        t.late = late;
        Some(())
    }

    fn arrive(&self, t: &mut State, late: Late) -> Option<()> {
        match late {
            Late::None => None,
            Late::InForce { generation, version } => t.record.note_in_force(&self.rules, generation, version),
            Late::Returned { id, permission } => t.record.end_overwrite(&self.rules, id, permission),
            Late::Permitted { id, permission } => {
                let server = usize::from(t.server_of(id)?);
                let is = &mut t.servers[server];
                (is.up && is.mode == Mode::Standby).then_some(())?;
                is.permission = is.permission.max(permission);
                Some(())
            }
            Late::Promote { id, generation, version, rule, waits } => {
                self.promote(t, t.server_of(id)?, (generation, version, rule), waits)
            }
            Late::Follow { id, generation, source } => self.follow(t, t.server_of(id)?, generation, source),
            Late::Tell { id, generation, version, rule } => {
                let server = t.server_of(id)?;
                t.servers[usize::from(server)].leads().then_some(())?;
                self.take(t, server, (generation, version, rule));
                Some(())
            }
        }
    }

    /// The primary from which a standby takes the log.
    pub fn source_of(&self, t: &State, is: &Server) -> Option<Server> {
        (is.up && is.mode == Mode::Standby).then_some(())?;
        let source = t.servers[..self.servers.into()].iter().find(|other| other.id + 1 == is.source)?;
        (source.leads() && source.generation == is.generation).then_some(*source)
    }

    /// The server that answers at the address of the source, whatever it is (without `no_cascade`).
    fn any_source(&self, t: &State, is: &Server) -> Option<Server> {
        (is.up && is.mode == Mode::Standby).then_some(())?;
        let source = t.servers[..self.servers.into()].iter().find(|other| other.id + 1 == is.source)?;
        (source.up && !source.overwriting).then_some(*source)
    }

    fn crash(&self, is: &mut Server) {
        let was = *is;
        is.rest();
        is.up = false;
        if !self.rules.followed_durable {
            is.followed = 0;
        }
        if !self.rules.starts_fenced && was.mode == Mode::Primary {
            let Server { generation, rule, version, .. } = was;
            (is.generation, is.rule, is.version) = (generation, rule, version);
        }
    }

    fn start(&self, t: &mut State, server: u8) -> Option<()> {
        let counts_starts = t.budget.snapshots > 0 || t.snapshot.is_taken;
        let is = &mut t.servers[usize::from(server)];
        (!is.up).then_some(())?;
        if self.rules.starts_known {
            // The domain knows of a start before it happens; the volume knows it too.
            let known = &mut t.record.starts[usize::from(is.id)];
            (*known == is.start).then_some(())?;
            if counts_starts {
                is.start += 1;
                *known = is.start;
            }
        }
        is.up = true;
        if !self.rules.starts_fenced && is.generation > 0 {
            (is.mode, is.open, is.visible) = (Mode::Primary, true, is.log.len);
        }
        Some(())
    }

    fn promote(&self, t: &mut State, server: u8, told: (u8, u8, Set), waits: bool) -> Option<()> {
        let (generation, version, rule) = told;
        let is = &mut t.servers[usize::from(server)];
        let is_so = is.mode == Mode::Primary && is.generation >= generation;
        (is.up && !is_so && is.log.len < self.max_log).then_some(())?;
        is.take_up(&self.rules, generation)?;
        let wait = is.wait;
        is.rest();
        (is.mode, is.generation) = (Mode::Primary, generation);
        is.log.push(generation);
        is.begin(version, rule);
        if !self.rules.opens_after_first {
            (is.open, is.visible) = (true, is.log.len);
        }
        if self.lease && self.rules.waits_from_stop {
            self.begin_wait(t, server, waits);
        } else {
            is.wait = wait;
        }
        let log = t.servers[usize::from(server)].log;
        let others = (0..self.servers).filter(|other| *other != server).map(|other| &t.servers[usize::from(other)]);
        if others.into_iter().any(|other| other.leads() && other.generation == generation) {
            t.broken = Broken::OnePrimary;
        } else if t.record.generation == generation && !log.starts_with(t.promised.counts) {
            t.broken = lost(t, log);
        }
        Some(())
    }

    fn follow(&self, t: &mut State, server: u8, generation: u8, source: u8) -> Option<()> {
        let is = &mut t.servers[usize::from(server)];
        (is.up && is.id != source).then_some(())?;
        let is_other = is.generation < generation || !self.rules.older_refused && is.generation != generation;
        (is.mode == Mode::Fenced || is_other).then_some(())?;
        is.remember(&self.rules, generation)?;
        is.rest();
        (is.mode, is.generation, is.source) = (Mode::Standby, generation, source + 1);
        Some(())
    }

    /// What the primary of the current generation is told.
    fn wanted(&self, t: &State, primary: u8) -> Option<(u8, Set)> {
        let (is, record) = (&t.servers[usize::from(primary)], &t.record);
        let is_it = is.leads() && record.generation == is.generation && record.primary == is.id;
        (is_it && !is.changing && is.version < record.version).then(|| (record.version, record.rule()))
    }

    fn word(&self, t: &State, primary: u8) -> Option<(u8, u8)> {
        let is = &t.servers[usize::from(primary)];
        is.leads().then(|| is.report(&self.rules)).flatten()
    }

    fn acknowledge(&self, t: &mut State, primary: u8, before: bool) -> Option<()> {
        let is = t.servers[usize::from(primary)];
        is.leads().then_some(())?;
        // While a rule is coming into force, any part of the engine may obey either.
        let rule = if before || !is.changing { is.rule } else { is.coming };
        (rule.count_ones() as u8 + 1 >= self.least).then_some(())?;
        let done = is.confirmed(&self.rules, rule);
        let news = if is.open { done > is.visible } else { done >= is.visible || !self.rules.flushed_before_reopen };
        (done >= is.log.first_of(is.generation)? && news).then_some(())?;
        self.may_open(t, &is).then_some(())?;
        let confirmed = is.log.cut(done);
        if t.record.generation == is.generation && (rule | bit(is.id)) & t.record.sync_set != t.record.sync_set {
            t.broken = Broken::AllConfirmed;
        }
        // The old primary may read an answer late: then the newer one holds the write.
        if is.generation < t.promised.generation && !t.promised.counts.starts_with(confirmed) {
            t.broken = Broken::OlderBehindNewer;
        }
        let open = &mut t.servers[usize::from(primary)];
        (open.open, open.visible) = (true, done.max(open.visible));
        self.note_opened(t, primary);
        let counts = t.promised.counts;
        if !confirmed.agrees(counts) || counts.len < done && !is.log.starts_with(counts) {
            if t.broken == Broken::Nothing {
                t.broken = lost(t, confirmed);
            }
            return Some(());
        }
        let promised = &mut t.promised;
        promised.generation = promised.generation.max(is.generation);
        promised.acknowledged = promised.acknowledged.max(done);
        if done > counts.len {
            promised.counts = confirmed;
        }
        Some(())
    }

    /// What readers see, and whether the sync set is what it says.
    fn look(&self, t: &mut State) {
        for is in &t.servers[..self.servers.into()] {
            if !(is.leads() && is.open) {
                continue;
            }
            let seen = is.log.cut(is.visible);
            if !seen.agrees(t.promised.counts) {
                t.broken = Broken::OneHistory;
                return;
            }
            if seen.len > t.promised.counts.len {
                t.promised.counts = seen;
            }
            if self.lease && is.visible < t.promised.acknowledged && is.serves(&self.rules) {
                t.broken = Broken::Stale;
                return;
            }
        }
        if !self.inner {
            return;
        }
        for is in &t.servers[..self.servers.into()] {
            let counts = t.record.sync_set & bit(is.id) != 0 && !self.is_set_back(t, is);
            if counts && (is.overwriting || !is.log.starts_with(t.promised.counts)) {
                t.broken = Broken::SetHolds;
            }
        }
    }

    /// Whether the domain refuses a volume, since it was set back.
    pub fn is_set_back(&self, s: &State, is: &Server) -> bool {
        self.rules.starts_known && s.record.starts[usize::from(is.id)] != is.start
    }
}

/// Which promise a log breaks that is to be the database.
fn lost(t: &State, log: Log) -> Broken {
    let acknowledged = t.promised.counts.cut(t.promised.acknowledged);
    if log.starts_with(acknowledged) { Broken::ReadKept } else { Broken::AcknowledgedKept }
}
