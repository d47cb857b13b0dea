//! The anchor: an annotated Lease that says which domain this is and which founding it descends from.
//!
//! It is a Lease only because the agents need the permission to Leases anyway; they never renew it. They create it if it is
//! absent. A quorum override, or an operator who gives up data, moves it to the next epoch by compare-and-swap.

use super::{Kubernetes, asked};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kaa_core::domain::bounds::{self, Bounds};
use kaa_core::domain::ids::{DomainId, MembershipEpoch, Millis, RaftId, ServerId, Uid};
use kaa_core::membership::Anchor;
use kube::api::PostParams;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The annotation with the domain's id.
const DOMAIN: &str = "kaa.dev/domain";
/// The annotation with the membership epoch.
const EPOCH: &str = "kaa.dev/epoch";
/// The annotation with the id of the Raft log that founds the epoch.
const FOUNDER: &str = "kaa.dev/founder";

/// The annotation of an epoch for which an operator gave up what only others had: a [`Loss`] in JSON.
const LOSSY: &str = "kaa.dev/accepted-data-loss";

/// The annotation of a domain that several clusters share: no operator gives up what other servers may hold then.
const SHARED: &str = "kaa.dev/several-clusters";

/// What an operator gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Who, as the audit trail names them.
    pub by: String,
    /// When.
    pub at: Millis,
    /// The server whose log founds the epoch.
    pub founder: ServerId,
    /// What was lost, as the operator was told.
    pub lost: String,
}

/// Why the anchor is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read or written.
    #[error(transparent)]
    Kubernetes(#[from] super::Error),
    /// The Lease of that name is not an anchor, or the anchor was damaged.
    #[error("lease {lease}: annotation {annotation} {}", fault(.value.as_deref()))]
    Malformed {
        /// The Lease.
        lease: String,
        /// The annotation.
        annotation: &'static str,
        /// What it says, if it is there.
        value: Option<String>,
    },
    /// No data can be given up.
    #[error("lease {0}: {why}", why = kaa_core::membership::clusters::SHARED)]
    Shared(String),
    /// What was given up cannot be written.
    #[error("cannot encode the record of the accepted data loss")]
    Loss(#[source] serde_json::Error),
    /// The API server answered with a Lease that has no UID.
    #[error("lease {0} has no uid")]
    NoUid(String),
}

impl Error {
    /// The error and its causes, as one line.
    pub fn to_line(&self) -> String {
        match self {
            Self::Kubernetes(error) => error.to_line(),
            Self::Loss(source) => format!("{self}: {source}"),
            Self::Malformed { .. } | Self::Shared(_) | Self::NoUid(_) => self.to_string(),
        }
    }
}

fn fault(value: Option<&str>) -> String {
    value.map_or("is missing".to_owned(), |value| format!("is not understood: {value:?}"))
}

/// What became of the wish to create the anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It was created, with this UID.
    Created(Uid),
    /// There is one already: pass the gate again.
    AlreadyThere,
}

/// The name of the anchor of a domain in a cluster.
pub fn name(domain: &str, cluster: &str) -> String {
    format!("{domain}-{cluster}-anchor")
}

/// Reads the anchor afresh. `None` means that there is none, for certain.
pub async fn read(kubernetes: &Kubernetes, name: &str) -> Result<Option<(Anchor, Uid)>, Error> {
    kubernetes.read::<Lease>(name).await?.map(|lease| parse(name, &lease)).transpose()
}

/// What an operator gave up for the anchor's epoch, by a fresh read. An annotation that is not understood, written by hand
/// perhaps, is kept as it is.
pub async fn read_loss(kubernetes: &Kubernetes, name: &str) -> Result<Option<(MembershipEpoch, Loss)>, Error> {
    let Some(lease) = kubernetes.read::<Lease>(name).await? else { return Ok(None) };
    let (anchor, _) = parse(name, &lease)?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    let said = lease.metadata.annotations.and_then(|mut all| all.remove(LOSSY)).filter(|said| !said.is_empty());
    Ok(said.map(|said| {
        let plain =
            |_| Loss { by: "an operator".to_owned(), at: Millis(0), founder: holder.into(), lost: said.clone() };
        let mut loss: Loss = serde_json::from_str(&said).unwrap_or_else(plain);
        // The domain refuses longer names, and would not note the loss.
        bounds::cut(&mut loss.by, Bounds::DEFAULT.name);
        (anchor.epoch, loss)
    }))
}

