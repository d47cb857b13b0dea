//! What a caller may ask about itself: who am I, may I do this, what may I do. Answered, never stored.

use crate::api::{Method, Reply, Request};
use crate::failure::Failure;
use crate::object::text;
use crate::rbac::{self, Attributes, Decision};
use crate::store::Store;
use serde_json::{Value, json};

const AUTHORIZATION: &str = "authorization.k8s.io/v1";
const AUTHENTICATION: &str = "authentication.k8s.io/v1";

/// Answers, if the path is one of a review.
pub fn answer(store: &Store, request: &Request) -> Option<Reply> {
    let review = match request.path.trim_start_matches("/apis/") {
        "authorization.k8s.io/v1/selfsubjectaccessreviews" => access,
        "authorization.k8s.io/v1/selfsubjectrulesreviews" => rules,
        "authentication.k8s.io/v1/selfsubjectreviews" => identity,
        _ => return None,
    };
    if request.method != Method::Post {
        return Some(Reply::failed(&Failure::method_not_allowed()));
    }
    let asked = serde_json::from_slice(&request.body)
        .map_err(|error| Failure::bad_request(format!("the body is not JSON: {error}")));
    Some(match asked.and_then(|asked| review(store, request, &asked)) {
        Ok(answer) => Reply::object(201, answer),
        Err(failure) => Reply::failed(&failure),
    })
}

fn access(store: &Store, request: &Request, asked: &Value) -> Result<Value, Failure> {
    let (objects, paths) = (&asked["spec"]["resourceAttributes"], &asked["spec"]["nonResourceAttributes"]);
    let Decision { allowed, reason } = match (objects.is_object(), paths.is_object()) {
        (true, false) => {
            let of = |field: &str| text(objects, field);
            let wanted = Attributes {
                verb: of("/verb"),
                group: of("/group"),
                resource: of("/resource"),
                subresource: of("/subresource"),
                name: of("/name"),
                namespace: of("/namespace"),
            };
            rbac::decide(store, &request.user, &wanted)
        }
        (false, true) => rbac::nonresource(&request.user, text(paths, "/verb"), text(paths, "/path")),
        (true, true) | (false, false) => return Err(neither()),
    };
    let mut status = json!({"allowed": allowed});
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    Ok(review(AUTHORIZATION, "SelfSubjectAccessReview", &asked["spec"], status))
}

fn neither() -> Failure {
    let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    let message =
        format!(".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: \"null\": {why}");
    let cause = json!({"reason": "FieldValueInvalid", "message": format!("Invalid value: \"null\": {why}"),
        "field": "spec.resourceAttributes"});
    let details = json!({"group": "authorization.k8s.io", "causes": [cause]});
    Failure { code: 422, reason: "Invalid", message, details }
}

fn rules(store: &Store, request: &Request, asked: &Value) -> Result<Value, Failure> {
    let namespace = text(asked, "/spec/namespace");
    if namespace.is_empty() {
        return Err(Failure::bad_request("no namespace on request"));
    }
    let own = json!([
        {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
        {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    ]);
    let own = own.as_array().expect("a list").iter().cloned();
    let paths = ["/healthz", "/livez", "/readyz", "/version", "/api", "/api/*", "/apis", "/apis/*", "/openapi/*"];
    let status = json!({
        "resourceRules": own.chain(rbac::rules(store, &request.user, namespace)).collect::<Vec<_>>(),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}],
        "incomplete": false,
    });
    Ok(review(AUTHORIZATION, "SelfSubjectRulesReview", &json!({}), status))
}

fn identity(_store: &Store, request: &Request, _asked: &Value) -> Result<Value, Failure> {
    let user = json!({"username": request.user.name, "groups": request.user.groups});
    let mut answer = review(AUTHENTICATION, "SelfSubjectReview", &Value::Null, json!({"userInfo": user}));
    answer.as_object_mut().expect("an object").remove("spec");
    Ok(answer)
}

fn review(version: &str, kind: &str, spec: &Value, status: Value) -> Value {
    let metadata = json!({"creationTimestamp": null});
    json!({"kind": kind, "apiVersion": version, "metadata": metadata, "spec": spec, "status": status})
}
