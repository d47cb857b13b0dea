"""`kaa demo --postgres` with eight clients that write, for the scripts beside this file."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

here = os.path.dirname(os.path.abspath(__file__))
kaa = os.environ.get("KAA_BINARY") or os.path.join(here, "../../target/release/kaa")
psql = "/usr/lib/postgresql/15/bin/psql"
CLIENTS = "8"
WAIT = 60  # seconds, for anything but a row
# Of the first agent of the demo.
environment = dict(os.environ, KAA_API_SERVER="http://127.77.0.1:8888")


def ask(url, sql):
    return subprocess.run([psql, "-XqAt", url, "-c", sql], capture_output=True, text=True, check=True).stdout.strip()


def eventually(what, condition):
    """Repeats it until it is true; an error counts as not yet."""
    end, why = time.monotonic() + WAIT, None
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
        time.sleep(0.2)
    sys.exit(f"not within {WAIT} s: {what}: {why}")


def of_all(url):
    """How a client names all servers, for psql."""
    parts = urllib.parse.urlsplit(url)
    login, hosts = parts.netloc.split("@")
    user, password = login.split(":")
    hosts = [host.split(":") for host in hosts.split(",")]
    return dict(
        environment,
        PGHOST=",".join(host for host, _ in hosts),
        PGPORT=",".join(port for _, port in hosts),
        PGUSER=user,
        PGPASSWORD=password,
        PGDATABASE=parts.path.strip("/"),
        PGTARGETSESSIONATTRS="read-write",
    )


class Played:
    """The demo and its writer."""

    def __init__(self, work, demo, writer):
        self.work, self.demo, self.writer = work, demo, writer

    def read(self, name):
        with open(os.path.join(self.work, name)) as file:
            return file.read().strip()

    def servers(self):
        """The URL of each pod's server now."""
        return dict(line.split() for line in self.read("demo/postgres-servers").splitlines())

    def paused(self):
        """The longest time without an acknowledged row since the last call, in ms."""
        self.writer.stdin.write("\n")
        self.writer.stdin.flush()
        return float(self.writer.stdout.readline().split()[0]) * 1000

    def kaa(self, *words):
        done = subprocess.run([kaa, *words], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"kaa {' '.join(words)}: {done.stderr}")
        return done.stdout

    def compare(self):
        """Each acknowledged row is at each server once, and all servers have the same rows."""
        self.writer.stdin.close()
        self.writer.wait(WAIT)
        acknowledged = self.read("acknowledged").split()

        def is_whole(url):
            rows = ask(url, "SELECT id FROM rows").split("\n")
            if len(rows) != len(set(rows)):
                sys.exit("a row is there twice")
            return set(acknowledged) <= set(rows)

        for pod in self.servers():
            eventually(f"all acknowledged rows at {pod}", lambda: is_whole(self.servers()[pod]))
        hashed = "SELECT md5(string_agg(rows::text, ',' ORDER BY id)) FROM rows"
        eventually("the same rows at all servers", lambda: len({ask(url, hashed) for url in self.servers().values()}) == 1)
        print(f"{len(acknowledged)} acknowledged rows are at each of {len(self.servers())} servers once")


@contextlib.contextmanager
def played(url_file="postgres-url", **variables):
    """Starts both, and ends them. Clients write by the URL in a file of the demo; variables are those of both."""
    with tempfile.TemporaryDirectory(prefix="kaa-played.") as work:
        os.chmod(work, 0o755)
        with open(os.path.join(work, "demo.log"), "w") as log:
            demo = subprocess.Popen([kaa, "demo", "--postgres", "--dir", os.path.join(work, "demo")], stdout=log, stderr=log, env=dict(os.environ, **variables))
        try:
            it = Played(work, demo.pid, None)
            eventually("the demo", lambda: "Ctrl-C" in it.read("demo.log"))
            url = it.read(f"demo/{url_file}")
            ask(url, "CREATE TABLE rows (id bigint, text text)")
            command = [os.path.join(here, "writer"), psql, os.path.join(work, "acknowledged"), CLIENTS]
            # Its input ends with this block.
            with subprocess.Popen(
                command, env=dict(of_all(url), **variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as it.writer:
                yield it
        except BaseException:
            for words in (["show", "database", "shop"], ["plan"], ["explain", "database/shop"]):
                subprocess.run([kaa, *words], env=environment, stdout=sys.stderr)
            raise
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait()


def shown(what, gaps):
    """Percentiles."""
    gaps = sorted(gaps)
    p50, p90, p99 = (gaps[int(len(gaps) * part)] for part in (0.5, 0.9, 0.99))
    print(f"{len(gaps)} {what}: p50 {p50:.0f} ms, p90 {p90:.0f} ms, p99 {p99:.0f} ms, longest {gaps[-1]:.0f} ms")
