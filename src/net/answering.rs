//! Which gRPC calls keep their connection: those that are admitted, from the answer's head until its end.

use super::incoming::Caller;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// The header of an answer that is nothing but a status: the call was refused.
const REFUSED: &str = "grpc-status";

/// Has each call use the place of its connection.
#[derive(Clone, Copy, Debug)]
pub struct Answering;

impl<S> Layer<S> for Answering {
    type Service = Answer<S>;

    fn layer(&self, service: S) -> Answer<S> {
        Answer(service)
    }
}

/// What answers the calls.
#[derive(Clone, Debug)]
pub struct Answer<S>(S);

impl<S> Service<Request<Body>> for Answer<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Without one the connection is none of `incoming`: a simulation's.
        let place = request.extensions().get::<Caller>().and_then(|caller| caller.place.clone());
        let call = match place.map(|place| place.call()).transpose() {
            Ok(call) => call,
            Err(no_place) => {
                let refused = Status::resource_exhausted(no_place.to_string()).into_http();
                return std::future::ready(Ok(refused)).boxed();
            }
        };
        let answering = self.0.call(request);
        async move {
            let answer = answering.await?;
            let Some(mut call) = call.filter(|_| !answer.headers().contains_key(REFUSED)) else { return Ok(answer) };
            call.admit();
            Ok(answer.map(|body| Body::new(call.until_sent(body))))
        }
        .boxed()
    }
}
