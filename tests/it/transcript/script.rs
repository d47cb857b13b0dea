//! The text form of the conversation: parses a topic's file into steps, and writes it with the answers of a run.
//!
//! ```text
//! # What follows is about ...                        comments and blank lines
//! $ kubectl apply -f -                               a command line, for sh
//! > PATCH /api/v1/namespaces/$NS/pods/a type=merge   a request of the Rust client (type=, as=, token=)
//! > WATCH pods /api/v1/namespaces/$NS/pods           opens a watch and calls it `pods`
//! < pods                                             the events of that watch
//! | {"metadata": {}}                                 standard input, or the body
//! : show metadata.name spec                          the fields of the answer to compare
//! : keep UID metadata.uid                            sets `$UID`; for a command, without a path, to its output
//! : until status.phase "Running"                     asked again until the field is that; of a command, until it prints
//! :                                                  the text; of a watch, until a line has the text, or `until 3 lines`
//! : grep ADDED|DELETED                               only events whose line matches; `: sorted` if their order varies
//!   200                                              the answer, masked: two spaces before each line
//! ```

use std::fmt::Write;
use std::path::Path;

/// One file of the conversation.
#[derive(Debug)]
pub struct Script {
    pub topic: String,
    pub steps: Vec<Step>,
    /// Comments after the last answer.
    tail: Vec<String>,
}

/// A question.
#[derive(Debug, PartialEq, Eq)]
pub enum Call {
    Command(String),
    Request { method: String, path: String, options: Vec<(String, String)> },
    Watch { name: String, path: String },
    Events { name: String },
}

/// A question, and the answer to it.
#[derive(Debug)]
pub struct Step {
    /// All lines of the file that belong to the question, unchanged, with the comments before it.
    head: Vec<String>,
    /// The line with the question.
    pub asked: String,
    pub call: Call,
    pub body: String,
    pub show: Vec<String>,
    pub keep: Vec<(String, String)>,
    pub until: Option<String>,
    pub grep: Option<String>,
    pub sorted: bool,
    pub answer: Vec<String>,
}

impl Script {
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let topic = name.split_once('-').map_or(name.as_str(), |(_, topic)| topic).to_owned();
        Self::parse(topic, &text).map_err(|why| format!("{}:{why}", file.display()))
    }

    pub fn parse(topic: String, text: &str) -> Result<Self, String> {
        let (mut steps, mut ahead): (Vec<Step>, Vec<String>) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let wrong = |why: &str| format!("{}: {why}: {line}", number + 1);
            // Belongs to the last step. No comment may be in between.
            let step = if ahead.is_empty() { steps.last_mut() } else { None };
            if line.is_empty() || line.starts_with('#') {
                ahead.push(line.to_owned());
            } else if let Some(call) = call(line).map_err(|why| wrong(&why))? {
                ahead.push(line.to_owned());
                steps.push(Step::new(std::mem::take(&mut ahead), call));
            } else if let Some(answer) = line.strip_prefix("  ") {
                step.ok_or_else(|| wrong("an answer to nothing"))?.answer.push(answer.to_owned());
            } else {
                let step = step.filter(|step| step.answer.is_empty()).ok_or_else(|| wrong("belongs to nothing"))?;
                step.clause(line).map_err(|why| wrong(&why))?;
                step.head.push(line.to_owned());
            }
        }
        Ok(Self { topic, steps, tail: ahead })
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.steps.iter().filter(|step| !matches!(step.call, Call::Events { .. })).count()
    }

    /// The file with other answers.
    pub fn with_answers(&self, answers: &[Vec<String>]) -> String {
        let mut text = String::new();
        for (step, answer) in self.steps.iter().zip(answers) {
            step.head.iter().for_each(|line| text.push_str(&format!("{line}\n")));
            answer.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
        for line in &self.tail {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// The line as a question, if it is one.
fn call(line: &str) -> Result<Option<Call>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    Ok(Some(match words.as_slice() {
        ["$", ..] => Call::Command(line[2..].to_owned()),
        [">", "WATCH", name, path] => Call::Watch { name: (*name).to_owned(), path: (*path).to_owned() },
        [">", method, path, options @ ..] => {
            let option = |word: &&str| {
                let (key, value) = word.split_once('=').ok_or_else(|| format!("what is {word}?"))?;
                let known = ["type", "as", "token"].contains(&key);
                if known { Ok((key.to_owned(), value.to_owned())) } else { Err(format!("what is {key}=?")) }
            };
            let options = options.iter().map(option).collect::<Result<_, String>>()?;
            Call::Request { method: (*method).to_owned(), path: (*path).to_owned(), options }
        }
        ["<", name] => Call::Events { name: (*name).to_owned() },
        _ => return Ok(None),
    }))
}

impl Step {
    fn new(head: Vec<String>, call: Call) -> Self {
        let asked = head.last().cloned().unwrap_or_default();
        let (show, keep, answer) = (Vec::new(), Vec::new(), Vec::new());
        Self { head, asked, call, body: String::new(), show, keep, until: None, grep: None, sorted: false, answer }
    }

    /// Takes up a line of standard input, or one that says how to compare.
    fn clause(&mut self, line: &str) -> Result<(), String> {
        if let Some(body) = line.strip_prefix('|') {
            self.body.push_str(body.strip_prefix(' ').unwrap_or(body));
            self.body.push('\n');
            return Ok(());
        }
        let clause = line.strip_prefix(": ").ok_or("neither question nor answer")?;
        let (word, rest) = clause.split_once(' ').unwrap_or((clause, ""));
        let words = || rest.split_whitespace().map(str::to_owned);
        match word {
            "show" => self.show.extend(words()),
            "grep" => self.grep = Some(rest.to_owned()),
            "sorted" => self.sorted = true,
            "until" => self.until = Some(rest.to_owned()),
            "keep" => {
                let (name, path) = rest.split_once(' ').unwrap_or((rest, ""));
                self.keep.push((name.to_owned(), path.to_owned()));
            }
            _ => return Err(format!("what is {word}?")),
        }
        Ok(())
    }
}

#[test]
fn a_script_is_written_as_it_was_read() {
    let text = "# Why.\n$ kubectl get cm a\n  a\n\n> PUT /x as=me\n| {}\n: show a.b\n  200\n  a.b 1\n# The end.\n";
    let script = Script::parse("t".to_owned(), text).unwrap();
    let answers: Vec<Vec<String>> = script.steps.iter().map(|step| step.answer.clone()).collect();
    assert_eq!(script.with_answers(&answers), text);
    assert_eq!(script.requests(), 2);
    let wrong = |text: &str| Script::parse("t".to_owned(), text).unwrap_err();
    assert_eq!(wrong("  200\n"), "1: an answer to nothing:   200");
    assert_eq!(wrong("> GET /x into=y\n"), "1: what is into=?: > GET /x into=y");
    assert_eq!(wrong("$ true\n  done\n| late\n"), "3: belongs to nothing: | late");
}
