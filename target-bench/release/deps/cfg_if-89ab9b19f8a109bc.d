/tmp/lb/target-bench/release/deps/cfg_if-89ab9b19f8a109bc.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs

/tmp/lb/target-bench/release/deps/libcfg_if-89ab9b19f8a109bc.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs

/tmp/lb/target-bench/release/deps/libcfg_if-89ab9b19f8a109bc.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs:
