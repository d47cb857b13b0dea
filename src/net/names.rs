//! Connections to names.

use hyper_util::rt::TokioIo;
use kaa_engine::names::lookup;
use std::io;
use tokio::net::TcpStream;
use tonic::transport::Uri;

/// Connects with whatever answers first of a URI's addresses, tried one after another.
pub(super) async fn connect(uri: Uri) -> io::Result<TokioIo<TcpStream>> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port =
        uri.port_u16().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an address without a port"))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("no address found for {host}"));
    for address in lookup(host, port).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(TokioIo::new(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
