//! One request in, one answer out, without a socket: so that a simulation can come in by the same door.

use crate::api::{self, Method, Reply, Request, User};
use crate::failure::Failure;
use crate::instance::Instance;
use crate::rbac;
use crate::runtime::{ExecRequest, LogRequest, Runtime};
use crate::server::caller::Callers;
use crate::server::exec;
use crate::server::faults::{Cut, Injector};
use crate::server::streams::{Body, logged, watched, whole};
use crate::tokens::{self, ISSUER, Tokens};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, USER_AGENT, WARNING};
use hyper::header::{SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Semaphore, watch};
use tower::{BoxError, Service};

/// Commands in containers that run at once.
const MAX_COMMANDS: usize = 64;

/// Where requests come in.
pub struct Door {
    instance: Arc<Instance>,
    tokens: Arc<Tokens>,
    callers: Callers,
    runtime: OnceLock<Arc<dyn Runtime>>,
    commands: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
    injector: Injector,
}

impl Door {
    /// Opens one.
    pub fn new(instance: Arc<Instance>, tokens: Arc<Tokens>, callers: Callers) -> Self {
        let (commands, stopping) = (Arc::new(Semaphore::new(MAX_COMMANDS)), watch::Sender::new(false));
        Self { instance, tokens, callers, runtime: OnceLock::new(), commands, stopping, injector: Injector::default() }
    }

    /// What goes wrong at this door for those who come by [`Self::serve`] or [`Self::service`].
    pub fn injector(&self) -> &Injector {
        &self.injector
    }

    /// Says who runs containers; the first one stays. Until then there are neither logs nor commands.
    pub fn set_runtime(&self, runtime: Arc<dyn Runtime>) {
        self.runtime.get_or_init(|| runtime);
    }

    /// Ends long-running answers: watches, logs, commands.
    pub fn close(&self) {
        self.stopping.send_replace(true);
    }

    /// Rings when long-running answers have to end.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Answers a caller, who is known by its token.
    pub fn answer(&self, request: hyper::Request<Bytes>) -> Response<Body> {
        let path = request.uri().path();
        match self.callers.identify(&self.instance, &self.tokens, request.headers(), path) {
            Ok(user) => self.answer_to(user, request),
            Err(failure) => failed(&failure),
        }
    }

    /// The same, as far as faults let it.
    pub async fn serve(&self, request: hyper::Request<Bytes>) -> Result<Response<Body>, Cut> {
        self.injector.pass(|| self.answer(request)).await
    }

    /// Answers a known user.
    pub fn answer_to(&self, user: User, mut request: hyper::Request<Bytes>) -> Response<Body> {
        let asked = match read(user, &request) {
            Ok(asked) => asked,
            Err(failure) => return failed(&failure),
        };
        let reply = match self.keys(&asked) {
            Some(reply) => reply,
            None => self.instance.with(|store| api::answer(store, &asked)),
        };
        let answer = match reply {
            Reply::Object { code, body, warnings } => Ok(object(code, &body, &warnings)),
            Reply::Text { code, content_type, body } => Ok(response(code, content_type, whole(body))),
            Reply::Watch(watch) => {
                let body = watched(watch, self.instance.clone(), self.stopping());
                let body = self.injector.late(body);
                Ok(response(200, "application/json", body))
            }
            Reply::Log(wanted) => self.log(wanted),
            Reply::Exec(wanted) => self.exec(wanted, &asked, &mut request),
            Reply::Token(wanted) => self
                .instance
                .look(|store| tokens::answer(store, &self.tokens, &wanted))
                .map(|answer| object(201, &answer, &[])),
        };
        let answer = answer.unwrap_or_else(|failure| failed(&failure));
        let (user, code) = (&asked.user.name, answer.status().as_u16());
        tracing::debug!(%user, method = %request.method(), uri = %request.uri(), code, "answered");
        answer
    }

