"""Faults of a primary that need a real cluster: of nodes, of ports, of the API server."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time

from checker import eventually, here
from deployed import CLIENTS_AT, NODE
from faults import LASTS, MINUTE, paused, server

UP = os.path.join(here, "../cluster/up")
API = 20  # seconds without an API server
LINK = "eth0"  # of a node to the others
NOWHERE = "192.0.2.9"  # an address for documentation


def moved(cluster, *to):
    """An operator moves the primary, as soon as that is possible."""
    switchover = ["switchover", "shop", *to, "--wait", "--reason", "a test"]
    eventually("a switchover", lambda: cluster.it.kaa(*switchover) or True, cluster.it.wait)


def apart(cluster, pod):
    """The pod of the primary, once it is not on the node of the clients."""
    it = cluster.it
    if it.node_of(pod) == CLIENTS_AT:
        others = [other for other in cluster.roles()[1] if it.node_of(other) != CLIENTS_AT]
        moved(cluster, *(["--to", others[0]] if others else []))
        pod = eventually("a primary on another node", lambda: (now := cluster.primary()) != pod and now, it.wait)
    return pod


def led_elsewhere(cluster, node):
    """Has an agent on another node lead Raft."""

    def is_led():
        if cluster.it.node_of(eventually("an agent that leads", cluster.leads)) != node:
            return True
        paused([cluster.leader()], 3)
        return False

    eventually("a Raft leader on another node", is_led, cluster.it.wait)


def without_leader(cluster, pod):
    """The pod of the primary, once neither the clients nor the Raft leader are on its node."""

    def alone():
        pod = apart(cluster, eventually("an open primary with a standby", cluster.primary, cluster.it.wait))
        led_elsewhere(cluster, cluster.it.node_of(pod))
        return pod == cluster.primary() and pod

    return eventually("a primary apart from the Raft leader", alone, cluster.it.wait)


def with_leader(cluster, pod):
    """The pod of the primary, once it is on the node of the Raft leader, and that is not the one of the clients."""
    it = cluster.it
    led_elsewhere(cluster, CLIENTS_AT)
    node = it.node_of(cluster.leads())
    if it.node_of(pod) != node:
        to = eventually("a pod on the node of the leader", lambda: (there := it.pods_of(node)) and there[0], it.wait)
        moved(cluster, "--to", to)
        pod = eventually("a primary on the node of the leader", lambda: (now := cluster.primary()) == to and now, it.wait)
    return pod


@contextlib.contextmanager
def without(cluster, node, begins, ends):
    """A node is away, by an action of tests/cluster/node, until another one."""
    it = cluster.it
    # Ready where they are now: what was done before is not a part of the fault.
    eventually("an open primary with a standby", cluster.primary, it.wait)
    it.paused()
    it.away.add(node)
    try:
        it.node(begins, node)
        yield
    finally:
        it.node(ends, node)
        it.away.remove(node)


def lost(cluster, pod, begins, ends):
    with without(cluster, cluster.it.node_of(pod), begins, ends):
        eventually("another primary", lambda: cluster.primary() != pod, cluster.it.wait)
        time.sleep(LASTS)


def cut(cluster, pod, chance):
    """its node is cut off for 10 s and more; another one has the Raft leader"""
    lost(cluster, without_leader(cluster, pod), "cut", "heal")


def cut_leader(cluster, pod, chance):
    """the same, with the Raft leader on it"""
    lost(cluster, with_leader(cluster, pod), "cut", "heal")


def power(cluster, pod, chance):
    """its node loses power, and starts again; another one has the Raft leader"""
    lost(cluster, without_leader(cluster, pod), "kill", "start")


def power_leader(cluster, pod, chance):
    """the same, with the Raft leader on it"""
    lost(cluster, with_leader(cluster, pod), "kill", "start")


@contextlib.contextmanager
def barred_at(cluster, node, *rules):
    """Drops on a node what these rules of iptables name, each with its chain."""
    with contextlib.ExitStack() as stack:
        for rule in rules:
            cluster.it.node("exec", node, "iptables", "-I", *rule, "-j", "DROP")
            stack.callback(cluster.it.node, "exec", node, "iptables", "-D", *rule, "-j", "DROP")
        yield


def barred(cluster, pod, *rules):
    """Drops on the node of a pod what these rules name, for a while."""
    with barred_at(cluster, cluster.it.node_of(pod), *(["FORWARD", *rule] for rule in rules)):
        time.sleep(LASTS + 5)


def half_cut(cluster, pod, *rules):
    """Cuts one direction of the link of a pod's node, until another server is the primary and longer."""
    pod = without_leader(cluster, pod)
    node = cluster.it.node_of(pod)
    # Ready where they are now: what was done before is not a part of the fault.
    cluster.it.paused()
    cluster.it.away.add(node)
    try:
        with barred_at(cluster, node, *rules):
            eventually("another primary", lambda: cluster.primary() != pod, cluster.it.wait)
            time.sleep(LASTS)
    finally:
        cluster.it.away.remove(node)


