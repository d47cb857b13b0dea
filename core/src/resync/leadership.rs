//! Lease arithmetic: who leads the resync, by what was seen of the Lease and a local monotonic clock.
//!
//! As client-go does it: another's Lease has expired when its record has not changed for its duration *on our clock*;
//! what the record says of time is compared for being different and never read as time. A Lease is not a fence: a
//! leader that is paused after [`Elector::leads`] said yes continues, and the domain refuses it by its epoch.
//!
//! All moments are milliseconds of one monotonic clock of this machine.

use crate::domain::ids::Uid;

/// How often the pause after a failure is doubled: up to 8 s, which is still less than a Lease lasts.
const MOST_DOUBLINGS: u32 = 3;

/// How a Lease is held and looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For how long a renewal holds.
    pub duration_ms: u64,
    /// How long before the others may take the Lease its holder stops trusting it.
    pub margin_ms: u64,
    /// How long after a renewal the holder renews again.
    pub renew_ms: u64,
    /// How often the others look at the Lease.
    pub look_ms: u64,
    /// How long to wait after a request without an answer; doubled with each that follows.
    pub retry_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // A successor waits this long: short enough that a deleted claim is acted upon within half a minute, long
            // enough to sit out the restart of an API server behind a load balancer.
            duration_ms: 15_000,
            // A third of it. It covers a proposal that was under way when the last check said yes, and clocks that run
            // at different speeds; one failed renewal still fits before it.
            margin_ms: 5_000,
            // Twice within the time that a renewal is trusted, so that one that fails is repeated before that ends.
            renew_ms: 5_000,
            // A candidate sees a release within this time; a GET by name every five seconds is no load.
            look_ms: 5_000,
            // A holder whose renewal at 5 s timed out after 3 s tries once more before it stops leading at 10 s.
            retry_ms: 1_000,
        }
    }
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which Lease it is.
    pub uid: Uid,
    /// Which version of it.
    pub resource_version: String,
    /// Who holds it; `None` if it is free.
    pub holder: Option<String>,
    /// How often it was acquired.
    pub transitions: u64,
    /// For how long a renewal holds.
    pub duration_ms: u64,
    /// When it was renewed, by the holder's clock: a text that is different after each renewal.
    pub renewed: String,
}

impl Record {
    /// Whether the holder has done something since. The version alone does not tell: anybody may annotate a Lease.
    fn is_as_before(&self, before: &Self) -> bool {
        self.uid == before.uid
            && self.holder == before.holder
            && self.transitions == before.transitions
            && self.duration_ms == before.duration_ms
            && self.renewed == before.renewed
    }
}

/// What a candidate does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read the Lease.
    Look,
    /// Create the Lease, held by this candidate.
    Create,
    /// Make this candidate the holder, if the Lease is still of this version.
    Take {
        /// The version.
        resource_version: String,
        /// The count of acquisitions, this one included.
        transitions: u64,
    },
    /// Renew the Lease, if it is still of this version.
    Renew {
        /// The version.
        resource_version: String,
    },
    /// Write the Lease as free, if it is still of this version: this candidate holds it and does not stand.
    Release {
        /// The version.
        resource_version: String,
    },
    /// Nothing before this moment.
    Wait {
        /// The moment.
        until_ms: u64,
    },
}

/// What is known of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing, or nothing that still holds.
    No,
    /// There is none.
    Absent,
    /// It says this since that moment, as far as this candidate has seen.
    Says { record: Record, since_ms: u64 },
}

/// One candidate for one Lease.
#[derive(Clone, Debug)]
pub struct Elector {
    identity: String,
    settings: Settings,
    known: Known,
    /// Whether it stands for the lead; one that does not only looks.
    stands: bool,
    /// When the Lease was last seen.
    seen_ms: u64,
    /// When to look again at another's Lease.
    look_at_ms: u64,
    /// What is known of the Lease's version does not hold: look before anything else.
    must_look: bool,
    /// When the last renewal that succeeded was sent.
    renewed_ms: Option<u64>,
    /// Set after a request without an answer.
    paused_until_ms: Option<u64>,
    /// How many requests in a row went without an answer.
    failures: u32,
}

impl Elector {
    /// A candidate that has seen nothing yet. Its identity must never have been used before.
    pub fn new(identity: impl Into<String>, settings: Settings) -> Self {
        Self {
            identity: identity.into(),
            settings,
            known: Known::No,
            stands: true,
            seen_ms: 0,
            look_at_ms: 0,
            must_look: true,
            renewed_ms: None,
            paused_until_ms: None,
            failures: 0,
        }
    }

    /// Who it is in the Lease.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Has it stand for the lead from now on, or not. One that does not stand leads no more from this moment on, releases
    /// the Lease if it holds it, and keeps watching who does.
    pub fn stand(&mut self, stands: bool) {
        self.stands = stands;
    }

