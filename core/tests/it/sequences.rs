//! After any history, `kaa plan --scale` predicts the effect of scaling.
//!
//! A sequence is a script in the language of the cases, so that a failing one can be read and replayed.

use crate::script::World;
use crate::seed;
use kaa_core::domain::process::{Identity, SessionState};
use kaa_core::resync::Policy;
use kaa_core::resync::whatif::change::Change;
use kaa_core::resync::whatif::outcome::Step as Comes;
use kaa_core::resync::whatif::what_if;
use proptest::prelude::*;

const SETUP: &str = "found
lead admin-0
statefulset sm-demo uid=S1 replicas=3";

/// One step on StatefulSet ordinal `n`, or on everything.
#[derive(Clone, Debug)]
enum Step {
    Scale { replicas: u8, seen: bool },
    PodUp(u8),
    PodGone { n: u8, seen: bool },
    ClaimGone { n: u8, seen: bool },
    Register { n: u8, marked: bool },
    Running(u8),
    Lose(u8),
    Exit(u8),
    Stop(u8),
    Evict(u8),
    See,
    Relead,
    Pass { stale: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..3u8;
    prop_oneof![
        (0..4u8, any::<bool>()).prop_map(|(replicas, seen)| Step::Scale { replicas, seen }),
        n.clone().prop_map(Step::PodUp),
        (n.clone(), any::<bool>()).prop_map(|(n, seen)| Step::PodGone { n, seen }),
        (n.clone(), any::<bool>()).prop_map(|(n, seen)| Step::ClaimGone { n, seen }),
        (n.clone(), any::<bool>()).prop_map(|(n, marked)| Step::Register { n, marked }),
        n.clone().prop_map(Step::Running),
        n.clone().prop_map(Step::Lose),
        n.clone().prop_map(Step::Exit),
        n.clone().prop_map(Step::Stop),
        n.prop_map(Step::Evict),
        Just(Step::See),
        Just(Step::Relead),
        any::<bool>().prop_map(|stale| Step::Pass { stale }),
    ]
}

/// A world with the state that a script needs to choose names: the next UID, and the process of each pod.
struct Run {
    world: World,
    script: Vec<String>,
    uids: u64,
}

impl Run {
    fn line(&mut self, line: &str) -> String {
        self.script.push(line.to_owned());
        self.world.run(line)
    }

    fn uid(&mut self) -> u64 {
        self.uids += 1;
        self.uids
    }

    fn process_of(&self, n: u8) -> Option<(u64, bool)> {
        let pod = format!("sm-demo-{n}");
        let process = self.world.domain.processes.values().rev().find(|process| process.identity.pod == pod)?;
        Some((process.id.0, process.session.state == SessionState::Live))
    }

