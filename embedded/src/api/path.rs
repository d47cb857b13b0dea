//! What a path means: a collection, an object, or something below an object.

use crate::failure::Failure;
use crate::resource::{Kind, RESOURCES, Subresource};
use crate::store::Key;

/// Whether a path is in a group that there is; others lead to nothing that speaks of Kubernetes.
pub fn is_of_a_group(path: &str) -> bool {
    match path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["api", ..] => true,
        ["apis", group, ..] => RESOURCES.iter().any(|resource| !group.is_empty() && resource.group == *group),
        _ => false,
    }
}

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// The kind.
    pub kind: Kind,
    /// The namespace; `None` for kinds without, and for all of them.
    pub namespace: Option<String>,
    /// The object; `None` for the collection.
    pub name: Option<String>,
    /// What is below the object.
    pub subresource: Option<Subresource>,
}

impl Target {
    /// Reads a path.
    pub fn of(path: &str) -> Result<Self, Failure> {
        Self::read(path).ok_or_else(Failure::no_such_path)
    }

    fn read(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !group.is_empty() => (*group, *version, rest),
            _ => return None,
        };
        let (kind, namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if Kind::at(group, version, plural).is_some() => {
                (Kind::at(group, version, plural)?, Some((*namespace).to_owned()), rest)
            }
            [plural, rest @ ..] => (Kind::at(group, version, plural)?, None, rest),
            [] => return None,
        };
        let resource = kind.resource();
        let (name, below) = match rest {
            [] => (None, None),
            [name] => (Some((*name).to_owned()), None),
            [name, below] => (Some((*name).to_owned()), Some(*below)),
            _ => return None,
        };
        let misplaced = namespace.is_some() && !resource.namespaced;
        if misplaced || (resource.namespaced && namespace.is_none() && name.is_some()) {
            return None;
        }
        let subresource = match below {
            Some(below) => Some(*resource.subresources.iter().find(|known| known.name() == below)?),
            None => None,
        };
        Some(Self { kind, namespace, name, subresource })
    }

    /// The object's key.
    pub fn key(&self) -> Key {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        Key { kind: self.kind, namespace: text(&self.namespace), name: text(&self.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::Target;
    use crate::resource::Subresource;

    /// The kind, the namespace, the name and what is below it; `-` for none.
    fn read(path: &str) -> Option<String> {
        let target = Target::of(path).ok()?;
        let (namespace, name) = (target.namespace.unwrap_or("-".to_owned()), target.name.unwrap_or("-".to_owned()));
        Some(format!("{} {namespace} {name} {}", target.kind, target.subresource.map_or("-", Subresource::name)))
    }

    #[test]
    fn paths_name_collections_objects_and_what_is_below_them() {
        for (path, meant) in [
            ("/api/v1/pods", "Pod - - -"),
            ("/api/v1/namespaces/a/pods", "Pod a - -"),
            ("/apis/apps/v1/namespaces/a/statefulsets/s/scale", "StatefulSet a s scale"),
            ("/api/v1/namespaces/a", "Namespace - a -"),
            ("/api/v1/namespaces/a/status", "Namespace - a status"),
        ] {
            assert_eq!(read(path).as_deref(), Some(meant), "{path}");
        }
    }

    #[test]
    fn other_paths_lead_nowhere() {
        for path in [
            "/api/v1/namespaces/a/nodes",
            "/api/v1/pods/p",
            "/api/v2/pods",
            "/apis/apps/v1/pods",
            "/api/v1/namespaces/a/pods/p/scale",
            "/api/v1/namespaces/a/pods/p/log/more",
            "/",
        ] {
            assert_eq!(read(path), None, "{path}");
        }
    }
}
