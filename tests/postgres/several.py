"""Faults that come together, by a plan that the seed repeats."""

import signal
import subprocess
import threading
import time

from checker import eventually
from faults import end, halted, paused
from processes import arguments, is_first, send, tree

WITHIN = 4  # seconds
LONGEST = 8  # seconds that something is paused


def several(cluster, pod, chance):
    """three at random within 4 s, of any servers and agents: kill -9 or SIGSTOP of a wrapper, a server, an agent, a deleted pod, a switchover"""
    servers = sorted(eventually("all servers", cluster.it.servers, cluster.it.wait))
    agents = sorted(row["id"] for row in cluster.peers())
    for place in agents:
        eventually(f"agent {place}", lambda: cluster.agent(place))
    plan = []
    for _ in range(3):
        action = chance.choice(list(ACTIONS))
        plan.append((WITHIN * chance.random(), action, chance.choice(agents if action.startswith("agent") else servers), LONGEST * chance.random()))
    print("(" + ", ".join(f"{at:.1f} s {action} {of}" for at, action, of, _ in sorted(plan)) + ")", end=" ", flush=True)
    missed, failed = [], []

    def act(at, action, of, lasts):
        time.sleep(at)
        try:
            ACTIONS[action](cluster, of, lasts)
        except (OSError, ValueError, subprocess.CalledProcessError):
            missed.append(action)  # What it is about has ended by another one, or the domain refuses a switchover now.
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=act, args=words) for words in plan]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    # Meanwhile it replaces pods whose start a kubelet puts off: all of them may have ended often.
    eventually("an open primary", cluster.open, cluster.it.wait)
    if missed:
        print(f"(not possible: {', '.join(missed)})", end=" ", flush=True)
    if len(missed) == len(plan):
        raise OSError("nothing was possible")


def held(cluster, of, first, lasts):
    """Pauses a process and all below it."""
    wrapper = cluster.wrapper(of)
    was_first = is_first(wrapper)
    halted(cluster, tree(first), lasts)
    if not was_first and arguments(wrapper)[0] == "":
        # It was killed meanwhile: the others notice that only now.
        cluster.kills.append(time.monotonic() - 0.05)


ACTIONS = {
    "wrapper killed": lambda cluster, of, _: end(cluster, cluster.wrapper(of)),
    "pod killed": lambda cluster, of, _: end(cluster, cluster.wrapper(of), tree),
    "wrapper paused": lambda cluster, of, lasts: halted(cluster, [cluster.wrapper(of)], lasts, shows=True),
    "pod paused": lambda cluster, of, lasts: held(cluster, of, cluster.wrapper(of), lasts),
    "server killed": lambda cluster, of, _: send([cluster.server(of)], signal.SIGKILL),
    "server paused": lambda cluster, of, lasts: held(cluster, of, cluster.server(of), lasts),
    "agent killed": lambda cluster, of, _: send([cluster.agent(of)], signal.SIGKILL),
    "agent paused": lambda cluster, of, lasts: paused([cluster.agent(of)], lasts),
    "pod deleted": lambda cluster, of, _: cluster.it.kubectl("delete", "pod", of, "--wait=false"),
    "switchover to": lambda cluster, of, _: cluster.it.kaa("switchover", "shop", "--to", of, "--reason", "a test"),
}
FAULTS = {"several": several}
