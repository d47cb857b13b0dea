//! A Kubernetes, and a namespace of its own for each topic.

use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take to become visible. Far more than it takes, so that a busy machine does not fail a test.
pub use testkit::PATIENCE;
/// How long a command may take, which may itself wait for something.
const COMMAND_PATIENCE: Duration = Duration::from_secs(360);
/// The time before a question is repeated.
pub const PAUSE: Duration = Duration::from_millis(200);

/// The Kubernetes of the conversation.
#[derive(Debug, Clone)]
pub struct Kubernetes {
    pub kubeconfig: PathBuf,
    pub kubectl: PathBuf,
    /// An image with `sh` and the usual commands.
    pub image: String,
    /// Whether it is the embedded one, so that `differences.txt` applies.
    pub embedded: bool,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Response {
    pub code: u16,
    pub text: String,
    pub json: Option<Value>,
}

/// The output of a command.
#[derive(Debug)]
pub struct Printed {
    pub output: String,
    pub errors: String,
    pub code: Option<i32>,
}

/// A namespace, and what is necessary to send questions to it.
pub struct Namespace {
    pub name: String,
    pub nodes: Vec<String>,
    client: Client,
    kubeconfig: Kubeconfig,
    directory: TempDir,
}

type Request = hyper::http::Request<Vec<u8>>;

impl Kubernetes {
    /// The Kubernetes that the environment names.
    pub fn of_environment() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            kubeconfig: set("KUBECONFIG").expect("KUBECONFIG names a cluster").into(),
            kubectl: set("KUBECTL").unwrap_or_else(|| "kubectl".to_owned()).into(),
            image: set("TRANSCRIPT_IMAGE").unwrap_or_else(|| "localhost/busybox:1".to_owned()),
            embedded: set("TRANSCRIPT_OF").is_some_and(|of| of == "embedded"),
        }
    }
}

/// A client of the cluster: with the user of the kubeconfig, or with this token.
async fn client(kubeconfig: &Kubeconfig, token: Option<&str>) -> Result<Client, String> {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await;
    let mut config = config.map_err(|error| format!("kubeconfig: {error}"))?;
    if let Some(token) = token {
        config.auth_info =
            serde_json::from_value::<AuthInfo>(json!({"token": token})).map_err(|error| error.to_string())?;
    }
    Client::try_from(config).map_err(|error| format!("client: {error}"))
}

async fn answer(client: &Client, request: Request) -> Result<Response, String> {
    let asked = format!("{} {}", request.method(), request.uri());
    let response = client.send(request.map(Into::into)).await.map_err(|error| format!("{asked}: {error}"))?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect_bytes().await.map_err(|error| format!("{asked}: {error}"))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let json = serde_json::from_str(&text).ok();
    Ok(Response { code, text, json })
}

