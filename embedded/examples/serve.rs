//! Serves an empty Kubernetes until Ctrl-C: `cargo run -p embedded-kubernetes --example serve -- DIR`.

use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::server::Server;
use embedded_kubernetes::store::Store;
use embedded_kubernetes::tokens::Tokens;
use jiff::Timestamp;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).map(PathBuf::from).ok_or("say where the kubeconfig is to be: serve DIR")?;
    std::fs::create_dir_all(&dir)?;
    let now = Timestamp::now();
    let instance = Arc::new(Instance::new(Store::new(now.as_millisecond().cast_unsigned(), now), Timestamp::now));
    let server = Server::start(instance, Arc::new(Tokens::new()?), &dir).await?;
    println!("export KUBECONFIG={}", server.kubeconfig().display());
    tokio::signal::ctrl_c().await?;
    server.stop().await;
    Ok(())
}
