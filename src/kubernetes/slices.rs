//! The EndpointSlices that lead clients to the servers of a database with one primary.
//!
//! Each belongs to a Service without a selector, and carries in an annotation as of which state of the domain it was written. A writer
//! replaces an older state only, and only the object that it read: so a writer that is late changes nothing.

use super::{Error, Kubernetes, asked};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kaa_core::replication::route::{self, AsOf, Route};
use kube::api::PostParams;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The annotation with the state of the domain as of which a slice was written.
pub const APPLIED: &str = "kaa.dev/applied";
/// The label that ties a slice to its Service.
const SERVICE: &str = "kubernetes.io/service-name";
/// The label that says who writes a slice: no controller of Kubernetes touches it then.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The name of the port.
const PORT: &str = "postgres";

/// What came of publishing a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The slice says it now.
    Written,
    /// It said it already.
    Same,
    /// It says something else, as of a later state of the domain.
    Later,
}

/// Has the slice of a route say it.
pub async fn publish(kubernetes: &Kubernetes, route: &Route, as_of: AsOf) -> Result<Published, Error> {
    let name = route.name();
    let found = kubernetes.read::<EndpointSlice>(&name).await?;
    let wanted = render(kubernetes.namespace(), route, as_of);
    let Some(found) = found else {
        let asked = asked::<EndpointSlice>("create", None);
        let request = async {
            let created = kubernetes.api::<EndpointSlice>().create(&PostParams::default(), &wanted).await;
            created.map_err(|error| Error::of(asked.clone(), error))
        };
        return kubernetes.within(&asked, request).await.map(|_| Published::Written);
    };
    if says(&found, &wanted) {
        return Ok(Published::Same);
    }
    if written_as_of(&found).is_some_and(|found| found >= as_of) {
        return Ok(Published::Later);
    }
    let mut wanted = wanted;
    wanted.metadata.resource_version = found.metadata.resource_version;
    wanted.metadata.owner_references = found.metadata.owner_references;
    let asked = asked::<EndpointSlice>("update", Some(&name));
    let request = async {
        let written = kubernetes.api::<EndpointSlice>().replace(&name, &PostParams::default(), &wanted).await;
        written.map_err(|error| Error::of(asked.clone(), error))
    };
    kubernetes.within(&asked, request).await.map(|_| Published::Written)
}

/// As of which state of the domain a slice was written; `None` if it does not say so: then anything replaces it.
fn written_as_of(slice: &EndpointSlice) -> Option<AsOf> {
    slice.metadata.annotations.as_ref()?.get(APPLIED)?.parse().ok()
}

/// Whether a slice leads clients where another one does.
fn says(found: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    let labels = |slice: &EndpointSlice| {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        [SERVICE, MANAGED_BY].map(|name| labels.get(name).cloned())
    };
    // The API server gives an empty list back as none.
    let endpoints = |slice: &EndpointSlice| slice.endpoints.clone().unwrap_or_default();
    let ports = |slice: &EndpointSlice| slice.ports.clone().unwrap_or_default();
    (&found.address_type, endpoints(found), ports(found), labels(found))
        == (&wanted.address_type, endpoints(wanted), ports(wanted), labels(wanted))
}

fn render(namespace: &str, route: &Route, as_of: AsOf) -> EndpointSlice {
    let name = route.name();
    // All pods of a StatefulSet have addresses of one family.
    let v6 = route.endpoints.first().is_some_and(|endpoint| endpoint.address.contains(':'));
    // What an engine told of itself is an address, or the API server would refuse the whole slice.
    let told =
        route.endpoints.iter().filter(|it| it.address.parse::<IpAddr>().is_ok_and(|known| known.is_ipv6() == v6));
    let labels = [(SERVICE, name.as_str()), (MANAGED_BY, "kaa")];
    let ports = route.endpoints.first().map(|endpoint| EndpointPort {
        name: Some(PORT.to_owned()),
        port: Some(i32::from(endpoint.port)),
        protocol: Some("TCP".to_owned()),
        ..EndpointPort::default()
    });
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            annotations: Some(BTreeMap::from([(APPLIED.to_owned(), as_of.to_string())])),
            ..ObjectMeta::default()
        },
        address_type: if v6 { "IPv6" } else { "IPv4" }.to_owned(),
        endpoints: Some(told.map(|it| endpoint(namespace, it)).collect()),
        ports: ports.map(|port| vec![port]),
    }
}

