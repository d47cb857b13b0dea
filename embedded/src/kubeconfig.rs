//! The files by which clients find this Kubernetes: one for the user who started it, one for the programs of a pod.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The name of cluster, user and context.
const NAME: &str = "embedded";

/// For the user who started it: everything is in the file.
pub fn admin(server: &str, ca_pem: &str, token: &str) -> String {
    let ca = format!("certificate-authority-data: {}", STANDARD.encode(ca_pem));
    text(server, &ca, &format!("token: {}", quoted(token)), "default")
}

/// For a pod: the authority and the token are files beside it, and the token is read again as it is renewed.
pub fn pod(server: &str, ca_file: &str, token_file: &str, namespace: &str) -> String {
    let ca = format!("certificate-authority: {}", quoted(ca_file));
    text(server, &ca, &format!("tokenFile: {}", quoted(token_file)), namespace)
}

fn text(server: &str, ca: &str, user: &str, namespace: &str) -> String {
    let (server, namespace) = (quoted(server), quoted(namespace));
    format!(
        "apiVersion: v1
kind: Config
current-context: {NAME}
clusters:
- name: {NAME}
  cluster:
    server: {server}
    {ca}
users:
- name: {NAME}
  user:
    {user}
contexts:
- name: {NAME}
  context:
    cluster: {NAME}
    user: {NAME}
    namespace: {namespace}
"
    )
}

/// A text as YAML reads it, whatever is in it: as JSON writes it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::{admin, pod};

    #[test]
    fn the_admin_has_all_in_one_file_and_a_pod_has_files_that_are_renewed() {
        let admin = admin("https://127.77.0.1:6443", "-----BEGIN", "secret");
        for line in ["    certificate-authority-data: LS0tLS1CRUdJTg==\n", "    token: \"secret\"\n"] {
            assert!(admin.contains(line), "{admin}");
        }
        let pod = pod("https://127.77.0.1:6443", "/pods/a \"b\"/ca.crt", "/token", "shop");
        let lines = [
            "    server: \"https://127.77.0.1:6443\"\n",
            "    certificate-authority: \"/pods/a \\\"b\\\"/ca.crt\"\n",
            "    tokenFile: \"/token\"\n",
            "    namespace: \"shop\"\n",
        ];
        for line in lines {
            assert!(pod.contains(line), "{pod}");
        }
    }
}
