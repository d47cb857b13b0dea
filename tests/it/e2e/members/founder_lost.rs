//! The founder of an epoch loses its volume after the anchor names it and before it has founded the epoch.

use super::group::{Change, Group, server};
use super::killed::arm;
use crate::domain::cluster::Cluster;
use kaa::failpoints::Point;
use std::time::Duration;

/// Until every server has all writes: a few round trips.
const SETTLED: Duration = Duration::from_secs(1);

/// How many servers there are at first.
const SERVERS: u32 = 5;

/// How long the test checks that no epoch is founded: longer than an agent takes to read the anchor and to decide.
const UNFOUNDED: Duration = Duration::from_secs(5);

/// Three of five servers are lost, and an operator makes the two that are left continue; the one that is to found the
/// epoch loses its volume. The other has retired its log; both wait, and report that. An operator names the retired
/// log: the domain continues with all that is in that log, and the other servers join.
pub fn founded_from_what_was_retired(cluster: &mut Cluster) {
    cluster.admins(SERVERS);
    let mut group = Group::watched(cluster, SERVERS);
    let before = group.logs();
    // No client writes, so that every log has all acknowledged writes: whichever log the domain continues with must
    // have them.
    group.rest(true);
    std::thread::sleep(SETTLED);
    let change = group.begin("5 -> 2, three lost, recover, the founder's volume lost, founded from a retired log");
    let (founder, other) = who_goes_on(&mut group, cluster, &change);
    // The founder stops after it has swapped the anchor and before it founds the epoch. This process never continues.
    arm(cluster, &founder, "stops", &format!("={}", Point::AnchorSwapped.name()));
    let address = group.address(&other).expect("a pod");
    let refused = std::thread::scope(|scope| {
        // The other server gets the command, and passes it on to the founder.
        let asked = scope.spawn(|| cluster.kaa_within(&other, &address, "recover --accept-data-loss --yes"));
        let moved = || group.epoch() > change.epoch();
        group.until("the anchor to name the founder", || if moved() { Ok(()) } else { Err("it does not".to_owned()) });
        without_its_volume(&mut group, cluster, &founder, &other);
        asked.join().expect("no panic").expect_err("the founder is gone before it has answered")
    });
    assert!(!refused.is_empty());
    let place = format!("{other}/{}", retired(&group, &other, &before[&other]));
    wait_and_say_so(&group, &change, &founder, &other);
    listed_and_refused(&group, &founder, &other, &place);
    // Any server may get the command: it passes it on to the server that has the log.
    let begun = group.recover(&founder, &format!("--from-retired-log {place} --accept-data-loss --yes")).expect("done");
    assert!(begun.contains(&format!("Epoch {} begins with the log {place}", change.epoch() + 2)), "{begun}");
    assert!(begun.contains("Lost: whatever was committed after entry "), "{begun}");
    group.rest(false);
    change.founded_in(&group, 2);
    let now = group.logs();
    assert_eq!(now[&other], before[&other], "the log that was named votes");
    assert_ne!(now[&founder], before[&founder], "the one that was lost does not");
    let kept = group.retired(&other);
    assert!(kept.iter().any(|name| name.starts_with("retired-2-")), "what it had till then is kept: {kept:?}");
    assert!(!kept.iter().any(|name| place.ends_with(name.as_str())), "the log is in its place: {kept:?}");
    cluster.says("explain domain", "whatever was committed after entry");
    cluster.says("explain domain", "loopback");
    group.back_from_the_past(3);
    group.judge();
}

/// Three servers are lost. Returns the name of the server that would found the epoch, and of the other one that is
/// left.
fn who_goes_on(group: &mut Group<'_>, cluster: &Cluster, change: &Change) -> (String, String) {
    let left = [server(0), server(1)];
    group.stop(&[server(2), server(3), server(4)]);
    group.ask_for(2);
    // The pod of the first lost server stays, so that the founder has to wait for a server.
    [server(3), server(4)].iter().for_each(|lost| cluster.force_delete_pod(lost));
    group.until("it to be told who would go on", || {
        let shown = group.recover(&left[1], "--dry-run")?;
        if shown.contains("Would continue: ") { Ok(()) } else { Err(shown) }
    });
    let shown = group.recover(&left[1], "--dry-run").expect("an answer");
    let founder = left.iter().find(|server| shown.contains(&format!("Would continue: {server}"))).expect("one of them");
    let other = left.iter().find(|server| *server != founder).expect("another");
    // Standard input is empty, as where there is no terminal.
    let refused = group.recover(other, "--accept-data-loss").expect_err("it was not confirmed");
    assert!(refused.contains("is not the name of the domain: nothing was changed"), "{refused}");
    assert_eq!(group.epoch(), change.epoch(), "it was only shown");
    (founder.clone(), other.clone())
}

/// All pods end and start again; the founder's pod gets a new volume.
fn without_its_volume(group: &mut Group<'_>, cluster: &Cluster, founder: &str, other: &str) {
    group.ask_for(0);
    [founder, &server(2)].iter().for_each(|pod| cluster.force_delete_pod(pod));
    [founder, other, &server(2)].iter().for_each(|pod| cluster.pod_gone(pod));
    cluster.delete_claim(&format!("raftlog-{founder}"));
    group.ask_for(2);
}

/// The directory of this log, once the server has retired it.
fn retired(group: &Group<'_>, server: &str, log: &str) -> String {
    let name = format!("retired-1-{log}");
    group.until("the log of the one that does not found to be retired", || match group.retired(server) {
        kept if kept.contains(&name) => Ok(()),
        kept => Err(format!("{kept:?}")),
    });
    name
}

fn wait_and_say_so(group: &Group<'_>, change: &Change, founder: &str, other: &str) {
    for server in [founder, other] {
        group.until("it to be said what is waited for", || {
            let ready = group.readiness(server).unwrap_or_default();
            let says = ready.contains("readyz check failed")
                && ready.contains("this server's log is empty, and waits for a leader of its epoch")
                && ready.contains("kaa recover --dry-run lists the logs of earlier epochs");
            if says { Ok(()) } else { Err(format!("{server}: {ready}")) }
        });
    }
    let writes = group.acknowledged();
    std::thread::sleep(UNFOUNDED);
    assert_eq!((group.epoch(), group.acknowledged()), (change.epoch() + 1, writes), "nobody founds by itself");
}

fn listed_and_refused(group: &Group<'_>, founder: &str, other: &str, place: &str) {
    for asked in [founder, other] {
        let shown = group.recover(asked, "--dry-run").expect("an answer");
        assert!(shown.contains(&format!("  {place}: log ")) && shown.contains(" of epoch 1, up to entry "), "{shown}");
        assert!(shown.contains("Would be refused: no wanted server answers with a log"), "{shown}");
        let shown = group.recover(asked, &format!("--dry-run --from-retired-log {place}")).expect("an answer");
        assert!(shown.contains(&format!("Would continue: {other}, with the log {place} up to entry ")), "{shown}");
        let wrong = format!("--from-retired-log {other}/retired-1-1 --accept-data-loss --yes");
        let refused = group.recover(asked, &wrong).expect_err("there is none");
        assert!(refused.contains(&format!("{other} has no retired log retired-1-1; it has ")), "{refused}");
    }
}
