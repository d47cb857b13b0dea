//! Answers of tens of megabytes in a large domain or namespace. One at a time is in memory: from the look at what it shows until the
//! client has read the last of it, or has taken too long.

use super::APPLIED_INDEX;
use super::error::Error;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

static AT_ONCE: Semaphore = Semaphore::const_new(1);

/// How much of an answer is given to the connection at once.
const CHUNK_BYTES: usize = 64 << 10;

/// How long a client may take to read an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// An answer, and how far the log was applied, if it shows the domain. `make` may take its time: it runs on a thread of its own.
pub(super) async fn answer<T: Serialize>(
    make: impl FnOnce() -> Result<(Option<u64>, T), Error> + Send + 'static,
) -> Result<Response, Error> {
    let cannot = |_| Error::CannotTell("the answer could not be made".to_owned());
    let place = AT_ONCE.acquire().await.map_err(cannot)?;
    // The place goes with the work: a request that is given up on does not end it.
    let made = tokio::task::spawn_blocking(move || {
        let made = make().map(|(index, body)| (index, serde_json::to_vec(&body)));
        (made, place)
    });
    let (made, place) = made.await.map_err(|_| Error::CannotTell("the answer could not be made".to_owned()))?;
    let (index, bytes) = made?;
    let bytes = bytes.map_err(|_| Error::CannotTell("the answer could not be written".to_owned()))?;
    let mut response = ([(CONTENT_TYPE, "application/json")], body(bytes.into(), place)).into_response();
    if let Some(index) = index {
        response.headers_mut().insert(APPLIED_INDEX, index.into());
    }
    Ok(response)
}

/// An answer that is being read, with its place.
type Rest = Arc<Mutex<Option<(Bytes, SemaphorePermit<'static>)>>>;

/// A body that holds the place until all of it was taken, the connection is gone, or the client took longer than `READ_TIMEOUT`:
/// then the rest is dropped, and the answer breaks off.
fn body(bytes: Bytes, place: SemaphorePermit<'static>) -> Body {
    let rest: Rest = Arc::new(Mutex::new(Some((bytes, place))));
    let held = Arc::downgrade(&rest);
    tokio::spawn(async move {
        tokio::time::sleep(READ_TIMEOUT).await;
        held.upgrade().map(|rest| taken(&rest).take())
    });
    Body::from_stream(stream::unfold(Some(rest), async |rest| {
        let rest = rest?;
        let next = next_chunk(&rest)?;
        let rest = next.is_ok().then_some(rest);
        Some((next, rest))
    }))
}

/// The next part; nothing at the end.
fn next_chunk(rest: &Rest) -> Option<io::Result<Bytes>> {
    match &mut *taken(rest) {
        Some((bytes, _)) if bytes.is_empty() => None,
        Some((bytes, _)) => Some(Ok(bytes.split_to(CHUNK_BYTES.min(bytes.len())))),
        None => Some(Err(io::ErrorKind::TimedOut.into())),
    }
}

fn taken(rest: &Rest) -> MutexGuard<'_, Option<(Bytes, SemaphorePermit<'static>)>> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use futures::StreamExt;
    use tokio::time::Instant;

    async fn zeros() -> Body {
        answer(|| Ok((None, vec![0; 3 * CHUNK_BYTES]))).await.unwrap().into_body()
    }

    async fn whole(body: Body) -> usize {
        to_bytes(body, usize::MAX).await.unwrap().len()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_until_the_one_before_was_read_or_took_too_long() {
        let zeros_and_commas = 6 * CHUNK_BYTES + 1;
        let begun = Instant::now();
        let mut given_up = zeros().await.into_data_stream();
        assert!(given_up.next().await.unwrap().is_ok());
        drop(given_up);
        assert_eq!(whole(zeros().await).await, zeros_and_commas);
        assert_eq!(begun.elapsed(), Duration::ZERO);

        let mut slow = zeros().await.into_data_stream();
        assert!(slow.next().await.unwrap().is_ok());
        assert_eq!(whole(zeros().await).await, zeros_and_commas);
        assert!(begun.elapsed() >= READ_TIMEOUT);
        assert!(slow.next().await.unwrap().is_err(), "it breaks off");
        assert!(slow.next().await.is_none());
    }
}
