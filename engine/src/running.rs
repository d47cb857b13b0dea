//! Whether an engine serves yet.

use super::config::ReadyWhen;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;

/// How often the wrapper checks whether the engine serves.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// How long a local port may take to accept.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A file may seem older than it is by the coarsest time stamps of common file systems.
const TIME_STAMP_SLACK: Duration = Duration::from_secs(2);

/// Looks once whether an engine that was started at `since` serves.
pub(super) async fn serves(when: &ReadyWhen, since: SystemTime) -> bool {
    match when {
        ReadyWhen::Started => true,
        ReadyWhen::Tcp(port) => accepts(*port).await,
        ReadyWhen::File(path) => is_recent(path, since),
    }
}

async fn accepts(port: u16) -> bool {
    let connection = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(("localhost", port))).await;
    matches!(connection, Ok(Ok(_)))
}

/// A file that an earlier start left on a volume says nothing about this one.
fn is_recent(path: &Path, since: SystemTime) -> bool {
    let modified = std::fs::metadata(path).and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified + TIME_STAMP_SLACK >= since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_an_earlier_start_does_not_count() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("ready");
        assert!(!is_recent(&path, crate::clock::system_time()));
        std::fs::write(&path, "").unwrap();
        assert!(is_recent(&path, crate::clock::system_time()));
        assert!(!is_recent(&path, crate::clock::system_time() + Duration::from_secs(60)));
    }

    #[tokio::test]
    async fn a_port_counts_once_it_accepts() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(serves(&ReadyWhen::Tcp(port), crate::clock::system_time()).await);
        drop(listener);
        assert!(!serves(&ReadyWhen::Tcp(port), crate::clock::system_time()).await);
    }
}
