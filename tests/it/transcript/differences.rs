//! The list of answers of the embedded Kubernetes that differ from a real one, with the reasons: `differences.txt`.
//!
//! ```text
//! ## topic: $ kubectl version
//! because: one sentence, without which the list is refused
//!   the embedded one's answer
//! ```
//! An entry that no longer differs, or that names no request, fails the test, so that the list stays true.

use super::script::Script;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The reason and the answer, by topic and request.
pub type Differences = BTreeMap<(String, String), (String, Vec<String>)>;

/// Topics run in parallel and rewrite one list.
static WRITING: Mutex<()> = Mutex::new(());

pub fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcript/differences.txt")
}

/// The name of each step in the list: its question, with a number from its second occurrence on.
pub fn names(script: &Script) -> Vec<(String, String)> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    let name = |asked: &'_ str, time: usize| if time == 1 { asked.to_owned() } else { format!("{asked} ({time})") };
    let mut named = Vec::new();
    for step in &script.steps {
        let time = times.entry(&step.asked).or_default();
        *time += 1;
        named.push((script.topic.clone(), name(&step.asked, *time)));
    }
    named
}

pub fn read() -> Result<Differences, String> {
    match std::fs::read_to_string(file()) {
        Ok(text) => parse(&text),
        Err(error) => Err(format!("{}: {error}", file().display())),
    }
}

pub fn parse(text: &str) -> Result<Differences, String> {
    let mut found = Differences::new();
    let mut now: Option<(String, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("differences.txt:{}: {why}: {line}", number + 1);
        if let Some(name) = line.strip_prefix("## ") {
            let (topic, asked) = name.split_once(": ").ok_or_else(|| wrong("no topic"))?;
            let key = (topic.to_owned(), asked.to_owned());
            if found.insert(key.clone(), (String::new(), Vec::new())).is_some() {
                return Err(wrong("twice"));
            }
            now = Some(key);
        } else if !line.is_empty() && !line.starts_with("# ") {
            let entry = now.as_ref().and_then(|key| found.get_mut(key)).ok_or_else(|| wrong("of no request"))?;
            match (line.strip_prefix("because: "), line.strip_prefix("  ")) {
                (Some(reason), _) => entry.0 = reason.to_owned(),
                (None, Some(answer)) => entry.1.push(answer.to_owned()),
                (None, None) => return Err(wrong("neither reason nor answer")),
            }
        }
    }
    Ok(found)
}

/// Entries that name no request, or give no reason.
pub fn untrue(differences: &Differences, scripts: &[Script]) -> Vec<String> {
    let known: Vec<(String, String)> = scripts.iter().flat_map(names).collect();
    let mut wrong = Vec::new();
    for (key, (reason, _)) in differences {
        if !known.contains(key) {
            wrong.push(format!("{}: {}: there is no such request", key.0, key.1));
        } else if reason.is_empty() {
            wrong.push(format!("{}: {}: why?", key.0, key.1));
        }
    }
    wrong
}

/// Writes the present differences of a topic to the list. Existing reasons stay; the developer writes the new ones.
pub fn rewrite(script: &Script, answers: &[Vec<String>]) -> Result<(), String> {
    let _guard = WRITING.lock().map_err(|error| error.to_string())?;
    let (old, mut new) = (read()?, read()?);
    new.retain(|(topic, _), _| *topic != script.topic);
    for ((key, step), answer) in names(script).into_iter().zip(&script.steps).zip(answers) {
        if *answer != step.answer {
            let reason = old.get(&key).map_or_else(String::new, |(reason, _)| reason.clone());
            new.insert(key, (reason, answer.clone()));
        }
    }
    let text = std::fs::read_to_string(file()).map_err(|error| error.to_string())?;
    let mut text: String =
        text.lines().take_while(|line| line.starts_with("# ")).map(|line| format!("{line}\n")).collect();
    for ((topic, asked), (reason, answer)) in new {
        text.push_str(&format!("\n## {topic}: {asked}\nbecause: {reason}\n"));
        answer.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    std::fs::write(file(), text).map_err(|error| error.to_string())
}

#[test]
fn a_list_is_read_and_refused() {
    let list = parse("# About.\n\n## version: $ kubectl version\nbecause: it is small\n  v1\n").unwrap();
    let key = ("version".to_owned(), "$ kubectl version".to_owned());
    assert_eq!(list[&key], ("it is small".to_owned(), vec!["v1".to_owned()]));
    assert_eq!(untrue(&list, &[]), ["version: $ kubectl version: there is no such request"]);
    assert_eq!(parse("  v1\n").unwrap_err(), "differences.txt:1: of no request:   v1");
}
