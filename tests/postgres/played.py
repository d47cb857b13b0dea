"""`kaa demo --postgres` with eight clients that write, for the other scripts here."""

import contextlib
import glob
import json
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
TABLE = """
CREATE TABLE rows (id bigint, text text,
    timeline text DEFAULT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), at pg_lsn DEFAULT pg_current_wal_insert_lsn());
CREATE INDEX ON rows (id);
CREATE TABLE own (text text)"""
# The rows of an older timeline that stand behind the first one of a newer timeline.
LATE = """
SELECT count(*) FROM (SELECT timeline, max(timeline) OVER (ORDER BY at) AS newest FROM rows) AS it WHERE timeline < newest"""
WAIT = 60  # seconds, for anything but a row
CONTAINER = "/spec/template/spec/containers/0"
# Of the first agent of the demo.
environment = dict(os.environ, KAA_API_SERVER="http://127.77.0.1:8888")


def ask(url, sql):
    return subprocess.run([psql, "-XqAt", url, "-c", sql], capture_output=True, text=True, check=True).stdout.strip()


def eventually(what, condition, wait=WAIT):
    """Repeats it until it is true, and returns it; an error counts as not yet."""
    end, why = time.monotonic() + wait, None
    while time.monotonic() < end:
        try:
            if done := condition():
                return done
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
        time.sleep(0.2)
    sys.exit(f"not within {wait} s: {what}: {why}")


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
        self.histories = {}

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

    def kubectl(self, *words):
        kubeconfig = dict(os.environ, KUBECONFIG=os.path.join(self.work, "demo/kubeconfig"))
        return subprocess.run(["kubectl", *words], env=kubeconfig, check=True, capture_output=True, text=True).stdout

    def set_parameters(self, text):
        """Restarts the servers with parameters of the user."""
        file = os.path.join(self.work, "parameters")
        with open(file, "w") as parameters:
            parameters.write(text)
        value = json.dumps([{"op": "add", "path": f"{CONTAINER}/env/-", "value": {"name": "KAA_POSTGRES_PARAMETERS", "value": file}}])
        self.kubectl("patch", "statefulset", "shop", "--type=json", "-p", value)
        self.kubectl("rollout", "status", "statefulset/shop", f"--timeout={WAIT}s")

    def note_histories(self):
        """No timeline number ever stands for two histories. Those without content only keep a number from being used."""
        for path in glob.glob(os.path.join(self.work, "demo/volumes/*/pgdata/pg_wal/*.history")):
            try:
                with open(path) as file:
                    history = file.read()
            except FileNotFoundError:
                continue
            timeline = os.path.basename(path)
            if history and self.histories.setdefault(timeline, history) != history:
                sys.exit(f"two histories: {path} has\n{history}\nand elsewhere it was\n{self.histories[timeline]}")

    def told(self, kind):
        """What the writer said of the end, a list for each line (clients.py)."""
        return [line.split() for line in self.read(f"acknowledged.{kind}").splitlines()]

    def acknowledged(self):
        """Ends the writer: the ids of the rows that were acknowledged."""
        self.writer.stdin.close()
        if code := self.writer.wait(WAIT):
            sys.exit(f"the writer ended with {code}")
        return self.read("acknowledged").split()

    def same(self):
        """Whether all servers have the same rows."""
        hashed = "SELECT md5(string_agg(rows::text, ',' ORDER BY id)) FROM rows"
        return len({ask(url, hashed) for url in self.servers().values()}) == 1

    def compare(self, pauses=()):
        """What the writer was told is true at each server, and all servers have the same rows. While something was paused, from and to
        when, a reader may have seen an old state."""
        self.note_histories()
        acknowledged = self.acknowledged()
        absent = {row for [row] in self.told("absent")}
        seen = {row for rows in self.told("seen") for row in rows}
        whole = self.told("whole")
        stale = [(row, when) for row, when in self.told("stale") if not any(a < float(when) < b for a, b in pauses)]
        primary = self.read("demo/postgres-rw-url")
        ready = set(ask(primary, "SELECT gid FROM pg_prepared_xacts").split())
        kept = ready | set(ask(primary, "SELECT id FROM rows").split())
        if lost := [row for [row] in self.told("prepared") if row not in kept]:
            sys.exit(f"prepared, and lost: {lost}")
        if left := ready & {row for [row] in self.told("undone")}:
            sys.exit(f"rolled back, and still prepared: {left}")
        for row in ready:
            ask(primary, f"ROLLBACK PREPARED '{row}'")

        def is_whole(url):
            rows = ask(url, "SELECT id FROM rows").split("\n")
            there = set(rows)
            if len(rows) != len(there):
                sys.exit("a row is there twice")
            if wrong := there & absent:
                sys.exit(f"rolled back, and there: {wrong}")
            if wrong := [rows for rows in whole if 0 < len(there & set(rows)) < len(rows)]:
                sys.exit(f"a part of a transaction is there: {wrong}")
            if (late := ask(url, LATE)) != "0":
                sys.exit(f"{late} rows of an older generation stand behind one of a newer generation")
            if missing := (set(acknowledged) | seen) - there:
                raise OSError(f"missing: {len(missing)}, as {sorted(missing)[:5]}")
            return True

        for pod in self.servers():
            eventually(f"all rows at {pod} that were acknowledged or read", lambda: is_whole(self.servers()[pod]))
        eventually("the same rows at all servers", self.same)
        if stale:
            sys.exit(f"acknowledged, and not there for a reader at a primary: {stale}")
        print(
            f"{len(acknowledged)} acknowledged rows, and {len(seen)} that were read, are at each of {len(self.servers())} servers once; {len(self.histories)} timelines; "
            f"{len(ready)} prepared transactions were left, {len(self.told('stale'))} reads were stale during a pause"
        )


