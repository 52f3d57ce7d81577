"""Runs `eps` as a user would. Tests of running jobs build on it."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import small_job

TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600


def lines_of(path):
    """Returns the number of complete lines of a file; 0 without the file."""
    try:
        with open(path, encoding="utf-8") as f:
            return sum(line.endswith("\n") for line in f)
    except OSError:
        return 0


class RunTest(unittest.TestCase):
    program = None  # eps

    def eps(self, *arguments, code=0):
        """Runs eps to its end. Returns what it says."""
        done = subprocess.run([self.program, *arguments], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def begin(self, arguments, log):
        """Starts eps in a session of its own; `log` is a file."""
        return subprocess.Popen([self.program, *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def wait_for_step(self, process, out, step):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while lines_of(os.path.join(out, "metrics.jsonl")) < step:
            self.assertLess(time.monotonic(), deadline, "no step %d" % step)
            self.assertIsNone(process.poll(), "the run has ended before step %d" % step)
            time.sleep(0.005)

    def status(self, log, *arguments):
        """Returns what eps status says of the run with this log."""
        with open(log, encoding="utf-8") as f:
            servers = re.search(r"eps status (--servers=[^)\s]+)", f.read()).group(1)
        return self.eps("status", servers, *arguments)

    def links_of(self, log):
        """Yields {(device, link, direction, purpose): bytes} of each server of that run."""
        for line in self.status(log, "--json").splitlines():
            yield {tuple(link[key] for key in ("device", "link", "direction", "purpose")):
                   link["bytes"] for link in json.loads(line)["link_bytes"]}

    def wait_for_restarts(self, process, path, count):
        """Waits until the run has noted in the file that it restarts a server, so many times."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            with open(path, encoding="utf-8") as f:
                said = f.read()
            if said.count("note: restarting server") >= count:
                return
            self.assertIsNone(process.poll(), said)
            self.assertLess(time.monotonic(), deadline, said)
            time.sleep(0.005)

    def wait_for_address(self, server, path):
        """Returns the address that eps serve writes to the file."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            with open(path, encoding="utf-8") as f:
                found = re.search(r"127\.0\.0\.1:\d+", f.read())
            if found:
                return found.group()
            self.assertIsNone(server.poll(), "the server has ended")
            self.assertLess(time.monotonic(), deadline, "the server names no address")
            time.sleep(0.01)

    def outcome(self, out, steps):
        return small_job.outcome(self.program, out, steps)


def build_plugin(eps, command, name, plant=("", "")):
    """Returns the object of a new plug-in of `eps COMMAND`, in whose source `plant`, (old, new),
    replaces a text."""
    folder = os.path.join(TMP, command + "-" + name)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([eps, command, "new", name, "--out=" + folder], check=True,
                   timeout=TIMEOUT_SECONDS, stdout=subprocess.DEVNULL)
    source = os.path.join(folder, name + ".c")
    with open(source, encoding="utf-8") as f:
        text = f.read()
    assert plant[0] in text, plant
    with open(source, "w", encoding="utf-8") as f:
        f.write("#include <fcntl.h>\n" + text.replace(*plant) if plant[0] else text)
    subprocess.run(["make", "--silent", "-C", folder], check=True, timeout=TIMEOUT_SECONDS)
    return os.path.join(folder, name + ".so")


def job_text(model, data, settings):
    """Returns the YAML of a job that is submitted, which names no file and no machine; JSON is
    YAML, too."""
    job = {"model": {"path": model}, "data": {"path": data}}
    for key, value in settings.items():
        section, name = key.split(".")
        if section not in ("servers", "storage", "worker"):
            job.setdefault(section, {})[name] = value
    return json.dumps(job)


def with_settings(command, settings, changes):
    """Returns the arguments `command` with the settings; in `changes` "__" stands for a dot."""
    merged = dict(settings, **{key.replace("__", "."): value for key, value in changes.items()})
    return command + ["--%s=%s" % item for item in sorted(merged.items())]


def main():
    RunTest.program = os.path.abspath(sys.argv.pop())
    unittest.main()
