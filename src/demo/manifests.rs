//! The project's own manifests, read as `kubectl apply -k` reads them: the kustomization's resources in its order, its
//! images put in, everything in one namespace.
//!
//! They are the very files of `manifests/`, so that the demo and a real cluster run the same objects: all but those that say what
//! the embedded Kubernetes does not do.

use serde::Deserialize;
use serde_json::{Value, json};

/// One directory of `manifests/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The admin servers.
    Base,
    /// The example database.
    Example,
    /// A database of PostgreSQL servers.
    Postgres,
    /// The Services of these, which the agents lead.
    Routing,
    /// Who reaches the admin servers.
    Network,
}

/// The files of a part by name; the first is the kustomization.
type Files = &'static [(&'static str, &'static str)];

const BASE: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/base/kustomization.yaml")),
    ("rbac.yaml", include_str!("../../manifests/base/rbac.yaml")),
    ("services.yaml", include_str!("../../manifests/base/services.yaml")),
    ("admin.yaml", include_str!("../../manifests/base/admin.yaml")),
    ("disruption.yaml", include_str!("../../manifests/base/disruption.yaml")),
];

const EXAMPLE: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/example/kustomization.yaml")),
    ("sm.yaml", include_str!("../../manifests/example/sm.yaml")),
    ("te.yaml", include_str!("../../manifests/example/te.yaml")),
];

const POSTGRES: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/postgres/kustomization.yaml")),
    ("shop.yaml", include_str!("../../manifests/postgres/shop.yaml")),
    ("disruption.yaml", include_str!("../../manifests/postgres/disruption.yaml")),
];

const ROUTING: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/routing/kustomization.yaml")),
    ("services.yaml", include_str!("../../manifests/routing/services.yaml")),
    ("role.yaml", include_str!("../../manifests/routing/role.yaml")),
];

const NETWORK: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/network/kustomization.yaml")),
    ("policies.yaml", include_str!("../../manifests/network/policies.yaml")),
];

/// Kinds that the embedded Kubernetes does not know: it evicts no pods, and has no network of pods.
const REAL_ONLY: [&str; 2] = ["PodDisruptionBudget", "NetworkPolicy"];

/// A manifest that cannot be read: one was edited and the demo was not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no YAML, or not what it has to be.
    #[error("manifests/{file}: {source}")]
    Yaml {
        /// The file.
        file: &'static str,
        /// Why.
        source: Box<serde_saphyr::Error>,
    },
    /// The kustomization names a file that is not among them.
    #[error("manifests/kustomization.yaml names {0}, which this program does not contain")]
    Missing(String),
}

/// As much of a kustomization as ours say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    resources: Vec<String>,
    #[serde(default)]
    images: Vec<Image>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
}

/// The image that the manifests name after kustomization: that of this version.
pub fn image() -> Result<String, Error> {
    let kustomization = kustomization(BASE)?;
    let image = kustomization.images.first().ok_or_else(|| Error::Missing("images".to_owned()))?;
    Ok(format!("{}:{}", image.new_name, image.new_tag))
}

/// The objects of a part that the embedded Kubernetes knows, in the order in which they are to be applied.
pub fn objects(part: Part, namespace: &str) -> Result<Vec<Value>, Error> {
    let mut objects = all(part, namespace)?;
    objects.retain(|object| !REAL_ONLY.iter().any(|kind| object["kind"] == *kind));
    Ok(objects)
}

/// The objects of a part, in the order in which they are to be applied.
fn all(part: Part, namespace: &str) -> Result<Vec<Value>, Error> {
    let files = match part {
        Part::Base => BASE,
        Part::Example => EXAMPLE,
        Part::Postgres => POSTGRES,
        Part::Routing => ROUTING,
        Part::Network => NETWORK,
    };
    let kustomization = kustomization(files)?;
    let mut objects = Vec::new();
    for resource in &kustomization.resources {
        let found = files.iter().find(|(name, _)| name == resource);
        let (file, text) = found.ok_or_else(|| Error::Missing(resource.clone()))?;
        let read: Result<Vec<Value>, _> = serde_saphyr::from_multiple(text);
        objects.extend(read.map_err(|source| Error::Yaml { file, source: Box::new(source) })?);
    }
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(namespace);
        for list in ["initContainers", "containers"] {
            let containers = object.pointer_mut(&format!("/spec/template/spec/{list}")).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                put_image(container, &kustomization.images);
            }
        }
    }
    Ok(objects)
}

fn kustomization(files: Files) -> Result<Kustomization, Error> {
    let (file, text) = files[0];
    serde_saphyr::from_str(text).map_err(|source| Error::Yaml { file, source: Box::new(source) })
}

fn put_image(container: &mut Value, images: &[Image]) {
    if let Some(image) = images.iter().find(|image| container["image"] == image.name.as_str()) {
        container["image"] = json!(format!("{}:{}", image.new_name, image.new_tag));
    }
}

/// Changes the objects of this kind and name.
pub fn change(objects: &mut [Value], kind: &str, name: &str, change: impl Fn(&mut Value)) {
    let wanted = |object: &&mut Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter_mut().filter(wanted).for_each(change);
}

