//! A run as text. Servers keep their letters, although equal states are explored under one set of names.

use super::model::{Action, Protocol};
use super::state::{Log, Mode, Server, Set, Sign, State, ids};
use stateright::Model;

/// A state, and the letter of each server in it.
struct Named {
    state: State,
    letters: Vec<char>,
}

impl Named {
    fn of(&self, server: u8) -> char {
        self.letters.get(usize::from(server)).copied().unwrap_or('?')
    }

    fn archive(&self, id: u8) -> char {
        self.state.server_of(id).map_or('?', |server| self.of(server))
    }

    fn set(&self, set: Set) -> String {
        let mut letters: Vec<String> = ids(set).map(|id| self.archive(id).to_string()).collect();
        letters.sort();
        format!("{{{}}}", letters.join(" "))
    }
}

/// Prints each step, and then the final state.
pub fn print(protocol: &Protocol, steps: &[Action]) {
    let Some(state) = protocol.init_states().into_iter().next() else { return };
    let letters = ('a'..).take(protocol.servers.into()).collect();
    let mut now = Named { state, letters };
    for (number, action) in (1..).zip(steps) {
        let Some(next) = protocol.step(&now.state, *action) else { break };
        let after = Named { state: next, letters: now.letters.clone() };
        println!("  {number:>2} {}", words(&now, &after, *action));
        let (state, order) = next.canonical(protocol.servers.into());
        let letters = order.iter().map(|old| now.of(*old)).collect();
        now = Named { state, letters };
    }
    let mut servers: Vec<(char, &Server)> = now.letters.iter().copied().zip(&now.state.servers).collect();
    servers.sort_by_key(|(letter, _)| *letter);
    for (letter, server) in servers {
        let overwritten = if server.overwriting { " (overwritten)" } else { "" };
        println!("     {letter}: {}, log {}{overwritten}", mode(server), log(server.log));
    }
    let (record, promised) = (&now.state.record, &now.state.promised);
    let (generation, primary) = (record.generation, now.archive(record.primary));
    let (set, counts, acknowledged) = (now.set(record.sync_set), log(promised.counts), promised.acknowledged);
    println!(
        "     record: generation {generation} of {primary}, set {set}; what counts: {counts}, acknowledged {acknowledged}"
    );
}

fn log(log: Log) -> String {
    (0..log.len).map(|index| log.get(index).to_string()).collect()
}

fn mode(server: &Server) -> String {
    let Server { generation, visible, .. } = server;
    match server.mode {
        _ if !server.up => "down".to_owned(),
        Mode::Fenced => "fenced".to_owned(),
        Mode::Standby => format!("standby in generation {generation}"),
        Mode::Primary if server.open => {
            let lease = if server.lease > 0 { ", with a lease" } else { "" };
            format!("primary of generation {generation}, {visible} visible{lease}")
        }
        Mode::Primary => format!("primary of generation {generation}, closed"),
    }
}

fn words(old: &Named, new: &Named, action: Action) -> String {
    let (of, before) = (|server: u8| old.of(server), |server: u8| &old.state.servers[usize::from(server)]);
    let after = |server: u8| &new.state.servers[usize::from(server)];
    let (record, next) = (&old.state.record, &new.state.record);
    match action {
        Action::Write(server) => format!("{} writes: log {}", of(server), log(after(server).log)),
        Action::Ship(server) => format!("{} takes an entry: log {}", of(server), log(after(server).log)),
        Action::Reply(primary, standby) => {
            format!("{} hears that {} has flushed {}", of(primary), of(standby), before(standby).log.len)
        }
        Action::Acknowledge(server, old_rule) => {
            let rule = if old_rule { " by the older rule" } else { "" };
            let open = if before(server).open { "" } else { " and lets clients in" };
            format!("{} acknowledges up to {}{rule}{open}", of(server), after(server).visible)
        }
        Action::Grant(server, set) => {
            format!("the domain grants generation {} to {}, set {}", next.generation, of(server), old.set(set))
        }
        Action::Promote(server) => {
            let (generation, rule) = (after(server).generation, old.set(after(server).rule));
            format!("{} is promoted in generation {generation}, requires {rule}", of(server))
        }
        Action::Follow(server) => {
            let (source, generation) = (old.archive(after(server).source.saturating_sub(1)), after(server).generation);
            format!("{} follows {source} in generation {generation}", of(server))
        }
        Action::Tell(server) => {
            let (version, rule) = (after(server).version, old.set(record.rule()));
            format!("{} is told version {version}: require {rule}", of(server))
        }
        Action::Settle(server) => format!("no part of {} obeys the older rule any more", of(server)),
        Action::InForce(server) => {
            format!(
                "{} reports version {} in force: set {}",
                of(server),
                before(server).version,
                new.set(next.sync_set)
            )
        }
        Action::Join(server) => format!("version {}: {} is to join", next.version, of(server)),
        Action::Leave(_) => format!("version {}: set {}", next.version, old.set(next.sync_set)),
        Action::Drop(primary, standby) => format!("{} stops to wait for {} by itself", of(primary), of(standby)),
        Action::Crash(server) => format!("{} crashes", of(server)),
        Action::Start(server) => format!("{} starts, {}", of(server), mode(after(server))),
        Action::Wipe(server) => format!("the volume of {} is deleted", of(server)),
        Action::PermitOverwrite(server) => format!("{} may be overwritten", of(server)),
        Action::BeginOverwrite(server) => format!("{} begins to rewind or to copy", of(server)),
        Action::FinishOverwrite(server) => format!("{} is overwritten: log {}", of(server), log(after(server).log)),
        Action::EndOverwrite(server) => format!("{} reports that its data is whole", of(server)),
        Action::LateReturned(server) => {
            format!("{} reports that its data is whole; the report arrives later", of(server))
        }
        Action::LatePermitted(server) => format!("the permission to overwrite {} is under way to it", of(server)),
        Action::LateInForce(server) => {
            format!("{} sends that version {} is in force; it arrives later", of(server), before(server).version)
        }
        Action::LatePromote(server) => {
            format!("the grant of generation {} is under way to {}", record.generation, of(server))
        }
        Action::LateFollow(server) => {
            format!("the word to follow in generation {} is under way to {}", record.generation, of(server))
        }
        Action::LateTell(server) => format!("version {} is under way to {}", record.version, of(server)),
        Action::Arrive => format!("the late message arrives: {:?}", old.state.late),
        Action::Snapshot(server) => format!("a snapshot of the volume of {}", of(server)),
        Action::SetBack(server) => format!("the volume of {} is set back: log {}", of(server), log(after(server).log)),
        other => of_lease(old, other),
    }
}

fn of_lease(old: &Named, action: Action) -> String {
    let of = |server: u8| old.of(server);
    match action {
        Action::Begin(server) => format!("{} begins an own commit", of(server)),
        Action::Flush(server) => format!("{} flushes the own commit of its primary", of(server)),
        Action::Ask(server) => format!("{} asks the domain, which says yes; the word arrives later", of(server)),
        Action::Renew(server) => match old.state.servers[usize::from(server)].sign {
            Sign::Word { .. } => format!("{} gets the domain's word", of(server)),
            Sign::None | Sign::Commit { .. } => format!("{} learns that its own commit was released", of(server)),
        },
        Action::LeaseEnds(server) => format!("the lease of {} ends", of(server)),
        Action::Close(server) => format!("{} closes", of(server)),
        Action::WaitEnds(server) => format!("{} has waited for the lease of the earlier primary", of(server)),
        other => format!("{other:?}"),
    }
}
