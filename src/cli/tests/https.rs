//! Requests to agents over https, with a client certificate that names the operator.

use super::*;
use crate::certificates::{Authority, Pair};
use crate::http::People;
use crate::net::refusals::{Port, Refusals};
use crate::net::{Entrance, Tls};
use std::path::Path;

fn write(dir: &Path, name: &str, pair: &Pair) {
    std::fs::write(dir.join(format!("{name}.crt")), &pair.certificate).unwrap();
    std::fs::write(dir.join(format!("{name}.key")), &pair.key).unwrap();
}

/// Serves as an agent does that is reached as `admin-0.test`; the files are those that an operator would have.
async fn served(dir: &Path) -> (Arc<Fake>, String) {
    let authority = Authority::new(30).unwrap();
    let Pair { certificate, key } = authority.agents(&["admin-0.test".to_owned()], Some("kaa"), 30).unwrap();
    let tls = Tls::from_pem(authority.certificate.as_str(), certificate, key).unwrap();
    let (source, metrics) = (Arc::new(fake::source()), Arc::new(Metrics::new()));
    let refusals = Refusals::new(metrics.clone());
    let people = Some(People { tls: tls.clone(), domain: "kaa".to_owned() });
    let face = Face { people, ..Face::new(source.clone(), metrics) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let entrance = Entrance { tls, port: Port::Http, refusals };
    tokio::spawn(serve(listener, router(face), Some(entrance), std::future::pending()));
    std::fs::write(dir.join("ca.crt"), &authority.certificate).unwrap();
    std::fs::write(dir.join("other.crt"), Authority::new(30).unwrap().certificate).unwrap();
    write(dir, "ann", &authority.operator("kaa", "ann", 30).unwrap());
    write(dir, "stranger", &Authority::new(30).unwrap().operator("kaa", "ann", 30).unwrap());
    (source, url)
}

#[tokio::test]
async fn an_operator_with_a_certificate_changes_the_domain_in_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let ((source, url), at) = (served(dir.path()).await, dir.path().display().to_string());
    let trusted = format!("--ca {at}/ca.crt --server-name admin-0.test");
    assert!(run(&format!("show domain {trusted}"), &url).await.unwrap().contains("admin-0"));
    let ann = format!("pause --reason moving {trusted} --cert {at}/ann.crt --key {at}/ann.key");
    let paused = run(&ann, &url).await.unwrap();
    assert!(paused.contains("by certificate ann: moving"), "{paused}");
    assert_eq!(source.domain.lock().unwrap().paused.as_ref().unwrap().by, "certificate ann");
}

#[tokio::test]
async fn why_there_is_no_answer_over_https_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let ((_, url), at) = (served(dir.path()).await, dir.path().display().to_string());
    let shown = |name: &str| format!("--ca {at}/ca.crt --server-name admin-0.test --cert {at}/{name}.crt --key {at}");
    for (more, words) in [
        (String::new(), "https needs --ca, the certificate authority of the agents".to_owned()),
        (format!("--ca {at}/none"), format!("{at}/none cannot be used: entity not found")),
        (format!("--ca {at}/ann.key"), "ann.key cannot be used: it holds no certificate in PEM".to_owned()),
        (format!("{}/stranger.key", shown("ann")), "ann.crt cannot be used".to_owned()),
        (format!("{}/ann.crt", shown("ann")), "ann.crt cannot be used: it holds no private key in PEM".to_owned()),
    ] {
        let line = format!("show domain {more}");
        let error = run(line.trim(), &url).await.unwrap_err().to_string();
        assert!(error.contains(&words), "{words}: {error}");
    }
    for (more, words) in [
        (format!("--ca {at}/ca.crt"), "the TLS handshake failed: invalid peer certificate: certificate not valid for"),
        (
            format!("--ca {at}/other.crt --server-name admin-0.test"),
            "the TLS handshake failed: invalid peer certificate: ",
        ),
        (format!("{}/stranger.key", shown("stranger")), "received fatal alert"),
    ] {
        let error = run(&format!("show domain {more}"), &url).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("no agent answers at {url}: ")) && error.contains(words),
            "{words}: {error}"
        );
    }
    let error = Cli::try_parse_from(["kaa", "plan", "--cert", "x"]).unwrap_err().to_string();
    assert!(error.contains("--key <FILE>"), "{error}");
}
