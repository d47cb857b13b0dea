//! What a client asks before it asks for objects: which kinds there are, the version, whether the server lives.
//!
//! Here is every path that is not one of an object or of a collection of them, but for the public keys, which the
//! server itself has. The reviews of one's own permissions, which are never stored, are in [`crate::review`].

use crate::api::{Method, Reply, Request};
use crate::failure::Failure;
use crate::resource::{Kind, RESOURCES, Resource, Subresource};
use crate::store::Store;
use crate::{openapi, rbac, review};
use serde_json::{Value, json};

/// The document that says everything at once, and how a client asks for it.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Answers, if the path is not one of objects.
pub fn answer(store: &Store, request: &Request) -> Option<Reply> {
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let depth = match parts.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => usize::MAX,
    };
    if parts.len() > depth {
        return review::answer(store, request).or_else(|| not_done(&parts));
    }
    let verb = verb(request.method);
    if !rbac::nonresource(&request.user, verb, &request.path).allowed {
        return Some(Reply::failed(&forbidden(request, verb)));
    }
    if request.method != Method::Get {
        return Some(Reply::failed(&Failure::method_not_allowed()));
    }
    let aggregated = request.accept.split(',').any(|accepted| accepted.trim() == AGGREGATED);
    let body = match parts.as_slice() {
        ["healthz" | "livez" | "readyz"] => return Some(text(200, "ok")),
        ["version"] => Some(version()),
        ["openapi", ..] => openapi::document(request.path.trim_end_matches('/')),
        ["api"] | ["apis"] if aggregated => {
            let body = everything(parts[0] == "api").to_string();
            return Some(Reply::Text { code: 200, content_type: AGGREGATED, body });
        }
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> = groups().into_iter().map(group).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", "v1"] => kinds(""),
        ["apis", name] if groups().contains(name) => {
            let mut group = group(name);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            Some(group)
        }
        ["apis", name, "v1"] => kinds(name),
        _ => None,
    };
    Some(body.map_or_else(|| text(404, "404 page not found\n"), |body| Reply::object(200, body)))
}

/// What clients of pods ask for and is not done here, with what helps instead.
fn not_done(parts: &[&str]) -> Option<Reply> {
    let ["api", "v1", "namespaces", _, "pods", _, below] = parts else { return None };
    let instead = match *below {
        "portforward" | "proxy" => "a pod's address can be reached from this machine as it is",
        "attach" => "what a container writes is in its log",
        "eviction" => "delete the pod",
        "ephemeralcontainers" | "resize" => "make another pod",
        _ => return None,
    };
    let message = format!("pods/{below} is not done by this Kubernetes: {instead}");
    let details = json!({"kind": "pods"});
    Some(Reply::failed(&Failure { code: 405, reason: "MethodNotAllowed", message, details }))
}

fn text(code: u16, body: &str) -> Reply {
    Reply::Text { code, content_type: "text/plain; charset=utf-8", body: body.to_owned() }
}

fn verb(method: Method) -> &'static str {
    match method {
        Method::Get => "get",
        Method::Post => "post",
        Method::Put => "put",
        Method::Patch => "patch",
        Method::Delete => "delete",
    }
}

fn forbidden(request: &Request, verb: &str) -> Failure {
    let (user, path) = (&request.user.name, &request.path);
    let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
    Failure { code: 403, reason: "Forbidden", message, details: json!({}) }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "32", "gitVersion": "v1.32.0+embedded", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("linux/{}", std::env::consts::ARCH),
    })
}

/// The groups but for the core.
fn groups() -> Vec<&'static str> {
    let mut groups: Vec<&str> = RESOURCES.iter().map(|resource| resource.group).collect();
    groups.retain(|group| !group.is_empty());
    groups.dedup();
    groups
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

fn of_group(group: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES.iter().filter(move |resource| resource.group == group)
}

/// What can be done with objects of a kind.
fn verbs(kind: Kind) -> Vec<&'static str> {
    let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    match kind {
        Kind::SelfSubjectAccessReview => vec!["create"],
        Kind::Namespace => all.into_iter().filter(|verb| *verb != "deletecollection").collect(),
        _ => all.to_vec(),
    }
}

/// What is below an object: its group, version and kind if they are others than the object's, and what can be done.
fn below(subresource: Subresource) -> (Option<[&'static str; 3]>, &'static [&'static str]) {
    match subresource {
        Subresource::Status => (None, &["get", "patch", "update"]),
        Subresource::Scale => (Some(["autoscaling", "v1", "Scale"]), &["get", "patch", "update"]),
        Subresource::Log => (None, &["get"]),
        Subresource::Exec => (Some(["", "v1", "PodExecOptions"]), &["create", "get"]),
        Subresource::Token => (Some(["authentication.k8s.io", "v1", "TokenRequest"]), &["create"]),
    }
}

/// The kinds of a group, in the form of the older documents.
fn kinds(group: &str) -> Option<Value> {
    let mut kinds = Vec::new();
    for resource in of_group(group) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular(), "namespaced": resource.namespaced,
            "kind": resource.name, "verbs": verbs(resource.kind),
        });
        add_names(&mut entry, resource);
        kinds.push(entry);
        for subresource in resource.subresources {
            let (other, verbs) = below(*subresource);
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, subresource.name()), "singularName": "",
                "namespaced": resource.namespaced, "kind": resource.name, "verbs": verbs,
            });
            if let Some([group, version, kind]) = other {
                entry["kind"] = json!(kind);
                if group != resource.group {
                    entry["group"] = json!(group);
                    entry["version"] = json!(version);
                }
            }
            kinds.push(entry);
        }
    }
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": kinds});
    (!kinds.is_empty()).then_some(list)
}

