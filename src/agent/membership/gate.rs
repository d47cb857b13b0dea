//! Passes the gate: before Raft starts, what the volume holds is compared with the anchor.

use super::{gone, quorum_override};
use crate::agent::{Stay, Storage};
use crate::config::{BACKOFF, Config};
use crate::failpoints::{self, Point};
use crate::kubernetes::anchor::{self, Creation, Swap};
use crate::kubernetes::{Kubernetes, lease};
use crate::raft::{self, Host, Node, Volume};
use kaa_core::domain::change::{self, Command};
use kaa_core::domain::command::{Actor, Request, Role};
use kaa_core::domain::ids::{DomainId, MembershipEpoch, ServerId};
use kaa_core::membership::clusters::{EntryPoint, follows, gate_elsewhere, latest};
use kaa_core::membership::{Anchor, Gate, LocalLog, Seen, Traces, gate, seen};
use std::time::Duration;
use tracing::{info, warn};

/// How long the gate waits before it tries a volume again that its last user has not released yet.
const IN_USE_RETRY: Duration = Duration::from_millis(100);
/// How often.
const IN_USE_TRIES: u32 = 50;

/// What the gate is passed with.
pub struct Pass<'a> {
    pub config: &'a Config,
    pub kubernetes: &'a Kubernetes,
    pub links: &'a raft::Peers,
    pub host: &'a Host,
    /// Reports what the gate waits for.
    pub waits: &'a (dyn Fn(String) + Sync),
}

impl Pass<'_> {
    /// Our own place.
    pub fn node(&self) -> Node {
        let address = self.config.peer_address(self.kubernetes.namespace(), self.config.ordinal);
        Node { server: self.config.server.to_string(), address }
    }

    /// Shows the others whose log lies on the volume, and whether it is sealed.
    fn show(&self, volume: &Volume) {
        let local = volume.local_log();
        self.host.set_sealed(local.sealed.then(|| volume.extent()));
        self.host.set_extent(volume.extent());
        self.host.set_local_log(local);
    }

    /// Waits a moment, and seals the log if another agent asks for that meanwhile.
    async fn pause(&self, volume: &mut Volume, pause: Duration) -> Result<(), raft::volume::Error> {
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            server = self.host.asked_to_seal() => {
                info!("{server} asks to seal this log: a quorum override is in progress");
                volume.seal()?;
                self.show(volume);
                Ok(())
            }
        }
    }

    fn say(&self, said: &mut String, why: String) {
        if *said != why {
            warn!("Raft does not start yet: {why}");
            said.clone_from(&why);
            (self.waits)(why);
        }
    }
}

/// Opens the volume. The process's own last Raft may take a moment to let go of it.
pub async fn open(storage: &Storage) -> Result<Volume, raft::volume::Error> {
    for _ in 0..IN_USE_TRIES {
        match storage() {
            Err(raft::volume::Error::InUse { .. }) => tokio::time::sleep(IN_USE_RETRY).await,
            opened => return opened,
        }
    }
    storage()
}

/// Passes the gate: returns once this volume's log may start. Says why while it does not.
pub async fn pass_gate(pass: &Pass<'_>, volume: &mut Volume, stay: Stay) -> anyhow::Result<()> {
    let Pass { config, kubernetes, .. } = *pass;
    pass.show(volume);
    let local = volume.local_log();
    // A Raft that stopped within this process saw something that the anchor has to explain.
    let passed = stay == Stay::Begins && volume.gate_passed() == Some(config.pod_uid.as_str());
    if passed && local.domain.is_some() && !local.sealed {
        info!("the container restarted in a pod that has passed the gate already: starting Raft");
        return Ok(());
    }
    let mut said = String::new();
    let mut others = gone::Others::default();
    loop {
        let (read, traces) = match read(pass, volume).await {
            Ok(read) => read,
            Err(why) => {
                pass.say(&mut said, why);
                pass.pause(volume, BACKOFF).await?;
                continue;
            }
        };
        match decide(pass, volume, read.as_ref(), &traces).await {
            writes @ (Gate::CreateAnchor | Gate::CopyAnchor(_) | Gate::FollowAnchor(_)) => {
                if let Err(why) = write_anchor(config, kubernetes, volume, writes).await {
                    // Unclear: the gate reads again, and finds itself as the founder if it was made after all.
                    pass.say(&mut said, why);
                    pass.pause(volume, BACKOFF).await?;
                }
            }
            Gate::Found(anchor) => {
                if let Err(why) = found(pass, volume, &anchor, &mut others).await? {
                    pass.say(&mut said, why);
                    pass.pause(volume, BACKOFF / 2).await?;
                }
            }
            Gate::Start => {
                volume.set_gate_passed(config.pod_uid.as_str())?;
                return Ok(());
            }
            Gate::Join(anchor) => {
                if volume.bring_back(&anchor)? {
                    warn!("using retired log {} again: the anchor names it as founder", anchor.founder);
                    others = gone::Others::default();
                } else {
                    info!("joining domain {} in epoch {} with an empty log", anchor.domain, anchor.epoch);
                    volume.retire_log(&anchor)?;
                }
                pass.show(volume);
            }
            Gate::Override => {
                if let Err(why) = quorum_override::round(pass, volume).await {
                    pass.say(&mut said, why);
                    pass.pause(volume, BACKOFF / 2).await?;
                }
            }
            Gate::Wait(why) => {
                pass.say(&mut said, why.to_string());
                pass.pause(volume, BACKOFF).await?;
            }
            Gate::Refuse(why) => {
                pass.say(&mut said, why.to_string());
                pass.pause(volume, BACKOFF * 10).await?;
            }
        }
    }
}