    fn take(&mut self, step: &Step) {
        let unseen = |seen: bool| if seen { "" } else { "unseen " };
        match *step {
            Step::Scale { replicas, seen } => {
                self.line(&format!("{}statefulset sm-demo replicas={replicas}", unseen(seen)));
            }
            Step::PodUp(n) => {
                if self.world.api.pods.contains_key(&format!("sm-demo-{n}")) {
                    return;
                }
                let claim = format!("archive-volume-sm-demo-{n}");
                if !self.world.api.claims.contains_key(&claim) {
                    let uid = self.uid();
                    self.line(&format!("claim {claim} uid=C{uid}"));
                }
                let uid = self.uid();
                self.line(&format!("pod sm-demo-{n} uid=P{uid} owner=sm-demo claim={claim} running=k{uid}@{uid}"));
            }
            Step::PodGone { n, seen } => {
                self.line(&format!("{}pod sm-demo-{n} gone", unseen(seen)));
                // The engine in the pod has ended; the domain may learn later that its session is lost.
            }
            // As pvc-protection does: a claim is deleted only when no pod uses it.
            Step::ClaimGone { n, seen } if !self.world.api.pods.contains_key(&format!("sm-demo-{n}")) => {
                self.line(&format!("{}claim archive-volume-sm-demo-{n} gone", unseen(seen)));
            }
            Step::ClaimGone { .. } => {}
            Step::Register { n, marked } => {
                let Some(pod) = self.world.api.pods.get(&format!("sm-demo-{n}")).cloned() else { return };
                let claim = &self.world.api.claims[pod.archive_claim.as_ref().expect("a claim")].uid;
                let known = self.world.domain.archives.values();
                let mut known = known.filter(|a| a.claim.as_ref().is_some_and(|known| known.uid == *claim));
                let marker = known.next().filter(|_| marked).map_or(String::new(), |a| format!(" marker={}", a.id));
                let started = pod.uid.as_str().trim_start_matches('P').to_owned();
                let connection = self.uid();
                self.line(&format!("register sm sm-demo-{n} started={started} connection={connection}{marker}"));
            }
            Step::Running(n) => {
                if let Some((id, true)) = self.process_of(n) {
                    self.line(&format!("state {id} RUNNING"));
                }
            }
            Step::Lose(n) => {
                if let Some((id, true)) = self.process_of(n) {
                    self.line(&format!("lose {id}"));
                }
            }
            Step::Exit(n) => {
                if let Some((id, true)) = self.process_of(n) {
                    self.line(&format!("exit {id} code=0 graceful"));
                }
            }
            Step::Stop(n) => {
                if let Some((id, _)) = self.process_of(n) {
                    self.line(&format!("stop {id}"));
                }
            }
            Step::Evict(n) => {
                if let Some((id, _)) = self.process_of(n) {
                    self.line(&format!("evict {id}"));
                }
            }
            Step::See => {
                self.line("see");
            }
            Step::Relead => {
                self.line("lead admin-1");
            }
            Step::Pass { stale } => {
                self.line(if stale { "pass epoch=1" } else { "pass" });
            }
        }
    }
}

/// The removals that `kaa plan --scale` predicts, up to the point where it assumes that pods start.
fn forecast(world: &World, replicas: u8) -> Vec<String> {
    let policy = Policy::new("c1".into(), "default".to_owned());
    let change = Change::Scale(format!("statefulset/sm-demo={replicas}").parse().unwrap());
    let comes = what_if(&world.domain, &world.observed(), &policy, &[change]).unwrap();
    let steps = comes.steps.into_iter().map(|happening| happening.step);
    let steps = steps.take_while(|step| !matches!(step, Comes::Starts { .. }));
    steps.filter(Comes::removes).map(|step| step.to_string()).collect()
}

/// Whether scaling after these steps does what was told of it.
fn comes_as_told(steps: &[Step], replicas: u8) -> Result<(), TestCaseError> {
    let mut run = Run { world: World::default(), script: Vec::new(), uids: 100 };
    for line in SETUP.lines() {
        run.line(line);
    }
    for step in steps {
        run.take(step);
    }
    run.line("see");
    run.line("lead admin-2");
    let told = forecast(&run.world, replicas);
    run.line(&format!("statefulset sm-demo replicas={replicas}"));
    // Pods that are deleted together are told to stop together. A process of an earlier pod of that name is told nothing.
    let live = |world: &World| {
        let live = world.domain.processes.values().filter(|process| process.session.state == SessionState::Live);
        live.map(|process| (process.id, process.identity.clone())).collect::<Vec<_>>()
    };
    for (id, Identity { pod, pod_uid, .. }) in live(&run.world) {
        let is_there = run.world.api.pods.get(&pod).is_some_and(|there| there.uid == pod_uid);
        if (replicas..3).any(|n| pod == format!("sm-demo-{n}")) && is_there {
            run.line(&format!("state {id} SHUTTING_DOWN"));
        }
    }
    for n in replicas..3 {
        let pod = format!("sm-demo-{n}");
        let Some(uid) = run.world.api.pods.get(&pod).map(|pod| pod.uid.clone()) else { continue };
        let in_it = run.world.domain.processes.values().filter(|process| process.identity.pod_uid == uid);
        for id in in_it.map(|process| process.id).collect::<Vec<_>>() {
            run.line(&format!("exit {id} code=0 graceful"));
        }
        run.line(&format!("pod {pod} gone"));
    }
    let mut done = Vec::new();
    loop {
        let lines = run.line("pass");
        let lines = lines.lines().filter_map(|line| line.strip_suffix(": changed"));
        let before = done.len();
        done.extend(lines.filter(|line| !line.starts_with("learn")).map(str::to_owned));
        if done.len() == before {
            break;
        }
    }
    prop_assert_eq!(told, done, "told otherwise than it came:\n{}", run.script.join("\n"));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: testkit::tier().of(200, 500, 2_000, 20_000), failure_persistence: None, rng_seed: seed(), ..ProptestConfig::default() })]

    #[test]
    fn what_if_tells_what_scaling_then_does(steps in prop::collection::vec(step(), 1..40), replicas in 0..4u8) {
        comes_as_told(&steps, replicas)?;
    }
}

#[test]
fn a_process_of_an_earlier_pod_is_not_told_to_stop_with_the_later_one() {
    let register = |n| Step::Register { n, marked: false };
    let gone = Step::PodGone { n: 2, seen: false };
    let steps = [Step::PodUp(1), register(1), Step::PodUp(2), register(2), gone, Step::Running(2), Step::PodUp(2)];
    comes_as_told(&steps, 0).unwrap();
}
