"""Helpers for tests and benchmarks: the processes of a run, reserved ports, shards of a test."""

import os
import re
import socket
import unittest


def all_processes():
    """Yields the pid, the parent's pid and the command line of every process."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, encoding="utf-8", errors="replace") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                command = f.read().decode(errors="replace").split("\0")
        except (OSError, ValueError, IndexError):
            continue
        if len(command) > 1:
            yield int(entry), parent, command


def children_of(pid):
    """Returns {role: pid} of a run's processes: supervisor, serve 0, worker 0 and so on."""
    found = {"supervisor": pid}
    for child, parent, command in all_processes():
        if parent == pid:
            role = command[1]
            found["%s %d" % (role, sum(name.startswith(role) for name in found))] = child
    return found


def has_ended(pid):
    """Returns whether all threads of a process have ended, even if its parent has not waited."""
    try:
        threads = os.listdir("/proc/%d/task" % pid)
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as f:
            state = f.read().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return len(threads) == 1 and state == "Z"


def devices_of(pid):
    """Returns {role: pid} of the storage devices of a run's servers: device 0 and so on."""
    servers = set(children_of(pid).values())
    devices = [child for child, parent, command in all_processes()
               if parent in servers and os.path.basename(command[0]) == "eps-csd"]
    return {"device %d" % i: child for i, child in enumerate(sorted(devices))}


def servers_of(pid):
    """Returns {number: pid} of the servers with durable state that `eps train` has started."""
    found = {}
    for child in children_of(pid).values():
        try:
            with open("/proc/%d/cmdline" % child, "rb") as f:
                number = re.search(rb"--storage[.]path=[^\0]*/server-(\d+)\0", f.read())
        except OSError:
            continue
        if number:
            found[int(number.group(1))] = child
    return found


def workers_of(pid):
    """Returns {rank: pid} of the workers that `eps train` has started."""
    found = {}
    for child in children_of(pid).values():
        try:
            with open("/proc/%d/cmdline" % child, "rb") as f:
                rank = re.search(rb"--worker[.]rank=(\d+)\0", f.read())
        except OSError:
            continue
        if rank:
            found[int(rank.group(1))] = child
    return found


def tests_of_shard(*cases):
    """Returns the names of the tests of this shard, one of several processes that bazel starts."""
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        with open(os.environ["TEST_SHARD_STATUS_FILE"], "w", encoding="utf-8"):
            pass
    shards = int(os.environ.get("TEST_TOTAL_SHARDS", "1"))
    shard = int(os.environ.get("TEST_SHARD_INDEX", "0"))
    names = [case.__name__ + "." + name for case in cases
             for name in unittest.defaultTestLoader.getTestCaseNames(case)]
    return names[shard::shards]


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