@contextlib.contextmanager
def writing(work, url, **variables):
    """Starts the writer, which gets these variables. It ends with this block, as its input does."""
    ask(url, TABLE)
    command = [os.path.join(here, "writer"), psql, os.path.join(work, "acknowledged"), CLIENTS]
    with subprocess.Popen(command, env=dict(of_all(url), **variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        yield writer


@contextlib.contextmanager
def played(url_file="postgres-url", first=None, **variables):
    """Starts both, and ends them. Clients write by the URL in a file of the demo; variables are those of both. `first` is called in
    between."""
    with tempfile.TemporaryDirectory(prefix="kaa-played.") as work:
        os.chmod(work, 0o755)
        with open(os.path.join(work, "demo.log"), "w") as log:
            demo = subprocess.Popen([kaa, "demo", "--postgres", "--dir", os.path.join(work, "demo")], stdout=log, stderr=log, env=dict(os.environ, **variables))
        try:
            it = Played(work, demo.pid, None)
            eventually("the demo", lambda: "Ctrl-C" in it.read("demo.log"))
            url = it.read(f"demo/{url_file}")
            if "prepared" in variables.get("WORK", ""):
                it.set_parameters("max_prepared_transactions = 50\n")
                eventually("a primary", lambda: it.read(f"demo/{url_file}") and ask(it.read(f"demo/{url_file}"), "SELECT 1"))
            if first:
                first()
            with writing(work, url, **variables) as it.writer:
                yield it
        except BaseException:
            for words in (["show", "database", "shop"], ["plan"], ["explain", "database/shop"]):
                subprocess.run([kaa, *words], env=environment, stdout=sys.stderr)
            raise
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait()
            with open("/proc/self/mounts") as mounts:
                for mount in [line.split()[1] for line in mounts if line.split()[1].startswith(work + "/")]:
                    subprocess.run(["umount", mount], check=True)


def shown(what, gaps):
    """Percentiles."""
    gaps = sorted(gaps)
    p50, p90, p99 = (gaps[int(len(gaps) * part)] for part in (0.5, 0.9, 0.99))
    print(f"{len(gaps)} {what}: p50 {p50:.0f} ms, p90 {p90:.0f} ms, p99 {p99:.0f} ms, longest {gaps[-1]:.0f} ms")