/// Decides by the anchor, and in another cluster than the entry point by what is said there.
async fn decide(pass: &Pass<'_>, volume: &Volume, anchor: Option<&Anchor>, traces: &Traces) -> Gate {
    let local = volume.local_log();
    match &pass.config.entrypoint {
        None => gate(anchor, &local, traces),
        Some(addresses) => gate_elsewhere(anchor, &local, traces, entry_point(pass.links, addresses).await.as_ref()),
    }
}

/// What the agents of the entry point say, if one answers that has a domain.
async fn entry_point(links: &raft::Peers, addresses: &[String]) -> Option<EntryPoint> {
    let asked = addresses.iter().map(|address| links.status(address));
    let answered = futures::future::join_all(asked).await.into_iter().flatten();
    // One without a quorum may hold a log that was left behind.
    let has_domain = answered.filter(|said| !said.domain.is_empty() && said.epoch > 0 && said.quorum);
    latest(has_domain.map(|said| EntryPoint { domain: said.domain.into(), epoch: MembershipEpoch(said.epoch) }))
}

/// Reads what the gate is passed by: the anchor, and where there is none what speaks for a domain that was here.
async fn read(pass: &Pass<'_>, volume: &Volume) -> Result<(Option<Anchor>, Traces), String> {
    let read = anchor::read(pass.kubernetes, &pass.config.anchor_name()).await;
    let read =
        read.map_err(|error| format!("the anchor could not be read: {}", error.to_line()))?.map(|(anchor, _)| anchor);
    let empty = read.is_none() && volume.local_log().domain.is_none();
    Ok((read, if empty { traces(pass).await? } else { Traces::default() }))
}

/// Founds the anchor's epoch. If an operator gave up data for it, only once no server can commit in the epoch before, and this is
/// the first that the epoch decides on: no primary is granted as if the domain had lost nothing. The inner `Err` says what the
/// founder waits for.
async fn found(
    pass: &Pass<'_>,
    volume: &mut Volume,
    anchor: &Anchor,
    others: &mut gone::Others,
) -> Result<Result<(), String>, raft::volume::Error> {
    let ready = async {
        if !anchor.lossy {
            return Ok(None);
        }
        gone::all_gone(pass, volume, anchor, others).await?;
        loss(pass, anchor).await.map(Some)
    };
    let first = match ready.await {
        Ok(first) => first,
        Err(why) => return Ok(Err(why)),
    };
    info!("founding epoch {} of domain {} with log {}", anchor.epoch, anchor.domain, anchor.founder);
    volume.found(anchor, &pass.node(), first)?;
    pass.show(volume);
    Ok(Ok(()))
}

/// Which operator gave up which data for the anchor's epoch, as the anchor has it.
async fn loss(pass: &Pass<'_>, anchor: &Anchor) -> Result<Request, String> {
    let read = anchor::read_loss(pass.kubernetes, &pass.config.anchor_name()).await;
    match read.map_err(|error| format!("the accepted loss could not be read: {}", error.to_line()))? {
        Some((epoch, anchor::Loss { by, at, founder, lost })) if epoch == anchor.epoch => Ok(Request {
            actor: Actor { role: Role::Operator, name: by },
            command: Command::AcceptLoss(change::AcceptLoss { epoch, founder, at, lost }),
        }),
        _ => Err("the anchor changed: reading it again".to_owned()),
    }
}

