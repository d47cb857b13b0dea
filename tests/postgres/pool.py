"""pgbouncer in front of a database, as manifests/pgbouncer describes it. Needs the Debian package pgbouncer."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

here = os.path.dirname(os.path.abspath(__file__))
AT = "127.77.255.1"


def configuration(url, directory):
    """The files of this directory, for the database at this URL."""
    parts = urllib.parse.urlsplit(url)
    with open(os.path.join(here, "../../manifests/pgbouncer/pgbouncer.ini")) as file:
        text = file.read()
    service = "host=shop-rw port=5432"
    if service not in text:
        sys.exit(f"manifests/pgbouncer/pgbouncer.ini does not have {service}")
    text = text.replace(service, f"host={parts.hostname} port={parts.port}")
    text = text.replace("listen_addr = *", f"listen_addr = {AT}").replace("/etc/pgbouncer/", f"{directory}/")
    return {"pgbouncer.ini": text, "userlist.txt": f'"{parts.username}" "{parts.password}"\n'}


@contextlib.contextmanager
def pooled(url, there=()):
    """Runs pgbouncer in front of the database at this URL: where it listens, as HOST:PORT. `there` is a command that runs another one in
    the network of the clients."""
    if not shutil.which("pgbouncer"):
        sys.exit("pgbouncer: no such program; install the Debian package")
    # It does not run as root.
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []
    with tempfile.TemporaryDirectory(prefix="kaa-pool.") as directory:
        os.chmod(directory, 0o711)
        for name, text in configuration(url, directory).items():
            with open(os.path.join(directory, name), "w") as file:
                file.write(text)
            os.chmod(file.name, 0o600)
            if user:
                os.chown(file.name, user.pw_uid, user.pw_gid)
        with open(os.path.join(directory, "log"), "w") as log:
            process = subprocess.Popen([*there, *become, "pgbouncer", "-q", f"{directory}/pgbouncer.ini"], stdout=log, stderr=log)
        try:
            yield f"{AT}:6432"
        finally:
            if process.poll() is not None:
                with open(log.name) as file:
                    print(f"pgbouncer has ended:\n{file.read()}", file=sys.stderr)
            process.kill()
            process.wait()