impl Namespace {
    /// A new namespace whose default service account exists, so that the API server admits pods.
    pub async fn new(kubernetes: &Kubernetes) -> Result<Self, String> {
        let mut kubeconfig = Kubeconfig::read_from(&kubernetes.kubeconfig).map_err(|error| error.to_string())?;
        let client = client(&kubeconfig, None).await?;
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "transcript-"}});
        let made = answer(&client, request("POST", "/api/v1/namespaces", &[], body.to_string())?).await?;
        let name = made.json.as_ref().and_then(|made| made["metadata"]["name"].as_str()).unwrap_or_default().to_owned();
        if made.code != 201 || name.is_empty() {
            return Err(format!("no namespace was made: {} {}", made.code, made.text));
        }
        let listed = answer(&client, request("GET", "/api/v1/nodes", &[], String::new())?).await?;
        let nodes = listed.json.and_then(|list| super::fields::field(&list, "items.*.metadata.name"));
        let nodes = serde_json::from_value(nodes.unwrap_or_default()).map_err(|error| format!("nodes: {error}"))?;
        for context in &mut kubeconfig.contexts {
            if let Some(context) = &mut context.context {
                context.namespace = Some(name.clone());
            }
        }
        let directory = directory(kubernetes, &kubeconfig).map_err(|error| error.to_string())?;
        let new = Self { name, nodes, client, kubeconfig, directory };
        let (began, account) = (Instant::now(), format!("/api/v1/namespaces/{}/serviceaccounts/default", new.name));
        while new.request(request("GET", &account, &[], String::new())?, None).await?.code != 200 {
            if began.elapsed() > PATIENCE {
                return Err(format!("{}: no default service account came", new.name));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(new)
    }

    /// Sends a request through the Rust client.
    pub async fn request(&self, request: Request, token: Option<&str>) -> Result<Response, String> {
        match token {
            Some(token) => answer(&client(&self.kubeconfig, Some(token)).await?, request).await,
            None => answer(&self.client, request).await,
        }
    }

    /// Opens an answer that continues.
    pub async fn open(&self, request: Request) -> Result<(u16, kube::client::Body), String> {
        let response = self.client.send(request.map(Into::into)).await.map_err(|error| error.to_string())?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// Runs a line of shell, in which `kubectl` means this namespace.
    pub async fn command(&self, line: &str, input: &str, variables: &[(String, String)]) -> Result<Printed, String> {
        let directory = self.directory.path();
        std::fs::write(directory.join("input"), input).map_err(|error| error.to_string())?;
        let stdin = std::fs::File::open(directory.join("input")).map_err(|error| error.to_string())?;
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = tokio::process::Command::new("sh");
        command.arg("-c").arg(line).current_dir(directory).env("PATH", path).env("HOME", directory);
        command.env("KUBECONFIG", directory.join("config")).env("KUBECACHEDIR", directory.join("cache"));
        command.envs(variables.iter().cloned()).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let child = command.spawn().map_err(|error| format!("sh: {error}"))?;
        let group = child.id();
        let Ok(done) = tokio::time::timeout(COMMAND_PATIENCE, child.wait_with_output()).await else {
            if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
                let group = nix::unistd::Pid::from_raw(group);
                nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL)
                    .map_err(|error| error.to_string())?;
            }
            return Err(format!("did not end within {COMMAND_PATIENCE:?}"));
        };
        let done = done.map_err(|error| format!("sh: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Printed { output: text(&done.stdout), errors: text(&done.stderr), code: done.status.code() })
    }

    /// Deletes the namespace, and does not wait.
    pub async fn delete(self) -> Result<(), String> {
        let gone = request("DELETE", &format!("/api/v1/namespaces/{}", self.name), &[], String::new())?;
        let response = self.request(gone, None).await?;
        if response.code == 200 { Ok(()) } else { Err(format!("{} stays: {}", self.name, response.text)) }
    }
}

/// A request with the options of the conversation.
pub fn request(method: &str, path: &str, options: &[(String, String)], body: String) -> Result<Request, String> {
    let mut built = hyper::http::Request::builder().method(method).uri(path);
    let mut content = "application/json";
    for (option, value) in options {
        match (option.as_str(), value.as_str()) {
            ("as", user) => built = built.header("Impersonate-User", user),
            ("type", "merge") => content = "application/merge-patch+json",
            ("type", "strategic") => content = "application/strategic-merge-patch+json",
            ("type", "json") => content = "application/json-patch+json",
            ("type", "apply") => content = "application/apply-patch+yaml",
            ("type", other) => content = other,
            _ => {}
        }
    }
    if !body.is_empty() {
        built = built.header("Content-Type", content);
    }
    built.body(body.into_bytes()).map_err(|error| format!("{method} {path}: {error}"))
}

/// A directory with the configuration of `kubectl`, and with a `kubectl` that runs the configured one.
fn directory(kubernetes: &Kubernetes, kubeconfig: &Kubeconfig) -> std::io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir()?;
    let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text);
    write("config", serde_json::to_string(kubeconfig)?)?;
    let kubectl = which(&kubernetes.kubectl)?;
    write("kubectl", format!("#!/bin/sh\nexec {} \"$@\"\n", kubectl.display()))?;
    std::fs::set_permissions(directory.path().join("kubectl"), std::fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

/// The absolute path of a program: with a bare name, the script `kubectl` in the new directory would run itself.
fn which(program: &Path) -> std::io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = || std::io::Error::other(format!("{} is not in PATH", program.display()));
    let tried = |directory: PathBuf| directory.join(program);
    std::env::split_paths(&path).map(tried).find(|file| file.is_file()).ok_or_else(missing)?.canonicalize()
}
