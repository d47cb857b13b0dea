"""The database `shop` of a namespace on a real cluster (tests/cluster), with eight clients that write, for `failovers`."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile

from checker import TABLE, Checker, ask, eventually, here, writing
from pool import pooled
from processes import children, with_variable

CLIENTS_AT = "node1"  # addresses of Services are known on nodes and in pods only
SERVERS = 3
NODE = os.path.join(here, "../cluster/node")


class Deployed(Checker):
    """The database and its writer. `away` are the nodes that do not answer."""

    wait = 180

    def __init__(self, work, directory, namespace):
        super().__init__(work)
        self.directory, self.namespace, self.away = directory, namespace, set()
        self.login = f"{os.environ['PGUSER']}:{os.environ['PGPASSWORD']}"

    def kubectl(self, *words, limit=60):
        command = [os.path.join(self.directory, "bin/kubectl"), f"--namespace={self.namespace}", *words]
        config = dict(os.environ, KUBECONFIG=os.path.join(self.directory, "conf/admin.conf"))
        try:
            return subprocess.run(command, env=config, check=True, capture_output=True, text=True, timeout=limit).stdout
        except subprocess.TimeoutExpired as error:
            raise OSError(f"no answer: {command}") from error

    def pods(self, *words):
        return json.loads(self.kubectl("get", "pods", *words, "-o", "json"))["items"]

    def kaa(self, *words):
        """By an agent that answers."""
        why = None
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if name.startswith("kaa-admin-") and pod["spec"].get("nodeName") not in self.away:
                try:
                    return self.kubectl("exec", name, "--", "kaa", *words)
                except (OSError, subprocess.CalledProcessError) as error:
                    why = getattr(error, "stderr", None) or error
                    # What changes something may have been done.
                    if words[0] not in ("show", "plan", "explain"):
                        break
        raise OSError(f"kaa {' '.join(words)}: {why}")

    def url(self, host):
        return f"postgresql://{self.login}@{host}:5432/{os.environ['PGDATABASE']}"

    def servers(self):
        found = {pod["metadata"]["name"]: pod["status"].get("podIP") for pod in self.pods("--selector=database=shop")}
        if len(found) < SERVERS or not all(found.values()):
            raise OSError(f"not all pods are there: {found}")
        return {pod: self.url(address) for pod, address in found.items()}

    def primary_url(self):
        [primary] = [row for row in json.loads(self.kaa("show", "database", "shop", "-o", "json"))["archives"] if row["role"]["code"] == "primary"]
        return self.servers()[primary["pod"]]

    def service_url(self):
        return self.url(self.kubectl("get", "service", "shop-rw", "-o", "jsonpath={.spec.clusterIP}"))

    def node_of(self, pod):
        return self.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")

    def pods_of(self, node):
        """The pods of the database on a node."""
        return [pod["metadata"]["name"] for pod in self.pods("--selector=database=shop") if pod["spec"].get("nodeName") == node]

    def node(self, action, node, *words):
        """What tests/cluster/node does."""
        number = re.sub("[^0-9]", "", node)
        subprocess.run([NODE, self.directory, action, number, *words], check=True, capture_output=True, text=True)

    def init(self, node):
        """The first process of a node."""
        with open(os.path.join(self.directory, f"run/{node}.pid")) as file:
            [init] = children(int(file.read().split()[0]))
        return init

    def clients(self):
        """Runs a command in the network of the clients."""
        return ["nsenter", f"--net=/proc/{self.init(CLIENTS_AT)}/ns/net"]

    def process(self, what, variable):
        """The one that runs `kaa WHAT` in a container of the namespace with this environment variable."""
        everything = [int(it) for it in os.listdir("/proc") if it.isdigit()]
        for pid in with_variable(with_variable(everything, what, f"KAA_NAMESPACE={self.namespace}"), what, variable):
            return pid
        raise OSError(f"no process has {variable}")

    def claims(self):
        """The directory of each claim's volume."""
        found = {}
        for volume in json.loads(self.kubectl("get", "persistentvolumes", "-o", "json"))["items"]:
            claim = volume["spec"].get("claimRef", {})
            if claim.get("namespace") == self.namespace and volume["status"]["phase"] == "Bound":
                found[claim["name"]] = os.path.join(self.directory, "volumes", os.path.basename(volume["spec"]["hostPath"]["path"]))
        return found

    def volume(self, pod):
        """The directory of a pod's volume."""
        return self.claims()[f"archive-volume-{pod}"]

    def volumes(self):
        return list(self.claims().values())


@contextlib.contextmanager
def deployed(directory, namespace, **variables):
    """Starts the clients, which get these variables, and ends them. Every second one writes by way of pgbouncer."""
    with tempfile.TemporaryDirectory(prefix="kaa-deployed.") as work:
        it = Deployed(work, directory, namespace)
        try:
            eventually("the table", lambda: ask(it.primary_url(), TABLE) or True)
            url, there = it.service_url(), it.clients()
            with pooled(url, there) as variables["POOLER"], writing(work, url, there, **variables) as it.writer:
                yield it
        except BaseException:
            shows = [it.kaa, ("show", "database", "shop")], [it.kaa, ("plan",)], [it.kaa, ("explain", "database/shop")], [it.kubectl, ("get", "pods", "-o", "wide")]
            for show, words in shows:
                with contextlib.suppress(OSError, subprocess.CalledProcessError):
                    print(show(*words), file=sys.stderr)
            raise
