//! Compiles the .proto files, without an installed protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for proto in ["proto/engine.proto", "proto/raft.proto"] {
        println!("cargo::rerun-if-changed={proto}");
        let files = protox::compile([proto], ["proto"])?;
        tonic_prost_build::configure().compile_fds(files)?;
    }
    Ok(())
}
