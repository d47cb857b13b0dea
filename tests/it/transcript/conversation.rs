//! Runs one topic: sends the question of every step, and masks the answer.

use super::fields::{field, shown, text};
use super::kubernetes::{Kubernetes, Namespace, PATIENCE, PAUSE, request};
use super::masks::{Masks, SHORTEST};
use super::script::{Call, Script, Step};
use super::watches::Watch;
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// Lines of kubectl's log among its errors: their number varies.
const LOGGED: &str = r"^[IWEF]\d{4} [\d:.]+ |^Unknown stream id";

/// An answer: the lines to compare, and what `until` and `keep` use.
#[derive(Debug, Default)]
struct Answer {
    lines: Vec<String>,
    printed: String,
    code: u16,
    json: Option<Value>,
}

/// A running conversation.
struct Conversation {
    namespace: Namespace,
    masks: Masks,
    logged: Regex,
    /// The value of each `$NAME`. Longer names are replaced first.
    variables: BTreeMap<String, String>,
    watches: BTreeMap<String, Watch>,
}

/// Sends all questions in a namespace of their own. Returns the answers, step by step.
pub async fn converse(kubernetes: &Kubernetes, script: &Script) -> Result<Vec<Vec<String>>, String> {
    if kubernetes.image.len() < SHORTEST {
        return Err(format!("the image's name is too short to be masked: {}", kubernetes.image));
    }
    let namespace = Namespace::new(kubernetes).await?;
    let mut masks = Masks::new();
    masks.add(&namespace.name, "$NS");
    masks.add(&kubernetes.image, "$IMAGE");
    namespace.nodes.iter().for_each(|node| masks.add(node, "<node>"));
    let logged = Regex::new(LOGGED).map_err(|error| error.to_string())?;
    let known = [("NS", &namespace.name), ("IMAGE", &kubernetes.image)];
    let variables = known.map(|(name, value)| (name.to_owned(), value.clone())).into();
    let mut conversation = Conversation { namespace, masks, logged, variables, watches: BTreeMap::new() };
    let mut answers = Vec::new();
    for step in &script.steps {
        answers.push(conversation.answered(step).await);
    }
    conversation.watches.clear();
    conversation.namespace.delete().await?;
    Ok(answers)
}

impl Conversation {
    /// The lines of the answer. The question is repeated until the answer is the expected one. If a question cannot be
    /// sent, the reason is the answer, so that the rest of the topic runs too.
    async fn answered(&mut self, step: &Step) -> Vec<String> {
        let began = Instant::now();
        loop {
            let mut answer = match self.ask(step).await {
                Ok(answer) => answer,
                Err(why) => Answer { lines: vec![format!("! {why}")], ..Answer::default() },
            };
            let fits = matches!(step.call, Call::Events { .. }) || self.fits(step, &answer);
            if !fits && began.elapsed() < PATIENCE {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            if !fits {
                answer.lines.push(format!("! waited in vain until {}", step.until.as_deref().unwrap_or_default()));
            }
            self.keep(step, &mut answer);
            let masked = answer.lines.iter().map(|line| self.masks.mask(line));
            let mut lines: Vec<String> = masked.filter(|line| !line.trim().is_empty()).collect();
            if step.sorted {
                lines.sort();
            }
            return lines;
        }
    }

    async fn ask(&mut self, step: &Step) -> Result<Answer, String> {
        let body = self.filled(&step.body);
        match &step.call {
            Call::Command(line) => {
                let variables: Vec<_> = self.variables.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                let printed = self.namespace.command(line, &body, &variables).await?;
                let mut lines: Vec<String> = printed.output.lines().map(str::to_owned).collect();
                let errors = printed.errors.lines().filter(|line| !self.logged.is_match(line));
                lines.extend(errors.map(|line| format!("! {line}")));
                match printed.code {
                    Some(0) => {}
                    Some(code) => lines.push(format!("exit {code}")),
                    None => lines.push("killed".to_owned()),
                }
                Ok(Answer { lines, printed: printed.output, code: 0, json: None })
            }
            Call::Request { method, path, options } => {
                let filled: Vec<_> = options.iter().map(|(key, value)| (key.clone(), self.filled(value))).collect();
                let token = filled.iter().find(|(key, _)| key == "token").map(|(_, value)| value.clone());
                let asked = request(method, &self.filled(path), &filled, body.trim().to_owned())?;
                let response = self.namespace.request(asked, token.as_deref()).await?;
                let mut lines = vec![response.code.to_string()];
                match &response.json {
                    Some(json) => lines.extend(shown(json, &step.show)),
                    None => lines.extend(response.text.lines().map(str::to_owned)),
                }
                Ok(Answer { lines, printed: response.text, code: response.code, json: response.json })
            }
            Call::Watch { name, path } => {
                let (code, watch) = Watch::open(&self.namespace, &self.filled(path)).await?;
                self.watches.insert(name.clone(), watch);
                Ok(Answer { lines: vec![code.to_string()], ..Answer::default() })
            }
            Call::Events { name } => {
                let mut watch = self.watches.remove(name).ok_or_else(|| format!("no watch {name}"))?;
                Ok(Answer { lines: watch.events(step, &self.masks).await, ..Answer::default() })
            }
        }
    }

    /// Stores the values that the step wants to keep, under their names.
    fn keep(&mut self, step: &Step, answer: &mut Answer) {
        for (name, path) in &step.keep {
            let kept = match &answer.json {
                Some(json) => field(json, path).map(|value| value.as_str().map_or(value.to_string(), str::to_owned)),
                None => Some(answer.printed.trim().to_owned()),
            };
            match kept.filter(|kept| !kept.is_empty()) {
                Some(kept) => {
                    self.masks.add(&kept, &format!("${name}"));
                    self.variables.insert(name.clone(), kept);
                }
                None => answer.lines.push(format!("! nothing to keep as {name}")),
            }
        }
    }

    /// Replaces each `$NAME` in the text with its value.
    fn filled(&self, text: &str) -> String {
        let mut names: Vec<_> = self.variables.iter().collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names.into_iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("${name}"), value))
    }

    /// Whether the answer is the expected one.
    fn fits(&self, step: &Step, answer: &Answer) -> bool {
        let Some(until) = &step.until else { return true };
        match (&step.call, until.split_once(' ')) {
            (Call::Request { .. }, Some((path, value))) => {
                answer.json.as_ref().is_some_and(|json| self.masks.mask(&text(json, path)) == value)
            }
            (Call::Request { .. }, None) => *until == answer.code.to_string(),
            _ => answer.printed.contains(until),
        }
    }
}
