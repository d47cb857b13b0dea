//! All tests that need the executable or whole agents, in one test binary. `docs/testing.md` says in which tier each
//! test runs. A test that starts processes is in a module `real` (with `cargo test`), `ci` (`.ci/run`) or `long`
//! (`.ci/long`); `cargo t` runs all tests that are in none of these.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test's panic is its verdict")]

mod domain;
mod e2e;
mod engine {
    mod real;
}
mod faults;
mod sim;
mod tidy;
mod transcript;
