"""Faults of a primary, by its processes and by kubectl."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from checker import eventually, psql
from processes import arguments, children, send, tree

LASTS = 10  # seconds
MINUTE = 60
OWN = 100  # MiB of log that only the old primary has
DISK = 4 << 30  # bytes of a small volume, without what is on it: more than the log between two checkpoints
LEFT = 4 << 20  # bytes that are left of one that is full
REVIVED_EVERY = 5  # seconds
# What a kubelet says of a container that it does not start for 10 s or longer.
LONG_WAIT = re.compile(r"back-off (\d+m|\d\ds)")


class Cluster:
    """The processes of a database and its agents, and who leads."""

    def __init__(self, it):
        self.it, self.revived = it, 0

    def revive(self):
        """A kubelet waits up to five minutes before it starts a container that has ended often. That of a new pod it starts at once."""
        if time.monotonic() < self.revived + REVIVED_EVERY:
            return
        self.revived = time.monotonic()
        for pod in json.loads(self.it.kubectl("get", "pods", "--selector=database=shop", "-o", "json"))["items"]:
            name, ending = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
            for it in [] if ending else pod["status"].get("containerStatuses", []):
                waiting = it["state"].get("waiting", {})
                if waiting.get("reason") == "CrashLoopBackOff" and LONG_WAIT.search(waiting.get("message", "")):
                    code = it.get("lastState", {}).get("terminated", {}).get("exitCode")
                    print(f"({name} ended with {code}, waits to start, is replaced)", end=" ", flush=True)
                    # It may have started meanwhile, and then takes a moment to end.
                    self.it.kubectl("delete", "pod", name, "--ignore-not-found")

    def show(self):
        self.revive()
        return json.loads(self.it.kaa("show", "database", "shop", "-o", "json"))

    def primary(self):
        """The pod of the primary, if it is open and a standby confirms its commits."""
        return self.roles()[0]

    def open(self):
        """The pod of the primary, if it is open."""
        for it in self.show()["archives"]:
            if (it["role"]["code"], it["state"]["code"]) == ("primary", "open"):
                return it["pod"]
        raise OSError("no primary is open")

    def generation(self):
        return self.show()["generation"]

    def roles(self):
        """The pod of the primary, and those of standbys that stream, if there are."""
        archives = self.show()["archives"]
        are = lambda role, state: [it["pod"] for it in archives if (it["role"]["code"], it["state"]["code"]) == (role, state)]
        if not are("primary", "open") or not are("standby", "streaming"):
            raise OSError(f"{archives}")
        return are("primary", "open")[0], are("standby", "streaming")

    def whole(self):
        """Whether the primary is open, and all other servers stream."""
        states = sorted(it["state"]["code"] for it in self.show()["archives"])
        return states[0] == "open" and set(states[1:]) == {"streaming"}

    def wrapper(self, pod):
        """The process of a pod's wrapper."""
        return self.it.process("engine", f"KAA_POD={pod}")

    def archive(self, pod):
        [archive] = [it["archive"] for it in self.show()["archives"] if it["pod"] == pod]
        return archive

    def streams(self, pod):
        """Whether its server is a standby that streams, in the sync set or not."""
        return (pod, "streaming") in [(it["pod"], it["state"]["code"]) for it in self.show()["archives"]]

    def server(self, pod):
        """The first process of a pod's server."""
        [server] = [pid for pid in children(self.wrapper(pod)) if arguments(pid)[0].endswith("/postgres")]
        return server

    def part(self, pod, name):
        """A process of a pod's server by the name that it shows."""
        return next(pid for pid in children(self.server(pod)) if f": {name}" in arguments(pid)[0])

    def peers(self):
        return json.loads(self.it.kaa("show", "domain", "-o", "json"))["peers"]

    def leads(self):
        """The agent that leads Raft."""
        for row in self.peers():
            if row["localRoleInfo"]["role"] == "LEADER":
                return row["id"]
        raise OSError("no agent leads")

    def leader(self):
        """Its process."""
        return self.agent(eventually("an agent that leads", self.leads))

    def agents(self):
        return [self.agent(row["id"]) for row in self.peers()]

    def agent(self, name):
        return self.it.process("agent", f"KAA_SERVER={name}")