    /// Notes what a read showed: `None` means that there is no Lease, for certain.
    pub fn seen(&mut self, record: Option<Record>, now_ms: u64) {
        let since_ms = match (&self.known, &record) {
            (Known::Says { record: before, since_ms }, Some(record)) if record.is_as_before(before) => *since_ms,
            _ => now_ms,
        };
        self.known = record.map_or(Known::Absent, |record| Known::Says { record, since_ms });
        if self.held().is_none() {
            self.renewed_ms = None;
        }
        self.note_sight(now_ms);
    }

    /// Notes that a Create, Take or Renew succeeded, when it was sent, and what the Lease says now.
    pub fn renewed(&mut self, record: Record, sent_ms: u64) {
        self.known = Known::Says { record, since_ms: sent_ms };
        self.renewed_ms = self.held().is_some().then_some(sent_ms);
        self.note_sight(sent_ms);
    }

    fn note_sight(&mut self, at_ms: u64) {
        self.seen_ms = at_ms;
        self.look_at_ms = at_ms + self.settings.look_ms;
        self.must_look = false;
        self.paused_until_ms = None;
        self.failures = 0;
    }

    /// Notes that the Lease was not as expected when it was to be written. That alone does not end a lead: anybody may
    /// annotate a Lease.
    pub fn conflict(&mut self) {
        self.must_look = true;
        self.paused_until_ms = None;
    }

    /// Notes that a request got no answer, or one that says nothing of the Lease.
    pub fn failed(&mut self, now_ms: u64) {
        self.paused_until_ms = Some(now_ms + (self.settings.retry_ms << self.failures.min(MOST_DOUBLINGS)));
        self.failures += 1;
    }

    /// Notes that others say the holder is gone: look at once.
    pub fn nudge(&mut self) {
        self.must_look |= self.held().is_none();
    }

    /// Notes that others say the holder lives: there is no need to look before another period is over.
    pub fn heard(&mut self, now_ms: u64) {
        self.look_at_ms = self.look_at_ms.max(now_ms + self.settings.look_ms);
    }

    /// What to do next.
    pub fn next(&self, now_ms: u64) -> Act {
        if let Some(until_ms) = self.paused_until_ms.filter(|until_ms| now_ms < *until_ms) {
            return Act::Wait { until_ms };
        }
        match &self.known {
            _ if self.must_look => Act::Look,
            Known::No => Act::Look,
            Known::Says { record, .. } if !self.stands && self.is_mine(record) => {
                Act::Release { resource_version: record.resource_version.clone() }
            }
            _ if !self.stands && now_ms >= self.look_at_ms => Act::Look,
            _ if !self.stands => Act::Wait { until_ms: self.look_at_ms },
            Known::Absent => Act::Create,
            Known::Says { record, .. } if self.is_mine(record) => self.next_of_holder(record, now_ms),
            Known::Says { record, since_ms } => self.next_of_candidate(record, *since_ms, now_ms),
        }
    }

    fn next_of_holder(&self, record: &Record, now_ms: u64) -> Act {
        match self.renewed_ms.map(|renewed_ms| renewed_ms + self.settings.renew_ms) {
            Some(until_ms) if now_ms < until_ms => Act::Wait { until_ms },
            // Without a renewal yet, this is an acquisition whose answer was lost: a renewal proves it.
            Some(_) | None => Act::Renew { resource_version: record.resource_version.clone() },
        }
    }

    fn next_of_candidate(&self, record: &Record, since_ms: u64, now_ms: u64) -> Act {
        if now_ms >= self.look_at_ms {
            return Act::Look;
        }
        let expires_ms = if record.holder.is_none() { since_ms } else { since_ms + record.duration_ms };
        if now_ms < expires_ms {
            return Act::Wait { until_ms: expires_ms.min(self.look_at_ms) };
        }
        // A sight that is older than a period (others vouched for the holder meanwhile) is no ground to take.
        if now_ms - self.seen_ms >= self.settings.look_ms {
            return Act::Wait { until_ms: self.look_at_ms };
        }
        Act::Take { resource_version: record.resource_version.clone(), transitions: record.transitions + 1 }
    }

    /// Whether it leads: its last renewal, counted from when it was sent, is younger than the duration less the margin.
    pub fn leads(&self, now_ms: u64) -> bool {
        self.leads_until_ms().is_some_and(|until_ms| now_ms < until_ms)
    }

    /// When its lead ends unless it renews; `None` if it has none.
    pub fn leads_until_ms(&self) -> Option<u64> {
        self.held().filter(|_| self.stands)?;
        let trusted_ms = self.settings.duration_ms.saturating_sub(self.settings.margin_ms);
        Some(self.renewed_ms? + trusted_ms)
    }

