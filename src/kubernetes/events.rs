//! Events: what people see with `kubectl describe` and `kubectl get events`. Nothing rests on them, and the permission to make
//! them is optional: without it they are left out.

use super::{Error, Kubernetes, asked};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kaa_core::domain::ids::{ServerId, Uid};
use kube::api::PostParams;

/// The most bytes of a message that the API server takes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// An object that something is told about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Such as `apps/v1`.
    pub api_version: &'static str,
    /// Such as `StatefulSet`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Uid,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Whether an operator should look at it.
    pub warning: bool,
    /// One word, in upper camel case.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// Makes an Event. Its name is one that no other has.
pub async fn tell(kubernetes: &Kubernetes, by: &ServerId, about: &About, news: &News) -> Result<(), Error> {
    let name = format!("{}.{:016x}", about.name, crate::clock::random_u64());
    let event = render(kubernetes.namespace(), name, by, about, news);
    let asked = asked::<Event>("create", None);
    let request = async {
        let created = kubernetes.api::<Event>().create(&PostParams::default(), &event).await;
        created.map_err(|error| Error::of(asked.clone(), error))
    };
    kubernetes.within(&asked, request).await.map(drop)
}

fn render(namespace: &str, name: String, by: &ServerId, about: &About, news: &News) -> Event {
    let now = i64::try_from(crate::clock::now().0).unwrap_or_default();
    let now = Time(Timestamp::from_millisecond(now).unwrap_or_default());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
        involved_object: ObjectReference {
            api_version: Some(about.api_version.to_owned()),
            kind: Some(about.kind.to_owned()),
            name: Some(about.name.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(about.uid.to_string()),
            ..ObjectReference::default()
        },
        type_: Some(if news.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(news.reason.to_owned()),
        message: Some(cut(&news.message)),
        count: Some(1),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        source: Some(EventSource { component: Some("kaa".to_owned()), host: None }),
        reporting_component: Some("kaa".to_owned()),
        reporting_instance: Some(by.to_string()),
        ..Event::default()
    }
}

fn cut(message: &str) -> String {
    let end =
        message.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_MESSAGE_BYTES).last();
    message[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::extract::Json;
    use axum::routing::post;
    use axum::{Router, response::IntoResponse};
    use serde_json::Value;
    use std::sync::{Arc, Mutex};

    fn about() -> About {
        About { api_version: "apps/v1", kind: "StatefulSet", name: "kaa-admin".to_owned(), uid: "s1".into() }
    }

    fn news(message: &str) -> News {
        News { warning: true, reason: "NoLeader", message: message.to_owned() }
    }

    #[tokio::test]
    async fn an_event_names_the_object_and_who_tells() {
        let made = Arc::new(Mutex::new(Value::Null));
        let kept = made.clone();
        let create = async move |Json(event): Json<Value>| {
            *kept.lock().unwrap() = event.clone();
            Json(event)
        };
        let kubernetes = fake::kubernetes(Router::new().route("/api/v1/namespaces/ns/events", post(create)));
        tell(&kubernetes, &"kaa-admin-0".into(), &about(), &news("no leader")).await.unwrap();
        let event = made.lock().unwrap().clone();
        assert_eq!(event["involvedObject"]["uid"], "s1");
        assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"NoLeader".into()));
        assert_eq!((&event["message"], &event["count"]), (&"no leader".into(), &1.into()));
        assert_eq!(event["reportingInstance"], "kaa-admin-0");
        assert!(event["metadata"]["name"].as_str().unwrap().starts_with("kaa-admin."), "{event}");
        assert!(kubernetes.permissions.missing().is_empty());
    }

    #[tokio::test]
    async fn without_the_right_nothing_else_is_said_to_be_missing() {
        let forbid = async || fake::status(403, "Forbidden", "", "events", "").into_response();
        let kubernetes = fake::kubernetes(Router::new().route("/api/v1/namespaces/ns/events", post(forbid)));
        let told = tell(&kubernetes, &"kaa-admin-0".into(), &about(), &news("x")).await;
        assert!(matches!(told, Err(Error::Forbidden { .. })), "{told:?}");
        assert_eq!(kubernetes.permissions.missing(), [], "it is optional: nothing is held back for want of it");
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let long = "ä".repeat(2000);
        assert_eq!(cut(&long).len(), 1024);
        assert_eq!(cut("short"), "short");
    }
}