/// Looks for what speaks for a domain that was here, where there is no anchor; and whether this is the first server.
async fn traces(pass: &Pass<'_>) -> Result<Traces, String> {
    let Pass { config, kubernetes, links, .. } = *pass;
    // `spec.ordinals.start` may have moved the first one away from 0.
    let wanted = quorum_override::wanted(kubernetes, config).await.unwrap_or(0..config.ordinal + 1);
    let resync = config.resync_name();
    let there = lease::exists(kubernetes, &resync).await;
    let there = there.map_err(|error| format!("the resync Lease could not be read: {}", error.to_line()))?;
    let others = wanted.clone().filter(|ordinal| *ordinal != config.ordinal);
    let addresses = others.map(|ordinal| config.peer_address(kubernetes.namespace(), ordinal));
    let asked = addresses.map(|address| async move { links.status(&address).await });
    let heard = futures::future::join_all(asked).await.into_iter().flatten();
    let answered = heard.filter(|status| !status.domain.is_empty());
    Ok(Traces {
        first: config.ordinal == wanted.start,
        lease: there.then_some(resync),
        answered: answered.map(|said| (ServerId::from(said.server.as_str()), said.domain.into())).collect(),
    })
}

/// Creates or changes the anchor as the gate says.
async fn write_anchor(config: &Config, kubernetes: &Kubernetes, volume: &Volume, gate: Gate) -> Result<(), String> {
    match gate {
        Gate::CopyAnchor(anchor) => create_anchor(config, kubernetes, &anchor).await,
        Gate::FollowAnchor(anchor) => follow_entry_point(config, kubernetes, &anchor).await,
        _ => {
            let founder = volume.local_log().raft_id;
            let anchor = Anchor { domain: new_domain_id(), epoch: MembershipEpoch(1), founder, lossy: false };
            create_anchor(config, kubernetes, &anchor).await
        }
    }
}

async fn create_anchor(config: &Config, kubernetes: &Kubernetes, anchor: &Anchor) -> Result<(), String> {
    match anchor::create(kubernetes, &config.anchor_name(), anchor, &config.server).await {
        Ok(Creation::Created(_)) => {
            failpoints::pass(Point::AnchorCreated);
            let new = if config.entrypoint.is_none() { "the new domain" } else { "domain" };
            info!("created anchor {} for {new} {}", config.anchor_name(), anchor.domain);
        }
        Ok(Creation::AlreadyThere) => {}
        Err(error) => return Err(format!("the anchor could not be created: {}", error.to_line())),
    }
    Ok(())
}

/// Has the anchor of this cluster name the epoch that the entry point has founded.
async fn follow_entry_point(config: &Config, kubernetes: &Kubernetes, next: &Anchor) -> Result<(), String> {
    let followed = anchor::follow(kubernetes, &config.anchor_name(), next, &config.server).await;
    if followed.map_err(|error| format!("the anchor could not be changed: {}", error.to_line()))? == Swap::Swapped {
        info!("the entry point has founded epoch {}: the anchor {} names it now", next.epoch, config.anchor_name());
    }
    Ok(())
}

fn new_domain_id() -> DomainId {
    format!("{:016x}{:016x}", crate::clock::random_u64(), crate::clock::random_u64()).into()
}

/// Reads the anchor for an agent whose Raft runs. `asks`: in another cluster than the entry point, whether the entry point has founded
/// a later epoch; the anchor follows.
pub async fn look(
    config: &Config,
    kubernetes: &Kubernetes,
    links: &raft::Peers,
    local: &LocalLog,
    asks: bool,
) -> Result<Seen, String> {
    let read = async || anchor::read(kubernetes, &config.anchor_name()).await.map_err(|error| error.to_line());
    let mut found = read().await?.map(|(anchor, _)| anchor);
    if let (Some(known), Some(addresses), true) = (&found, &config.entrypoint, asks)
        && let Some(next) = follows(known, entry_point(links, addresses).await.as_ref())
    {
        follow_entry_point(config, kubernetes, &next).await?;
        found = read().await?.map(|(anchor, _)| anchor);
    }
    Ok(seen(found.as_ref(), local))
}
