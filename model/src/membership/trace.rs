//! A run as text.

use super::model::{Action, Protocol};
use super::state::{Node, State};

/// Prints each step, and then the final state.
pub fn print(protocol: &Protocol, steps: &[Action]) {
    let mut s = protocol.init.clone();
    for (number, action) in (1..).zip(steps) {
        let Some(next) = protocol.step(&s, *action) else { break };
        println!("  {number:>2} {}", words(&s, &next, *action));
        s = next;
    }
    for (server, node) in s.servers() {
        let (id, epoch, commit, log) = (node.id, node.epoch, node.commit, &node.log);
        println!("     admin-{server}: {}, id {id}, epoch {epoch}, committed {commit} of {log:?}", condition(node));
    }
    let (epoch, founder, acknowledged) = (s.anchor.epoch, s.anchor.founder, &s.observer.committed);
    let replicas = s.replicas;
    println!("     anchor: epoch {epoch}, founder id {founder}; replicas {replicas}; acknowledged {acknowledged:?}");
}

fn condition(node: &Node) -> &'static str {
    match node {
        Node { up: false, .. } => "down",
        Node { leader: true, .. } => "leader",
        Node { sealed: true, .. } => "sealed",
        _ => "up",
    }
}

fn words(old: &State, new: &State, action: Action) -> String {
    let appended =
        |server: u8| new.node(server).log.all().last().map_or_else(String::new, |entry| format!("{entry:?}"));
    match action {
        Action::Scale(to) => format!("replicas {} -> {to}", old.replicas),
        Action::Kill(server) => format!("Kubernetes stops admin-{server}"),
        Action::Crash(server) => format!("admin-{server} crashes"),
        Action::Restart(server) => format!("the container of admin-{server} restarts"),
        Action::Wipe(server) => format!("the volume of admin-{server} is deleted"),
        Action::Boot(server, stale) => {
            let (was, is) = (old.node(server), new.node(server));
            let stale = if stale { " on a stale read of the anchor" } else { "" };
            if was.id != is.id && !was.log.is_empty() {
                format!("admin-{server} starts{stale}: behind, retires its log, now id {}", is.id)
            } else {
                format!("admin-{server} starts{stale}")
            }
        }
        Action::BootBlind(server) => format!("admin-{server} starts without the anchor"),
        Action::Behind(server) => {
            let is = new.node(server);
            format!("admin-{server} sees that it is behind: id {}, epoch {}", is.id, is.epoch)
        }
        Action::Elect(server, by) => {
            let by: Vec<u8> = (0..16).filter(|voter| by >> voter & 1 == 1).collect();
            format!("admin-{server} is elected by {by:?}, appends {}", appended(server))
        }
        Action::Push(from, to) => format!("admin-{from} replicates to admin-{to}"),
        Action::Commit(server) => format!("admin-{server} commits up to {}", new.node(server).commit),
        Action::Propose(server) => format!("admin-{server} appends a client's entry {}", appended(server)),
        Action::Change(server, replicas) => {
            format!("admin-{server} changes membership for replicas {replicas}: {}", appended(server))
        }
        Action::Finish(server, forward) => {
            let way = if forward { "forward" } else { "back" };
            format!("admin-{server} leaves the joint membership {way}: {}", appended(server))
        }
        Action::Seal(server) => format!("admin-{server} seals epoch {}", old.node(server).epoch),
        Action::Found(server) => format!("admin-{server} swaps the anchor to epoch {}", new.anchor.epoch),
        Action::Recover(server) if new.anchor == old.anchor => {
            format!("an operator on admin-{server}: recover, finds the other pods gone")
        }
        Action::Recover(server) => {
            let epoch = new.anchor.epoch;
            format!("an operator on admin-{server}: recover --accept-data-loss, anchor to epoch {epoch}")
        }
        Action::Adopt(server) => {
            let is = new.node(server);
            format!("admin-{server} writes epoch {}: {:?}", is.epoch, is.log)
        }
        Action::Inject(server) => format!("admin-{server} appends {}", appended(server)),
    }
}
