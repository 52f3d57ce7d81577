"""Runs the script of docs/guides/ray.md on a real Ray of one machine, and kills a worker's process
and an actor; lets workers end with their job, and with an error.

Arguments: the folder of the programs, and the folder of the tools (install_tools.sh), which
has a Python with Ray in `ray`. Needs third_party/.venv (third_party/install/setup_python.sh)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import podman

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import processes  # noqa: E402 # pylint: disable=wrong-import-position
import small_job  # noqa: E402 # pylint: disable=wrong-import-position

TOOLS = BINARIES = None
STEPS = 100
# Texts of the guide that the test replaces.
SHOWN_SERVERS, SHOWN_DATA, SHOWN_STEPS = "127.0.0.1:50151,127.0.0.1:50152", "README.md", "200"
WAITING = """
import sys
import eps.ray
eps.ray.run_workers(2, servers=sys.argv[1], data=sys.argv[2]).wait()
print("ended")
"""
# Worker 1 reads no data. The script lives on when it has told the error.
FAILING = """
import signal
import sys
import eps.ray
workers = eps.ray.run_workers(2, servers=sys.argv[1], command=(
    "bash", "-c", '[[ $RANK == 0 ]] || set -- "$@" --data=missing.md; exec eps worker "$@"', "-"),
    data=sys.argv[2])
try:
    workers.wait()
except eps.ray.WorkerError as error:
    print("raised", error.rank, error.code, error.stderr)
