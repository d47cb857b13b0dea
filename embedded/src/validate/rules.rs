//! Roles and RoleBindings.

use super::{Causes, not_done, one_of, required};
use crate::object::{list, text};
use serde_json::Value;

pub fn role(object: &Value, found: &mut Causes) {
    for (at, rule) in list(object, "/rules").iter().enumerate() {
        let mut needs = |name: &str, why: &str| {
            required(found, format_args!("rules[{at}].{name}"), list(rule, &format!("/{name}")).is_empty(), why);
        };
        needs("verbs", "verbs must contain at least one value");
        needs("apiGroups", "resource rules must supply at least one api group");
        needs("resources", "resource rules must supply at least one resource");
    }
}

pub fn binding(object: &Value, found: &mut Causes) {
    let kind = text(object, "/roleRef/kind");
    if kind == "ClusterRole" {
        not_done(found, format_args!("roleRef.kind"), true, "there are Roles only, no ClusterRoles");
    } else {
        one_of(found, format_args!("roleRef.kind"), kind, &["Role", "ClusterRole"]);
    }
    required(found, format_args!("roleRef.name"), text(object, "/roleRef/name").is_empty(), "");
    for (at, subject) in list(object, "/subjects").iter().enumerate() {
        let field = |name: &str| format!("subjects[{at}].{name}");
        required(found, format_args!("{}", field("name")), text(subject, "/name").is_empty(), "");
        one_of(found, format_args!("{}", field("kind")), text(subject, "/kind"), &["ServiceAccount", "User", "Group"]);
    }
}