fn add_names(entry: &mut Value, resource: &Resource) {
    if !resource.short.is_empty() {
        entry["shortNames"] = json!(resource.short);
    }
    if resource.in_all {
        entry["categories"] = json!(["all"]);
    }
}

/// All kinds of the core, or of all other groups, in the form of the newer document.
fn everything(core: bool) -> Value {
    let groups = if core { vec![""] } else { groups() };
    let items: Vec<Value> = groups.into_iter().map(group_discovery).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn group_discovery(group: &str) -> Value {
    let resources: Vec<Value> = of_group(group).map(resource_discovery).collect();
    let mut metadata = json!({"creationTimestamp": null});
    if !group.is_empty() {
        metadata["name"] = json!(group);
    }
    json!({"metadata": metadata, "versions": [{"version": "v1", "resources": resources, "freshness": "Current"}]})
}

fn resource_discovery(resource: &Resource) -> Value {
    let response = |[group, version, kind]: [&str; 3]| json!({"group": group, "version": version, "kind": kind});
    let own = ["", "", resource.name];
    let mut entry = json!({
        "resource": resource.plural, "responseKind": response(own),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular(), "verbs": verbs(resource.kind),
    });
    add_names(&mut entry, resource);
    let subresources = resource.subresources.iter().map(|subresource| {
        let (other, verbs) = below(*subresource);
        json!({"subresource": subresource.name(), "responseKind": response(other.unwrap_or(own)), "verbs": verbs})
    });
    let subresources: Vec<Value> = subresources.collect();
    if !subresources.is_empty() {
        entry["subresources"] = json!(subresources);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::answer;
    use crate::api::{Method, Reply, Request, User};
    use crate::store::Store;
    use crate::tokens::service_account;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn request(path: &str, accept: &str, user: User) -> Request {
        Request {
            method: Method::Get,
            path: path.to_owned(),
            query: Vec::new(),
            content_type: String::new(),
            accept: accept.to_owned(),
            user_agent: String::new(),
            body: Vec::new(),
            user,
        }
    }

    fn ask(request: &Request) -> (u16, Value) {
        match answer(&Store::new(1, Timestamp::UNIX_EPOCH), request).expect("a path of discovery") {
            Reply::Object { code, body, .. } => (code, body),
            Reply::Text { code, body, .. } => (code, serde_json::from_str(&body).unwrap_or(json!(body))),
            other => panic!("{other:?}"),
        }
    }

    fn get(path: &str, accept: &str) -> (u16, Value) {
        ask(&request(path, accept, service_account("shop", "till")))
    }

    #[test]
    fn the_newer_document_says_of_every_kind_what_the_older_ones_say() {
        let newer = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        for (root, groups) in [("/api", vec![""]), ("/apis", super::groups())] {
            let (_, everything) = get(root, newer);
            assert_eq!(everything["items"].as_array().unwrap().len(), groups.len());
            for (group, item) in groups.iter().zip(everything["items"].as_array().unwrap()) {
                let path = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
                let (_, older) = get(&path, "application/json");
                let mut names: Vec<String> = Vec::new();
                for resource in item["versions"][0]["resources"].as_array().unwrap() {
                    let name = resource["resource"].as_str().unwrap();
                    names.push(name.to_owned());
                    for below in resource["subresources"].as_array().into_iter().flatten() {
                        names.push(format!("{name}/{}", below["subresource"].as_str().unwrap()));
                    }
                }
                let older: Vec<&str> = older["resources"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|entry| entry["name"].as_str().unwrap())
                    .collect();
                assert_eq!(older, names, "{path}");
            }
        }
        assert_eq!(get("/apis", "application/json").1["kind"], "APIGroupList");
    }

    #[test]
    fn paths_of_objects_are_others_business() {
        let store = Store::new(1, Timestamp::UNIX_EPOCH);
        for path in ["/api/v1/pods", "/apis/apps/v1/statefulsets", "/apis/nope/v1/x"] {
            assert!(answer(&store, &request(path, "", service_account("shop", "till"))).is_none(), "{path}");
        }
    }

    #[test]
    fn other_paths_are_there_forbidden_or_not_found() {
        assert_eq!(get("/version", "").1["minor"], "32");
        assert_eq!(get("/livez", ""), (200, json!("ok")));
        assert_eq!(get("/apis/nope", "").0, 404);
        let (code, refused) = get("/metrics", "");
        let words = r#"forbidden: User "system:serviceaccount:shop:till" cannot get path "/metrics""#;
        assert_eq!((code, &refused["message"]), (403, &json!(words)));
        let admin = User { name: "admin".to_owned(), groups: vec!["system:masters".to_owned()] };
        assert_eq!(ask(&request("/metrics", "", admin)).0, 404);
    }
}
