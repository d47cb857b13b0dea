//! Tables: what `kubectl get` shows of each kind.
//!
//! The server makes the cells, the client only aligns them. Columns after a `+` are for `-o wide`. The descriptions of
//! columns, which no client shows, are left empty.

mod age;
mod pod;
mod rows;

use crate::api::metadata_only;
use crate::failure::Failure;
use crate::resource::Kind;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// How much of its object a row carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// Reads `includeObject`.
    pub fn of(given: Option<&str>) -> Result<Self, Failure> {
        match given {
            Some("None") => Ok(Self::None),
            None | Some("Metadata") => Ok(Self::Metadata),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(Failure::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

/// A table of objects of a kind.
pub fn of(kind: Kind, objects: &[Arc<Value>], metadata: &Value, include: Include, now: Timestamp) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let carried = match include {
                Include::None => Value::Null,
                Include::Metadata => metadata_only(object),
                Include::Object => Value::clone(object),
            };
            json!({"cells": cells(kind, object, now), "object": carried})
        })
        .collect();
    let definitions: Vec<Value> = columns(kind).split('|').map(definition).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

/// The columns of a kind: `+` before those of little interest, `#` before numbers, `@` before times.
fn columns(kind: Kind) -> &'static str {
    match kind {
        Kind::Pod => "Name|Ready|Status|Restarts|Age|+IP|+Node|+Nominated Node|+Readiness Gates",
        Kind::StatefulSet => "Name|Ready|Age|+Containers|+Images",
        Kind::Deployment => "Name|Ready|Up-to-date|Available|Age|+Containers|+Images|+Selector",
        Kind::ReplicaSet => "Name|#Desired|#Current|#Ready|Age|+Containers|+Images|+Selector",
        Kind::ControllerRevision => "Name|Controller|Revision|Age",
        Kind::PersistentVolumeClaim => {
            "Name|Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass|Age|+VolumeMode"
        }
        Kind::Service => "Name|Type|Cluster-IP|External-IP|Port(s)|Age|+Selector",
        Kind::Node => {
            "Name|Status|Roles|Age|Version|+Internal-IP|+External-IP|+OS-Image|+Kernel-Version|+Container-Runtime"
        }
        Kind::Namespace => "Name|Status|Age",
        Kind::Event => "Last Seen|Type|Reason|Object|+Subobject|+Source|Message|+First Seen|+Count|+Name",
        Kind::Lease => "Name|Holder|Age",
        Kind::EndpointSlice => "Name|AddressType|Ports|Endpoints|Age",
        Kind::ServiceAccount => "Name|Secrets|Age",
        Kind::ConfigMap => "Name|Data|Age",
        Kind::Secret => "Name|Type|Data|Age",
        Kind::Role => "Name|@Created At",
        Kind::RoleBinding => "Name|Role|Age|+Users|+Groups|+ServiceAccounts",
        Kind::SelfSubjectAccessReview => "Name",
    }
}

fn definition(column: &str) -> Value {
    let wide = column.strip_prefix('+');
    let column = wide.unwrap_or(column);
    let (kind, name) = match column.split_at(1) {
        ("#", name) => ("integer", name),
        ("@", name) => ("date", name),
        _ => ("string", column),
    };
    let format = if name == "Name" { "name" } else { "" };
    json!({
        "name": name, "type": kind, "format": format, "description": "", "priority": i32::from(wide.is_some()),
    })
}

fn cells(kind: Kind, object: &Value, now: Timestamp) -> Value {
    match kind {
        Kind::Pod => pod::cells(object, now),
        Kind::StatefulSet => rows::stateful_set(object, now),
        Kind::Deployment => rows::deployment(object, now),
        Kind::ReplicaSet => rows::replica_set(object, now),
        Kind::ControllerRevision => rows::controller_revision(object, now),
        Kind::PersistentVolumeClaim => rows::claim(object, now),
        Kind::Service => rows::service(object, now),
        Kind::Node => rows::node(object, now),
        Kind::Namespace => rows::namespace(object, now),
        Kind::Event => rows::event(object, now),
        Kind::Lease => rows::lease(object, now),
        Kind::EndpointSlice => rows::endpoint_slice(object, now),
        Kind::ServiceAccount => rows::service_account(object, now),
        Kind::ConfigMap => rows::config_map(object, now),
        Kind::Secret => rows::secret(object, now),
        Kind::Role => rows::role(object),
        Kind::RoleBinding => rows::role_binding(object, now),
        Kind::SelfSubjectAccessReview => json!([crate::object::name(object)]),
    }
}

#[cfg(test)]
mod tests;
