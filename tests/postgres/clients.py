"""Clients of a database: psql processes that write in several ways and read, and know which rows have to be there in the end.

The table: rows (id, text), with `timeline` and `at` of the log where a row was inserted by default (see played.py).
"""

import hashlib
import itertools
import os
import select
import subprocess
import time


class Broken(Exception):
    """No answer, or an error: what was under way is not known."""


class Client:
    """A connection: a psql that ends at the first error."""

    def __init__(self, psql, patience, environment):
        self.is_pooled = environment.get("POOLER") == f"{environment.get('PGHOST')}:{environment.get('PGPORT')}"
        command = [psql, "-XqAt", "-v", "ON_ERROR_STOP=1"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, bufsize=0
        )
        self.patience, self.unread, self.numbers = patience, b"", itertools.count(1)

    def answers(self, sql):
        """The lines that the server answers to all of it."""
        end = b"done %d" % next(self.numbers)
        try:
            self.process.stdin.write(sql.encode() + b"\n\\echo " + end + b"\n")
        except OSError as error:
            raise Broken from error
        lines, limit = [], time.monotonic() + self.patience
        while (line := self.line(limit)) != end:
            lines.append(line.decode())
        return lines

    def line(self, limit):
        while b"\n" not in self.unread:
            if not select.select([self.process.stdout], [], [], max(0, limit - time.monotonic()))[0]:
                raise Broken("no answer")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise Broken(self.unread.decode(errors="replace"))
            self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        return line.rstrip()

    def do(self, sql):
        """Done and acknowledged. A commit with a warning is not: its wait for the standbys was ended."""
        if any("WARNING" in line or "ERROR" in line or "FATAL" in line for line in self.answers(sql)):
            raise Broken

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Told:
    """What has to be true in the end, as files that others read: FILE has the acknowledged rows, FILE.KIND the others.

    absent    rows of transactions that were rolled back: they are nowhere
    whole     rows of one transaction, acknowledged or not: all of them are there, or none
    prepared  a row of an acknowledged PREPARE TRANSACTION: it is there, or its prepared transaction is
    undone    a row whose ROLLBACK PREPARED was acknowledged: its prepared transaction is not there
    seen      when (time.monotonic), and the rows that were read at a primary then: they are there
    pooled    rows that were acknowledged by way of a pooler
    stale     acknowledged rows that a reader who asked after that did not see at a primary, and when (time.monotonic)
    """

    KINDS = ("absent", "whole", "prepared", "undone", "seen", "pooled", "stale")

    def __init__(self, file):
        self.files = {kind: open(f"{file}.{kind}", "w", buffering=1) for kind in self.KINDS}

    def tell(self, kind, *words):
        print(*words, file=self.files[kind])


def insert(row):
    return f"INSERT INTO rows (id, text) VALUES ({row}, md5('{row}'));"


def autocommit(client, told, rows):
    row = next(rows)
    client.do(insert(row))
    return [row]


def explicit(client, told, rows):
    both = [next(rows), next(rows)]
    told.tell("whole", *both)
    client.do(f"BEGIN; {insert(both[0])} {insert(both[1])} COMMIT;")
    return both


def savepoints(client, told, rows):
    first, undone, last = next(rows), next(rows), next(rows)
    told.tell("whole", first, last)
    told.tell("absent", undone)
    client.do(f"BEGIN; {insert(first)} SAVEPOINT a; {insert(undone)} ROLLBACK TO a; {insert(last)} COMMIT;")
    return [first, last]


def rollback(client, told, rows):
    row = next(rows)
    told.tell("absent", row)
    client.do(f"BEGIN; {insert(row)} ROLLBACK;")
    return []


def copy(client, told, rows):
    some = [next(rows) for _ in range(5)]
    told.tell("whole", *some)
    lines = "\n".join(f"{row}\t{hashlib.md5(str(row).encode()).hexdigest()}" for row in some)
    client.do(f"COPY rows (id, text) FROM STDIN;\n{lines}\n\\.")
    return some


def prepared(client, told, rows):
    """Two-phase commit. Every fourth one is rolled back."""
    row = next(rows)
    undone = row % 4 == 0
    if undone:
        told.tell("absent", row)
    client.do(f"BEGIN; {insert(row)} PREPARE TRANSACTION '{row}';")
    if undone:
        client.do(f"ROLLBACK PREPARED '{row}';")
        told.tell("undone", row)
        return []
    told.tell("prepared", row)
    client.do(f"COMMIT PREPARED '{row}';")
    return [row]


WORK = {work.__name__: work for work in (autocommit, explicit, savepoints, rollback, copy, prepared)}


def read(client, told, known):
    """Reads at a primary: a row that is known to be acknowledged, and the newest ones."""
    # One statement: behind a pooler another server may answer the next one.
    lines = client.answers(
        "SELECT 'in recovery: ' || pg_is_in_recovery() UNION ALL"
        f" SELECT 'known: ' || count(*) FROM rows WHERE id = {known} UNION ALL"
        " SELECT id::text FROM (SELECT id FROM rows ORDER BY id DESC LIMIT 5) AS newest;"
    )
    rows = [line for line in lines if line.isdigit()]
    others = sorted(line for line in lines if not line.isdigit())
    if others == ["in recovery: false", "known: 0"]:
        told.tell("stale", known, time.monotonic())
    if others not in (["in recovery: false", "known: 0"], ["in recovery: false", "known: 1"]):
        raise Broken(lines)
    told.tell("seen", time.monotonic(), *rows)
