//! An agent that a test controls: the test gets each stream that a wrapper opens.

use super::soon;
use kaa::proto::engine::engine_server::{Engine, EngineServer};
use kaa::proto::engine::{
    Directive, EngineState, Exit, FromEngine, Heartbeat, Held, Refused, Register, Registered, Start, State, ToEngine,
    directive, from_engine, to_engine,
};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

pub const DOMAIN: &str = "domain-1";

pub struct FakeAgent {
    pub address: SocketAddr,
    opened: Arc<Mutex<mpsc::Receiver<Opened>>>,
}

/// One stream, from the agent's side. To drop it is to lose the session.
pub struct Opened {
    pub register: Register,
    pub authorization: Option<String>,
    inbound: Streaming<FromEngine>,
    outbound: mpsc::Sender<Result<ToEngine, Status>>,
    /// The streams that a wrapper opens later.
    later: Arc<Mutex<mpsc::Receiver<Opened>>>,
}

struct Service {
    open: mpsc::Sender<Opened>,
    opened: Arc<Mutex<mpsc::Receiver<Opened>>>,
}

#[tonic::async_trait]
impl Engine for Service {
    type AttachStream = ReceiverStream<Result<ToEngine, Status>>;

    async fn attach(&self, request: Request<Streaming<FromEngine>>) -> Result<Response<Self::AttachStream>, Status> {
        let authorization = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.and_then(|first| first.message);
        let Some(from_engine::Message::Register(register)) = first else { panic!("Register comes first") };
        let (outbound, queue) = mpsc::channel(16);
        let later = self.opened.clone();
        let _ = self.open.send(Opened { register, authorization, inbound, outbound, later }).await;
        Ok(Response::new(ReceiverStream::new(queue)))
    }
}

impl FakeAgent {
    pub async fn start() -> Self {
        Self::serve(Server::builder()).await
    }

    pub async fn start_tls(tls: ServerTlsConfig) -> Self {
        Self::serve(Server::builder().tls_config(tls).unwrap()).await
    }

    async fn serve(mut server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, opened) = mpsc::channel(16);
        let opened = Arc::new(Mutex::new(opened));
        let service = EngineServer::new(Service { open, opened: opened.clone() });
        tokio::spawn(server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, opened }
    }

    /// The next stream that a wrapper opens.
    pub async fn opened(&mut self) -> Opened {
        soon("a stream to be opened", async { self.opened.lock().await.recv().await }).await.unwrap()
    }

    /// Whether a stream has been opened that the test has not seen.
    pub fn has_opened(&self) -> bool {
        self.opened.try_lock().is_ok_and(|opened| !opened.is_empty())
    }

    /// The next stream, after registration and Start, once the engine is RUNNING.
    pub async fn running(&mut self) -> (Opened, State) {
        let mut stream = self.opened().await;
        stream.admit().await;
        stream.start(1).await;
        assert_eq!(Ok(()), stream.result_of(1).await);
        let state = stream.state(EngineState::Running).await;
        (stream, state)
    }
}

impl Opened {
    pub async fn say(&self, message: to_engine::Message) {
        self.outbound.send(Ok(ToEngine { message: Some(message) })).await.unwrap();
    }

    /// Registers the engine as process 7, on archive 3 if it has one.
    pub async fn admit(&self) {
        let archive = if self.register.path.is_empty() { 0 } else { 3 };
        let (domain, server) = (DOMAIN.to_owned(), "admin-0".to_owned());
        let registered = Registered { domain, start_id: 7, node_id: 1, archive, session: 1, server };
        self.say(to_engine::Message::Registered(registered)).await;
    }

    pub async fn refuse(self, refused: Refused) {
        self.say(to_engine::Message::Refused(refused)).await;
    }

    pub async fn direct(&self, id: u64, action: directive::Action) {
        let directive = Directive { id, deadline_ms: 0, action: Some(action) };
        self.say(to_engine::Message::Directive(directive)).await;
    }

    pub async fn start(&self, id: u64) {
        self.direct(id, directive::Action::Start(Start { join: false })).await;
    }

    pub async fn result_of(&mut self, id: u64) -> Result<(), String> {
        self.hear(|message| match message {
            from_engine::Message::Result(result) if result.id == id => {
                Some(if result.ok { Ok(()) } else { Err(result.message) })
            }
            _ => None,
        })
        .await
    }

    pub async fn state(&mut self, wanted: EngineState) -> State {
        self.hear(|message| match message {
            from_engine::Message::State(state) if state.engine() == wanted => Some(state),
            _ => None,
        })
        .await
    }

    pub async fn hold(&self, reason: &str) {
        self.say(to_engine::Message::Held(Held { reason: reason.to_owned() })).await;
    }

    pub async fn history(&mut self) -> u64 {
        self.hear(|message| match message {
            from_engine::Message::History(history) => Some(history.value),
            _ => None,
        })
        .await
    }

    /// The end of the engine. A wrapper waits three seconds for an agent to acknowledge the end. If a busy machine took
    /// longer, the wrapper reports the end again on the next stream.
    pub async fn exit(&mut self) -> Exit {
        let exit = |message| match message {
            from_engine::Message::Exit(exit) => Some(exit),
            _ => None,
        };
        loop {
            if let Ok(exit) = self.heard(exit).await {
                return exit;
            }
            let later = self.later.clone();
            *self = soon("the next stream", async { later.lock().await.recv().await }).await.unwrap();
            self.admit().await;
        }
    }

    /// Waits for a message, skips others, and answers heartbeats meanwhile.
    async fn hear<T>(&mut self, wanted: impl FnMut(from_engine::Message) -> Option<T>) -> T {
        self.heard(wanted).await.unwrap_or_else(|status| panic!("the stream ends: {status}"))
    }

    async fn heard<T>(&mut self, mut wanted: impl FnMut(from_engine::Message) -> Option<T>) -> Result<T, Status> {
        let heard = async {
            loop {
                let message = self.inbound.message().await?.ok_or_else(|| Status::cancelled("it is closed"))?;
                let message = message.message.expect("a message says something");
                if let from_engine::Message::Heartbeat(heartbeat) = message {
                    let answer = Heartbeat { running: false, ..heartbeat };
                    self.say(to_engine::Message::Heartbeat(answer)).await;
                }
                if let Some(found) = wanted(message) {
                    return Ok(found);
                }
            }
        };
        soon("a message", heard).await
    }
}
