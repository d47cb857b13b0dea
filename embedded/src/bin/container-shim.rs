//! What a kubelet puts before the command of each container, for tests and for binaries that do not offer it themselves.

use std::process::ExitCode;

fn main() -> ExitCode {
    let error = embedded_kubernetes::kubelet::shim(std::env::args_os().skip(1));
    eprintln!("container-shim: {error}");
    ExitCode::from(127)
}