signal.pause()
"""


def guide():
    with open(os.path.join(ROOT, "docs", "guides", "ray.md"), encoding="utf-8") as f:
        return re.search("```python\n(.*?)```", f.read(), re.S)[1]


class RayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheel = tempfile.mkdtemp(prefix="eps-ray-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.wheel, ignore_errors=True)
        subprocess.run([os.path.join(ROOT, "python", "eps", "build_wheel.sh"), cls.wheel],
                       check=True, stdout=subprocess.DEVNULL, timeout=300)
        for name in os.listdir(cls.wheel):
            shutil.unpack_archive(os.path.join(cls.wheel, name), cls.wheel, "zip")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="eps-ray-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.eps = os.path.join(BINARIES, "eps")
        self.data = os.path.join(self.folder, "data.md")
        shutil.copy(os.path.join(ROOT, "README.md"), self.data)
        self.environment = {
            **os.environ, "PYTHONPATH": self.wheel, "PATH": BINARIES + ":" + os.environ["PATH"],
            "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        self.servers = ",".join(addresses)
        for i, address in enumerate(addresses):
            self.start("server-%d" % i, self.eps, "serve", "--listen=" + address,
                       "--storage.path=%s/server-%d" % (self.folder, i), "--storage.cut_steps=5")
        self.start("driver", self.eps, "driver", "--servers=" + self.servers,
                   "--out=" + self.folder + "/jobs")

    def start(self, name, *command):
        with open(os.path.join(self.folder, name + ".log"), "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       cwd=self.folder, env=self.environment)
        self.addCleanup(process.wait, timeout=podman.TIMEOUT_SECONDS)
        self.addCleanup(process.kill)
        return process

    def script(self, text, *arguments):
        """Starts a script with the Python that has Ray."""
        return self.start("script", os.path.join(TOOLS, "ray", "bin", "python"), "-c", text,
                          *arguments)

    def said(self, name="script"):
        with open(os.path.join(self.folder, name + ".log"), encoding="utf-8",
                  errors="replace") as f:
            return f.read()

    def workers(self):
        """Returns {pid of a worker: pid of its actor}."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % entry, "rb") as f:
                    command = f.read().split(b"\0")
                with open("/proc/%s/stat" % entry, encoding="utf-8", errors="replace") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            # Before the worker, the actor's child is a Python with the same arguments.
            if b"--servers=" + self.servers.encode() in command and command[1] == b"worker":
                found[int(entry)] = parent
        return found

    def steps(self):
        try:
            with open(os.path.join(self.folder, "jobs", "from-ray", "metrics.jsonl"),
                      encoding="utf-8") as f:
                return f.read().count("\n")
        except OSError:
            return 0

    def wait_for_step(self, step, script):
        def reached():
            self.assertIsNone(script.poll(), self.said())
            return self.steps() >= step
        podman.wait_for("step %d" % step, reached)

    def check_outcome(self):
        """Compares the job with an undisturbed run."""
        out = os.path.join(self.folder, "undisturbed")
        job = os.path.join(self.folder, "jobs", "from-ray")
        subprocess.run([self.eps, "train", "--config=" + job + "/job.yaml", "--workers=2",
                        "--worker.threads=1", "--out=" + out], check=True,
                       stdout=subprocess.DEVNULL, timeout=600, cwd=self.folder)
        self.assertEqual(small_job.outcome(self.eps, job, STEPS),
                         small_job.outcome(self.eps, out, STEPS))

    def submit(self):
        path = os.path.join(self.folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"data": {"path": self.data}, "training": {"steps": 5, "parts": 2}}, f)
        subprocess.run([self.eps, "submit", "-f", path, "--servers=" + self.servers], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)

    def test_killed_workers_and_actors_come_back(self):
        text = guide()
        for shown, ours in ((SHOWN_SERVERS, self.servers), (SHOWN_DATA, self.data),
                            (SHOWN_STEPS, str(STEPS))):
            self.assertIn(shown, text)
            text = text.replace(shown, ours)
        # It raises an error if stop() had to kill an actor.
        script = self.script(text + "workers.wait(timeout=0)\n")
        self.wait_for_step(20, script)
        before = self.workers()
        self.assertEqual(len(before), 2)
        self.assertEqual(len(set(before.values())), 2, "an actor for each worker")
        first, second = before
        os.kill(first, signal.SIGKILL)
        podman.wait_for("another process of the same actor", lambda: any(
            pid != first and actor == before[first] for pid, actor in self.workers().items()))
        self.wait_for_step(self.steps() + 10, script)
        os.kill(before[second], signal.SIGKILL)
        podman.wait_for("another actor", lambda: (
            lambda now: second not in now and len(now) == 2)(self.workers()))
        self.wait_for_step(self.steps() + 10, script)
        self.assertEqual(script.wait(timeout=600), 0, self.said())
        self.assertIn("SUCCEEDED", self.said())
        self.assertEqual(self.workers(), {}, "stop() ends the workers")
        self.check_outcome()

    def test_workers_end_with_their_job(self):
        script = self.script(WAITING, self.servers, self.data)
        self.submit()
        self.assertEqual(script.wait(timeout=600), 0, self.said())
        self.assertIn("ended", self.said().splitlines(), self.said())
        self.assertEqual(self.workers(), {})

    def test_workers_end_with_the_script(self):
        script = self.script(WAITING, self.servers, self.data)
        podman.wait_for("two workers", lambda: len(self.workers()) == 2)
        script.kill()
        podman.wait_for("the end of the workers", lambda: not self.workers())

    def test_a_permanent_error_is_raised(self):
        script = self.script(FAILING, self.servers, self.data)
        self.submit()
        podman.wait_for("the error", lambda: "raised" in self.said() or script.poll() is not None)
        self.assertRegex(self.said(), r"(?m)^raised 1 66 (.*\n)*.*missing\.md")
        podman.wait_for("the end of the other worker", lambda: not self.workers())
        self.assertIsNone(script.poll(), self.said())


if __name__ == "__main__":
    TOOLS, BINARIES = (os.path.abspath(sys.argv.pop(i)) for i in (2, 1))
    if not os.path.exists(os.path.join(TOOLS, "ray", "bin", "python")):
        sys.exit("ray_test: %s/ray is missing; run tests/deploy/install_tools.sh %s ray" % (
            TOOLS, TOOLS))
    unittest.main(verbosity=2)
