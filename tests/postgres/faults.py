"""Faults of a primary, by its processes and by kubectl."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from checker import eventually, psql
from processes import arguments, children, is_first, send, tree

LASTS = 10  # seconds
MINUTE = 60
CROWD = 120  # clients, more than `max_connections`
OWN = 100  # MiB of log that only the old primary has
REVIVED_EVERY = 5  # seconds
# What a kubelet says of a container that it does not start for 10 s or longer.
LONG_WAIT = re.compile(r"back-off (\d+m|\d\ds)")


# Seconds within which a server closes whose lease ended while its machine was stopped: 0.6, and more on a machine with other work.
CLOSES = 2


class Cluster:
    """The processes of a database and its agents, and who leads."""

    def __init__(self, it):
        self.it, self.revived = it, 0
        # When a wrapper was killed that is not the first process of a container.
        self.kills = []
        # From and to when a reader may have seen an old state at a server that was stopped.
        self.stale = []

    def revive(self):
        """A kubelet waits up to five minutes before it starts a container that has ended often. That of a new pod it starts at once."""
        if time.monotonic() < self.revived + REVIVED_EVERY:
            return
        self.revived = time.monotonic()
        for pod in json.loads(self.it.kubectl("get", "pods", "-o", "json"))["items"]:
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


def halted(cluster, pids, lasts=LASTS, shows=False):
    """Stops processes of a server for a while. When they run on, a session may show an old state until the wrapper has closed the server; if it
    `shows`, meanwhile as well: the server runs, and no wrapper could close it."""
    began = time.monotonic()
    paused(pids, lasts)
    resumed = time.monotonic()
    cluster.stale.append((began if shows else resumed - 0.1, resumed + CLOSES))


def end(cluster, wrapper, pids=lambda wrapper: [wrapper], delete=lambda: None):
    """Kills the wrapper of the primary, or all of these, at once after something is deleted. If it is the first process of a container, the kernel
    ends all of that with it. Otherwise the other processes of the server notice the end."""
    first = is_first(wrapper)
    delete()
    if not first:
        cluster.kills.append(time.monotonic())
    send(pids(wrapper), signal.SIGKILL)


def server(cluster, pod, chance):
    """kill -9 of the server's first process"""
    send([cluster.server(pod)], signal.SIGKILL)


def backend(cluster, pod, chance):
    """kill -9 of one that serves a client"""
    clients = [pid for pid in children(cluster.server(pod)) if ": shop shop " in arguments(pid)[0]]
    send([chance.choice(clients)], signal.SIGKILL)


def container(cluster, pod, chance):
    """kill -9 of the wrapper: its container ends, and with it the server"""
    end(cluster, cluster.wrapper(pod))


def pod(cluster, pod, chance):
    """kubectl delete pod --force, with kill -9 at once"""
    delete = lambda: cluster.it.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
    end(cluster, cluster.wrapper(pod), tree, delete)


def claim(cluster, pod, chance):
    """the same, and the claim is deleted: the pod returns with an empty volume"""

    def delete():
        cluster.it.kubectl("delete", "pvc", f"archive-volume-{pod}", "--wait=false")
        cluster.it.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")

    end(cluster, cluster.wrapper(pod), tree, delete)


def stopped(cluster, pod, chance):
    """SIGSTOP of wrapper and server for 10 s: the pod is as lost as on a node that is cut off"""
    halted(cluster, tree(cluster.wrapper(pod)))


def agent(cluster, pod, chance):
    """SIGSTOP of wrapper, server and of the agent that leads Raft for 10 s"""
    halted(cluster, tree(cluster.wrapper(pod)) + [cluster.leader()])


def frozen(cluster, pod, chance):
    """SIGSTOP of the server for 15 s: its wrapper ends it after 10 s"""
    halted(cluster, tree(cluster.server(pod)), 15)


def damaged(cluster, pod, chance):
    """a standby's data is damaged and its server killed, and the primary's server as well: another one gets the grant in the end"""
    standby = chance.choice(cluster.roles()[1])
    # Only the server's user reads it.
    file = f"{cluster.it.volume(standby)}/pgdata/global/pg_filenode.map"
    os.chmod(file, 0)
    try:
        before = cluster.generation()
        send([cluster.server(standby), cluster.server(pod)], signal.SIGKILL)
        eventually("another one is the primary", lambda: cluster.generation() > before and cluster.open() != standby)
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
    # The next one that is promoted by hand takes the same number.
    eventually("its own history is gone", lambda: not histories_after(cluster.it.volume(standby), cluster.generation()), 300)
    eventually("it streams again", lambda: cluster.streams(standby))


def histories_after(volume, generation):
    """The timelines of later numbers that a server has; a history without content only keeps a number from being used."""
    histories = glob.glob(f"{volume}/pgdata/pg_wal/*.history")
    return [it for it in histories if int(os.path.basename(it)[:8], 16) > generation and os.path.getsize(it)]


