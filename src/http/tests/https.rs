//! HTTPS beside HTTP on one port, and who may write by a client certificate.

use super::writes::{Domain, body};
use super::*;
use crate::certificates::{Authority, Pair};
use crate::net::refusals::{Port, Refusals};
use crate::net::{Entrance, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

struct Served {
    domain: Domain,
    authority: Authority,
    metrics: Arc<Metrics>,
    address: std::net::SocketAddr,
}

/// Serves both, as the agent does. The tests connect over loopback, which must not count as a proof here.
async fn served() -> Served {
    let authority = Authority::new(30).unwrap();
    let Pair { certificate, key } = authority.agents(&["admin-0.test".to_owned()], Some("kaa"), 30).unwrap();
    let tls = Tls::from_pem(authority.certificate.as_str(), certificate, key).unwrap();
    let metrics = Arc::new(Metrics::new());
    let refusals = Refusals::new(metrics.clone());
    let mut domain = Domain::new(fake::source());
    domain.face.people = Some(People { tls: tls.clone(), domain: "kaa".to_owned() });
    domain.face.refusals = refusals.clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let entrance = Entrance { tls, port: Port::Http, refusals };
    tokio::spawn(serve(listener, router(domain.face.clone()), Some(entrance), std::future::pending()));
    Served { domain, authority, metrics, address }
}

/// The answer to a write that a proxy passed on, so that loopback does not count.
async fn write(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin), more: &str) -> String {
    let body = body("one", None, false).to_string();
    let head =
        "PUT /api/1/kvstore/a%2Fb HTTP/1.1\r\nhost: x\r\nvia: x\r\nconnection: close\r\ncontent-type: application/json";
    let request = format!("{head}{more}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A server that closes without a TLS farewell has answered all the same.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

async fn over_tls(served: &Served, shown: Option<Pair>, more: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(served.authority.certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some(Pair { certificate, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    let tcp = TcpStream::connect(served.address).await?;
    let name = ServerName::try_from("admin-0.test").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    Ok(write(&mut stream, more).await)
}

#[tokio::test]
async fn an_operator_is_known_by_their_certificate() {
    let served = served().await;
    let ann = || served.authority.operator("kaa", "ann", 30).unwrap();
    let answer = over_tls(&served, Some(ann()), "").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(served.domain.last("value/a/b"), "certificate ann: set");
    for (shown, more, words) in [
        (None, "", "--credentials-file"),
        (Some(served.authority.operator("other", "ann", 30).unwrap()), "", "kaa://kaa/operator/NAME"),
        (Some(served.authority.engine("kaa", "ns", None, 30).unwrap()), "", "kaa://kaa/operator/NAME"),
        (Some(served.authority.agents(&["admin-1.test".to_owned()], None, 30).unwrap()), "", "kaa://kaa/operator/NAME"),
        (Some(ann()), "\r\norigin: http://x", "--credentials-file"),
    ] {
        let answer = over_tls(&served, shown, more).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(words), "{words}: {answer}");
    }
    let text = served.metrics.text();
    assert!(text.contains("kaa_callers_refused_total{port=\"http\",reason=\"name\"} 3"), "{text}");
    assert!(text.contains("kaa_callers_refused_total{port=\"http\",reason=\"not_loopback\"} 2"), "{text}");
}

#[tokio::test]
async fn a_certificate_of_another_authority_ends_the_connection() {
    let served = served().await;
    let stranger = Authority::new(30).unwrap().operator("kaa", "ann", 30).unwrap();
    let answer = over_tls(&served, Some(stranger), "").await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.is_empty()));
    let text = served.metrics.text();
    assert!(text.contains("kaa_callers_refused_total{port=\"http\",reason=\"handshake\"} 1"), "{text}");
}

#[tokio::test]
async fn clients_that_read_in_clear_keep_working() {
    let served = served().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let read = client.get(format!("http://{}/readyz", served.address)).send().await.unwrap();
    assert_eq!(read.status(), StatusCode::OK);
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    let answer = write(&mut plain, "").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}