#[cfg(test)]
mod tests {
    use super::{Part, REAL_ONLY, all, change, image, objects};
    use serde_json::json;

    #[test]
    fn they_are_read_as_kustomize_reads_them() {
        let base = all(Part::Base, "here").unwrap();
        let named: Vec<String> =
            base.iter().map(|o| format!("{} {}", o["kind"], o["metadata"]["name"]).replace('"', "")).collect();
        assert_eq!(
            named,
            [
                "ServiceAccount kaa-admin",
                "Role kaa-admin",
                "RoleBinding kaa-admin",
                "Service kaa-admin",
                "Service kaa-admin-api",
                "StatefulSet kaa-admin",
                "PodDisruptionBudget kaa-admin"
            ]
        );
        assert!(base.iter().all(|object| object["metadata"]["namespace"] == "here"));
        // Without a namespace it is the account of the binding's own one, also where `kubectl apply -n` puts it.
        assert_eq!(base[2]["subjects"], json!([{"kind": "ServiceAccount", "name": "kaa-admin"}]));
        assert_eq!(base[5]["spec"]["template"]["spec"]["containers"][0]["image"], image().unwrap());
        // Two agents on one log would be two of the same voter.
        assert_eq!(base[5]["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"], json!(["ReadWriteOncePod"]));
        let example = objects(Part::Example, "here").unwrap();
        let sm = &example[1]["spec"]["template"]["spec"];
        assert_eq!(sm["initContainers"][0]["image"], sm["containers"][0]["image"], "the stand-in is in our own image");
    }

    #[test]
    fn the_embedded_kubernetes_gets_what_it_knows() {
        for part in [Part::Base, Part::Example, Part::Postgres, Part::Routing, Part::Network] {
            let (all, known) = (all(part, "here").unwrap(), objects(part, "here").unwrap());
            let others = all.iter().filter(|object| REAL_ONLY.iter().any(|kind| object["kind"] == *kind));
            assert_eq!(all.len() - known.len(), others.count());
        }
        assert_eq!(objects(Part::Network, "here").unwrap(), [json!(null); 0]);
    }

    /// A typing error in a label would leave the admin servers without a disruption budget, or close their ports to all pods.
    #[test]
    fn the_budget_and_the_policies_are_for_the_admin_servers_and_their_ports() {
        let base = all(Part::Base, "here").unwrap();
        let (set, budget) = (&base[5]["spec"], &base[6]["spec"]);
        let labels = &set["template"]["metadata"]["labels"];
        assert_eq!(budget["selector"]["matchLabels"], *labels);
        assert_eq!(budget["maxUnavailable"], 1);
        let ports = set["template"]["spec"]["containers"][0]["ports"].as_array().unwrap();
        let mut served: Vec<_> = ports.iter().map(|port| port["containerPort"].clone()).collect();
        let policies = all(Part::Network, "here").unwrap();
        for policy in &policies {
            let spec = &policy["spec"];
            assert_eq!(spec["podSelector"]["matchLabels"], *labels, "{policy}");
            assert_eq!(spec["policyTypes"], json!(["Ingress"]), "{policy}");
            let port = &spec["ingress"][0]["ports"][0]["port"];
            served.retain(|served| served != port);
            let from = &spec["ingress"][0]["from"];
            match port.as_u64() {
                Some(48005) => assert_eq!(from[0]["podSelector"]["matchLabels"], *labels),
                Some(48004) => {
                    let sm = &objects(Part::Example, "here").unwrap()[1]["spec"]["template"]["metadata"]["labels"];
                    let key = from[0]["podSelector"]["matchExpressions"][0]["key"].as_str().unwrap();
                    assert!(sm.get(key).is_some(), "engines have no label {key}");
                }
                _ => assert_eq!(*from, json!([{"podSelector": {}}])),
            }
        }
        assert!(served.is_empty(), "no policy lets anybody in at {served:?}");
    }

    /// What the agent writes there lets change the domain.
    #[test]
    fn the_token_of_the_pod_is_on_a_volume_of_its_own() {
        let base = all(Part::Base, "here").unwrap();
        let pod = &base[5]["spec"]["template"]["spec"];
        let env = pod["containers"][0]["env"].as_array().unwrap();
        let file = env.iter().find(|variable| variable["name"] == "KAA_POD_TOKEN_FILE").unwrap();
        assert_eq!(file["value"], "/run/kaa/token");
        assert!(
            env.iter().all(|variable| variable["name"] != "KAA_LOOPBACK_MAY_WRITE"),
            "the default is safe in a mesh"
        );
        let volumes = pod["volumes"].as_array().unwrap();
        let run = volumes.iter().find(|volume| volume["name"] == "run").unwrap();
        assert_eq!(run["emptyDir"]["medium"], "Memory");
    }

    #[test]
    fn a_change_is_of_one_object() {
        let mut example = objects(Part::Example, "here").unwrap();
        change(&mut example, "Deployment", "te-demo", |te| te["spec"]["replicas"] = json!(5));
        let replicas: Vec<_> = example.iter().map(|object| object["spec"]["replicas"].clone()).collect();
        assert_eq!(replicas, [json!(null), json!(2), json!(5)]);
    }
}