    /// The Lease as it was last seen, if this candidate is its holder.
    pub fn held(&self) -> Option<&Record> {
        self.record().filter(|record| self.is_mine(record))
    }

    /// The Lease as it was last seen.
    pub fn record(&self) -> Option<&Record> {
        match &self.known {
            Known::No | Known::Absent => None,
            Known::Says { record, .. } => Some(record),
        }
    }

    /// Stops leading at once. Returns the Lease that is to be written as free, if this candidate holds it.
    pub fn release(&mut self) -> Option<Record> {
        let held = self.held().cloned();
        self.known = Known::No;
        self.renewed_ms = None;
        self.must_look = true;
        held
    }

    fn is_mine(&self, record: &Record) -> bool {
        record.holder.as_deref() == Some(&self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::{Act, Elector, Record, Settings};

    /// Runs a script. A line is `time event -> act [leads]`, where the candidate is `a` and `LEASE` is
    /// `holder/transitions/renewed/version`, with `-` for no holder. Events: `absent`; `sees LEASE`;
    /// `got LEASE sent TIME` (a write succeeded); `conflict`; `failed`; `nudge`; `heard`; `release`; `stands`; `stands not`;
    /// `.` (time passes).
    fn run(script: &str) {
        let mut elector = Elector::new("a", Settings::default());
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (event, expected) = line.split_once("->").expect(line);
            let words: Vec<&str> = event.split_whitespace().collect();
            let now: u64 = words[0].parse().expect(line);
            match words[1..] {
                ["absent"] => elector.seen(None, now),
                ["sees", lease] => elector.seen(Some(record(lease)), now),
                ["got", lease, "sent", sent] => elector.renewed(record(lease), sent.parse().expect(line)),
                ["conflict"] => elector.conflict(),
                ["failed"] => elector.failed(now),
                ["nudge"] => elector.nudge(),
                ["heard"] => elector.heard(now),
                ["release"] => drop(elector.release()),
                ["stands"] => elector.stand(true),
                ["stands", "not"] => elector.stand(false),
                ["."] => {}
                _ => panic!("what is {line}?"),
            }
            let act = match elector.next(now) {
                Act::Look => "look".to_owned(),
                Act::Create => "create".to_owned(),
                Act::Take { resource_version, transitions } => format!("take {resource_version} as {transitions}"),
                Act::Renew { resource_version } => format!("renew {resource_version}"),
                Act::Release { resource_version } => format!("free {resource_version}"),
                Act::Wait { until_ms } => format!("wait {until_ms}"),
            };
            let leads = if elector.leads(now) { " leads" } else { "" };
            assert_eq!(format!("{act}{leads}"), expected.trim(), "at: {line}");
        }
    }

    fn record(lease: &str) -> Record {
        let fields: Vec<&str> = lease.split('/').collect();
        let [holder, transitions, renewed, version] = fields[..] else { panic!("what is {lease}?") };
        Record {
            uid: "lease".into(),
            resource_version: version.to_owned(),
            holder: (holder != "-").then(|| holder.to_owned()),
            transitions: transitions.parse().expect("transitions"),
            duration_ms: if holder == "-" { 1_000 } else { 15_000 },
            renewed: renewed.to_owned(),
        }
    }

    #[test]
    fn a_lease_that_does_not_exist_is_created_and_renewed_without_a_read() {
        run("
            0     .                          -> look
            10    absent                     -> create
            40    got a/1/r1/v1 sent 20      -> wait 5020 leads
            5020  .                          -> renew v1 leads
            5050  got a/1/r2/v2 sent 5020    -> wait 10020 leads
            10020 .                          -> renew v2 leads
        ");
    }

    #[test]
    fn a_lead_is_trusted_from_the_sending_of_its_renewal_until_the_margin() {
        run("
            0     got a/1/r1/v1 sent 0       -> wait 5000 leads
            5000  .                          -> renew v1 leads
            8000  failed                     -> wait 9000 leads
            9000  .                          -> renew v1 leads
            9999  .                          -> renew v1 leads
            10000 .                          -> renew v1
            12500 got a/1/r2/v2 sent 9000    -> wait 14000 leads
            19000 .                          -> renew v2
        ");
    }

    #[test]
    fn anothers_lease_expires_when_its_record_stands_still_on_our_clock() {
        run("
            0     sees b/3/r1/v1             -> wait 5000
            5000  .                          -> look
            5000  sees b/3/r2/v2             -> wait 10000
            10000 sees b/3/r2/v2             -> wait 15000
            15000 sees b/3/r2/v2             -> wait 20000
            19999 sees b/3/r2/v2             -> wait 20000
            20000 .                          -> take v2 as 4
            20030 got a/4/r3/v3 sent 20000   -> wait 25000 leads
        ");
    }

    #[test]
    fn an_annotation_is_no_sign_of_life_but_its_version_counts() {
        run("
            0     sees b/3/r1/v1             -> wait 5000
            14000 sees b/3/r1/v2             -> wait 15000
            15000 .                          -> take v2 as 4
        ");
    }

    #[test]
    fn a_jump_of_our_clock_means_look_again_not_take() {
        run("
            0     sees b/3/r1/v1             -> wait 5000
            90000 .                          -> look
            90000 sees b/3/r9/v9             -> wait 95000
        ");
    }

    #[test]
    fn a_holder_that_was_paused_does_not_lead_until_it_renews() {
        run("
            0     got a/1/r1/v1 sent 0       -> wait 5000 leads
            60000 .                          -> renew v1
            60010 conflict                   -> look
            60020 sees b/2/r2/v2             -> wait 65020
        ");
        run("
            0     got a/1/r1/v1 sent 0       -> wait 5000 leads
            60000 .                          -> renew v1
            60010 got a/1/r2/v2 sent 60000   -> wait 65000 leads
        ");
    }

    #[test]
    fn a_conflict_means_read_afresh_and_does_not_end_a_lead_by_itself() {
        run("
            0     got a/1/r1/v1 sent 0       -> wait 5000 leads
            5010  conflict                   -> look leads
            5020  sees a/1/r1/v2             -> renew v2 leads
            5030  got a/1/r2/v3 sent 5020    -> wait 10020 leads
            10030 conflict                   -> look leads
            10040 absent                     -> create
            10050 conflict                   -> look
        ");
    }

    #[test]
    fn an_acquisition_whose_answer_was_lost_is_proven_by_a_renewal() {
        run("
            0     sees -/3/r1/v1             -> take v1 as 4
            3000  failed                     -> wait 4000
            4000  .                          -> take v1 as 4
            4010  conflict                   -> look
            4020  sees a/4/r2/v2             -> renew v2
            4040  got a/4/r3/v3 sent 4020    -> wait 9020 leads
        ");
    }

    #[test]
    fn a_released_lease_is_taken_at_once_and_its_old_holder_stays_away() {
        run("
            0     sees b/3/r1/v1             -> wait 5000
            1000  nudge                      -> look
            1010  sees -/3/r2/v2             -> take v2 as 4
        ");
        run("
            0     got a/1/r1/v1 sent 0       -> wait 5000 leads
            1000  release                    -> look
        ");
    }

    #[test]
    fn a_holder_that_does_not_stand_any_more_leads_no_more_and_frees_the_lease_until_that_is_certain() {
        run("
            0     got a/1/r1/v1 sent 0       -> wait 5000 leads
            1000  stands not                 -> free v1
            4000  failed                     -> wait 5000
            5000  .                          -> free v1
            5010  conflict                   -> look
            5020  sees a/1/r1/v2             -> free v2
            5050  sees -/1/r2/v3             -> wait 10050
            10050 .                          -> look
            10050 sees b/2/r3/v4             -> wait 15050
        ");
    }

    #[test]
    fn who_does_not_stand_looks_and_takes_nothing_and_takes_it_once_it_stands() {
        run("
            0     stands not                 -> look
            10    absent                     -> wait 5010
            5010  .                          -> look
            5020  sees -/3/r1/v1             -> wait 10020
            6000  nudge                      -> look
            6010  sees -/3/r1/v1             -> wait 11010
            7000  stands                     -> take v1 as 4
        ");
    }

    #[test]
    fn of_two_candidates_the_one_with_the_older_version_waits() {
        run("
            0     sees -/3/r1/v1             -> take v1 as 4
            10    conflict                   -> look
            20    sees b/4/r2/v2             -> wait 5020
        ");
    }

    #[test]
    fn who_hears_that_the_holder_lives_neither_looks_nor_takes() {
        run("
            0     sees b/3/r1/v1             -> wait 5000
            4000  heard                      -> wait 9000
            8000  heard                      -> wait 13000
            12000 heard                      -> wait 15000
            16000 .                          -> wait 17000
            17000 .                          -> look
            17000 sees b/3/r4/v4             -> wait 22000
        ");
    }

    #[test]
    fn an_unreadable_lease_is_asked_for_again_after_a_pause() {
        run("
            0     failed                     -> wait 1000
            1000  .                          -> look
            2000  failed                     -> wait 4000
            4000  failed                     -> wait 8000
            8000  failed                     -> wait 16000
            16000 failed                     -> wait 24000
            24000 sees b/3/r1/v1             -> wait 29000
            29000 failed                     -> wait 30000
        ");
    }
}
