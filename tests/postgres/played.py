"""`kaa demo --postgres` with eight clients that write, for the other scripts here."""

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile

from checker import PREPARED, TABLE, WAIT, Checker, ask, eventually, here, writing
from pool import pooled
from processes import children, variable, with_variable

kaa = os.environ.get("KAA_BINARY") or os.path.join(here, "../../target/release/kaa")
LOG = 200  # lines of each container that are shown after a failure
CONTAINER = "/spec/template/spec/containers/0"
# Of the first agent of the demo.
environment = dict(os.environ, KAA_API_SERVER="http://127.77.0.1:8888")


class Played(Checker):
    """The demo and its writer."""

    def __init__(self, work, demo, url_file):
        super().__init__(work)
        self.demo, self.url_file = demo, url_file

    def servers(self):
        return dict(line.split() for line in self.read("demo/postgres-servers").splitlines())

    def primary_url(self):
        return self.read(f"demo/{self.url_file}")

    def kaa(self, *words):
        done = subprocess.run([kaa, *words], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"kaa {' '.join(words)}: {done.stderr}")
        return done.stdout

    def kubectl(self, *words):
        kubeconfig = dict(os.environ, KUBECONFIG=os.path.join(self.work, "demo/kubeconfig"))
        return subprocess.run(["kubectl", *words], env=kubeconfig, check=True, capture_output=True, text=True).stdout

    def process(self, what, variable):
        """The one that runs `kaa WHAT` with this environment variable."""
        for pid in with_variable(children(self.demo), what, variable):
            return pid
        raise OSError(f"no process has {variable}")

    def volume(self, pod):
        """The directory of a pod's volume."""
        return variable(self.process("engine", f"KAA_POD={pod}"), "KAA_ARCHIVE")

    def data_of(self, agent):
        """The directory of an agent's volume, by its process."""
        return variable(agent, "KAA_DATA_DIR")

    def volumes(self):
        return glob.glob(os.path.join(self.work, "demo/volumes/*"))

    def set_parameters(self, text):
        """Restarts the servers with parameters of the user."""
        file = os.path.join(self.work, "parameters")
        with open(file, "w") as parameters:
            parameters.write(text)
        value = json.dumps([{"op": "add", "path": f"{CONTAINER}/env/-", "value": {"name": "KAA_POSTGRES_PARAMETERS", "value": file}}])
        self.kubectl("patch", "statefulset", "shop", "--type=json", "-p", value)
        self.kubectl("rollout", "status", "statefulset/shop", f"--timeout={WAIT}s")


@contextlib.contextmanager
def played(url_file="postgres-url", first=None, pool=False, **variables):
    """Starts both, and ends them. Clients write by the URL in a file of the demo, with `pool` every second one by way of pgbouncer;
    variables are those of both. `first` is called in between."""
    with tempfile.TemporaryDirectory(prefix="kaa-played.") as work:
        os.chmod(work, 0o755)
        with open(os.path.join(work, "demo.log"), "w") as log:
            demo = subprocess.Popen([kaa, "demo", "--postgres", "--dir", os.path.join(work, "demo")], stdout=log, stderr=log, env=dict(os.environ, **variables))
        try:
            it = Played(work, demo.pid, url_file)
            eventually("the demo", lambda: "Ctrl-C" in it.read("demo.log"))
            url = it.primary_url()
            if "prepared" in variables.get("WORK", ""):
                it.set_parameters(f"max_prepared_transactions = {PREPARED}\n")
                eventually("a primary", lambda: ask(it.primary_url(), "SELECT 1"))
            if first:
                first()
            ask(url, TABLE)
            with contextlib.ExitStack() as stack:
                if pool:
                    variables["POOLER"] = stack.enter_context(pooled(url))
                it.writer = stack.enter_context(writing(work, url, **variables))
                yield it
        except BaseException:
            for words in (["show", "database", "shop"], ["plan"], ["explain", "database/shop"]):
                subprocess.run([kaa, *words], env=environment, stdout=sys.stderr)
            for log in sorted(glob.glob(f"{work}/demo/pods/*/containers/postgres/*.log"), key=os.path.getmtime):
                with open(log, errors="replace") as lines:
                    print(log, *lines.read().splitlines()[-LOG:], sep="\n", file=sys.stderr)
            raise
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait()
            with open("/proc/self/mounts") as mounts:
                # One may be on another.
                for mount in [line.split()[1] for line in list(mounts)[::-1] if line.split()[1].startswith(work + "/")]:
                    eventually(f"no process on {mount}", lambda: not subprocess.run(["umount", mount], capture_output=True).returncode)
