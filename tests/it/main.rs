//! Everything that needs the executable, in one test binary.

#![allow(clippy::unwrap_used, missing_docs)]

mod engine;
mod tidy;
