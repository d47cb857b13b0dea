//! Connections that come in: a bounded number of them, whose small messages go out at once.

use futures::{Stream, stream};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How long to wait after a connection could not be accepted: there is no file descriptor left, or no memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// A connection, and its place among those that are allowed.
pub struct Counted {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Accepts at most `most` connections at once; those beyond wait in the kernel's queue.
pub fn incoming(listener: TcpListener, most: usize) -> impl Stream<Item = io::Result<Counted>> {
    let places = Arc::new(Semaphore::new(most));
    stream::unfold((listener, places), async |(listener, places)| {
        let place = places.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // A message that is held back for an acknowledgement costs 40 ms; a slow one is still a message.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "small messages will be slow");
                    }
                    return Some((Ok(Counted { stream, _place: place }), (listener, places)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    })
}

impl Connected for Counted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::incoming;
    use futures::StreamExt;
    use std::time::Duration;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_connection_beyond_the_bound_waits_until_one_has_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepted = std::pin::pin!(incoming(listener, 1));
        let (_one, _other) = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let first = accepted.next().await.unwrap().unwrap();
        let soon = Duration::from_millis(100);
        assert!(timeout(soon, accepted.next()).await.is_err(), "the second is let in beside the first");
        drop(first);
        timeout(Duration::from_secs(5), accepted.next()).await.unwrap().unwrap().unwrap();
    }
}
