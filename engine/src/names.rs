//! From names to addresses: a hosts(5) file first where one was given, then the machine's resolver.
//!
//! The file is for agents and engines that run without a DNS for pods, as those of `kaa demo` do. It is read at every
//! look-up, since pods come and go.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The process's hosts file: as with the machine's own, there is one for all.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Looks names up in this file from now on. The first file that is given stays.
pub fn use_file(path: PathBuf) {
    let _ = FILE.set(path);
}

/// The addresses of a host, in no particular order.
pub async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(path) = FILE.get() {
        let text = tokio::fs::read_to_string(path).await.map_err(|error| {
            io::Error::new(error.kind(), format!("the hosts file {} cannot be read: {error}", path.display()))
        })?;
        let found = addresses(&text, host);
        if !found.is_empty() {
            return Ok(found.into_iter().map(|address| (address, port).into()).collect());
        }
    }
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

/// What a hosts file says of a name.
fn addresses(text: &str, host: &str) -> Vec<IpAddr> {
    let of_line = |line: &str| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::addresses;

    #[test]
    fn a_name_has_the_addresses_of_all_its_lines() {
        let text = "# made by hand\n127.0.0.2 a a.ns.svc # the first\n127.0.0.3\ta\nnonsense a\n::1 b\n";
        let found = |host| addresses(text, host).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("a"), ["127.0.0.2", "127.0.0.3"]);
        assert_eq!(found("A.ns.svc"), ["127.0.0.2"]);
        assert_eq!(found("b"), ["::1"]);
        assert_eq!(found("first"), [""; 0]);
    }
}
