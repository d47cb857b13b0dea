//! The admin StatefulSet is scaled, restarted and loses pods, while clients write all the time. In each case the voters
//! are in the end the servers that are wanted, what clients were told is linearizable, and nothing acknowledged is lost.
//!
//! What is printed (`-- --nocapture`) are the figures: how long until the group was whole, and the longest time without
//! a commit.

mod group;

use super::cluster::Cluster;
use group::Group;
use std::time::Duration;

/// The longest time without a commit when all are told beforehand.
const ORDINARY: Duration = Duration::from_millis(1500);

fn ordinary(silence: Duration) {
    assert!(silence <= ORDINARY, "no commit for {silence:?}");
}

/// Up, and pods that restart.
pub fn grown_and_restarted(cluster: &mut Cluster) {
    let mut group = Group::watched(cluster, 1);
    ordinary(group.scale(3));
    ordinary(group.roll());
    group.judge("1 -> 3, rolling restart");
}
