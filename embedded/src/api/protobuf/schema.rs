//! The messages that `kubectl` makes itself, from the `generated.proto` files of Kubernetes 1.33, whose numbers never
//! change. Fields that it never sets are left out.

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Its name in JSON.
    pub name: &'static str,
    /// Whether there may be several.
    pub repeated: bool,
    /// What it holds: nothing said is a text or a number, else a map or the name of a message.
    pub kind: &'static str,
}

/// Each message with its fields: number, name (`*` if repeated), and what it holds.
const MESSAGES: [(&str, &str); 33] = [
    ("Unknown", "1 typeMeta TypeMeta|2 raw bytes"),
    ("TypeMeta", "1 apiVersion|2 kind"),
    ("Entry", "1 key|2 value"),
    ("BytesEntry", "1 key|2 value bytes"),
    ("IntOrString", "1 type|2 intVal|3 strVal"),
    ("ObjectMeta", "1 name|2 generateName|3 namespace|5 uid|6 resourceVersion|11 labels map|12 annotations map"),
    ("LabelSelector", "1 matchLabels map"),
    ("Namespace", "1 metadata ObjectMeta"),
    ("ConfigMap", "1 metadata ObjectMeta|2 data map|3 binaryData map of bytes|4 immutable bool"),
    ("Secret", "1 metadata ObjectMeta|2 data map of bytes|3 type|4 stringData map|5 immutable bool"),
    ("ServiceAccount", "1 metadata ObjectMeta|4 automountServiceAccountToken bool"),
    ("Service", "1 metadata ObjectMeta|2 spec ServiceSpec"),
    (
        "ServiceSpec",
        "1 *ports ServicePort|2 selector map|3 clusterIP|4 type|7 sessionAffinity|10 externalName|\
         13 publishNotReadyAddresses bool|18 *clusterIPs",
    ),
    ("ServicePort", "1 name|2 protocol|3 port|4 targetPort IntOrString|5 nodePort"),
    ("Deployment", "1 metadata ObjectMeta|2 spec DeploymentSpec"),
    ("DeploymentSpec", "1 replicas zero|2 selector LabelSelector|3 template PodTemplateSpec|5 minReadySeconds"),
    ("PodTemplateSpec", "1 metadata ObjectMeta|2 spec PodSpec"),
    ("PodSpec", "2 *containers Container|3 restartPolicy|8 serviceAccountName"),
    (
        "Container",
        "1 name|2 image|3 *command|4 *args|5 workingDir|6 *ports ContainerPort|7 *env EnvVar|14 imagePullPolicy",
    ),
    ("ContainerPort", "1 name|3 containerPort|4 protocol"),
    ("EnvVar", "1 name|2 value"),
    ("Role", "1 metadata ObjectMeta|2 *rules PolicyRule"),
    ("PolicyRule", "1 *verbs|2 *apiGroups|3 *resources|4 *resourceNames|5 *nonResourceURLs"),
    ("RoleBinding", "1 metadata ObjectMeta|2 *subjects Subject|3 roleRef RoleRef"),
    ("Subject", "1 kind|2 apiGroup|3 name|4 namespace"),
    ("RoleRef", "1 apiGroup|2 kind|3 name"),
    ("TokenRequest", "1 metadata ObjectMeta|2 spec TokenRequestSpec"),
    ("TokenRequestSpec", "1 *audiences|3 boundObjectRef BoundObjectReference|4 expirationSeconds"),
    ("BoundObjectReference", "1 kind|2 apiVersion|3 name|4 uid"),
    ("SelfSubjectAccessReview", "1 metadata ObjectMeta|2 spec ReviewSpec"),
    ("SelfSubjectRulesReview", "1 metadata ObjectMeta|2 spec RulesReviewSpec"),
    ("RulesReviewSpec", "1 namespace"),
    ("SelfSubjectReview", "1 metadata ObjectMeta"),
];

/// What a review asks for.
const REVIEWS: [(&str, &str); 3] = [
    ("ReviewSpec", "1 resourceAttributes ResourceAttributes|2 nonResourceAttributes NonResourceAttributes"),
    ("ResourceAttributes", "1 namespace|2 verb|3 group|4 version|5 resource|6 subresource|7 name"),
    ("NonResourceAttributes", "1 path|2 verb"),
];

/// The fields of a message; none if it is not known.
pub fn find(message: &str) -> Vec<Field> {
    let found = MESSAGES.iter().chain(&REVIEWS).find(|(name, _)| *name == message);
    found.map_or_else(Vec::new, |(_, fields)| fields.split('|').filter_map(field).collect())
}

fn field(row: &'static str) -> Option<Field> {
    let (number, rest) = row.split_once(' ')?;
    let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
    let repeated = name.starts_with('*');
    Some(Field { number: number.parse().ok()?, name: name.trim_start_matches('*'), repeated, kind })
}

#[cfg(test)]
mod tests {
    use super::{MESSAGES, REVIEWS, find};

    #[test]
    fn every_row_is_read_and_every_message_that_is_named_is_there() {
        for (message, fields) in MESSAGES.iter().chain(&REVIEWS) {
            let read = find(message);
            assert_eq!(read.len(), fields.split('|').count(), "{message}");
            for field in read {
                let simple = ["", "zero", "bool", "bytes", "map", "map of bytes"].contains(&field.kind);
                assert!(simple || !find(field.kind).is_empty(), "{message}: {}", field.kind);
            }
        }
    }
}
