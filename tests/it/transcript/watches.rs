//! A watch that runs in the background of the conversation, and the lines that show its events.

use super::fields::text;
use super::kubernetes::{Namespace, PATIENCE, request};
use super::masks::Masks;
use super::script::Step;
use hyper::body::Body as _;
use kube::client::Body;
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// More events than any step of the conversation causes.
const EVENTS: usize = 10_000;

/// An open watch.
pub struct Watch {
    events: mpsc::Receiver<Value>,
    reader: JoinHandle<()>,
}

impl Watch {
    /// Opens a watch. Returns the status code, and the watch. An answer other than events counts as one event.
    pub async fn open(namespace: &Namespace, path: &str) -> Result<(u16, Self), String> {
        let path = format!("{path}{}watch=true", if path.contains('?') { '&' } else { '?' });
        let (code, body) = namespace.open(request("GET", &path, &[], String::new())?).await?;
        let (sender, events) = mpsc::channel(EVENTS);
        Ok((code, Self { events, reader: tokio::spawn(read(body, sender)) }))
    }

    /// The lines of the events, until the line that the step waits for, or until the watch ends.
    pub async fn events(&mut self, step: &Step, masks: &Masks) -> Vec<String> {
        let (mut lines, mut last) = (Vec::<String>::new(), BTreeMap::<String, String>::new());
        let wanted = step.until.as_deref();
        let count = wanted.and_then(|until| until.strip_suffix(" lines")?.parse::<usize>().ok());
        let grep = step.grep.as_deref().map(|pattern| Regex::new(pattern).unwrap());
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let Ok(event) = tokio::time::timeout_at(end, self.events.recv()).await else {
                lines.push(format!("! waited in vain until {}", wanted.unwrap_or("the watch ends")));
                break;
            };
            let Some(event) = event else {
                lines.push("(the watch ended)".to_owned());
                break;
            };
            let line = masks.mask(&line(&event, step));
            if grep.as_ref().is_some_and(|grep| !grep.is_match(&line)) {
                continue;
            }
            // How many events there are that change no shown field varies from run to run.
            let name = text(&event["object"], "metadata.name");
            if last.insert(name, line.clone()).is_none_or(|before| before != line) {
                lines.push(line);
            }
            let found = wanted.is_some_and(|wanted| lines.last().is_some_and(|line| line.contains(wanted)));
            if found || count.is_some_and(|count| lines.len() >= count) {
                break;
            }
        }
        lines
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The line that shows an event.
fn line(event: &Value, step: &Step) -> String {
    let kind = event["type"].as_str().unwrap_or("not an event");
    let object = &event["object"];
    let fields: Vec<String> = match kind {
        "BOOKMARK" => vec![text(object, "kind")],
        "ERROR" => ["code", "reason", "message"].iter().map(|path| text(object, path)).collect(),
        "not an event" => vec![event.to_string()],
        _ => step.show.iter().map(|path| text(object, path)).collect(),
    };
    format!("{kind} {}", fields.join(" "))
}

/// Sends each line of the body to the receiver, until the receiver is gone or the body ends.
async fn read(mut body: Body, sender: mpsc::Sender<Value>) {
    let mut ahead: Vec<u8> = Vec::new();
    while let Some(Ok(frame)) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.into_data() else { continue };
        ahead.extend_from_slice(&data);
        while let Some(end) = ahead.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = ahead.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line).into_owned();
            let event = serde_json::from_str(&text).unwrap_or(Value::String(text));
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}
