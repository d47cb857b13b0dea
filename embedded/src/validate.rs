//! What an object has to be.

use crate::failure::Failure;
use crate::object::name;
use crate::resource::Kind;
use crate::store::Part;
use serde_json::Value;

/// Checks an object that is created.
pub fn created(kind: Kind, object: &Value) -> Result<(), Failure> {
    if name(object).is_empty() {
        let why = "Required value: name or generateName is required".to_owned();
        return Err(Failure::invalid(kind, "", &[("metadata.name".to_owned(), why)]));
    }
    Ok(())
}

/// Checks an object that is changed.
pub fn updated(_kind: Kind, _part: Part, _before: &Value, _object: &Value) -> Result<(), Failure> {
    Ok(())
}