    /// This door for a client without credentials, in the form that HTTP clients such as `kube::Client` take.
    pub fn service<B>(
        self: Arc<Self>,
        user: User,
    ) -> impl Service<
        hyper::Request<B>,
        Response = Response<Body>,
        Error = BoxError,
        Future = impl Future<Output = Result<Response<Body>, BoxError>> + Send,
    > + Clone
    + Send
    where
        B: hyper::body::Body<Data: Send, Error: Into<BoxError>> + Send,
    {
        tower::service_fn(move |request: hyper::Request<B>| {
            let (door, user) = (self.clone(), user.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(Into::into)?.to_bytes();
                let request = hyper::Request::from_parts(head, body);
                Ok(door.injector.pass(|| door.answer_to(user, request)).await?)
            }
        })
    }

    /// What is needed to verify tokens elsewhere.
    fn keys(&self, asked: &Request) -> Option<Reply> {
        let (content_type, body) = match asked.path.as_str() {
            "/openid/v1/jwks" => ("application/jwk-set+json", self.tokens.jwks()),
            "/.well-known/openid-configuration" => ("application/json", configuration()),
            _ => return None,
        };
        let allowed = asked.method == Method::Get && rbac::nonresource(&asked.user, "get", &asked.path).allowed;
        // A caller without permission is refused where all such paths are.
        allowed.then(|| Reply::Text { code: 200, content_type, body: body.to_string() })
    }

    fn runtime(&self) -> Result<&Arc<dyn Runtime>, Failure> {
        let message = "no kubelet runs here, so there are no containers".to_owned();
        let failure = Failure { code: 503, reason: "ServiceUnavailable", message, details: Value::Null };
        self.runtime.get().ok_or(failure)
    }

    fn log(&self, wanted: LogRequest) -> Result<Response<Body>, Failure> {
        let pieces = self.runtime()?.logs(wanted)?;
        Ok(response(200, "text/plain", logged(pieces, self.stopping())))
    }

    fn exec(
        &self,
        wanted: ExecRequest,
        asked: &Request,
        request: &mut hyper::Request<Bytes>,
    ) -> Result<Response<Body>, Failure> {
        if asked.query.iter().any(|(name, value)| name == "tty" && matches!(value.as_str(), "true" | "1")) {
            return Err(Failure::bad_request("there are no terminals here: leave out -t (--tty)"));
        }
        let runtime = self.runtime()?;
        let offer = exec::offer(request.headers())?;
        let place = self.commands.clone().try_acquire_owned().map_err(|_| busy())?;
        let conversation = exec::converse(hyper::upgrade::on(request), runtime.exec(wanted), self.stopping());
        tokio::spawn(async move {
            conversation.await;
            drop(place);
        });
        let mut answer = Response::new(whole(Bytes::new()));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offer.protocol));
        headers.insert(SEC_WEBSOCKET_ACCEPT, offer.accept.parse().expect("base64 fits in a header"));
        Ok(answer)
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("instance", &self.instance).finish_non_exhaustive()
    }
}

fn busy() -> Failure {
    let message = format!("{MAX_COMMANDS} commands run in containers already");
    Failure { code: 429, reason: "TooManyRequests", message, details: Value::Null }
}

fn configuration() -> Value {
    json!({
        "issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// Takes a request apart.
fn read(user: User, request: &hyper::Request<Bytes>) -> Result<Request, Failure> {
    let header =
        |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let path = percent_encoding::percent_decode_str(request.uri().path()).decode_utf8();
    let path = path.map_err(|_| Failure::bad_request("the path is not UTF-8"))?.into_owned();
    let method = match request.method().as_str() {
        "GET" => Method::Get,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "PATCH" => Method::Patch,
        "DELETE" => Method::Delete,
        _ => return Err(Failure::method_not_allowed()),
    };
    let query = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect();
    let (content_type, accept, user_agent) = (header(CONTENT_TYPE), header(ACCEPT), header(USER_AGENT));
    Ok(Request { method, path, query, content_type, accept, user_agent, body: request.body().to_vec(), user })
}

/// A refusal as an answer.
pub fn failed(failure: &Failure) -> Response<Body> {
    object(failure.code, &failure.status(), &[])
}

fn object(code: u16, body: &Value, warnings: &[String]) -> Response<Body> {
    let mut answer = response(code, "application/json", whole(body.to_string()));
    for warning in warnings {
        let text = format!("299 - {}", Value::from(warning.as_str()));
        // What a header cannot hold is not worth failing for: the answer says it all.
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    answer
}

fn response(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).expect("a status of our own");
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
