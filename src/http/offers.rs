//! What the published client can ask and this agent does not do, each with a sentence that says why, and what to do instead.
//! `docs/nuocmd.md` lists every request of that client; what is neither answered nor named here is not known to it.

use super::error::Error;
use axum::http::Method;

/// Who starts engines here.
pub(super) const STARTS: &str = "engines are started by Kubernetes here, not by an admin server: create the StatefulSet or the \
                                 Deployment of the database, or scale it (kubectl scale)";
/// Why there are no regions.
pub(super) const REGIONS: &str =
    "regions are not offered: give the engines labels instead, such as their zone (kaa-engine --label)";

const STORAGE_GROUPS: &str = "storage groups cannot be changed: every archive holds all tables here";
const HANDOFF: &str = "passive archives, and a hand-over to them, are not offered";
const HOT_COPY: &str =
    "hot copies are not offered: take snapshots of the volumes (VolumeSnapshot), with the storage managers stopped";
const ENCRYPTION: &str = "encryption of archives is not offered: use encrypted volumes";
const CERTIFICATES: &str = "certificates are not kept in the domain: change the files in the Secrets, which are read again within seconds \
                            (kaa certificates)";
const USERS: &str = "users and roles are not kept in the domain: who may change it is in the agents' credentials file, or shows an \
                     operator's certificate (kaa certificates operator)";
const LICENSE: &str = "licenses are not kept: none is needed";
const LOGS: &str = "log files are not kept: the agents and the engines log to standard output (kubectl logs POD)";
const OPTIONS: &str = "the options of engines are not known here: they are arguments of the command in their container";
const SERVER_STATE: &str =
    "archives belong to claims here, not to servers: use `kaa process evict ID`, `kaa archive remove ID --reason WHY`";

/// Each request: its method, its path below `/api/1` with `{}` for what differs, whether it contradicts how engines are run here
/// (409) or is not there (501), and the sentence.
const TABLE: [(&str, &str, bool, &str); 38] = [
    ("POST", "processes", true, STARTS),
    ("POST", "processes/externalStartup", true, STARTS),
    ("POST", "databases/{}/startplan", true, STARTS),
    ("GET", "processes/availableOptions", false, OPTIONS),
    ("POST", "peers/{}/removeDomainState", false, SERVER_STATE),
    ("GET", "peers/certificates", false, CERTIFICATES),
    ("POST", "peers/certificates", false, CERTIFICATES),
    ("GET", "diagnostics/logs", false, LOGS),
    ("POST", "policies/license", false, LICENSE),
    ("GET", "policies/users", false, USERS),
    ("PUT", "policies/users/{}", false, USERS),
    ("DELETE", "policies/users/{}", false, USERS),
    ("POST", "policies/users/{}/roles", false, USERS),
    ("POST", "policies/users/{}/credentials", false, USERS),
    ("GET", "policies/roles", false, USERS),
    ("PUT", "policies/roles/{}", false, USERS),
    ("POST", "policies/roles/{}", false, USERS),
    ("DELETE", "policies/roles/{}", false, USERS),
    ("POST", "archives/addStorageGroup", false, STORAGE_GROUPS),
    ("POST", "archives/removeStorageGroup", false, STORAGE_GROUPS),
    ("DELETE", "databases/{}/storageGroups/{}", false, STORAGE_GROUPS),
    ("POST", "archives/modifyObserverStatus/{}", false, HANDOFF),
    ("GET", "databases/{}/reportTimestamp", false, HANDOFF),
    ("POST", "databases/{}/resetState", false, HANDOFF),
    ("POST", "databases/{}/hotCopy", false, HOT_COPY),
    ("POST", "databases/{}/hotCopySimple", false, HOT_COPY),
    ("GET", "databases/{}/hotCopyStatus", false, HOT_COPY),
    ("GET", "databases/hotCopyStatus", false, HOT_COPY),
    ("POST", "databases/cancelHotCopy", false, HOT_COPY),
    ("POST", "databases/dataEncryption", false, ENCRYPTION),
    ("GET", "regions", false, REGIONS),
    ("POST", "regions", false, REGIONS),
    ("GET", "regions/{}", false, REGIONS),
    ("PUT", "regions/{}", false, REGIONS),
    ("DELETE", "regions/{}", false, REGIONS),
    ("PUT", "databases/{}/defaultRegion", false, REGIONS),
    ("PUT", "databases/{}/hosts", false, REGIONS),
    ("DELETE", "databases/{}/hosts", false, REGIONS),
];

/// Why a request that has no route is not answered.
pub(super) fn refusal(method: &Method, path: &str) -> Option<Error> {
    let resource = path.strip_prefix("/api/1/")?;
    let asked = |(known, pattern, ..): &&(&str, &str, bool, &str)| {
        let (parts, given) = (pattern.split('/'), resource.split('/'));
        let fits = |(part, given): (&str, &str)| part == given || part == "{}" && !given.is_empty();
        method.as_str() == *known && parts.clone().count() == given.clone().count() && parts.zip(given).all(fits)
    };
    let (_, _, contradicts, why) = TABLE.iter().find(asked)?;
    Some(if *contradicts { Error::Conflict((*why).to_owned()) } else { Error::NotSupported(why) })
}
