//! What the API asks of containers: their logs, and commands in them. The refusals are those of Kubernetes.

use super::run::Run;
use super::{Kubelet, exec};
use crate::failure::Failure;
use crate::object::{list, name, text};
use crate::runtime::{ExecRequest, Execution, LogRequest, Runtime};
use crate::store::Key;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The annotation by which a pod names the container that is meant where none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// How many pieces of a log wait for a slow reader.
const PIECES: usize = 4;

impl Runtime for Kubelet {
    fn logs(&self, request: LogRequest) -> Result<mpsc::Receiver<Vec<u8>>, Failure> {
        let (pod, container) = self.choose(&request.pod, request.container.as_deref())?;
        let run = self.run_of(&request.pod, &container, request.previous);
        let run = run.ok_or_else(|| no_log(&pod, &container, request.previous))?;
        let (sender, receiver) = mpsc::channel(PIECES);
        self.runtime.spawn(async move {
            if let Err(error) = run.log.send(&request, sender).await {
                tracing::warn!(pod = request.pod.name, container, %error, "a log cannot be read");
            }
        });
        Ok(receiver)
    }

    fn exec(&self, request: ExecRequest) -> Result<Execution, Failure> {
        let (_, container) = self.choose(&request.pod, request.container.as_deref())?;
        let run = self.run_of(&request.pod, &container, false).filter(|run| run.log.is_open());
        let run =
            run.ok_or_else(|| internal(&format!("unable to upgrade connection: container not found ({container:?})")))?;
        let command = run.launch.words(request.command.iter().map(String::as_str));
        let program = command.first().map_or("", String::as_str);
        run.launch.find(program).map_err(|error| {
            let why = format!("OCI runtime exec failed: exec failed: unable to start container process: {error}");
            internal(&format!("error executing command in container: failed to exec in container: {why}"))
        })?;
        let (execution, ends) = exec::prepare(request.stdin);
        let spawner = self.node.spawner.clone();
        self.runtime.spawn(async move {
            match spawner.spawn(&command, &run.launch, request.stdin).await {
                Ok(process) => ends.attend(process).await,
                Err(error) => ends.refuse(error.to_string()).await,
            }
        });
        Ok(execution)
    }
}

impl Kubelet {
    /// The pod and the container that a request means.
    fn choose(&self, key: &Key, wanted: Option<&str>) -> Result<(Arc<Value>, String), Failure> {
        let pod = self.node.instance.look(|store| store.get(key).cloned())?;
        let names = |pointer: &str| list(&pod, pointer).iter().map(|one| text(one, "/name").to_owned()).collect();
        let (inits, mains): (Vec<String>, Vec<String>) = (names("/spec/initContainers"), names("/spec/containers"));
        let annotated = pod.pointer("/metadata/annotations").and_then(|all| all.get(DEFAULT_CONTAINER)?.as_str());
        let wanted = wanted.or(annotated.filter(|name| mains.iter().any(|main| main == name)));
        let chosen = match (wanted, mains.as_slice()) {
            (Some(wanted), _) => wanted.to_owned(),
            (None, [only]) => only.clone(),
            (None, all) => {
                let choice = all.join(" ");
                let mut why =
                    format!("a container name must be specified for pod {}, choose one of: [{choice}]", name(&pod));
                if !inits.is_empty() {
                    why.push_str(&format!(" or one of the init containers: [{}]", inits.join(" ")));
                }
                return Err(Failure::bad_request(why));
            }
        };
        if !inits.iter().chain(&mains).any(|known| *known == chosen) {
            return Err(Failure::bad_request(format!("container {chosen} is not valid for pod {}", name(&pod))));
        }
        Ok((pod, chosen))
    }

    fn run_of(&self, key: &Key, container: &str, previous: bool) -> Option<Arc<Run>> {
        let pods = self.node.pods();
        let runs = pods.get(key)?.get(container)?;
        if previous { runs.previous.clone() } else { runs.current.clone() }
    }
}

/// Why a container has no log.
fn no_log(pod: &Value, container: &str, previous: bool) -> Failure {
    let named = name(pod);
    if previous {
        return Failure::bad_request(format!("previous terminated container {container:?} in pod {named:?} not found"));
    }
    let statuses = list(pod, "/status/initContainerStatuses").iter().chain(list(pod, "/status/containerStatuses"));
    let status = statuses.into_iter().find(|status| text(status, "/name") == container);
    let why = match status.map_or("", |status| text(status, "/state/waiting/reason")) {
        "" => return Failure::bad_request(format!("container {container:?} in pod {named:?} is not available")),
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        reason => reason,
    };
    Failure::bad_request(format!("container {container:?} in pod {named:?} is waiting to start: {why}"))
}

fn internal(message: &str) -> Failure {
    let message = format!("Internal error occurred: {message}");
    Failure { code: 500, reason: "InternalError", message, details: Value::Null }
}
