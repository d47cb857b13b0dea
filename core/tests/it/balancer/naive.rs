//! A second evaluator, written only from docs/load-balancing.md: it reads the text again for each process, builds no
//! tree, and assumes that queries parse.

use kaa_core::domain::process::{DurableState, EngineKind, EngineState, Process, SessionState};
use std::collections::{BTreeMap, BTreeSet};

/// The processes, and the client's properties and address.
pub struct World<'a> {
    pub processes: &'a [Process],
    pub properties: &'a BTreeMap<String, String>,
    pub address: Option<&'a str>,
}

type Ids = BTreeSet<u64>;

impl World<'_> {
    /// The processes that are offered to clients.
    pub fn offered(&self) -> Ids {
        let offered = |process: &&Process| {
            process.kind == EngineKind::Te
                && process.durable == DurableState::Monitored
                && process.engine == EngineState::Running
                && process.session.state == SessionState::Live
        };
        self.processes.iter().filter(offered).map(|process| process.id.0).collect()
    }

    /// The suitable processes: the pre-filters apply one after another, then the query.
    pub fn suitable(&self, prefilters: &[String], query: &str) -> Ids {
        let (_, filter) = word_and_inside(query);
        prefilters.iter().map(String::as_str).chain([filter]).fold(self.offered(), |left, it| self.passes(it, &left))
    }

    /// The processes of a set that a filter lets pass.
    pub fn passes(&self, filter: &str, among: &Ids) -> Ids {
        let (word, inside) = word_and_inside(filter);
        let mut inner = parts(inside).into_iter().map(|part| self.passes(part, among));
        match word {
            "any" => among.clone(),
            "not" => among - &self.passes(inside, among),
            "and" => inner.fold(among.clone(), |left, passes| &left & &passes),
            "or" => inner.fold(Ids::new(), |all, passes| &all | &passes),
            "first" => inner.find(|passes| !passes.is_empty()).unwrap_or_default(),
            _ => among.iter().copied().filter(|id| self.has(word, inside, *id)).collect(),
        }
    }

    /// Whether a process has a value that the pattern matches.
    fn has(&self, word: &str, inside: &str, id: u64) -> bool {
        let process = self.processes.iter().find(|process| process.id.0 == id).unwrap();
        let told = |value: &String| (!value.is_empty()).then(|| value.clone());
        let about = &process.about;
        if word == "colocated" {
            return self.address.is_some_and(|address| about.address == address);
        }
        let (value, pattern) = match word {
            "start_id" => (Some(process.id.0.to_string()), inside),
            "node_id" => (Some(process.node.0.to_string()), inside),
            "server_id" => (Some(process.session.server.to_string()), inside),
            "pid" => ((about.pid != 0).then(|| about.pid.to_string()), inside),
            "address" => (told(&about.address), inside),
            "hostname" => (told(&about.hostname), inside),
            "option" => (None, inside),
            "label" => {
                let (name, pattern) = inside.trim().split_once(char::is_whitespace).unwrap();
                let label = match name {
                    "pod-name" => Some(process.identity.pod.clone()),
                    "pod-uid" => Some(process.identity.pod_uid.to_string()),
                    "container-id" => process.container_id.as_ref().map(ToString::to_string),
                    _ => about.labels.get(name).cloned(),
                };
                (label, pattern)
            }
            _ => panic!("{word} is no filter"),
        };
        value.is_some_and(|value| pattern.split(',').any(|alternative| self.matches(alternative.trim(), &value)))
    }

    fn matches(&self, alternative: &str, value: &str) -> bool {
        let property = |name: &str| self.properties.get(name).filter(|value| !value.is_empty());
        if alternative == "*" {
            return true;
        }
        if let Some(name) = alternative.strip_prefix("${").and_then(|rest| rest.strip_suffix(":-*}")) {
            return property(name).is_none_or(|own| own == value);
        }
        let mut rest = alternative.trim_matches('*');
        let mut wanted = String::new();
        while let Some((before, after)) = rest.split_once("${") {
            let (variable, after) = after.split_once('}').unwrap();
            let (name, default) = variable.split_once(":-").unwrap_or((variable, ""));
            wanted += before;
            wanted += property(name).map_or(default, String::as_str);
            rest = after;
        }
        wanted += rest;
        if wanted.is_empty() {
            return false;
        }
        if alternative.ends_with('*') {
            value.starts_with(&wanted)
        } else if alternative.starts_with('*') {
            value.ends_with(&wanted)
        } else {
            value == wanted
        }
    }
}

/// Splits `first(any label(a b))` into `first` and `any label(a b)`.
fn word_and_inside(text: &str) -> (&str, &str) {
    let text = text.trim();
    match text.split_once('(') {
        Some((word, inside)) => (word.trim(), inside.strip_suffix(')').unwrap()),
        None => (text, ""),
    }
}

/// The filters of a list. A filter ends at the `)` that closes its outermost parenthesis, or with a word that no `(`
/// follows.
fn parts(list: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in list.char_indices() {
        let follows = |text: &str| text.trim_start().starts_with('(');
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if !character.is_whitespace() => continue,
            _ => {}
        }
        let end = if character == ')' { at + 1 } else { at };
        let ends = depth == 0 && (character == ')' || !follows(&list[at..]));
        if ends && !list[begin..end].trim().is_empty() {
            parts.push(list[begin..end].trim());
            begin = end;
        }
    }
    parts.extend(Some(list[begin..].trim()).filter(|part| !part.is_empty()));
    parts
}

#[test]
fn it_takes_lists_apart() {
    assert_eq!(word_and_inside(" first ( any label(a b)) "), ("first", " any label(a b)"));
    assert_eq!(parts(" any  not( any )label (a b)  any"), ["any", "not( any )", "label (a b)", "any"]);
    assert!(parts(" ").is_empty());
}
