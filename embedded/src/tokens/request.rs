//! TokenRequests: what may be asked of a token, and the answer.

use super::{Bound, ISSUER, Tokens};
use crate::api::TokenRequest;
use crate::failure::Failure;
use crate::object::{list, number, text, time, uid};
use crate::resource::Kind;
use crate::store::{Key, Store};
use jiff::SignedDuration;
use serde_json::{Value, json};

/// How long a token is valid by default.
const DEFAULT_SECONDS: i64 = 3600;
/// The shortest and the longest time that may be asked for.
const SECONDS: (i64, i64) = (600, 1 << 32);

/// Makes the token that is asked for.
pub fn answer(store: &Store, tokens: &Tokens, request: &TokenRequest) -> Result<Value, Failure> {
    let TokenRequest { namespace, service_account, body } = request;
    let account = store.get(&Key::new(Kind::ServiceAccount, namespace, service_account))?;
    let seconds = number(body, "/spec/expirationSeconds").unwrap_or(DEFAULT_SECONDS);
    if seconds < SECONDS.0 {
        return Err(invalid(seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > SECONDS.1 {
        return Err(invalid(seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    let audiences: Vec<String> =
        list(body, "/spec/audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let audiences = if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences };
    let pod = bound_pod(store, request)?;
    let bound = Bound {
        namespace: namespace.clone(),
        service_account: service_account.clone(),
        service_account_uid: uid(account).to_owned(),
        pod: pod.map(|pod| (crate::object::name(pod).to_owned(), uid(pod).to_owned())),
        node: pod.map(|pod| text(pod, "/spec/nodeName").to_owned()).filter(|node| !node.is_empty()),
    };
    let now = store.now();
    let expires = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(jiff::Timestamp::MAX);
    let token = tokens.issue(&bound, &audiences, seconds, now);
    let metadata = json!({"name": service_account, "namespace": namespace, "creationTimestamp": time(now)});
    let reference = &body["spec"]["boundObjectRef"];
    let spec = json!({"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference});
    let status = json!({"token": token, "expirationTimestamp": time(expires)});
    Ok(json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": metadata, "spec": spec, "status": status}))
}

/// The pod that the token is to die with.
fn bound_pod<'a>(store: &'a Store, request: &TokenRequest) -> Result<Option<&'a Value>, Failure> {
    let reference = &request.body["spec"]["boundObjectRef"];
    let name = text(reference, "/name");
    let pod = match (text(reference, "/apiVersion"), text(reference, "/kind")) {
        ("", "") if name.is_empty() => return Ok(None),
        ("v1", "Pod") => store.get(&Key::new(Kind::Pod, &request.namespace, name))?,
        (version, kind) => {
            let why = format!("cannot bind token to object of type {version}, Kind={kind}: only pods are known here");
            return Err(Failure::bad_request(why));
        }
    };
    let (wanted, is) = (text(reference, "/uid"), uid(pod));
    if !wanted.is_empty() && wanted != is {
        let why = format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might \
             have been deleted and then recreated"
        );
        return Err(Failure::conflict(Kind::Pod, name, &why));
    }
    let account = text(pod, "/spec/serviceAccountName");
    if account != request.service_account {
        let why = format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            request.service_account
        );
        return Err(Failure::forbidden(Kind::ServiceAccount, &request.service_account, &why));
    }
    Ok(Some(pod))
}

fn invalid(seconds: i64, why: &str) -> Failure {
    let why = format!("Invalid value: {seconds}: {why}");
    let field = "spec.expirationSeconds";
    let cause = json!({"reason": "FieldValueInvalid", "message": why, "field": field});
    let details = json!({"group": "authentication.k8s.io", "kind": "TokenRequest", "causes": [cause]});
    let message = format!("TokenRequest.authentication.k8s.io \"\" is invalid: {field}: {why}");
    Failure { code: 422, reason: "Invalid", message, details }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn shop() -> Store {
        let mut store = Store::new(1, Timestamp::from_second(1000).unwrap());
        store.create(Kind::Namespace, json!({"metadata": {"name": "shop"}})).unwrap();
        store.create(Kind::ServiceAccount, json!({"metadata": {"name": "till", "namespace": "shop"}})).unwrap();
        let containers = json!([{"name": "till", "image": "till"}]);
        let pod = json!({"metadata": {"name": "till-0", "namespace": "shop"},
            "spec": {"serviceAccountName": "till", "nodeName": "embedded", "containers": containers}});
        store.create(Kind::Pod, pod).unwrap();
        store
    }

    fn ask(store: &Store, account: &str, spec: Value) -> Result<Value, Failure> {
        let (namespace, service_account) = ("shop".to_owned(), account.to_owned());
        let tokens = Tokens::new().unwrap();
        let request = TokenRequest { namespace, service_account, body: json!({"spec": spec}) };
        let answer = answer(store, &tokens, &request)?;
        let token = text(&answer, "/status/token");
        Ok(json!({"says": tokens.bindings(token, store.now()), "until": answer["status"]["expirationTimestamp"]}))
    }

    #[test]
    fn a_token_names_its_account_and_its_pod() {
        let store = shop();
        let pod = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "till-0"}});
        let made = ask(&store, "till", pod).unwrap();
        assert_eq!(made["until"], "1970-01-01T01:16:40Z");
        assert_eq!(made["says"]["serviceaccount"]["name"], "till");
        assert_eq!(made["says"]["pod"]["name"], "till-0");
        assert_eq!(made["says"]["node"]["name"], "embedded");
        assert_eq!(ask(&store, "till", json!({"audiences": ["kaa"]})).unwrap()["says"], Value::Null, "not for here");
    }

    #[test]
    fn what_cannot_be_had_is_said() {
        let store = shop();
        let words = |account: &str, spec: Value| ask(&store, account, spec).unwrap_err().message;
        assert_eq!(words("absent", json!({})), r#"serviceaccounts "absent" not found"#);
        assert!(words("till", json!({"expirationSeconds": 70})).contains("less than 10 minutes"));
        let pod = |name: &str, uid: &str| json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}});
        assert_eq!(words("till", pod("till-1", "")), r#"pods "till-1" not found"#);
        assert!(words("till", pod("till-0", "x")).contains("does not match the UID in record"));
        let node = json!({"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "embedded"}});
        assert!(words("till", node).contains("only pods are known here"));
    }
}
