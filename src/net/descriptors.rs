//! How many files and sockets this process may have open: the ports' limits have to be below that, since a process without
//! a descriptor left can accept nothing, open no file of its log and reach no Kubernetes.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to what is wanted, as far as that is allowed. Returns the limit.
///
/// # Errors
/// The system's own.
pub fn raise(wanted: u64) -> std::io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted || soft >= hard {
        return Ok(soft);
    }
    let raised = wanted.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard)?;
    Ok(raised)
}
