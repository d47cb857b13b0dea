"""Faults of the disk of a primary or a standby. They mount something, so that only root can play them."""

import contextlib
import errno
import os
import signal
import subprocess
import time

from checker import eventually, psql
from faults import paused, replaced, server

ROOM = 4 << 30  # bytes of a small volume, without what is on it: more than the log between two checkpoints
LEFT = 4 << 20  # bytes that are left of one that is full
HANGS = 20  # seconds


def full(cluster, pod, chance):
    """its volume is full: PostgreSQL ends, and another takes over until there is room"""
    volume = fill(cluster, pod, True)

    def moved():
        # A checkpoint may have made room.
        fill_up(volume, cluster.it.servers()[pod])
        return cluster.primary() != pod

    eventually("another primary", moved)
    empty(cluster, pod)


def full_standby(cluster, pod, chance):
    """the volume of a standby is full: its PostgreSQL ends until there is room"""
    standby = chance.choice(cluster.roles()[1])
    fill(cluster, standby, False)
    eventually("its server ends", lambda: not cluster.streams(standby))
    eventually("a standby that streams", cluster.roles)
    empty(cluster, pod)


def hung(cluster, pod, chance):
    """the disk of its volume hangs for 20 s: another takes over, although none of its processes can be ended"""
    with hanging(own_disk(cluster, pod, True)):
        eventually("another primary", lambda: cluster.primary() != pod)


def hung_standby(cluster, pod, chance):
    """the disk of a standby's volume hangs for 20 s: it leaves the sync set"""
    for other in sorted(set(cluster.it.servers()) - {pod}):
        own_disk(cluster, other, False)
    standby = chance.choice(eventually("a standby that counts", cluster.roles)[1])
    with hanging(cluster.it.volume(standby)):
        eventually("it leaves the sync set", lambda: standby not in cluster.roles()[1])
    eventually("it streams again", lambda: cluster.streams(standby))


def hung_leader(cluster, pod, chance):
    """the disk of the Raft leader's volume hangs for 20 s, and the server is killed meanwhile: the others' disks suffice"""
    pod = agents_on_disks(cluster)
    with hanging(cluster.it.data_of(cluster.leader())):
        time.sleep(HANGS / 3)
        server(cluster, pod, chance)
        eventually("another primary", lambda: cluster.primary() != pod)


def hung_voter(cluster, pod, chance):
    """the same, and another agent leads since a moment before: the one whose disk hangs cannot write its vote, and learns nothing more"""
    pod, leader = agents_on_disks(cluster), eventually("a leader", cluster.leads)

    def another_leads():
        # What hangs may not know it.
        return any(it["localRoleInfo"]["role"] == "LEADER" and it["id"] != leader for it in cluster.peers())

    agent = cluster.agent(leader)
    with hanging(cluster.it.data_of(agent)):
        paused([agent], 5)
        eventually("another leader", another_leads)
        time.sleep(HANGS / 3)
        server(cluster, pod, chance)
        eventually("another primary", lambda: cluster.primary() != pod)


def agents_on_disks(cluster):
    """Gives each agent a disk of its own, and returns the pod of the primary."""

    def are_there():
        return all(it["localRoleInfo"]["role"] in ("LEADER", "FOLLOWER") for it in cluster.peers())

    for name in [row["id"] for row in cluster.peers()]:
        agent = cluster.agent(name)
        if on_own_disk(cluster, agent, cluster.it.data_of(agent)):
            eventually("another process of the agent", lambda: cluster.agent(name) != agent)
            eventually("all agents", are_there)
    pod = eventually("an open primary", cluster.primary)
    cluster.it.paused()
    return pod


@contextlib.contextmanager
def hanging(volume):
    """Lets nothing be written to a volume during this block, and for a while at least."""
    ends = time.monotonic() + HANGS
    # What hangs cannot be unmounted: should this program be killed, another one ends that.
    guard = subprocess.Popen(["sh", "-c", f"sleep {4 * HANGS}; fsfreeze --unfreeze {volume}"], start_new_session=True)
    try:
        subprocess.run(["fsfreeze", "--freeze", volume], check=True)
        yield
        time.sleep(max(0, ends - time.monotonic()))
    finally:
        thawed = subprocess.run(["fsfreeze", "--unfreeze", volume], capture_output=True, text=True)
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
    if thawed.returncode:
        raise OSError(f"its disk did not hang for so long: {thawed.stderr}")


def fill(cluster, pod, leads):
    """Fills a pod's volume. Its directory."""
    volume = own_disk(cluster, pod, leads)
    fill_up(volume, cluster.it.primary_url())
    return volume


def own_disk(cluster, pod, leads):
    """Gives a pod a small volume of its own if it has none, and waits until the pod leads, or is a standby that streams. Its directory."""
    volume = cluster.it.volume(pod)
    if on_own_disk(cluster, cluster.wrapper(pod), volume):
        eventually("it streams", lambda: cluster.streams(pod))
        if leads:
            eventually("an open primary", cluster.primary)
            cluster.it.kaa("switchover", "shop", "--to", pod, "--wait", "--reason", "a test")
        # This is no part of the fault.
        cluster.it.paused()
    eventually("its role", lambda: cluster.primary() == pod if leads else cluster.streams(pod))
    return volume


def on_own_disk(cluster, pid, volume):
    """Gives the volume of a wrapper or an agent a small disk of its own, and whether it had none: then its container starts again."""
    if os.path.ismount(volume):
        return False

    def smaller():
        used = int(subprocess.run(["du", "-sb", volume], check=True, capture_output=True, text=True).stdout.split()[0])
        # In memory: what it costs is no load of the machine's own disk.
        disks = os.path.join(cluster.it.work, "disks")
        if not os.path.ismount(disks):
            os.mkdir(disks)
            subprocess.run(["mount", "-t", "tmpfs", "kaa-test", disks], check=True)
        disk = os.path.join(disks, os.path.basename(volume))
        with open(disk, "wb") as file:
            file.truncate(used + ROOM)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", disk], check=True)
        os.rename(volume, f"{volume}.large")
        os.mkdir(volume)
        subprocess.run(["mount", "-o", "loop,discard", disk, volume], check=True)
        subprocess.run(["cp", "-a", f"{volume}.large/.", volume], check=True)

    replaced(pid, smaller)
    return True


def fill_up(volume, url):
    """Fills it but for a little, and lets the server at a URL write log."""

    def more():
        space = os.statvfs(volume)
        return space.f_bavail * space.f_bsize - LEFT

    with open(f"{volume}/filler", "ab") as filler:
        # The server may take some of it at the same time.
        while (room := more()) > 0:
            try:
                os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, room)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    # Log, and nothing else.
    sql = "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000)) FROM generate_series(1, 800)"
    subprocess.run([psql, "-XqAt", url, "-c", sql], capture_output=True)


def empty(cluster, pod):
    """There is room again."""
    for it in cluster.it.servers():
        filler = f"{cluster.it.volume(it)}/filler"
        if os.path.exists(filler):
            os.remove(filler)
            eventually("it streams again", lambda: cluster.streams(it))


MOVE = [full, hung, hung_leader, hung_voter]
FAULTS = {fault.__name__: fault for fault in [*MOVE, full_standby, hung_standby]}
