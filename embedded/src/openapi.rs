//! As much of the OpenAPI documents as `kubectl` needs to leave checking to the server.
//!
//! Before it creates or changes something, `kubectl` asks whether the server checks fields by itself: it looks in the
//! document of the object's group for a PATCH of the kind that has a parameter `fieldValidation`. That is all that is
//! said here. There are no schemas: for strategic merge patches `kubectl` then goes by the types that it has built in
//! (after it has asked for `/openapi/v2`, which there is none of), and `kubectl explain` has nothing to show.

use crate::resource::{RESOURCES, Resource};
use serde_json::{Map, Value, json};

/// What is served below `/openapi`.
pub fn document(path: &str) -> Option<Value> {
    if path == "/openapi/v3" {
        return Some(index());
    }
    let group_version = path.strip_prefix("/openapi/v3/")?;
    let paths: Map<String, Value> =
        RESOURCES.iter().filter(|known| root(known) == group_version).map(operation).collect();
    let info = json!({"title": "Kubernetes", "version": "v1.32.0"});
    let none = paths.is_empty();
    let document = json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}});
    (!none).then_some(document)
}

/// `apis/apps/v1`.
fn root(resource: &Resource) -> String {
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", resource.api_version())
}

fn index() -> Value {
    // Clients keep a document for as long as its hash is the same.
    let at = |root: &str| json!({"serverRelativeURL": format!("/openapi/v3/{root}?hash=1")});
    let paths: Map<String, Value> = RESOURCES.iter().map(root).map(|root| (root.clone(), at(&root))).collect();
    json!({"paths": paths})
}

fn operation(resource: &Resource) -> (String, Value) {
    let patch = json!({
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": "v1", "kind": resource.name},
        "parameters": [{"in": "query", "name": "fieldValidation", "schema": {"type": "string"}}],
        "responses": {},
    });
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    (format!("/{}{scope}/{}/{{name}}", root(resource), resource.plural), json!({"patch": patch}))
}

#[cfg(test)]
mod tests {
    use super::document;

    #[test]
    fn every_group_has_a_document_that_declares_field_validation() {
        let index = document("/openapi/v3").unwrap();
        for (root, at) in index["paths"].as_object().unwrap() {
            let path = at["serverRelativeURL"].as_str().unwrap().split('?').next().unwrap();
            let found = document(path).unwrap_or_else(|| panic!("{root} is at {path}"));
            for (path, operations) in found["paths"].as_object().unwrap() {
                assert_eq!(operations["patch"]["parameters"][0]["name"], "fieldValidation", "{path}");
            }
        }
        let apps = document("/openapi/v3/apis/apps/v1").unwrap();
        assert!(!apps["paths"]["/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"].is_null(), "{apps}");
        assert_eq!(document("/openapi/v3/apis/nope/v1"), None);
        assert_eq!(document("/openapi/v2"), None);
    }
}
