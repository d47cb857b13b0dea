//! Bodies without an end of their own: watches and logs. Each is read as fast as its client reads it, and holds one piece at a time.

use crate::api::Watch;
use crate::instance::Instance;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A watch is polled this often even if it did not say when: so an error in that would not hold it forever.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A body that is there as a whole.
pub fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

/// What a watch says, until it ends or the server stops.
pub fn watched(watch: Watch, instance: Arc<Instance>, stopping: watch::Receiver<bool>) -> Body {
    let bell = instance.bell();
    let watching = Watching { watch, instance, bell, stopping, ended: false };
    let frames = stream::unfold(watching, |mut watching| async {
        let lines = watching.next().await?;
        Some((Ok(Frame::data(Bytes::from(lines))), watching))
    });
    StreamBody::new(frames).boxed_unsync()
}

struct Watching {
    watch: Watch,
    instance: Arc<Instance>,
    bell: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.ended || *self.stopping.borrow() {
                return None;
            }
            // A change that comes while this looks rings again.
            self.bell.mark_unchanged();
            let (polled, now) = self.instance.look(|store| (self.watch.poll(store), store.now()));
            self.ended = polled.ended;
            if !polled.lines.is_empty() {
                return Some(polled.lines);
            }
            if self.ended {
                return None;
            }
            let until = polled.wake.map(|wake| Duration::try_from(wake.duration_since(now)).unwrap_or(Duration::ZERO));
            tokio::select! {
                _ = self.bell.changed() => {}
                _ = self.stopping.wait_for(|stopping| *stopping) => {}
                () = tokio::time::sleep(until.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)) => {}
            }
        }
    }
}

/// The pieces of a log, until there are no more or the server stops.
pub fn logged(pieces: mpsc::Receiver<Vec<u8>>, stopping: watch::Receiver<bool>) -> Body {
    let frames = stream::unfold((pieces, stopping), |(mut pieces, mut stopping)| async {
        let piece = tokio::select! {
            piece = pieces.recv() => piece?,
            _ = stopping.wait_for(|stopping| *stopping) => return None,
        };
        Some((Ok(Frame::data(Bytes::from(piece))), (pieces, stopping)))
    });
    StreamBody::new(frames).boxed_unsync()
}
