//! Serves an empty Kubernetes until Ctrl-C: `cargo run -p embedded-kubernetes --example serve -- DIR [IMAGE...]`.
//!
//! Its containers are programs of this machine: the image `shell` runs `sh -c` with the `args`, and `any` and each IMAGE
//! run what `command` says.

use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::kubelet::{Config, Image, Kubelet, shim};
use embedded_kubernetes::server::Server;
use embedded_kubernetes::store::Store;
use embedded_kubernetes::tokens::Tokens;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The argument after which this program is what runs first in a container.
const SHIM: &str = "container-shim";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let first = std::env::args().nth(1).ok_or("say where everything is to be: serve DIR [IMAGE...]")?;
    if first == SHIM {
        return Err(shim(std::env::args_os().skip(2)).into());
    }
    let dir = PathBuf::from(first);
    std::fs::create_dir_all(&dir)?;
    let now = Timestamp::now();
    let instance = Arc::new(Instance::new(Store::new(now.as_millisecond().cast_unsigned(), now), Timestamp::now));
    let tokens = Arc::new(Tokens::new()?);
    let server = Server::start(instance.clone(), tokens.clone(), &dir).await?;
    let kubelet = Arc::new(Kubelet::start(instance, tokens, config(&dir, &server)?)?);
    server.set_runtime(kubelet.clone());
    println!("export KUBECONFIG={}", server.kubeconfig().display());
    tokio::signal::ctrl_c().await?;
    kubelet.stop().await;
    server.stop().await;
    Ok(())
}

fn config(dir: &Path, server: &Server) -> Result<Config, Box<dyn Error>> {
    let image = |words: &[&str]| Image { entrypoint: words.iter().map(|word| (*word).to_owned()).collect() };
    let mut images = BTreeMap::from([("shell".to_owned(), image(&["sh", "-c"])), ("any".to_owned(), image(&[]))]);
    images.extend(std::env::args().skip(2).map(|name| (name, image(&[]))));
    Ok(Config {
        dir: dir.to_owned(),
        subnet: server.subnet(),
        node: "embedded".to_owned(),
        images,
        env: Vec::new(),
        shim: vec![std::env::current_exe()?.display().to_string(), SHIM.to_owned()],
        api_server: server.url(),
        api_ca_pem: server.ca_pem().to_owned(),
        backoff: Duration::from_secs(10),
        stop_grace: Duration::from_secs(5),
    })
}
