"""Checks a database while clients write to it, for the other scripts here."""

import collections
import contextlib
import glob
import os
import select
import subprocess
import sys
import time
import urllib.parse

here = os.path.dirname(os.path.abspath(__file__))
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
# Their order says nothing, and all of them at once need not fit into the memory of a server.
HASH = "SELECT count(*), sum(hashtextextended(rows::text, 0)::numeric), sum(hashtextextended(rows::text, 1)::numeric) FROM rows"
PREPARED = 2000  # transactions at once: each fault leaves some
WAIT = 60  # seconds, for anything but a row
# Seconds within which an answer arrives of a server whose wrapper was killed, and did not kill the others before they noticed. Those whose
# commits wait for a standby give up the wait then, and show the commit to a query that still runs.
LAST_WORDS = 0.2


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
        os.environ,
        PGHOST=",".join(host for host, _ in hosts),
        PGPORT=",".join(port for _, port in hosts),
        PGUSER=user,
        PGPASSWORD=password,
        PGDATABASE=parts.path.strip("/"),
        PGTARGETSESSIONATTRS="read-write",
    )


class Checker:
    """A database and its writer. `servers()` is the URL of each pod's server now, `primary_url()` one that leads to the primary, and
    `volumes()` the directories of all volumes."""

    wait = WAIT
    writer = None

    def __init__(self, work):
        self.work, self.histories = work, {}

    def read(self, name):
        with open(os.path.join(self.work, name)) as file:
            return file.read().strip()

    def paused(self):
        """The longest time without an acknowledged row since the last call, in ms."""
        self.writer.stdin.write("\n")
        self.writer.stdin.flush()
        if not select.select([self.writer.stdout], [], [], self.wait)[0]:
            raise OSError(f"no row was acknowledged for {self.wait} s")
        return float(self.writer.stdout.readline().split()[0]) * 1000

    def newest(self):
        """The row that was acknowledged last."""
        with open(os.path.join(self.work, "acknowledged"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 100))
            return file.read().split()[-1].decode()

    def note_histories(self):
        """No timeline number ever stands for two histories. Those without content only keep a number from being used."""
        for path in [it for volume in self.volumes() for it in glob.glob(f"{volume}/pgdata/pg_wal/*.history")]:
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
        if code := self.writer.wait(self.wait):
            sys.exit(f"the writer ended with {code}")
        return self.read("acknowledged").split()

    def same(self):
        """Whether all servers have the same rows."""
        return len({ask(url, HASH) for url in self.servers().values()}) == 1

    def compare(self, stopped=(), kills=()):
        """What the writer was told is true at each server, and all servers have the same rows. A reader may have seen an old state at a server
        that was `stopped`, from and to when. In the moment after one of these kills it may have seen what no other server has."""
        self.note_histories()
        acknowledged = set(self.acknowledged())
        absent = {row for [row] in self.told("absent")}
        seen = collections.defaultdict(list)
        for when, *rows in self.told("seen"):
            for row in rows:
                seen[row].append(float(when))
        last_words = set()
        whole = self.told("whole")
        stale = [(row, when) for row, when in self.told("stale") if not any(a < float(when) < b for a, b in stopped)]
        primary = self.primary_url()
        ready = set(ask(primary, "SELECT gid FROM pg_prepared_xacts").split())
        kept = ready | set(ask(primary, "SELECT id FROM rows").split())
        if lost := [row for [row] in self.told("prepared") if row not in kept]:
            sys.exit(f"prepared, and lost: {lost}")
        if len(ready) == PREPARED:
            sys.exit("no more transactions could be prepared")
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
            read = seen.keys() - there - acknowledged
            lost = {row for row in read if all(any(kill < when < kill + LAST_WORDS for kill in kills) for when in seen[row])}
            if missing := acknowledged - there | read - lost:
                raise OSError(f"missing: {len(missing)}, as {'; '.join(described(row) for row in sorted(missing)[:5])}")
            last_words.update(lost)
            return True

        def described(row):
            reads = [f"{when - max([it for it in kills if it < when], default=0):.3f} s" for when in seen.get(row, [])]
            return f"{row}, {'' if row in acknowledged else 'not '}acknowledged, read so long after a kill: {' '.join(reads) or 'never'}"

        for pod in eventually("all servers", self.servers, self.wait):
            eventually(f"all rows at {pod} that were acknowledged or read", lambda: is_whole(self.servers()[pod]), self.wait)
        eventually("the same rows at all servers", self.same, self.wait)
        if stale:
            sys.exit(f"acknowledged, and not there for a reader at a primary: {stale}")
        print(
            f"{len(acknowledged)} acknowledged rows, and {len(seen)} that were read, are at each of {len(self.servers())} servers once; {len(self.histories)} timelines; "
            f"{len(ready)} prepared transactions were left, {len(self.told('stale'))} reads were stale during a pause, "
            f"{len(last_words)} rows were lost that only readers at a killed server saw"
        )


@contextlib.contextmanager
def writing(work, url, there=(), **variables):
    """Starts the writer, which gets these variables. It ends with this block, as its input does. `there` is a command that runs another
    one in the network of the clients."""
    command = [*there, os.path.join(here, "writer"), psql, os.path.join(work, "acknowledged"), CLIENTS]
    with subprocess.Popen(command, env=dict(of_all(url), **variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        yield writer


def shown(what, gaps):
    """Prints percentiles; gives the 50th and the 99th."""
    gaps = sorted(gaps)
    p50, p90, p99 = (gaps[int(len(gaps) * part)] for part in (0.5, 0.9, 0.99))
    print(f"{len(gaps)} {what}: p50 {p50:.0f} ms, p90 {p90:.0f} ms, p99 {p99:.0f} ms, longest {gaps[-1]:.0f} ms")
    return p50, p99
