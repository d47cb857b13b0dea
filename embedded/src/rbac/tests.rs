//! Rules, subjects, and the words of a refusal.

use super::{Attributes, authorize, decide, nonresource, rules};
use crate::api::User;
use crate::resource::Kind;
use crate::store::Store;
use crate::tokens::service_account;
use jiff::Timestamp;
use serde_json::json;

/// Namespace `shop` with one Role, bound to the ServiceAccount `till` and the group `staff`.
fn shop() -> Store {
    let mut store = Store::new(1, Timestamp::UNIX_EPOCH);
    for name in ["shop", "other"] {
        store.create(Kind::Namespace, json!({"metadata": {"name": name}})).unwrap();
    }
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["leader"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["*/scale"], "verbs": ["update"]},
    ]);
    let role = json!({"metadata": {"name": "reader", "namespace": "shop"}, "rules": rules});
    store.create(Kind::Role, role).unwrap();
    let subjects = json!([
        {"kind": "ServiceAccount", "name": "till"},
        {"kind": "Group", "name": "staff", "apiGroup": "rbac.authorization.k8s.io"},
    ]);
    let binding = json!({"metadata": {"name": "readers", "namespace": "shop"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}});
    store.create(Kind::RoleBinding, binding).unwrap();
    store
}

/// `verb group/resource/subresource namespace name`, with `-` for what is empty.
fn wanted(text: &str) -> Attributes<'_> {
    let mut words = text.split(' ').map(|word| if word == "-" { "" } else { word });
    let (verb, path) = (words.next().unwrap(), words.next().unwrap());
    let mut path = path.split('/');
    Attributes {
        verb,
        group: path.next().unwrap(),
        resource: path.next().unwrap(),
        subresource: path.next().unwrap_or_default(),
        namespace: words.next().unwrap_or_default(),
        name: words.next().unwrap_or_default(),
    }
}

fn refusal(store: &Store, user: &User, text: &str) -> String {
    authorize(store, user, &wanted(text)).err().map(|failure| failure.message).unwrap_or_default()
}

#[test]
fn a_role_allows_what_it_lists() {
    let (store, till) = (shop(), service_account("shop", "till"));
    let cases = [
        ("get /pods shop till-0", true),
        ("list /pods shop", true),
        ("watch /pods shop", false),
        ("get /pods/log shop till-0", true),
        ("get /pods/exec shop till-0", false),
        ("list /pods other", false),
        ("list /pods -", false),
        ("delete coordination.k8s.io/leases shop leader", true),
        ("get coordination.k8s.io/leases shop follower", false),
        ("list coordination.k8s.io/leases shop", false),
        ("get /leases shop leader", false),
        ("update apps/statefulsets/scale shop till", true),
        ("update apps/statefulsets shop till", false),
    ];
    for (text, allowed) in cases {
        assert_eq!(decide(&store, &till, &wanted(text)).allowed, allowed, "{text}");
    }
}

#[test]
fn a_subject_is_one_account_of_one_namespace_or_a_group() {
    let store = shop();
    let list = wanted("list /pods shop");
    assert!(!decide(&store, &service_account("other", "till"), &list).allowed);
    let staff = User { name: "ann".to_owned(), groups: vec!["staff".to_owned()] };
    let reason = r#"RBAC: allowed by RoleBinding "readers/shop" of Role "reader" to Group "staff""#;
    assert_eq!(decide(&store, &staff, &list).reason, reason);
    let admin = User { name: "kubernetes-admin".to_owned(), groups: vec!["system:masters".to_owned()] };
    assert!(decide(&store, &admin, &wanted("delete /nodes - embedded")).allowed);
    assert_eq!(rules(&store, &staff, "shop").len(), 3);
    assert_eq!(rules(&store, &staff, "other").len(), 0);
}

#[test]
fn a_refusal_says_who_may_not_do_what_and_where() {
    let (mut store, till) = (shop(), service_account("shop", "till"));
    let who = r#"User "system:serviceaccount:shop:till""#;
    assert_eq!(
        refusal(&store, &till, "list /secrets shop"),
        format!(
            r#"secrets is forbidden: {who} cannot list resource "secrets" in API group "" in the namespace "shop""#
        )
    );
    assert_eq!(
        refusal(&store, &till, "get /pods/exec shop till-0"),
        format!(
            "pods \"till-0\" is forbidden: {who} cannot get resource \"pods/exec\" in API group \"\" in the \
             namespace \"shop\""
        )
    );
    assert_eq!(
        refusal(&store, &till, "get apps/deployments shop x"),
        format!(
            "deployments.apps \"x\" is forbidden: {who} cannot get resource \"deployments\" in API group \"apps\" in \
             the namespace \"shop\""
        )
    );
    assert_eq!(
        refusal(&store, &till, "list /namespaces -"),
        format!(
            "namespaces is forbidden: {who} cannot list resource \"namespaces\" in API group \"\" at the cluster scope"
        )
    );
    let dangling = json!({"metadata": {"name": "dangling", "namespace": "shop"},
        "subjects": [{"kind": "ServiceAccount", "name": "till", "namespace": "shop"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nope"}});
    store.create(Kind::RoleBinding, dangling).unwrap();
    let refused = refusal(&store, &till, "list /secrets shop");
    assert!(refused.ends_with(r#"in the namespace "shop": RBAC: role.rbac.authorization.k8s.io "nope" not found"#));
}

#[test]
fn paths_that_are_not_objects_are_for_whom_they_are_for() {
    let till = service_account("shop", "till");
    let anonymous = User { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] };
    let may = |user: &User, path: &str| nonresource(user, "get", path).allowed;
    assert!(may(&anonymous, "/livez") && may(&anonymous, "/version"));
    assert!(!may(&anonymous, "/api") && !may(&anonymous, "/openid/v1/jwks"));
    assert!(may(&till, "/apis/apps/v1") && may(&till, "/openapi/v3") && may(&till, "/openid/v1/jwks"));
    assert!(!may(&till, "/apish") && !may(&till, "/metrics"));
    assert!(!nonresource(&till, "post", "/api").allowed);
}
