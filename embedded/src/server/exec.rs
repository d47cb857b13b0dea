//! Commands in containers, over WebSockets: the protocols `v5.channel.k8s.io` and `v4.channel.k8s.io`.
//!
//! The first byte of a message is its channel. In the older protocol a client cannot say that its input has ended.
//! There are no terminals, and `SPDY/3.1`, which clients fall back to, is not spoken.

use crate::failure::Failure;
use crate::runtime::{Execution, Output};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::HeaderMap;
use hyper::header::{SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// The protocols, the better one first.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// The greatest message that is read; `kubectl` sends 32 KiB at most.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const CLOSE: u8 = 255;

/// What a client wants to speak.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer {
    /// The protocol that is taken.
    pub protocol: &'static str,
    /// The proof that the request was understood (RFC 6455, 4.2.2).
    pub accept: String,
}

/// Reads what a client offers.
pub fn offer(headers: &HeaderMap) -> Result<Offer, Failure> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !header(UPGRADE).eq_ignore_ascii_case("websocket") || header(SEC_WEBSOCKET_KEY).is_empty() {
        return Err(Failure::bad_request("commands in containers are run over WebSockets here, not over SPDY"));
    }
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let protocol = PROTOCOLS.into_iter().find(|known| offered.contains(known)).ok_or_else(|| {
        Failure::bad_request(format!("of the subprotocols {offered:?} none is spoken here, only {PROTOCOLS:?}"))
    })?;
    let proof = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", header(SEC_WEBSOCKET_KEY));
    Ok(Offer { protocol, accept: STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, proof.as_bytes())) })
}

/// Lets a client and a command talk until the command has ended, the client has gone, or the server stops. A command
/// that could not be started is told in the same place as one that failed.
pub async fn converse(upgrade: OnUpgrade, started: Result<Execution, Failure>, mut stopping: watch::Receiver<bool>) {
    let upgraded = match upgrade.await {
        Ok(upgraded) => upgraded,
        Err(error) => return tracing::debug!(%error, "a client did not wait for its command"),
    };
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (mut sink, source) = socket.split();
    let told = tokio::select! {
        told = run(&mut sink, source, started) => told,
        _ = stopping.wait_for(|stopping| *stopping) => Ok(()),
    };
    if let Err(error) = told {
        tracing::debug!(%error, "a client went before its command had ended");
    }
}

type Sink = SplitSink<WebSocketStream<TokioIo<Upgraded>>, Message>;
type Source = SplitStream<WebSocketStream<TokioIo<Upgraded>>>;

async fn run(sink: &mut Sink, source: Source, started: Result<Execution, Failure>) -> Result<(), Error> {
    let status = match started {
        Ok(execution) => {
            let Execution { stdin, mut output, exit } = execution;
            // Dropping this would kill the command, so the same task waits for its exit.
            let talk = async {
                while let Some(piece) = output.recv().await {
                    sink.send(message(piece)).await?;
                }
                Ok::<_, Error>(exit.await)
            };
            tokio::select! {
                exit = talk => exit?.map_or_else(|_| lost(), ended),
                () = listen(source, stdin) => return Ok(()),
            }
        }
        Err(failure) => failure.status(),
    };
    sink.send(channel(ERROR, status.to_string().as_bytes())).await?;
    // Any other code than that of a normal end, and kubectl drops what it was told before.
    sink.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))).await
}

/// Hands on what the client writes; returns when it has gone.
async fn listen(mut source: Source, mut stdin: Option<mpsc::Sender<Vec<u8>>>) {
    while let Some(Ok(message)) = source.next().await {
        match message {
            Message::Binary(bytes) => match bytes.split_first() {
                Some((&STDIN, text)) => {
                    if let Some(open) = &stdin
                        && open.send(text.to_vec()).await.is_err()
                    {
                        stdin = None;
                    }
                }
                Some((&CLOSE, [STDIN])) => stdin = None,
                // The size of a terminal, or nothing.
                Some(_) | None => {}
            },
            Message::Close(_) => return,
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

fn message(piece: Output) -> Message {
    match piece {
        Output::Stdout(bytes) => channel(STDOUT, &bytes),
        Output::Stderr(bytes) => channel(STDERR, &bytes),
    }
}

fn channel(channel: u8, bytes: &[u8]) -> Message {
    Message::binary([&[channel], bytes].concat())
}

/// What is said of a command that has ended.
fn ended(code: i32) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    let message = format!("command terminated with non-zero exit code: exit status {code}");
    let cause = json!({"reason": "ExitCode", "message": code.to_string()});
    let details = json!({"causes": [cause]});
    json!({"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": details})
}

/// It is not known how it ended: the container went with it.
fn lost() -> Value {
    let message = "the command's container ended before it did";
    json!({"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500})
}

#[cfg(test)]
mod tests {
    use super::{ended, offer};
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_better_protocol_of_those_offered_is_taken() {
        let common = [("upgrade", "websocket"), ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")];
        let with = |protocol| headers(&[common[0], common[1], ("sec-websocket-protocol", protocol)]);
        let taken = offer(&with("v4.channel.k8s.io, v5.channel.k8s.io")).unwrap();
        assert_eq!(taken.protocol, "v5.channel.k8s.io");
        assert_eq!(taken.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "the example of RFC 6455");
        assert_eq!(offer(&with("v4.channel.k8s.io")).unwrap().protocol, "v4.channel.k8s.io");
        let refused = offer(&with("SPDY/3.1+portforward.k8s.io")).unwrap_err();
        assert!(refused.message.contains("portforward.k8s.io"), "{refused}");
        let refused = offer(&headers(&[("upgrade", "SPDY/3.1")])).unwrap_err();
        assert!(refused.message.contains("WebSockets"), "{refused}");
    }

    #[test]
    fn an_exit_code_is_told_as_its_cause() {
        assert_eq!(ended(0)["status"], "Success");
        assert_eq!(ended(3)["details"]["causes"][0]["message"], "3");
    }
}
