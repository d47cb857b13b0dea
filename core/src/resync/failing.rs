//! A pod of a database without an engine, since a container of it ends with an error: its wrapper refuses the data on its volume, say.
//! Kubernetes starts the container again; the domain knows nothing of why it ends, even if the wrapper registered before.

use super::View;
use super::plan::{Kind, Plan, Waiting, WaitingReason};
use crate::domain::Domain;
use crate::domain::audit::Subject;
use crate::domain::ids::DatabaseName;
use crate::domain::process::SessionState;
use crate::observed::Observed;
use crate::observed::objects::{Container, Pod};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn plan(view: &View, plan: &mut Plan) {
    let Some(pods) = View::known(plan, Kind::Pods, view.observed.pods.known()) else { return };
    let failed = failed(view.domain, pods, |_| true);
    plan.waiting.extend(failed.map(|(name, reason)| Waiting { subject: Subject::Database(name.clone()), reason }));
}

/// The containers of a database's pods that end with an error, where the pod has no engine; none while pods are not known.
pub(super) fn failed_containers(observed: &Observed, domain: &Domain, name: &DatabaseName) -> Vec<WaitingReason> {
    let Ok(pods) = observed.pods.known() else { return Vec::new() };
    failed(domain, pods, |of| of == name).map(|(_, reason)| reason).collect()
}

fn failed<'a>(
    domain: &Domain,
    pods: &'a BTreeMap<String, Pod>,
    counts: impl Fn(&DatabaseName) -> bool,
) -> impl Iterator<Item = (&'a DatabaseName, WaitingReason)> {
    let of_pod = |pod: &'a Pod| Some((pod.database.as_ref().filter(|name| counts(name))?, pod, last_failure(pod)?));
    let mut found: Vec<_> = pods.values().filter(|pod| !pod.deleting && !pod.ended).filter_map(of_pod).collect();
    // Few containers fail, and there may be many processes.
    if !found.is_empty() {
        let live = domain.processes.values().filter(|process| process.session.state == SessionState::Live);
        let live: BTreeSet<_> = live.map(|process| &process.identity.pod_uid).collect();
        found.retain(|(_, pod, _)| !live.contains(&pod.uid));
    }
    found.into_iter().map(|(name, _, reason)| (name, reason))
}

/// The container of a pod that does not run, and ended with an error when it ran last.
fn last_failure(pod: &Pod) -> Option<WaitingReason> {
    let of = |container: &Container| {
        let last = container.ended.first().filter(|_| container.running.is_none())?;
        let exit_code = last.exit_code.filter(|code| *code != 0)?;
        let (pod, container, said) = (pod.name.clone(), container.name.clone(), last.said.clone());
        Some(WaitingReason::ContainerFailed { pod, container, exit_code, said })
    };
    pod.containers.iter().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::objects::{Ended, Running};

    fn pod(change: impl FnOnce(&mut Pod)) -> Observed {
        let ended = Ended { id: "c1".into(), exit_code: Some(69), said: "kaa: it is damaged".to_owned() };
        let container = Container { name: "postgres".to_owned(), running: None, ended: vec![ended] };
        let mut pod =
            Pod { name: "shop-1".to_owned(), uid: "u1".into(), database: Some("shop".into()), ..Pod::default() };
        pod.containers = vec![container];
        change(&mut pod);
        let mut observed = Observed::default();
        observed.pods.list(pod);
        observed.pods.complete();
        observed
    }

    fn shown(observed: &Observed) -> Vec<String> {
        let found = failed_containers(observed, &Domain::default(), &"shop".into());
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_container_that_ends_with_an_error_is_shown_with_its_last_words() {
        let text = "pod shop-1 has no engine: its container postgres ended with exit code 69: kaa: it is damaged";
        assert_eq!(shown(&pod(|_| {})), [text]);
        let silent = pod(|pod| pod.containers[0].ended[0].said.clear());
        assert_eq!(shown(&silent), ["pod shop-1 has no engine: its container postgres ended with exit code 69"]);
    }

    #[test]
    fn one_that_runs_or_ended_well_or_is_of_another_database_is_not() {
        let running = Running { id: "c2".into(), ..Running::default() };
        let none = [""; 0];
        assert_eq!(shown(&pod(|pod| pod.containers[0].running = Some(running))), none);
        assert_eq!(shown(&pod(|pod| pod.containers[0].ended[0].exit_code = Some(0))), none);
        assert_eq!(shown(&pod(|pod| pod.containers[0].ended.clear())), none, "it was never started");
        assert_eq!(shown(&pod(|pod| pod.deleting = true)), none);
        assert_eq!(shown(&pod(|pod| pod.ended = true)), none, "it was evicted, say, and is not started again");
        assert_eq!(shown(&pod(|pod| pod.database = Some("other".into()))), none);
        assert_eq!(shown(&Observed::default()), none, "pods are not known");
    }
}
