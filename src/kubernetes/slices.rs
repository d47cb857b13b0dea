//! The EndpointSlices that lead clients to the servers of a database with one primary.
//!
//! Each belongs to a Service without a selector, and carries in annotations by which domain it was written, and as of which state of that. A
//! writer replaces an older state only, and only the object that it read: so a writer that is late changes nothing. A slice outlives its
//! domain: one of another domain is replaced, whatever state it names, and so is one as of a state that the domain never had.

use super::{Error, Kubernetes, asked};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kaa_core::domain::ids::DomainId;
use kaa_core::replication::route::{self, AsOf, Route};
use kube::api::PostParams;
use std::net::IpAddr;

/// The annotation with the state of the domain as of which a slice was written.
pub const APPLIED: &str = "kaa.dev/applied";
/// The annotation with the id of that domain. It is one of its own, since agents of the version before read the other one alone, and
/// replace a slice whose state they do not understand.
const DOMAIN: &str = "kaa.dev/domain";
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
    /// It said it already; or there is none, and it would lead nowhere.
    Same,
    /// It says something else, as of this state of the domain, which is a later one, or the same.
    Later(AsOf),
}

/// What a writer of slices knows.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The domain.
    pub domain: &'a DomainId,
    /// The state of it by which the route was made.
    pub as_of: AsOf,
    /// A state that a slice named before a quorum confirmed that the domain has never got as far.
    pub never_was: Option<AsOf>,
}

/// Has the slice of a route say it. One that leads nowhere is not created: the family of its addresses, which is not known yet, cannot be
/// changed later.
pub async fn publish(kubernetes: &Kubernetes, route: &Route, known: Known<'_>) -> Result<Published, Error> {
    let name = route.name();
    let found = kubernetes.read::<EndpointSlice>(&name).await?;
    let mut wanted = render(kubernetes.namespace(), route, &known);
    let leads_nowhere = wanted.endpoints.as_ref().is_none_or(Vec::is_empty);
    let Some(found) = found else {
        if leads_nowhere {
            return Ok(Published::Same);
        }
        let asked = asked::<EndpointSlice>("create", None);
        let request = async {
            let created = kubernetes.api::<EndpointSlice>().create(&PostParams::default(), &wanted).await;
            created.map_err(|error| Error::of(asked.clone(), error))
        };
        return kubernetes.within(&asked, request).await.map(|_| Published::Written);
    };
    if leads_nowhere {
        wanted.address_type.clone_from(&found.address_type);
    }
    if says(&found, &wanted) {
        return Ok(Published::Same);
    }
    if let Some(later) = written_as_of(&found, known.domain).filter(|found| *found >= known.as_of)
        && known.never_was != Some(later)
    {
        return Ok(Published::Later(later));
    }
    wanted.metadata.resource_version = found.metadata.resource_version;
    wanted.metadata.owner_references = found.metadata.owner_references;
    let asked = asked::<EndpointSlice>("update", Some(&name));
    let request = async {
        let written = kubernetes.api::<EndpointSlice>().replace(&name, &PostParams::default(), &wanted).await;
        written.map_err(|error| Error::of(asked.clone(), error))
    };
    kubernetes.within(&asked, request).await.map(|_| Published::Written)
}

