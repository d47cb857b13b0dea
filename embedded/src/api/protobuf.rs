//! tmp
use super::Request;
use crate::failure::Failure;
/// x
pub fn to_json(_request: &Request) -> Result<Option<Request>, Failure> {
    Ok(None)
}
