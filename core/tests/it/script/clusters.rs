//! The commands of the cases in which several clusters share the domain. The watches show cluster c1; the cases have
//! only the proposals of agents in other clusters.

use super::{Line, World, operator};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Fence, Role};
use kaa_core::domain::evidence::{Evidence, Fact};
use kaa_core::domain::ids::{ClusterName, DatabaseName, Millis, ResyncEpoch, Uid};
use std::collections::BTreeMap;

impl World {
    pub(super) fn clusters(&mut self, line: &Line) -> String {
        let cluster: ClusterName = line.words[1].into();
        match line.words[0] {
            // `join-cluster NAME [anchor=UID]`: as the Raft leader does for the first server of a cluster.
            "join-cluster" => {
                let anchor = line.values.get("anchor").map_or_else(|| anchor_of(&cluster), |uid| (*uid).into());
                let anchored = change::AnchorCluster { cluster, anchor, founded_in: "c1".into() };
                self.propose(Role::RaftLeader, Command::AnchorCluster(anchored))
            }
            // `lead-cluster NAME [transitions=]`: an agent of this cluster leads its resync.
            "lead-cluster" => {
                let lease: Uid = format!("L-{cluster}").into();
                let fact = Fact::LeaseIs { name: "resync".to_owned(), uid: lease.clone() };
                self.propose(
                    Role::ResyncLeader,
                    Command::BeginResync(change::BeginResync {
                        holder: format!("{cluster}-0").into(),
                        transitions: line.number("transitions", 1),
                        evidence: Evidence { read_at: Millis(0), facts: vec![fact] },
                        lease,
                        cluster,
                    }),
                )
            }
            // `judge CLUSTER DATABASE [wanted] [settled] [anchor=UID] [unproven]`
            "judge" => {
                let database: DatabaseName = line.words[2].into();
                let (wanted, settled) = (line.has("wanted"), line.has("settled"));
                let anchor = line.values.get("anchor").map_or_else(|| anchor_of(&cluster), |uid| (*uid).into());
                let mut facts = vec![Fact::AnchorIs { uid: anchor }];
                if !wanted && !line.has("unproven") {
                    facts.push(Fact::DatabaseUnwanted { database: database.clone() });
                }
                if settled && !line.has("unproven") {
                    facts.push(Fact::Settled { database: database.clone(), pods: BTreeMap::new() });
                }
                let epoch = self.domain.resync.get(&cluster).map_or(ResyncEpoch(0), |leader| leader.epoch);
                let fence = Fence { cluster, epoch };
                let evidence = Evidence { read_at: Millis(5), facts };
                let judge = change::JudgeDatabase { fence, database, wanted, settled, evidence };
                self.propose(Role::ResyncLeader, Command::JudgeDatabase(judge))
            }
            // `forget-cluster NAME [by-agent]`
            "forget-cluster" => {
                let forget = change::ForgetCluster { cluster, why: "burnt".to_owned() };
                self.propose(operator(line), Command::ForgetCluster(forget))
            }
            // `entry-point NAME`: the watches show the entry point if this is c1, otherwise another cluster.
            "entry-point" => {
                self.policy.entry_point = line.words[1] == "c1";
                String::new()
            }
            other => panic!("no command '{other}'"),
        }
    }
}

fn anchor_of(cluster: &ClusterName) -> Uid {
    format!("A-{cluster}").into()
}
