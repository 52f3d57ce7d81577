"""Starts servers and workers by hand, before there is a job, and then the run that creates it.

Argument: the path of eps."""

import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import processes
import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 8
UNAVAILABLE = 69
TERMINATED = 143

SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.parts": 1})


class ByHandTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def setUp(self):
        self.children = []
        self.addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        self.addCleanup(self.end)

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()

    def log_of(self, name):
        return os.path.join(TMP, "%s-%s.log" % (self._testMethodName, name))

    def start(self, name, *arguments):
        with open(self.log_of(name), "w", encoding="utf-8") as log:
            child = subprocess.Popen([EPS, *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=subprocess.STDOUT)
        self.children.append(child)
        return child

    def said(self, name):
        with open(self.log_of(name), encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_for(self, name, text, child):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.said(name):
            self.assertIsNone(child.poll(), self.said(name))
            self.assertLess(time.monotonic(), deadline, self.said(name))
            time.sleep(0.01)

    def start_worker(self, *arguments):
        return self.start("worker", "worker", "--servers=" + ",".join(self.addresses),
                          "--data.path=" + self.text, "--worker.device=cpu", "--worker.threads=1",
                          *arguments)

    def start_servers(self):
        for i, address in enumerate(self.addresses):
            server = self.start("server-%d" % i, "serve", "--listen=" + address)
            self.wait_for("server-%d" % i, "listening on", server)

    def train(self, out, *arguments):
        shutil.rmtree(out, ignore_errors=True)
        return self.start("train", "train", "--model=" + self.model, "--data=" + self.text,
                          "--out=" + out, *arguments,
                          *["--%s=%s" % item for item in sorted(SETTINGS.items())])

    def test_worker_waits_for_servers_and_job(self):
        worker = self.start_worker()
        self.wait_for("worker", "waiting for server %s to answer" % self.addresses[0], worker)
        self.start_servers()
        self.wait_for("worker", "waiting for a job: server %s has none yet" % self.addresses[0],
                      worker)
        out = os.path.join(TMP, "by-hand")
        train = self.train(out, "--servers=" + ",".join(self.addresses), "--workers=0")
        self.assertEqual(train.wait(timeout=TIMEOUT_SECONDS), 0, self.said("train"))
        self.assertEqual(worker.wait(timeout=TIMEOUT_SECONDS), 0, self.said("worker"))
        own = os.path.join(TMP, "own")
        other = self.train(own)
        self.assertEqual(other.wait(timeout=TIMEOUT_SECONDS), 0, self.said("train"))
        self.assertEqual(small_job.outcome(EPS, out, STEPS), small_job.outcome(EPS, own, STEPS))

    def test_wait_has_an_end(self):
        worker = self.start_worker("--worker.join_timeout=1s")
        self.assertEqual(worker.wait(timeout=TIMEOUT_SECONDS), UNAVAILABLE, self.said("worker"))
        self.assertIn("worker.join_timeout", self.said("worker"))

    def test_waiting_worker_can_be_stopped(self):
        worker = self.start_worker("--worker.join_timeout=0s")
        self.wait_for("worker", "waiting for server", worker)
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(timeout=TIMEOUT_SECONDS), TERMINATED, self.said("worker"))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    os.chdir(TMP)
    unittest.main(verbosity=2)