def paused(pids, lasts=LASTS):
    """Stops processes for a while."""
    send(pids, signal.SIGSTOP)
    try:
        time.sleep(lasts)
    finally:
        send(pids, signal.SIGCONT)


def server(cluster, pod, chance):
    """kill -9 of the server's first process"""
    send([cluster.server(pod)], signal.SIGKILL)


def backend(cluster, pod, chance):
    """kill -9 of one that serves a client"""
    clients = [pid for pid in children(cluster.server(pod)) if ": shop shop " in arguments(pid)[0]]
    send([chance.choice(clients)], signal.SIGKILL)


def container(cluster, pod, chance):
    """kill -9 of the wrapper: its container ends, and with it the server"""
    send([cluster.wrapper(pod)], signal.SIGKILL)


def pod(cluster, pod, chance):
    """kubectl delete pod --force, with kill -9 at once"""
    wrapper = cluster.wrapper(pod)
    cluster.it.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
    send(tree(wrapper), signal.SIGKILL)


def claim(cluster, pod, chance):
    """the same, and the claim is deleted: the pod returns with an empty volume"""
    wrapper = cluster.wrapper(pod)
    cluster.it.kubectl("delete", "pvc", f"archive-volume-{pod}", "--wait=false")
    cluster.it.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
    send(tree(wrapper), signal.SIGKILL)


def stopped(cluster, pod, chance):
    """SIGSTOP of wrapper and server for 10 s: the pod is as lost as on a node that is cut off"""
    paused(tree(cluster.wrapper(pod)))


def agent(cluster, pod, chance):
    """SIGSTOP of wrapper, server and of the agent that leads Raft for 10 s"""
    paused(tree(cluster.wrapper(pod)) + [cluster.leader()])


def frozen(cluster, pod, chance):
    """SIGSTOP of the server for 15 s: its wrapper ends it after 10 s"""
    paused(tree(cluster.server(pod)), 15)


def damaged(cluster, pod, chance):
    """a standby's data is damaged and its server killed, and the primary's server as well: another one gets the grant in the end"""
    standby = chance.choice(cluster.roles()[1])
    # Only the server's user reads it.
    file = f"{cluster.it.volume(standby)}/pgdata/global/pg_filenode.map"
    os.chmod(file, 0)
    try:
        send([cluster.server(standby), cluster.server(pod)], signal.SIGKILL)
        eventually("an open primary", lambda: cluster.open() != standby)
        time.sleep(2)
    finally:
        os.chmod(file, 0o600)


def promoted(cluster, pod, chance):
    """a standby is promoted by hand: it is stopped, and copied"""
    standby = chance.choice(cluster.roles()[1])
    copies = lambda: cluster.it.kaa("explain", "database/shop").count("promoted, and not by Kaa")
    before = copies()
    # As pg_ctl does.
    open(f"{cluster.it.volume(standby)}/pgdata/promote", "w").close()
    send([cluster.server(standby)], signal.SIGUSR1)
    eventually("it is copied", lambda: copies() > before)
    eventually("it streams again", lambda: cluster.streams(standby))


def twice(cluster, pod, chance):
    """kill -9 of the server, and of the next primary's once it is open"""
    server(cluster, pod, chance)
    eventually("another primary", lambda: cluster.primary() != pod)
    server(cluster, cluster.primary(), chance)


def standby(cluster, pod, chance):
    """kill -9 of a standby's wrapper, and of the server a moment later"""
    container(cluster, chance.choice(cluster.roles()[1]), chance)
    time.sleep(3 * chance.random())
    server(cluster, pod, chance)


def checkpointer(cluster, pod, chance):
    """SIGSTOP of the primary's checkpointer for 5 s, while a standby's wrapper is killed: the sync set changes meanwhile"""
    checkpointer = cluster.part(pod, "checkpointer")
    standby = chance.choice(cluster.roles()[1])
    send([checkpointer], signal.SIGSTOP)
    try:
        container(cluster, standby, chance)
        time.sleep(5)
    finally:
        send([checkpointer], signal.SIGCONT)


