//! What an agent waits for, for metrics, the API and docs/reference.md.

/// What an agent waits for that is not about one server, as one word each.
pub mod group_waits {
    use kaa_core::wait::Wait;

    /// Raft does not run: the gate is not passed.
    pub const RAFT_NOT_STARTED: &str = "raft_not_started";
    /// No leader replicates to this server.
    pub const NOT_A_MEMBER: &str = "not_a_member";
    /// There is no leader.
    pub const NO_LEADER: &str = "no_leader";
    /// The anchor is gone, or says what it should not.
    pub const ANCHOR: &str = "anchor";
    /// A server keeps its vote until it is read that it is not wanted.
    pub const EVICTION_HELD: &str = "eviction_held";
    /// This agent does not stand for the lead of the resync.
    pub const RESYNC_AWAY: &str = "resync_away";
    /// All of them.
    pub const WAITS: [Wait; 6] = [
        Wait {
            code: RAFT_NOT_STARTED,
            means: "Raft has not started on this server: the message says why ([troubleshooting](troubleshooting.md))",
            ends: "what the message names; as a last resort: `kaa recover --dry-run`",
        },
        Wait {
            code: NOT_A_MEMBER,
            means: "no leader has added this server yet",
            ends: "ends by itself once there is a leader; see `no_leader`",
        },
        Wait {
            code: NO_LEADER,
            means: "no quorum, so nothing is committed: the message says which servers are needed ([troubleshooting](troubleshooting.md))",
            ends: "bring them back: `kubectl scale`, `kubectl delete pod NAME`; if they are lost: `kaa recover --dry-run`",
        },
        Wait {
            code: ANCHOR,
            means: "the anchor Lease is gone, or names another domain or an earlier epoch",
            ends: "`kaa adopt --reason WHY`",
        },
        Wait {
            code: EVICTION_HELD,
            means: "a server seems unwanted and keeps its vote until a fresh read of the StatefulSet proves it",
            ends: "`kubectl apply -k manifests/base` (`get statefulsets`), or look at the API server",
        },
        Wait {
            code: RESYNC_AWAY,
            means: "this agent is not a candidate for the resync lead: the message names what it lacks ([troubleshooting](troubleshooting.md#no-agent-leads-the-resync))",
            ends: "what the message names; then it becomes a candidate again by itself",
        },
    ];
}

#[cfg(test)]
mod tests {
    use super::group_waits;
    use kaa_core::membership::standing;
    use kaa_core::replication::vitals::WARNINGS;
    use kaa_core::resync::waiting;
    use kaa_core::wait::{Names, Wait};
    use std::path::Path;

    const HEAD: &str = "| name | reason | what ends it |\n| --- | --- | --- |\n";

    /// The tables, in the order in which docs/reference.md has them.
    fn tables() -> [Vec<Wait>; 3] {
        let servers = group_waits::WAITS.into_iter().chain(standing::WAITS);
        [waiting::WAITS.to_vec(), servers.collect(), WARNINGS.to_vec()]
    }

    /// `UPDATE=1` writes the tables of the reference again.
    #[test]
    fn the_reference_has_every_reason_to_wait() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(HEAD).count(), tables().len(), "docs/reference.md does not have each table once");
        let mut parts = text.split(HEAD);
        let mut wanted = parts.next().unwrap().to_owned();
        for (part, table) in parts.zip(tables()) {
            let ends = |wait: &Wait| Names::default().fill(wait.ends);
            let row = |wait: &Wait| format!("| `{}` | {} | {} |\n", wait.code, wait.means, ends(wait));
            let (_, rest) = part.split_once("\n\n").unwrap();
            wanted += &format!("{HEAD}{}\n{rest}", table.iter().map(row).collect::<String>());
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        assert!(wanted == std::fs::read_to_string(&path).unwrap(), "docs/reference.md: UPDATE=1 writes the tables");
    }

    #[test]
    fn every_reason_to_wait_has_a_way_out() {
        let [waits, servers, _] = tables();
        let waits = [waits, servers].concat();
        for Wait { code, ends, .. } in &waits {
            let command = ["`kubectl ", "`kaa ", "`nuocmd ", "`--"].iter().any(|begin| ends.contains(begin));
            // No command ends these, and each says why none is needed.
            let by_itself = ["by itself", "none while", "see `no_leader`"].iter().any(|it| ends.contains(it));
            assert!(command || by_itself, "{code}: no command ends it: {ends}");
        }
        let commands =
            ["kaa archive remove", "kaa archive purge", "kaa process evict", "kaa adopt", "kaa resume", "kaa recover"];
        for command in commands {
            assert!(waits.iter().any(|wait| wait.ends.contains(command)), "nothing is ended by {command}");
        }
    }
}
