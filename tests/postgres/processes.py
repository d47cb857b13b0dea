"""Processes by their ids, for the other scripts here."""

import os


def children(pid):
    """Those of all threads of a process."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
    return found


def arguments(pid):
    """Empty ones if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def tree(pid):
    """A process and all below it, the lowest last."""
    return [pid] + [below for child in children(pid) for below in tree(child)]


def is_first(pid):
    """Whether it is the first process of a container."""
    with open(f"/proc/{pid}/status") as file:
        [ids] = [line.split()[1:] for line in file if line.startswith("NSpid:")]
    return len(ids) > 1 and ids[-1] == "1"


def send(pids, what):
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            pass


def variable(pid, name):
    """The value of a process's environment variable."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        [found] = [it for it in file.read().decode(errors="replace").split("\0") if it.startswith(f"{name}=")]
    return found.removeprefix(f"{name}=")


def with_variable(pids, what, variable):
    """Those of these processes that run `kaa WHAT` with this environment variable."""
    found = []
    for pid in pids:
        try:
            if arguments(pid)[1:2] != [what]:
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if variable.encode() in file.read().split(b"\0"):
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return found
