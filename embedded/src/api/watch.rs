//! Watches: what changed since a version, line by line.
//!
//! A watch keeps only how far it has told. The connection's task polls it when the bell rings and when it says
//! that it has something to say all the same: a bookmark, or that its time is over.

use super::form::Form;
use super::list::version;
use super::path::Target;
use super::{Request, options};
use crate::failure::Failure;
use crate::object::metadata;
use crate::resource::Kind;
use crate::selector::Selector;
use crate::store::{Change, Event, Store};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

/// How often a quiet watch says how far it has seen.
const BOOKMARK_SECONDS: i64 = 60;

/// How long a watch may take that does not say it itself; a real one takes half an hour to an hour.
const DEFAULT_SECONDS: i64 = 45 * 60;

/// A watch.
#[derive(Debug)]
pub struct Watch {
    kind: Kind,
    namespace: Option<String>,
    selector: Selector,
    form: Form,
    bookmarks: bool,
    begin: Begin,
    seconds: i64,
    /// Set by the first poll.
    clock: Option<Clock>,
    told_columns: bool,
}

/// What it has told; first, where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// With all objects there are; then perhaps with a mark that these were all.
    Now { mark: bool },
    /// After a version.
    After(u64),
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    ends: Timestamp,
    bookmark: Timestamp,
}

/// What a watch has to say now.
#[derive(Debug)]
pub struct Polled {
    /// Its lines, each with its end.
    pub lines: String,
    /// Whether it has ended.
    pub ended: bool,
    /// When it has something to say even if nothing changes.
    pub wake: Option<Timestamp>,
}

impl Watch {
    /// Begins one.
    pub fn begin(request: &Request, target: &Target) -> Result<Self, Failure> {
        let newest = request.given("resourceVersionMatch") == Some("NotOlderThan");
        let initial = request.says("sendInitialEvents");
        if initial && !newest {
            let why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan".to_owned();
            return Err(options::refused("ListOptions", &[("resourceVersionMatch", why)]));
        }
        let begin = match request.given("resourceVersion").map(version).transpose()? {
            Some(from) if from > 0 && !initial => Begin::After(from),
            _ => Begin::Now { mark: initial },
        };
        Ok(Self {
            kind: target.kind,
            namespace: target.namespace.clone(),
            selector: Selector::of(request, target.kind)?,
            form: Form::of(request)?,
            bookmarks: request.says("allowWatchBookmarks"),
            begin,
            seconds: request.number("timeoutSeconds")?.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_SECONDS),
            clock: None,
            told_columns: false,
        })
    }

    /// Says what is due.
    pub fn poll(&mut self, store: &Store) -> Polled {
        let now = store.now();
        let later = |seconds: i64| now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        let first = Clock { ends: later(self.seconds), bookmark: later(BOOKMARK_SECONDS) };
        let mut clock = *self.clock.get_or_insert(first);
        let mut lines = String::new();
        if let Err(failure) = self.tell(store, &mut lines) {
            line(&mut lines, "ERROR", &failure.status());
            return Polled { lines, ended: true, wake: None };
        }
        let ended = now >= clock.ends;
        if self.bookmarks && (ended || now >= clock.bookmark) {
            line(&mut lines, "BOOKMARK", &self.bookmark(store.version(), false));
            clock.bookmark = later(BOOKMARK_SECONDS);
        }
        self.clock = Some(clock);
        let wake = if self.bookmarks { clock.ends.min(clock.bookmark) } else { clock.ends };
        Polled { lines, ended, wake: (!ended).then_some(wake) }
    }

    fn tell(&mut self, store: &Store, lines: &mut String) -> Result<(), Failure> {
        let seen = match self.begin {
            Begin::Now { mark } => {
                let namespace = self.namespace.clone();
                for object in store.list(self.kind, namespace.as_deref()) {
                    if self.selector.wants(object) {
                        self.show(lines, "ADDED", object, store.now());
                    }
                }
                if mark && self.bookmarks {
                    line(lines, "BOOKMARK", &self.bookmark(store.version(), true));
                }
                store.version()
            }
            Begin::After(seen) => {
                for change in store.changes_since(seen)? {
                    if let Some((event, object)) = self.seen(change) {
                        self.show(lines, event, &object, store.now());
                    }
                }
                // One that asks for a version yet to come hears nothing until then.
                seen.max(store.version())
            }
        };
        self.begin = Begin::After(seen);
        Ok(())
    }

    /// What a change looks like through the selector: an object that does not match any more is gone.
    fn seen(&self, change: &Change) -> Option<(&'static str, Arc<Value>)> {
        let elsewhere = self.namespace.as_ref().is_some_and(|namespace| *namespace != change.key.namespace);
        if change.key.kind != self.kind || elsewhere {
            return None;
        }
        let was = change.before.as_ref().filter(|before| self.selector.wants(before));
        let is = change.event != Event::Deleted && self.selector.wants(&change.object);
        match (was, is) {
            (None, true) => Some(("ADDED", change.object.clone())),
            (Some(_), true) => Some(("MODIFIED", change.object.clone())),
            (Some(before), false) => {
                let mut last = Value::clone(before);
                metadata(&mut last).insert("resourceVersion".to_owned(), json!(change.version.to_string()));
                Some(("DELETED", Arc::new(last)))
            }
            (None, false) => None,
        }
    }

    fn show(&mut self, lines: &mut String, event: &str, object: &Arc<Value>, now: Timestamp) {
        let mut shown = self.form.one(self.kind, object, now);
        if matches!(self.form, Form::Table(_)) && std::mem::replace(&mut self.told_columns, true) {
            shown["columnDefinitions"] = Value::Null;
        }
        line(lines, event, &shown);
    }

    fn bookmark(&self, version: u64, initial: bool) -> Value {
        let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let resource = self.kind.resource();
        let (kind, api_version) = match self.form {
            Form::Plain => (resource.name, resource.api_version()),
            Form::Table(_) => ("Table", "meta.k8s.io/v1".to_owned()),
            Form::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        };
        json!({"kind": kind, "apiVersion": api_version, "metadata": metadata})
    }
}

fn line(lines: &mut String, event: &str, object: &Value) {
    lines.push_str(&json!({"type": event, "object": object}).to_string());
    lines.push('\n');
}