def twice(cluster, pod, chance):
    """kill -9 of the server, and of the next primary's once it is open"""
    server(cluster, pod, chance)
    eventually("another primary", lambda: cluster.primary() != pod)
    server(cluster, cluster.primary(), chance)


def standby(cluster, pod, chance):
    """kill -9 of a standby's wrapper, and of the server a moment later"""
    send([cluster.wrapper(chance.choice(cluster.roles()[1]))], signal.SIGKILL)
    time.sleep(3 * chance.random())
    server(cluster, pod, chance)


def checkpointer(cluster, pod, chance):
    """SIGSTOP of the primary's checkpointer for 5 s, while a standby's wrapper is killed: the sync set changes meanwhile"""
    checkpointer = cluster.part(pod, "checkpointer")
    standby = chance.choice(cluster.roles()[1])
    send([checkpointer], signal.SIGSTOP)
    try:
        send([cluster.wrapper(standby)], signal.SIGKILL)
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
        end(cluster, cluster.wrapper(pod))
    finally:
        send(away, signal.SIGCONT)


def setback(cluster, pod, chance):
    """its volume as it was before the last start is put back: its data is not used before `kaa database discard`"""
    volume, archive = cluster.it.volume(pod), cluster.archive(pod)
    # Not beside the volumes: there a kubelet removes what belongs to no claim.
    earlier = os.path.join(cluster.it.work, "earlier")
    replaced(cluster.wrapper(pod), lambda: subprocess.run(["cp", "-a", volume, earlier], check=True))
    eventually("it streams", lambda: cluster.streams(pod))

    def put_back():
        # Something may be mounted there: then it cannot be renamed.
        for entry in os.scandir(volume):
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.remove(entry)
        subprocess.run(["cp", "-a", f"{earlier}/.", volume], check=True)

    replaced(cluster.wrapper(pod), put_back)
    shutil.rmtree(earlier)
    unused = f"archive {archive} holds data that the domain knows nothing of"
    eventually("its data is not used", lambda: cluster.show() and unused in cluster.it.kaa("plan"))
    discard = ["database", "discard", "shop", "--archive", str(archive), "--reason", "set back"]
    eventually("its data is given up", lambda: cluster.it.kaa(*discard) or True)
    eventually("it streams again", lambda: cluster.streams(pod))


def replaced(pid, change):
    """Changes the volume of a wrapper or an agent while all of it is stopped, and kills it: its container starts again with that."""
    pids = tree(pid)
    send(pids, signal.SIGSTOP)
    try:
        change()
    finally:
        send(pids, signal.SIGKILL)


def wrapper(cluster, pod, chance):
    """SIGSTOP of the wrapper for 10 s: the standbys hear its server, and nothing moves"""
    halted(cluster, [cluster.wrapper(pod)], shows=True)


def postmaster(cluster, pod, chance):
    """SIGSTOP of the server's first process for 10 s: sessions are served, and no new ones"""
    halted(cluster, [cluster.server(pod)])


def shut(cluster, pod, chance):
    """the same until another one takes over, which is after half a minute"""
    server = cluster.server(pod)
    send([server], signal.SIGSTOP)
    try:
        eventually("another primary", lambda: cluster.primary() != pod)
    finally:
        send([server], signal.SIGCONT)


def smart(cluster, pod, chance):
    """SIGTERM of the server, as `pg_ctl stop -m smart`: it lets no new session in, and waits for those that it has"""
    send([cluster.server(pod)], signal.SIGTERM)
    eventually("another primary", lambda: cluster.primary() != pod)


def crowd(cluster, pod, chance):
    """clients take all sessions for 15 s, and a standby's wrapper is killed meanwhile: the sync set changes, and nothing moves"""
    command = ["timeout", "15", psql, "-XqAt", cluster.it.servers()[pod], "-c", "SELECT pg_sleep(15)"]
    crowd = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(CROWD)]
    try:
        time.sleep(3)
        send([cluster.wrapper(chance.choice(cluster.roles()[1]))], signal.SIGKILL)
    finally:
        said = [it.communicate()[1] for it in crowd]
    if not any("too many clients" in it or "remaining connection slots" in it for it in said):
        raise OSError(f"the server has room for {CROWD} more clients")


def agents(cluster, pod, chance):
    """SIGSTOP of all agents for 10 s, or for a minute: nothing moves, and clients notice nothing"""
    paused(cluster.agents(), chance.choice([LASTS, LASTS, MINUTE]))


# Another one is the primary afterwards, or the same one, or either.
MOVE = [server, backend, container, pod, claim, stopped, agent, frozen, setback, smart, shut]
STAY = [wrapper, agents, promoted, crowd]
FAULTS = {fault.__name__: fault for fault in MOVE + STAY + [twice, damaged, standby, ahead, checkpointer, postmaster]}