/// Creates the anchor, unless there is one. `server` is shown to people.
pub async fn create(
    kubernetes: &Kubernetes,
    name: &str,
    anchor: &Anchor,
    server: &ServerId,
) -> Result<Creation, Error> {
    let lease = render(name, anchor, server);
    let asked = asked::<Lease>("create", Some(name));
    let request = async {
        let created = kubernetes.api::<Lease>().create(&PostParams::default(), &lease).await;
        created.map_err(|error| super::Error::of(asked.clone(), error))
    };
    match kubernetes.within(&asked, request).await {
        Ok(created) => Ok(Creation::Created(uid(name, &created)?)),
        Err(super::Error::Exists { .. }) => Ok(Creation::AlreadyThere),
        Err(error) => Err(error.into()),
    }
}

/// What became of the wish to swap the anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// It says what it should.
    Swapped,
    /// It is not of the epoch before any more, or changed meanwhile: pass the gate again.
    Moved,
}

/// Swaps the anchor for that of the next epoch, if it is still of the domain and of the epoch before; `loss` is what a
/// operator gave up for it.
pub async fn swap(
    kubernetes: &Kubernetes,
    name: &str,
    next: &Anchor,
    server: &ServerId,
    loss: Option<&Loss>,
) -> Result<Swap, Error> {
    write(kubernetes, name, next, server, loss, |now| now.epoch.0 + 1 == next.epoch.0).await
}

/// Has the anchor of another cluster than the entry point name a later epoch, if it is still of the domain and of an earlier one.
pub async fn follow(kubernetes: &Kubernetes, name: &str, next: &Anchor, server: &ServerId) -> Result<Swap, Error> {
    write(kubernetes, name, next, server, None, |now| now.epoch < next.epoch).await
}

/// Writes the next anchor by compare-and-swap, if what was read is of its domain and as expected.
async fn write(
    kubernetes: &Kubernetes,
    name: &str,
    next: &Anchor,
    server: &ServerId,
    loss: Option<&Loss>,
    expected: impl Fn(&Anchor) -> bool,
) -> Result<Swap, Error> {
    let Some(lease) = kubernetes.read::<Lease>(name).await? else { return Ok(Swap::Moved) };
    let (now, _) = parse(name, &lease)?;
    if now.domain != next.domain || !expected(&now) {
        return Ok(Swap::Moved);
    }
    if loss.is_some() && is_shared(&lease) {
        return Err(Error::Shared(name.to_owned()));
    }
    let mut changed = lease;
    changed.metadata.managed_fields = None;
    let annotations = changed.metadata.annotations.get_or_insert_default();
    annotations.remove(LOSSY);
    annotations.extend(said(next));
    if let Some(loss) = loss {
        annotations.insert(LOSSY.to_owned(), serde_json::to_string(loss).map_err(Error::Loss)?);
    }
    changed.spec.get_or_insert_default().holder_identity = Some(server.to_string());
    replace(kubernetes, name, &changed).await
}

/// Writes with the resourceVersion that was read: if another writer was faster, it has changed and the update fails.
async fn replace(kubernetes: &Kubernetes, name: &str, changed: &Lease) -> Result<Swap, Error> {
    let asked = asked::<Lease>("update", Some(name));
    let request = async {
        let replaced = kubernetes.api::<Lease>().replace(name, &PostParams::default(), changed).await;
        replaced.map_err(|error| super::Error::of(asked.clone(), error))
    };
    match kubernetes.within(&asked, request).await {
        Ok(_) => Ok(Swap::Swapped),
        Err(super::Error::Conflict { .. }) => Ok(Swap::Moved),
        Err(error) => Err(error.into()),
    }
}

/// Whether the anchor says that several clusters share the domain, by a fresh read.
pub async fn read_shared(kubernetes: &Kubernetes, name: &str) -> Result<bool, Error> {
    Ok(kubernetes.read::<Lease>(name).await?.is_some_and(|lease| is_shared(&lease)))
}

/// Has the anchor say whether several clusters share the domain, if it is the domain's.
pub async fn share(kubernetes: &Kubernetes, name: &str, domain: &DomainId, shared: bool) -> Result<Swap, Error> {
    let Some(mut lease) = kubernetes.read::<Lease>(name).await? else { return Ok(Swap::Moved) };
    if parse(name, &lease)?.0.domain != *domain {
        return Ok(Swap::Moved);
    }
    if is_shared(&lease) == shared {
        return Ok(Swap::Swapped);
    }
    lease.metadata.managed_fields = None;
    let annotations = lease.metadata.annotations.get_or_insert_default();
    match shared {
        true => annotations.insert(SHARED.to_owned(), "true".to_owned()),
        false => annotations.remove(SHARED),
    };
    replace(kubernetes, name, &lease).await
}