fn endpoint(namespace: &str, endpoint: &route::Endpoint) -> Endpoint {
    Endpoint {
        addresses: vec![endpoint.address.clone()],
        conditions: Some(EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) }),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            name: Some(endpoint.pod.clone()),
            namespace: Some(namespace.to_owned()),
            uid: Some(endpoint.uid.to_string()),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::fake;
    use axum::extract::{Json, Path, State};
    use axum::response::{IntoResponse, Response};
    use axum::routing::{get, post};
    use kaa_core::domain::ids::MembershipEpoch;
    use kaa_core::replication::route::Purpose;
    use std::sync::{Arc, Mutex};

    type Stored = Arc<Mutex<Option<EndpointSlice>>>;

    fn server(stored: &Stored) -> Kubernetes {
        let read = async |State(stored): State<Stored>, Path(name): Path<String>| -> Response {
            match &*stored.lock().unwrap() {
                Some(slice) => Json(slice.clone()).into_response(),
                None => fake::status(404, "NotFound", "discovery.k8s.io", "endpointslices", &name),
            }
        };
        let write = async |State(stored): State<Stored>, Json(mut slice): Json<EndpointSlice>| -> Response {
            let mut stored = stored.lock().unwrap();
            let version = stored.as_ref().and_then(|it| it.metadata.resource_version.clone());
            if slice.metadata.resource_version != version {
                return fake::status(409, "Conflict", "discovery.k8s.io", "endpointslices", "shop-rw");
            }
            // As a real API server has it: an empty list is left out.
            slice.endpoints = slice.endpoints.filter(|endpoints| !endpoints.is_empty());
            slice.metadata.resource_version = Some(version.map_or(1, |it| it.parse::<u64>().unwrap() + 1).to_string());
            *stored = Some(slice.clone());
            Json(slice).into_response()
        };
        let path = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices";
        let router = axum::Router::new()
            .route(path, post(write))
            .route(&format!("{path}/{{name}}"), get(read).put(write))
            .with_state(stored.clone());
        fake::kubernetes(router)
    }

    fn route(addresses: &[&str]) -> Route {
        let endpoint = |address: &&str| route::Endpoint {
            pod: "shop-0".to_owned(),
            uid: "p0".into(),
            address: (*address).to_owned(),
            port: 5432,
        };
        let endpoints = addresses.iter().map(endpoint).collect();
        Route { database: "shop".into(), purpose: Purpose::ReadWrite, endpoints }
    }

    fn as_of(index: u64) -> AsOf {
        AsOf { epoch: MembershipEpoch(1), index }
    }

    #[tokio::test]
    async fn a_later_state_replaces_an_earlier_one_and_not_the_other_way_round() {
        let stored = Stored::default();
        let kubernetes = server(&stored);
        let published =
            async |addresses: &[&str], index| publish(&kubernetes, &route(addresses), as_of(index)).await.unwrap();
        let applied = || {
            let slice = stored.lock().unwrap().clone().unwrap();
            (slice.metadata.annotations.unwrap()[APPLIED].clone(), slice.endpoints.unwrap_or_default().len())
        };
        assert_eq!(published(&["10.0.0.1"], 7).await, Published::Written);
        assert_eq!(published(&["10.0.0.1"], 9).await, Published::Same);
        assert_eq!(applied(), ("1.7".to_owned(), 1), "what is not written keeps its mark");
        assert_eq!(published(&[], 6).await, Published::Later);
        assert_eq!(published(&[], 10).await, Published::Written);
        assert_eq!(published(&[], 11).await, Published::Same);
        assert_eq!(published(&["10.0.0.1"], 10).await, Published::Later, "the same state has one route");
        assert_eq!(applied(), ("1.10".to_owned(), 0));
    }

    #[tokio::test]
    async fn a_slice_belongs_to_its_service_and_names_the_pod() {
        let stored = Stored::default();
        publish(&server(&stored), &route(&["fd00::1"]), as_of(1)).await.unwrap();
        let slice = serde_json::to_value(stored.lock().unwrap().clone().unwrap()).unwrap();
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "shop-rw");
        assert_eq!((&slice["addressType"], &slice["ports"][0]["port"]), (&"IPv6".into(), &5432.into()));
        assert_eq!(slice["endpoints"][0]["targetRef"]["name"], "shop-0");
        assert_eq!(slice["endpoints"][0]["conditions"]["ready"], true);
    }
}
