"""Helpers for tests and benchmarks: the processes of a run, and reserved ports."""

import os
import socket


def children_of(pid):
    """Returns {role: pid} of a run's processes: supervisor, serve 0, worker 0 and so on."""
    found = {"supervisor": pid}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, encoding="utf-8", errors="replace") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                command = f.read().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent != pid or len(command) < 2:
            continue
        role = command[1].decode(errors="replace")
        found["%s %d" % (role, sum(name.startswith(role) for name in found))] = int(entry)
    return found


RESERVED = []


def reserve_port():
    """Returns a loopback port that the system gives to no other process until this one ends.

    A server that binds it with SO_REUSEADDR can listen there, and can be restarted
    (cli/launch/reserved_port.h).
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    RESERVED.append(reserved)
    return reserved.getsockname()[1]
