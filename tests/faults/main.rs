//! Whole domains under faults.

#![allow(clippy::unwrap_used, reason = "a test's panic is its verdict")]

mod history;
