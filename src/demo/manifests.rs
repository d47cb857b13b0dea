//! The project's own manifests, read as `kubectl apply -k` reads them: the kustomization's resources in its order, its
//! images put in, everything in one namespace.
//!
//! They are the very files of `manifests/`, so that the demo and a real cluster run the same objects.

use serde::Deserialize;
use serde_json::{Value, json};

/// One directory of `manifests/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The admin servers.
    Base,
    /// The example database.
    Example,
}

/// The files of a part by name; the first is the kustomization.
type Files = &'static [(&'static str, &'static str)];

const BASE: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/base/kustomization.yaml")),
    ("rbac.yaml", include_str!("../../manifests/base/rbac.yaml")),
    ("services.yaml", include_str!("../../manifests/base/services.yaml")),
    ("admin.yaml", include_str!("../../manifests/base/admin.yaml")),
];

const EXAMPLE: Files = &[
    ("kustomization.yaml", include_str!("../../manifests/example/kustomization.yaml")),
    ("sm.yaml", include_str!("../../manifests/example/sm.yaml")),
    ("te.yaml", include_str!("../../manifests/example/te.yaml")),
];

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

/// The objects of a part, in the order in which they are to be applied.
pub fn objects(part: Part, namespace: &str) -> Result<Vec<Value>, Error> {
    let files = match part {
        Part::Base => BASE,
        Part::Example => EXAMPLE,
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
        for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            subject["namespace"] = json!(namespace);
        }
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
    use super::{Part, change, image, objects};
    use serde_json::json;

    #[test]
    fn they_are_read_as_kustomize_reads_them() {
        let base = objects(Part::Base, "here").unwrap();
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
                "StatefulSet kaa-admin"
            ]
        );
        assert!(base.iter().all(|object| object["metadata"]["namespace"] == "here"));
        assert_eq!(base[2]["subjects"][0]["namespace"], "here");
        assert!(base[0].get("subjects").is_none(), "nothing is added that a real API server would not know");
        assert_eq!(base[5]["spec"]["template"]["spec"]["containers"][0]["image"], image().unwrap());
        // Two agents on one log would be two of the same voter.
        assert_eq!(base[5]["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"], json!(["ReadWriteOncePod"]));
        let example = objects(Part::Example, "here").unwrap();
        let sm = &example[1]["spec"]["template"]["spec"];
        assert_eq!(sm["initContainers"][0]["image"], sm["containers"][0]["image"], "the stand-in is in our own image");
    }

    #[test]
    fn a_change_is_of_one_object() {
        let mut example = objects(Part::Example, "here").unwrap();
        change(&mut example, "Deployment", "te-demo", |te| te["spec"]["replicas"] = json!(5));
        let replicas: Vec<_> = example.iter().map(|object| object["spec"]["replicas"].clone()).collect();
        assert_eq!(replicas, [json!(null), json!(2), json!(5)]);
    }
}