/// As of which state of the domain a slice was written; `None` if it does not say so, or is of another domain: then anything replaces it.
/// One that names no domain may be of an agent of an earlier version, during a rolling update.
fn written_as_of(slice: &EndpointSlice, domain: &DomainId) -> Option<AsOf> {
    let annotations = slice.metadata.annotations.as_ref()?;
    let of_another = annotations.get(DOMAIN).is_some_and(|named| named != domain.as_str());
    annotations.get(APPLIED).filter(|_| !of_another)?.parse().ok()
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

fn render(namespace: &str, route: &Route, known: &Known<'_>) -> EndpointSlice {
    let name = route.name();
    // All pods of a StatefulSet have addresses of one family.
    let v6 = route.endpoints.first().is_some_and(|endpoint| endpoint.address.contains(':'));
    // What an engine told of itself is an address, or the API server would refuse the whole slice.
    let told =
        route.endpoints.iter().filter(|it| it.address.parse::<IpAddr>().is_ok_and(|known| known.is_ipv6() == v6));
    let labels = [(SERVICE, name.as_str()), (MANAGED_BY, "kaa")];
    let annotations = [(APPLIED, known.as_of.to_string()), (DOMAIN, known.domain.to_string())];
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
            annotations: Some(annotations.map(|(name, value)| (name.to_owned(), value)).into()),
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

    fn known(domain: &DomainId, index: u64) -> Known<'_> {
        Known { domain, as_of: as_of(index), never_was: None }
    }

    #[tokio::test]
    async fn a_later_state_replaces_an_earlier_one_and_not_the_other_way_round() {
        let stored = Stored::default();
        let kubernetes = server(&stored);
        let domain = DomainId::from("d1");
        let published = async |addresses: &[&str], index| {
            publish(&kubernetes, &route(addresses), known(&domain, index)).await.unwrap()
        };
        let applied = || {
            let slice = stored.lock().unwrap().clone().unwrap();
            (slice.metadata.annotations.unwrap()[APPLIED].clone(), slice.endpoints.unwrap_or_default().len())
        };
        assert_eq!(published(&["10.0.0.1"], 7).await, Published::Written);
        assert_eq!(published(&["10.0.0.1"], 9).await, Published::Same);
        assert_eq!(applied(), ("1.7".to_owned(), 1), "what is not written keeps its mark");
        assert_eq!(published(&[], 6).await, Published::Later(as_of(7)));
        assert_eq!(published(&[], 10).await, Published::Written);
        assert_eq!(published(&[], 11).await, Published::Same);
        let same = Published::Later(as_of(10));
        assert_eq!(published(&["10.0.0.1"], 10).await, same, "the same state has one route");
        assert_eq!(applied(), ("1.10".to_owned(), 0));
    }

    #[tokio::test]
    async fn a_slice_that_leads_nowhere_takes_no_family_of_addresses() {
        let stored = Stored::default();
        let kubernetes = server(&stored);
        let domain = DomainId::from("d1");
        let published = async |addresses: &[&str], index| {
            publish(&kubernetes, &route(addresses), known(&domain, index)).await.unwrap()
        };
        let family = || stored.lock().unwrap().as_ref().map(|slice| slice.address_type.clone());
        assert_eq!((published(&[], 5).await, family()), (Published::Same, None));
        assert_eq!((published(&["fd00::1"], 7).await, family()), (Published::Written, Some("IPv6".to_owned())));
        assert_eq!((published(&[], 9).await, family()), (Published::Written, Some("IPv6".to_owned())));
    }

    /// The domain was deleted with its volumes and Lease, and founded again.
    #[tokio::test]
    async fn a_slice_of_another_domain_is_replaced_whatever_state_it_names() {
        let stored = Stored::default();
        let kubernetes = server(&stored);
        let published = async |domain: &str, address: &str, index| {
            publish(&kubernetes, &route(&[address]), known(&domain.into(), index)).await.unwrap()
        };
        assert_eq!(published("d1", "10.0.0.1", 900).await, Published::Written);
        assert_eq!(published("d2", "10.0.0.2", 7).await, Published::Written);
        assert_eq!(published("d2", "10.0.0.3", 6).await, Published::Later(as_of(7)));
        assert_eq!(published("d1", "10.0.0.1", 901).await, Published::Written, "it is another domain to that one");
    }

    /// An agent of the version before writes no domain, and reads `kaa.dev/applied` as it is.
    #[tokio::test]
    async fn a_slice_without_a_domain_counts_as_of_the_state_that_it_names() {
        let stored = Stored::default();
        let kubernetes = server(&stored);
        let domain = DomainId::from("d1");
        let published = async |addresses: &[&str], index, never_was| {
            let known = Known { never_was, ..known(&domain, index) };
            publish(&kubernetes, &route(addresses), known).await.unwrap()
        };
        published(&["10.0.0.1"], 900, None).await;
        let annotations = || stored.lock().unwrap().clone().unwrap().metadata.annotations.unwrap();
        assert_eq!(annotations()[APPLIED], "1.900", "that version reads this");
        stored.lock().unwrap().as_mut().unwrap().metadata.annotations.as_mut().unwrap().remove(DOMAIN);
        assert_eq!(published(&[], 899, None).await, Published::Later(as_of(900)), "it may be of this domain");
        assert_eq!(published(&[], 899, Some(as_of(901))).await, Published::Later(as_of(900)), "another one was meant");
        assert_eq!(published(&[], 899, Some(as_of(900))).await, Published::Written, "no state of this domain");
        assert_eq!((annotations()[APPLIED].as_str(), annotations()[DOMAIN].as_str()), ("1.899", "d1"));
    }

    #[tokio::test]
    async fn a_slice_belongs_to_its_service_and_names_the_pod() {
        let stored = Stored::default();
        publish(&server(&stored), &route(&["fd00::1"]), known(&"d1".into(), 1)).await.unwrap();
        let slice = serde_json::to_value(stored.lock().unwrap().clone().unwrap()).unwrap();
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "shop-rw");
        assert_eq!((&slice["addressType"], &slice["ports"][0]["port"]), (&"IPv6".into(), &5432.into()));
        assert_eq!(slice["endpoints"][0]["targetRef"]["name"], "shop-0");
        assert_eq!(slice["endpoints"][0]["conditions"]["ready"], true);
    }
}
