//! The language of the cases: blocks of command lines, `----`, and the answers. `World::run` says what each command
//! does. `UPDATE=1` rewrites the answers.

use super::process;
use crate::script::answered;
use kaa_core::balancer::candidates::{Candidate, Candidates};
use kaa_core::balancer::choose::{Chance, Client, choose, listed, suitable};
use kaa_core::balancer::explain::explain;
use kaa_core::balancer::policies::{Config, Policies, QUERY_PROPERTY, Route};
use kaa_core::balancer::query::{Filter, Query};
use kaa_core::balancer::turns::Turns;
use kaa_core::domain::ids::{Millis, StartId};
use kaa_core::domain::process::{DurableState, EngineKind, EngineState, Process, SessionState};
use std::collections::BTreeMap;

/// Runs a script and returns it with its answers.
pub fn run(text: &str) -> String {
    let mut world = World::default();
    answered(text, |line| world.run(line))
}

#[derive(Default)]
struct World {
    processes: BTreeMap<u64, Process>,
    policies: Policies,
    properties: BTreeMap<String, String>,
    address: Option<String>,
    turns: Turns,
    random: u64,
}

impl World {
    fn run(&mut self, line: &str) -> String {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            // `te ID [@KEY=VALUE...] [LABEL=VALUE...]`: by default the process is one that is offered.
            "te" => self.start(EngineKind::Te, rest),
            "sm" => self.start(EngineKind::Sm, rest),
            "gone" => self.processes.remove(&rest.parse().unwrap()).map(|_| String::new()).expect("a process"),
            // `client [@ADDRESS] [PROPERTY=VALUE...]`: everything that the client sends about itself.
            "client" => self.become_client(rest),
            // `global|database default|prefilter TEXT|none`.
            "global" | "database" => self.configure(command, rest),
            // `policy NAME TEXT|none`.
            "policy" => self.name_policy(rest),
            // `ask [QUERY]`: the suitable processes. Without a query, the client sends none.
            "ask" => {
                self.decide(rest, |route, candidates, client, _| numbers(&suitable(route, candidates, client))) + "\n"
            }
            // `choose N [QUERY]`: what N clients get, one after another. The random numbers are 0, 1, 2...
            "choose" => self.choose(rest),
            "explain" => {
                let told = |route: &Route<'_>, candidates: &Candidates, client: Client<'_>, chance: Chance<'_>| {
                    explain(route, candidates, client, chance).to_string()
                };
                self.decide(rest, told).trim_end().to_owned() + "\n"
            }
            // `list FILTER`: as in lists of processes.
            "list" => {
                let filter: Filter = rest.parse().unwrap();
                numbers(&listed(&filter, &self.candidates(), self.client(&self.properties))) + "\n"
            }
            // `query TEXT`, `filter TEXT`: the printed form, or why the text does not parse. `\n`, `\t` and `\a` are as
            // in C.
            "query" => printed(text(rest).parse::<Query>()),
            "filter" => printed(text(rest).parse::<Filter>()),
            _ => panic!("unknown command: {line}"),
        }
    }

    fn start(&mut self, kind: EngineKind, words: &str) -> String {
        let mut words = words.split(' ');
        let id = words.next().unwrap().parse().unwrap();
        let mut process = process(id, kind);
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "@server" => process.session.server = value.into(),
                "@address" => process.about.address = value.to_owned(),
                "@hostname" => process.about.hostname = value.to_owned(),
                "@pid" => process.about.pid = value.parse().unwrap(),
                "@node" => process.node.0 = value.parse().unwrap(),
                "@pod" => process.identity.pod = value.to_owned(),
                "@container" => process.container_id = Some(value.into()),
                "@lost" => process.session.state = SessionState::Lost(Millis(1)),
                "@requested" => process.durable = DurableState::Requested,
                "@stopping" => process.durable = DurableState::RequestedShutdown,
                "@unknown" => process.engine = EngineState::Unknown,
                "@syncing" => process.engine = EngineState::Syncing,
                "@shutting-down" => process.engine = EngineState::ShuttingDown,
                _ => assert!(process.about.labels.insert(key.to_owned(), value.to_owned()).is_none(), "{word}"),
            }
        }
        self.processes.insert(id, process);
        String::new()
    }

    fn become_client(&mut self, words: &str) -> String {
        self.properties.clear();
        self.address = None;
        for word in words.split(' ').filter(|word| !word.is_empty()) {
            if let Some(address) = word.strip_prefix('@') {
                self.address = Some(address.to_owned());
            } else {
                let (name, value) = word.split_once('=').expect("PROPERTY=VALUE");
                self.properties.insert(name.to_owned(), value.to_owned());
            }
        }
        String::new()
    }

    fn configure(&mut self, whose: &str, rest: &str) -> String {
        let config: &mut Config = match whose {
            "global" => &mut self.policies.global,
            _ => self.policies.databases.entry("demo".into()).or_default(),
        };
        let (what, text) = rest.split_once(' ').expect("default|prefilter TEXT");
        match what {
            "default" => config.default = (text != "none").then(|| text.parse().unwrap()),
            "prefilter" => config.prefilter = (text != "none").then(|| text.parse().unwrap()),
            _ => panic!("neither default nor prefilter: {rest}"),
        }
        String::new()
    }

    fn name_policy(&mut self, rest: &str) -> String {
        let (name, text) = rest.split_once(' ').expect("NAME TEXT");
        if text == "none" {
            self.policies.named.remove(name).expect("a policy");
        } else {
            self.policies.named.insert(name.to_owned(), text.parse().unwrap());
        }
        String::new()
    }

    fn candidates(&self) -> Candidates {
        Candidates::new(self.processes.values().map(Candidate::from))
    }

    fn client<'a>(&'a self, properties: &'a BTreeMap<String, String>) -> Client<'a> {
        Client { properties, address: self.address.as_deref() }
    }

    fn decide(
        &self,
        query: &str,
        answer: impl FnOnce(&Route<'_>, &Candidates, Client<'_>, Chance<'_>) -> String,
    ) -> String {
        let mut properties = self.properties.clone();
        if !query.is_empty() {
            properties.insert(QUERY_PROPERTY.to_owned(), query.to_owned());
        }
        let client = self.client(&properties);
        match self.policies.route(&"demo".into(), client) {
            Ok(route) => {
                let chance = Chance { turns: &self.turns, random: self.random };
                answer(&route, &self.candidates(), client, chance)
            }
            Err(why) => format!("refused: {why}"),
        }
    }

    fn choose(&mut self, rest: &str) -> String {
        let (times, query) = rest.split_once(' ').unwrap_or((rest, ""));
        let mut drawn = String::new();
        for _ in 0..times.parse().unwrap() {
            drawn += &self.decide(query, |route, candidates, client, chance| {
                numbers(&Vec::from_iter(choose(route, candidates, client, chance)))
            });
            drawn += " ";
            self.random += 1;
        }
        drawn.trim_end().to_owned() + "\n"
    }
}

fn numbers(ids: &[StartId]) -> String {
    if ids.is_empty() {
        return "none".to_owned();
    }
    ids.iter().map(StartId::to_string).collect::<Vec<_>>().join(" ")
}

fn text(written: &str) -> String {
    written.replace("\\n", "\n").replace("\\t", "\t").replace("\\a", "\u{7}")
}

fn printed<T: ToString, E: ToString>(parsed: Result<T, E>) -> String {
    parsed.map_or_else(|error| error.to_string(), |tree| tree.to_string()) + "\n"
}