def ahead(cluster, pod, chance):
    """100 MiB of log that no standby has, while these are stopped; then kill -9 of the wrapper"""
    away = [pid for it in cluster.roles()[1] for pid in tree(cluster.server(it))]
    send(away, signal.SIGSTOP)
    try:
        # In a transaction that never commits, and sooner than the standbys leave the sync set.
        sql = f"BEGIN; INSERT INTO own SELECT repeat('x', 1000) FROM generate_series(1, {OWN * 1000}); SELECT pg_sleep(60)"
        subprocess.run(["timeout", "1.5", psql, "-XqAt", cluster.it.servers()[pod], "-c", sql], capture_output=True)
        send([cluster.wrapper(pod)], signal.SIGKILL)
    finally:
        send(away, signal.SIGCONT)


def setback(cluster, pod, chance):
    """its volume as it was before the last start is put back: its data is not used before `kaa database discard`"""
    volume, archive = cluster.it.volume(pod), cluster.archive(pod)
    # Not beside the volumes: there a kubelet removes what belongs to no claim.
    earlier = os.path.join(cluster.it.work, "earlier")
    replaced(cluster, pod, lambda: subprocess.run(["cp", "-a", volume, earlier], check=True))
    eventually("it streams", lambda: cluster.streams(pod))

    def put_back():
        # Something may be mounted there: then it cannot be renamed.
        for entry in os.scandir(volume):
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.remove(entry)
        subprocess.run(["cp", "-a", f"{earlier}/.", volume], check=True)

    replaced(cluster, pod, put_back)
    shutil.rmtree(earlier)
    unused = f"archive {archive} holds data that the domain knows nothing of"
    eventually("its data is not used", lambda: cluster.show() and unused in cluster.it.kaa("plan"))
    discard = ["database", "discard", "shop", "--archive", str(archive), "--reason", "set back"]
    eventually("its data is given up", lambda: cluster.it.kaa(*discard) or True)
    eventually("it streams again", lambda: cluster.streams(pod))


def replaced(cluster, pod, change):
    """Changes a pod's volume while all of it is stopped, and kills it: its container starts again with that."""
    pids = tree(cluster.wrapper(pod))
    send(pids, signal.SIGSTOP)
    try:
        change()
    finally:
        send(pids, signal.SIGKILL)


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
    fill(cluster, chance.choice(cluster.roles()[1]), False)
    eventually("a standby that streams", cluster.roles)
    empty(cluster, pod)


def fill(cluster, pod, leads):
    """Gives a pod a small volume if it has none, and fills it once the pod leads, or is a standby that streams. Its directory."""
    volume = cluster.it.volume(pod)

    def smaller():
        os.rename(volume, f"{volume}.large")
        os.mkdir(volume)
        shutil.copystat(f"{volume}.large", volume)
        used = int(subprocess.run(["du", "-sb", f"{volume}.large"], check=True, capture_output=True, text=True).stdout.split()[0])
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={used + DISK}", "kaa-test", volume], check=True)
        subprocess.run(["cp", "-a", f"{volume}.large/.", volume], check=True)

    if not os.path.ismount(volume):
        replaced(cluster, pod, smaller)
        eventually("it streams", lambda: cluster.streams(pod))
        if leads:
            eventually("an open primary", cluster.primary)
            cluster.it.kaa("switchover", "shop", "--to", pod, "--wait", "--reason", "a test")
    eventually("its role", lambda: cluster.primary() == pod if leads else cluster.streams(pod))
    fill_up(volume, cluster.it.primary_url())
    return volume


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


def wrapper(cluster, pod, chance):
    """SIGSTOP of the wrapper for 10 s: the standbys hear its server, and nothing moves"""
    paused([cluster.wrapper(pod)])


def postmaster(cluster, pod, chance):
    """SIGSTOP of the server's first process for 10 s: sessions are served, and no new ones"""
    paused([cluster.server(pod)])


def agents(cluster, pod, chance):
    """SIGSTOP of all agents for 10 s, or for a minute: nothing moves, and clients notice nothing"""
    paused(cluster.agents(), chance.choice([LASTS, LASTS, MINUTE]))


# Another one is the primary afterwards, or the same one, or either.
MOVE = [server, backend, container, pod, claim, stopped, agent, frozen, setback, full]
STAY = [wrapper, agents, promoted]
FAULTS = {fault.__name__: fault for fault in MOVE + STAY + [twice, damaged, standby, ahead, checkpointer, postmaster, full_standby]}
# They mount something.
MOUNT = {"full", "full_standby"}
# A process that was paused may answer a reader before it can close.
PAUSES = {"stopped", "agent", "frozen", "wrapper", "postmaster"}
