//! The work of kubelets for the admin servers' pods. An agent starts with its pod, on the volume of the claim that
//! exists at that time. The kubelet tells it to end when its pod is deleted, and kills it when its grace period is
//! over. If a pod is deleted with no grace period, its process continues for a while. No other process is started for
//! its server before that one has ended, because its volume is in use.

use crate::sim::host::{Ground, Host};
use crate::sim::kubelet::Kubelet;
use embedded_kubernetes::hollow;
use embedded_kubernetes::object::{is_deleting, text, uid};
use embedded_kubernetes::resource::Kind;
use embedded_kubernetes::store::Key;

/// The grace period of the pods.
const GRACE_MS: u64 = 30_000;

/// The claim of a server's volume.
pub fn claim(server: &str) -> String {
    format!("raftlog-{server}")
}

impl Kubelet {
    /// Does what is due for the admin servers.
    pub fn tend(&mut self, hosts: &mut [Host], ground: &Ground, now_ms: u64) {
        for host in hosts {
            let key = Key::new(Kind::Pod, "default", &host.name);
            let pod = self.instance.look(|store| store.find(&key).cloned());
            match pod.filter(|pod| text(pod, "/status/phase") == "Running") {
                Some(pod) if uid(&pod) == host.pod_uid && is_deleting(&pod) => self.end_admin(host, &key, now_ms),
                Some(pod) if uid(&pod) == host.pod_uid && host.held => {}
                Some(pod) if uid(&pod) == host.pod_uid => host.start(ground),
                _ if host.is_running() => self.outlive(host, ground, now_ms),
                Some(pod) => {
                    let claim = Key::new(Kind::PersistentVolumeClaim, "default", &claim(&host.name));
                    let claim = self.instance.look(|store| store.find(&claim).map(|claim| uid(claim).to_owned()));
                    host.settle(uid(&pod), &claim.expect("a pod runs only with its claim"));
                }
                None => {}
            }
        }
    }

    /// Ends a process whose pod is gone, after a while.
    fn outlive(&mut self, host: &mut Host, ground: &Ground, now_ms: u64) {
        if self.is_due(&host.pod_uid, "gone", 500, 12_000, now_ms) {
            ground.trace.line(&format!("{}, whose pod is gone, is killed", host.name));
            host.kill();
        }
    }

    fn end_admin(&mut self, host: &mut Host, key: &Key, now_ms: u64) {
        host.stop();
        if self.is_due(&host.pod_uid, "kill", GRACE_MS, 1, now_ms) {
            host.kill();
        }
        if !host.is_running() && self.is_due(&host.pod_uid, "end", 20, 300, now_ms) {
            self.instance.with(|store| hollow::act(store, key));
        }
    }
}
