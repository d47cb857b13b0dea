//! Counts the requests to the API server by verb, resource and answer: what an agent costs it.

use crate::metrics::{ApiRequest, Metrics};
use axum::http::{Method, Request, Response};
use futures::future::BoxFuture;
use kube::client::Body;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service};

/// Counts every request of the client under it.
#[derive(Clone)]
pub(super) struct Count(pub(super) Arc<Metrics>);

/// A client whose requests are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    service: S,
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for Count {
    type Service = Counted<S>;

    fn layer(&self, service: S) -> Counted<S> {
        Counted { service, metrics: self.0.clone() }
    }
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri();
        let (verb, resource) = names(request.method(), uri.path(), uri.query().unwrap_or_default());
        let (answer, metrics) = (self.service.call(request), self.metrics.clone());
        Box::pin(async move {
            let answer = answer.await;
            // A watch is counted when it begins.
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            metrics.count_api_request(ApiRequest { verb, resource, code });
            answer
        })
    }
}

/// Verb and resource of a request in the words of a Role; a path that names no resource is `nonresource`.
fn names(method: &Method, path: &str, query: &str) -> (&'static str, String) {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let (group, rest) = match segments.as_slice() {
        ["api", _version, rest @ ..] => ("", rest),
        ["apis", group, _version, rest @ ..] => (*group, rest),
        _ => ("", [].as_slice()),
    };
    let rest = match rest {
        ["namespaces", _namespace, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let one = rest.len() > 1;
    let watches = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch=True"));
    let verb = match *method {
        Method::GET if one || rest.is_empty() => "get",
        Method::GET if watches => "watch",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    let dot = if group.is_empty() { "" } else { "." };
    let resource = rest.first().map_or("nonresource".to_owned(), |plural| format!("{plural}{dot}{group}"));
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_named_as_a_role_names_it() {
        let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
        let cases = [
            (Method::GET, "/api/v1/namespaces/ns/pods", "limit=500", "list pods"),
            (Method::GET, "/api/v1/namespaces/ns/pods", "&watch=true&timeoutSeconds=9", "watch pods"),
            (Method::GET, "/api/v1/namespaces/ns/pods/watch=true", "", "get pods"),
            (Method::GET, &format!("{leases}/resync"), "", "get leases.coordination.k8s.io"),
            (Method::PUT, &format!("{leases}/resync"), "", "update leases.coordination.k8s.io"),
            (Method::POST, leases, "", "create leases.coordination.k8s.io"),
            (Method::GET, "/api/v1/namespaces/ns", "", "get namespaces"),
            (
                Method::POST,
                "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
                "",
                "create selfsubjectrulesreviews.authorization.k8s.io",
            ),
            (Method::GET, "/openid/v1/jwks", "", "get nonresource"),
        ];
        for (method, path, query, named) in cases {
            let (verb, resource) = names(&method, path, query);
            assert_eq!(format!("{verb} {resource}"), named, "{path}");
        }
    }
}
