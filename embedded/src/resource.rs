//! The kinds of objects there are.

use std::fmt;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `v1`.
    Namespace,
    /// `v1`.
    Node,
    /// `v1`.
    Event,
    /// `v1`.
    ConfigMap,
    /// `v1`.
    Secret,
    /// `v1`.
    Service,
    /// `v1`.
    ServiceAccount,
    /// `v1`.
    PersistentVolumeClaim,
    /// `v1`.
    Pod,
    /// `apps/v1`.
    ControllerRevision,
    /// `apps/v1`.
    Deployment,
    /// `apps/v1`.
    ReplicaSet,
    /// `apps/v1`.
    StatefulSet,
    /// `coordination.k8s.io/v1`.
    Lease,
    /// `discovery.k8s.io/v1`. Nothing makes or follows one but clients.
    EndpointSlice,
    /// `rbac.authorization.k8s.io/v1`.
    Role,
    /// `rbac.authorization.k8s.io/v1`.
    RoleBinding,
    /// `authorization.k8s.io/v1`; answered, never stored.
    SelfSubjectAccessReview,
}

/// What is below an object's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subresource {
    /// Its status, written by the controller or kubelet that is responsible for it.
    Status,
    /// How many there should be.
    Scale,
    /// What a container wrote.
    Log,
    /// A command in a container.
    Exec,
    /// A token of a ServiceAccount.
    Token,
}

/// What the API says of a kind.
#[derive(Debug)]
pub struct Resource {
    /// The kind.
    pub kind: Kind,
    /// Its name, such as `Pod`.
    pub name: &'static str,
    /// Its API group; empty for the core.
    pub group: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
    /// Its short names.
    pub short: &'static [&'static str],
    /// Whether its objects are in a namespace.
    pub namespaced: bool,
    /// Whether it belongs to `kubectl get all`.
    pub in_all: bool,
    /// What is below its objects.
    pub subresources: &'static [Subresource],
}

const fn core(kind: Kind, name: &'static str, plural: &'static str, short: &'static [&'static str]) -> Resource {
    Resource { kind, name, group: "", plural, short, namespaced: true, in_all: false, subresources: &[] }
}

use Subresource::{Exec, Log, Scale, Status, Token};

/// Every kind.
pub static RESOURCES: [Resource; 18] = [
    Resource {
        namespaced: false,
        subresources: &[Status],
        ..core(Kind::Namespace, "Namespace", "namespaces", &["ns"])
    },
    Resource { namespaced: false, subresources: &[Status], ..core(Kind::Node, "Node", "nodes", &["no"]) },
    core(Kind::Event, "Event", "events", &["ev"]),
    core(Kind::ConfigMap, "ConfigMap", "configmaps", &["cm"]),
    core(Kind::Secret, "Secret", "secrets", &[]),
    Resource { in_all: true, subresources: &[Status], ..core(Kind::Service, "Service", "services", &["svc"]) },
    Resource { subresources: &[Token], ..core(Kind::ServiceAccount, "ServiceAccount", "serviceaccounts", &["sa"]) },
    Resource {
        subresources: &[Status],
        ..core(Kind::PersistentVolumeClaim, "PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"])
    },
    Resource { in_all: true, subresources: &[Status, Log, Exec], ..core(Kind::Pod, "Pod", "pods", &["po"]) },
    Resource { group: "apps", ..core(Kind::ControllerRevision, "ControllerRevision", "controllerrevisions", &[]) },
    workload(Kind::Deployment, "Deployment", "deployments", &["deploy"]),
    workload(Kind::ReplicaSet, "ReplicaSet", "replicasets", &["rs"]),
    workload(Kind::StatefulSet, "StatefulSet", "statefulsets", &["sts"]),
    Resource { group: "coordination.k8s.io", ..core(Kind::Lease, "Lease", "leases", &[]) },
    Resource { group: "discovery.k8s.io", ..core(Kind::EndpointSlice, "EndpointSlice", "endpointslices", &[]) },
    Resource { group: RBAC, ..core(Kind::Role, "Role", "roles", &[]) },
    Resource { group: RBAC, ..core(Kind::RoleBinding, "RoleBinding", "rolebindings", &[]) },
    Resource {
        group: "authorization.k8s.io",
        namespaced: false,
        ..core(Kind::SelfSubjectAccessReview, "SelfSubjectAccessReview", "selfsubjectaccessreviews", &[])
    },
];

const RBAC: &str = "rbac.authorization.k8s.io";

const fn workload(kind: Kind, name: &'static str, plural: &'static str, short: &'static [&'static str]) -> Resource {
    Resource { group: "apps", in_all: true, subresources: &[Status, Scale], ..core(kind, name, plural, short) }
}

impl Kind {
    /// What the API says of it.
    pub fn resource(self) -> &'static Resource {
        RESOURCES.iter().find(|resource| resource.kind == self).expect("every kind has its row")
    }

    /// The kind that a path names.
    pub fn at(group: &str, version: &str, plural: &str) -> Option<Self> {
        let known = RESOURCES.iter().find(|known| known.group == group && known.plural == plural)?;
        (version == "v1").then_some(known.kind)
    }

    /// The kind of an object with this `apiVersion` and `kind`.
    pub fn of(api_version: &str, name: &str) -> Option<Self> {
        let known = RESOURCES.iter().find(|known| known.name == name)?;
        (known.api_version() == api_version).then_some(known.kind)
    }
}

impl Resource {
    /// The `apiVersion` of its objects. Every group has one version only.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    /// How errors name it: `statefulsets.apps`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Its name for one object.
    pub fn singular(&self) -> String {
        self.name.to_lowercase()
    }
}

impl Subresource {
    /// Its name in paths.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Token => "token",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource().name)
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, RESOURCES};

    #[test]
    fn every_kind_has_one_row_in_order() {
        assert!(RESOURCES.is_sorted_by(|one, next| one.kind < next.kind));
        assert_eq!(Kind::at("apps", "v1", "statefulsets"), Some(Kind::StatefulSet));
        assert_eq!(Kind::at("apps", "v1beta1", "statefulsets"), None);
        assert_eq!(Kind::of("v1", "StatefulSet"), None, "another group's kind");
    }
}
