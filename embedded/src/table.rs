//! tmp
use crate::failure::Failure;
use crate::resource::Kind;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
/// Inc
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// a
    None,
    /// b
    Metadata,
    /// c
    Object,
}
impl Include {
    /// x
    pub fn of(_given: Option<&str>) -> Result<Self, Failure> {
        Ok(Self::Metadata)
    }
}
/// t
pub fn of(_kind: Kind, _objects: &[Arc<Value>], metadata: &Value, _include: Include, _now: Timestamp) -> Value {
    json!({"kind":"Table","metadata":metadata})
}
