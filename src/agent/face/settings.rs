//! What an agent was told, as `get server-config` of the published client shows it. Each setting is named here, so that a
//! new one is not shown by accident. Neither the files with passwords nor the token are among them.

use crate::config::Config;
use kaa_core::resync::DatabaseDeletion;
use std::collections::BTreeMap;

/// The settings by name. `ThisServerId` and `agentPort` are those that the client itself looks for.
pub fn of(config: &Config) -> BTreeMap<&'static str, String> {
    let deletion = match config.database_deletion {
        DatabaseDeletion::Auto => "auto",
        DatabaseDeletion::Never => "never",
    };
    BTreeMap::from([
        ("ThisServerId", config.server.to_string()),
        ("adminPort", config.listen_peers.port().to_string()),
        ("agentPort", config.listen_engines.port().to_string()),
        ("annotationPrefix", config.annotation_prefix.clone()),
        ("cluster", config.cluster.to_string()),
        ("databaseDeletion", deletion.to_owned()),
        ("domain", config.domain.clone()),
        ("failoverPauseSeconds", config.failover_pause.as_secs().to_string()),
        ("entrypoint", config.entrypoint.clone().unwrap_or_default().join(",")),
        ("loopbackMayWrite", config.loopback_may_write.to_string()),
        ("minFreeBytes", config.min_free.to_string()),
        ("primaryLeaseMillis", config.primary_lease.as_millis().to_string()),
        ("primarySilenceMillis", config.primary_silence.as_millis().to_string()),
        ("purgeDelaySeconds", config.purge_delay.as_secs().to_string()),
        ("restPort", config.listen_http.port().to_string()),
        ("statefulSet", config.stateful_set.clone()),
    ])
}