def deaf(cluster, pod, chance):
    """its node hears nothing for 10 s and more, and is heard; another one has the Raft leader"""
    half_cut(cluster, pod, ["INPUT", "-i", LINK], ["FORWARD", "-i", LINK])


def mute(cluster, pod, chance):
    """its node is not heard for 10 s and more, and hears; another one has the Raft leader"""
    half_cut(cluster, pod, ["OUTPUT", "-o", LINK], ["FORWARD", "-o", LINK])


def lossy(cluster, pod, chance):
    """its node loses every fifth packet for 15 s"""
    pod = apart(cluster, pod)
    every = ["-m", "statistic", "--mode", "random", "--probability", "0.2"]
    with barred_at(cluster, cluster.it.node_of(pod), ["FORWARD", "-i", LINK, *every], ["FORWARD", "-o", LINK, *every]):
        time.sleep(LASTS + 5)


def address(cluster, pod):
    return cluster.it.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")


def to_agents(cluster, pod, chance):
    """port 48004 between it and the agents is cut for 15 s: its standbys hear it, and nothing moves"""
    barred(cluster, pod, ["-s", address(cluster, pod), "-p", "tcp", "--dport", "48004"])


def to_servers(cluster, pod, chance):
    """port 5432 between it and the other servers is cut for 15 s: the agents hear it, and nothing moves"""
    others = [other for other in cluster.it.servers() if other != pod]
    barred(cluster, pod, *(["-d", address(cluster, pod), "-s", address(cluster, other), "-p", "tcp", "--dport", "5432"] for other in others))


def api(cluster, pod, chance):
    """the API server is away for 20 s, or for a minute: nothing moves, and clients notice nothing"""
    it = cluster.it
    with open(os.path.join(it.directory, "run/kube-apiserver.pid")) as file:
        os.kill(int(file.read().split()[0]), signal.SIGKILL)
    try:
        time.sleep(chance.choice([API, API, MINUTE]))
    finally:
        subprocess.run([UP, it.directory], check=True, capture_output=True, text=True)
    eventually("an answer of the API server", it.servers, it.wait)
    followed(it)


def followed(it):
    """Waits until the node of the clients follows Services again: its kube-proxy asks an API server that is away less and less often."""
    labels = {"kubernetes.io/service-name": "probe"}
    service = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "probe"}, "spec": {"ports": [{"port": 9}]}}
    endpoints = {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": "probe", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 9}],
        "endpoints": [{"addresses": [NOWHERE]}],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"kind": "List", "apiVersion": "v1", "items": [service, endpoints]}, file)
        file.flush()
        eventually("an endpoint", lambda: it.kubectl("apply", "-f", file.name), it.wait)
    rules = [NODE, it.directory, "exec", CLIENTS_AT.removeprefix("node"), "iptables-save"]
    try:
        eventually("a node that leads to it", lambda: NOWHERE in subprocess.run(rules, check=True, capture_output=True, text=True).stdout, it.wait)
    finally:
        it.kubectl("delete", "service/probe", "endpointslice/probe", "--ignore-not-found")


def dns(cluster, pod, chance):
    """the DNS server is stopped, and the server killed after 20 s: another takes over"""
    with open(os.path.join(cluster.it.directory, "run/coredns.pid")) as file:
        answers = int(file.read().split()[0])
    os.kill(answers, signal.SIGSTOP)
    try:
        # What was looked up is known for a while.
        time.sleep(API)
        server(cluster, pod, chance)
        eventually("another primary", lambda: cluster.primary() != pod)
    finally:
        os.kill(answers, signal.SIGCONT)


STAY = [to_agents, to_servers, api]
# They may move the primary before they begin.
MOVE = [cut, cut_leader, power, power_leader, deaf, mute, dns]
FAULTS = {fault.__name__: fault for fault in [*MOVE, *STAY, lossy]}