fn is_shared(lease: &Lease) -> bool {
    lease.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(SHARED))
}

fn said(anchor: &Anchor) -> BTreeMap<String, String> {
    let mut said = BTreeMap::from([
        (DOMAIN.to_owned(), anchor.domain.to_string()),
        (EPOCH.to_owned(), anchor.epoch.to_string()),
        (FOUNDER.to_owned(), anchor.founder.to_string()),
    ]);
    if anchor.lossy {
        said.insert(LOSSY.to_owned(), "true".to_owned());
    }
    said
}

fn render(name: &str, anchor: &Anchor, server: &ServerId) -> Lease {
    let metadata = ObjectMeta { name: Some(name.to_owned()), annotations: Some(said(anchor)), ..ObjectMeta::default() };
    let spec = LeaseSpec { holder_identity: Some(server.to_string()), ..LeaseSpec::default() };
    Lease { metadata, spec: Some(spec) }
}

fn parse(name: &str, lease: &Lease) -> Result<(Anchor, Uid), Error> {
    let annotation = |annotation: &'static str| {
        let value = lease.metadata.annotations.as_ref().and_then(|all| all.get(annotation));
        let malformed = Error::Malformed { lease: name.to_owned(), annotation, value: value.cloned() };
        (value.filter(|value| !value.is_empty()).cloned(), malformed)
    };
    let number = |key: &'static str| {
        let (value, malformed) = annotation(key);
        value.and_then(|value| value.parse::<u64>().ok()).ok_or(malformed)
    };
    let (domain, malformed) = annotation(DOMAIN);
    let domain = DomainId::new(domain.ok_or(malformed)?);
    let lossy = annotation(LOSSY).0.is_some();
    let anchor = Anchor { domain, epoch: MembershipEpoch(number(EPOCH)?), founder: RaftId(number(FOUNDER)?), lossy };
    Ok((anchor, uid(name, lease)?))
}

