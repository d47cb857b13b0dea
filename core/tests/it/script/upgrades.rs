//! The commands of the cases that are about protocol versions and tasks.

use super::{Line, World, operator, why};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Fence, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{Millis, ProtocolId, ResyncEpoch, TaskId};
use kaa_core::domain::process::About;
use kaa_core::domain::task::{StepKind, TaskState};
use kaa_core::resync::plan::Need;

/// `release=R protocols=ID:NAME,ID:NAME`
pub(super) fn about(line: &Line) -> About {
    let version = line.values.get("release").copied().unwrap_or_default().to_owned();
    let protocols = line.values.get("protocols").copied().unwrap_or_default();
    let protocol = |text: &str| {
        let (id, name) = text.split_once(':').unwrap_or_else(|| panic!("{text} is not ID:NAME"));
        (id.parse().unwrap(), name.to_owned())
    };
    let protocols = protocols.split(',').filter(|text| !text.is_empty()).map(protocol).collect();
    About { version, protocols, ..About::default() }
}

impl World {
    pub(super) fn upgrades(&mut self, line: &Line) -> String {
        match line.words[0] {
            "versions" => self.versions(line.words[1]),
            "tasks" => self.tasks(),
            // `cancel ID [by-agent] WHY`
            "cancel" => {
                let task = line.words[1].parse().unwrap();
                let why = why(line).split_off(line.words[1].len()).trim().to_owned();
                self.propose(operator(line), Command::CancelTask(change::CancelTask { task, why }))
            }
            // `upgrade [to=ID] [by-agent]`: an operator's command, with a read of the workloads.
            "upgrade" => {
                let to = line.values.get("to").map(|id| ProtocolId(id.parse().unwrap()));
                let needs = [self.domain.workloads_of(&"demo".into()), Need::Anchor];
                let facts = needs.iter().filter_map(|need| self.read(need).ok()).flatten().collect();
                let evidence = Evidence { read_at: Millis(5), facts };
                let upgrade = change::UpgradeDatabase { database: "demo".into(), to, cluster: None, evidence };
                self.propose(operator(line), Command::UpgradeDatabase(upgrade))
            }
            // `advance TASK STEP raise|stop|await [epoch=] FACT...`: a step that no plan made, with only these facts as
            // evidence: `anchor`, `settled[=POD]`, `rolling`, `paused`, `asked[=DEPLOYMENT-UID]`. Shows whether the
            // domain itself refuses it.
            "advance" => self.advance(line),
            // The last command that a pass proposed arrives again; `again all`: all commands that passes proposed.
            "again" => {
                let sent = self.sent.clone();
                let from = if line.has("all") { 0 } else { sent.len().saturating_sub(1) };
                let answers = sent[from..].iter().map(|command| self.propose(Role::ResyncLeader, command.clone()));
                answers.collect()
            }
            other => panic!("no command '{other}'"),
        }
    }

    fn versions(&self, name: &str) -> String {
        let Some(versions) = self.domain.versions(&name.into()) else { return "none\n".to_owned() };
        let mut text = versions.effective.map_or("effective unknown\n".to_owned(), |it| format!("effective {it}\n"));
        for version in versions.available {
            text += &format!("available {version}\n");
        }
        for (release, it) in versions.releases {
            let max = it.max.map_or("none".to_owned(), |max| max.to_string());
            let processes: Vec<_> = it.processes.iter().map(ToString::to_string).collect();
            text += &format!("release '{release}' supports up to {max}: process {}\n", processes.join(", "));
        }
        text
    }

    fn tasks(&self) -> String {
        let mut text = String::new();
        for task in self.domain.tasks.values() {
            text += &format!("task {} {} {} by {}\n", task.id, task.state, task.kind, task.by);
            if let TaskState::Failed { why } | TaskState::Cancelled { why, .. } = &task.state {
                text += &format!("  {why}\n");
            }
            for (number, step) in (1..).zip(&task.steps) {
                let done = step.entry.map_or("to do".to_owned(), |entry| format!("done by entry {entry}"));
                text += &format!("  step {number} {} {done}\n", step.what.name());
            }
        }
        if text.is_empty() { "none\n".to_owned() } else { text }
    }

    fn advance(&mut self, line: &Line) -> String {
        let fence = Fence { cluster: "c1".into(), epoch: ResyncEpoch(line.number("epoch", self.epoch())) };
        let task: TaskId = line.words[1].parse().unwrap();
        let what = match line.words[3] {
            "raise" => StepKind::RaiseVersion,
            "stop" => StepKind::StopEngine,
            "await" => StepKind::AwaitEngine,
            other => panic!("no step {other}"),
        };
        let database = || "demo".into();
        let asked = |uid: &str| Fact::UpgradeAsked {
            database: database(),
            deployment: "te".to_owned(),
            uid: uid.into(),
            query: line.values.get("prefer").map(|query| (*query).to_owned()),
        };
        let settled = |pod: Option<&str>| {
            let pods = pod.map(|pod| (pod.to_owned(), self.api.pods.get(pod).expect("a pod").uid.clone()));
            Fact::Settled { database: database(), pods: pods.into_iter().collect() }
        };
        let facts = line.words[4..].iter().map(|word| match *word {
            "anchor" => Fact::AnchorIs { uid: "A1".into() },
            "settled" => settled(None),
            "paused" => Fact::UpgradePaused { database: database(), workload: "deployment te".to_owned() },
            "rolling" => Fact::RollingOut { database: database(), workload: "deployment te".to_owned() },
            "asked" => asked("D1"),
            other => panic!("no fact {other}"),
        });
        let facts = facts.chain(line.values.iter().filter_map(|(key, value)| match *key {
            "settled" => Some(settled(Some(value))),
            "asked" => Some(asked(value)),
            _ => None,
        }));
        let evidence = Evidence { read_at: Millis(5), facts: facts.collect() };
        let step = line.words[2].parse().unwrap();
        let advance = change::AdvanceTask { fence, task, step, what, evidence };
        self.propose(Role::ResyncLeader, Command::AdvanceTask(advance))
    }
}
