//! Where this process listens.

use nix::errno::Errno;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpListener;

/// Listens at an address. For `[::]`, which takes IPv4 too, a node without IPv6 listens at `0.0.0.0`.
///
/// # Errors
/// If the address is in use or not of this machine.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) => match without_ipv6(address, &error) {
            Some(other) => TcpListener::bind(other).await,
            None => Err(error),
        },
        bound => bound,
    }
}

/// The address instead of this one, if the kernel has no IPv6: it knows no such addresses, or none is there (`disable_ipv6`).
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let absent = [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL].iter().any(|it| error.raw_os_error() == Some(*it as i32));
    let is_any = address.ip() == Ipv6Addr::UNSPECIFIED;
    (absent && is_any).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_ipv6_listens_at_its_ipv4_addresses() {
        let absent = || io::Error::from(Errno::EAFNOSUPPORT);
        let instead = |address: &str, error: &io::Error| without_ipv6(address.parse().unwrap(), error);
        assert_eq!(instead("[::]:8888", &absent()), Some("0.0.0.0:8888".parse().unwrap()));
        assert_eq!(instead("[::1]:8888", &absent()), None, "that address was asked for");
        assert_eq!(instead("[::]:8888", &io::Error::from(Errno::EADDRINUSE)), None);
    }

    #[tokio::test]
    async fn an_address_that_is_in_use_is_an_error() {
        let first = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = listen(first.local_addr().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