fn uid(name: &str, lease: &Lease) -> Result<Uid, Error> {
    let uid = lease.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
    uid.map(Uid::from).ok_or_else(|| Error::NoUid(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor() -> Anchor {
        Anchor { domain: "d-1".into(), epoch: MembershipEpoch(1), founder: RaftId(u64::MAX), lossy: true }
    }

    fn lease() -> Lease {
        let mut lease = render("kaa-default-anchor", &anchor(), &"admin-0".into());
        lease.metadata.uid = Some("u1".to_owned());
        lease
    }

    #[test]
    fn an_anchor_is_read_as_it_was_written() {
        assert_eq!(parse("kaa-default-anchor", &lease()).expect("an anchor"), (anchor(), "u1".into()));
    }

    #[tokio::test]
    async fn an_anchor_is_created_once() {
        use crate::kubernetes::fake;
        use axum::response::IntoResponse;
        use axum::routing::post;
        let create = |axum::Json(mut lease): axum::Json<Lease>| async move {
            lease.metadata.uid = Some("u1".to_owned());
            match lease.metadata.name.as_deref() {
                Some("new") => axum::Json(lease).into_response(),
                _ => fake::status(409, "AlreadyExists", "coordination.k8s.io", "leases", "old"),
            }
        };
        let router = axum::Router::new().route("/apis/coordination.k8s.io/v1/namespaces/ns/leases", post(create));
        let kubernetes = fake::kubernetes(router);
        let create = async |name| super::create(&kubernetes, name, &anchor(), &"admin-0".into()).await;
        assert_eq!(create("new").await.expect("an answer"), Creation::Created("u1".into()));
        assert_eq!(create("old").await.expect("an answer"), Creation::AlreadyThere);
    }

    #[tokio::test]
    async fn an_anchor_that_could_not_be_read_says_why() {
        let path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/old";
        let router = axum::Router::new().route(path, axum::routing::get(async || "no Lease"));
        let error = read(&crate::kubernetes::fake::kubernetes(router), "old").await.expect_err("no anchor");
        let (text, line) = (error.to_string(), error.to_line());
        let why = line.strip_prefix(&text).unwrap_or_else(|| panic!("{line} does not begin with {text}"));
        assert!(why.len() > ": ".len(), "{line}");
    }

    #[tokio::test]
    async fn what_was_given_up_is_read_as_it_was_written() {
        use crate::kubernetes::fake;
        use axum::routing::get;
        let kept = std::sync::Arc::new(std::sync::Mutex::new(Lease {
            metadata: ObjectMeta { annotations: Some(said(&Anchor { lossy: false, ..anchor() })), ..lease().metadata },
            ..lease()
        }));
        let (read, write) = (kept.clone(), kept.clone());
        let route = get(move || async move { axum::Json(read.lock().unwrap().clone()) }).put(
            move |axum::Json(lease): axum::Json<Lease>| async move {
                *write.lock().unwrap() = lease.clone();
                axum::Json(lease)
            },
        );
        let path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/kaa-default-anchor";
        let kubernetes = fake::kubernetes(axum::Router::new().route(path, route));
        let lost = "entries after 17 that only admin-1 may hold".to_owned();
        let loss = Loss { by: "user ann".to_owned(), at: Millis(5), founder: "admin-0".into(), lost };
        let swap = async |epoch, loss| {
            let next = Anchor { epoch: MembershipEpoch(epoch), lossy: Option::is_some(&loss), ..anchor() };
            super::swap(&kubernetes, "kaa-default-anchor", &next, &"admin-0".into(), loss).await.expect("an answer")
        };
        let given_up = async || read_loss(&kubernetes, "kaa-default-anchor").await.expect("an answer");
        assert_eq!(given_up().await, None);
        assert_eq!(swap(3, Some(&loss)).await, Swap::Moved, "an epoch is left out");
        assert_eq!(swap(2, Some(&loss)).await, Swap::Swapped);
        assert_eq!(given_up().await, Some((MembershipEpoch(2), loss.clone())));
        assert!(parse("x", &kept.lock().unwrap()).expect("an anchor").0.lossy);
        // A later epoch without a loss does not inherit it.
        assert_eq!(swap(3, None).await, Swap::Swapped);
        assert_eq!(given_up().await, None);
        let long = Loss { by: "x".repeat(1000), ..loss.clone() };
        assert_eq!(swap(4, Some(&long)).await, Swap::Swapped);
        assert!(given_up().await.unwrap().1.by.len() <= Bounds::DEFAULT.name, "else the domain refuses it");
        assert_eq!(swap(5, None).await, Swap::Swapped);
        // Where several clusters share the domain nothing is given up. A quorum override is possible.
        let share =
            async |shared| share(&kubernetes, "kaa-default-anchor", &"d-1".into(), shared).await.expect("an answer");
        assert_eq!(share(true).await, Swap::Swapped);
        assert!(read_shared(&kubernetes, "kaa-default-anchor").await.expect("an answer"));
        let next = Anchor { epoch: MembershipEpoch(6), lossy: true, ..anchor() };
        let refused = super::swap(&kubernetes, "kaa-default-anchor", &next, &"admin-0".into(), Some(&loss))
            .await
            .expect_err("shared");
        assert!(refused.to_string().contains("several clusters share the domain"), "{refused}");
        assert_eq!(swap(6, None).await, Swap::Swapped);
        assert!(read_shared(&kubernetes, "kaa-default-anchor").await.expect("an answer"), "kept");
        assert_eq!(share(false).await, Swap::Swapped);
        assert!(!read_shared(&kubernetes, "kaa-default-anchor").await.expect("an answer"));
        let by_hand = |lease: &mut Lease| {
            lease.metadata.annotations.get_or_insert_default().insert(LOSSY.to_owned(), "true".to_owned());
        };
        by_hand(&mut kept.lock().unwrap());
        assert_eq!(given_up().await.expect("a loss").1.lost, "true");
    }

    #[test]
    fn a_malformed_anchor_names_the_annotation() {
        let mut lease = lease();
        let annotations = lease.metadata.annotations.as_mut().expect("annotations");
        annotations.insert(EPOCH.to_owned(), "one".to_owned());
        let error = parse("x", &lease).expect_err("a malformed epoch");
        assert_eq!(error.to_string(), "lease x: annotation kaa.dev/epoch is not understood: \"one\"");
        lease.metadata.annotations = None;
        let error = parse("x", &lease).expect_err("a missing domain");
        assert_eq!(error.to_string(), "lease x: annotation kaa.dev/domain is missing");
    }
}
