"""Runs `eps train` into a file system of a few megabytes (tmpfs): it refuses to start without room
for one checkpoint, and a disk that fills later loses nothing.

Mounts the file system as root, or in a user namespace of its own. Argument: the path of eps."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
DOES_NOT_FIT = 71
TERMINATED = 143
STEPS = 12

SETTINGS = {key: value for key, value in small_job.SETTINGS.items()
            if not key.startswith("storage.")}
SETTINGS.update({"training.steps": STEPS, "training.clip": "exact", "servers.addresses": 2,
                 "checkpoint.save_steps": 6, "worker.pass_time": "20ms"})


class Disk:
    """A mounted tmpfs."""

    def __init__(self, name, mebibytes):
        self.path = os.path.join(TMP, name)
        os.makedirs(self.path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dm" % mebibytes, "tmpfs", self.path],
                       check=True)

    def fill(self):
        """Occupies every free block."""
        with open(os.path.join(self.path, "filler"), "wb", buffering=0) as f:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        f.write(b"x" * size)
                except OSError:
                    pass

    def make_room(self):
        os.unlink(os.path.join(self.path, "filler"))

    def unmount(self):
        subprocess.run(["umount", "--lazy", self.path], check=True)


class FullDiskTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        out = os.path.join(TMP, "undisturbed")
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run(cls.command(out, {}), stdin=subprocess.DEVNULL, check=True,
                       stdout=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS)
        cls.expected = small_job.outcome(EPS, out, STEPS)

    @classmethod
    def command(cls, out, settings):
        merged = dict(SETTINGS, **settings)
        return [EPS, "train", "--model=" + cls.model, "--data=" + cls.text, "--out=" + out] + [
            "--%s=%s" % item for item in sorted(merged.items())]

    def disk(self, mebibytes):
        disk = Disk(self._testMethodName, mebibytes)
        self.addCleanup(disk.unmount)
        return disk

    def start(self, out, settings):
        self.log = out.replace("/", "_") + ".log"
        with open(self.log, "w", encoding="utf-8") as log:
            process = subprocess.Popen(self.command(out, settings), stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_until(self, reached, process):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not reached():
            self.assertIsNone(process.poll(), self.said())
            self.assertLess(time.monotonic(), deadline, self.said())
            time.sleep(0.01)

    def fill_after_the_first_step(self, disk, out, process):
        metrics = os.path.join(out, "metrics.jsonl")
        self.wait_until(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 0, process)
        disk.fill()

    def test_too_small_disk_is_refused(self):
        disk = self.disk(1)
        out = os.path.join(disk.path, "out")
        ended = subprocess.run(self.command(out, {}), stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               timeout=TIMEOUT_SECONDS)
        self.assertEqual(ended.returncode, DOES_NOT_FIT, ended.stderr)
        self.assertRegex(ended.stderr, r"a checkpoint takes \d+ bytes, and %s .checkpoint.dir. has "
                                       r"\d+ free: \d+ are missing" % out)
        self.assertNotIn("step: 1/", ended.stdout)
        self.assertEqual(os.listdir(out), [".lock"])

    def check_waits(self, settings):
        disk = self.disk(64)
        out = os.path.join(disk.path, "out")
        process = self.start(out, settings)
        self.fill_after_the_first_step(disk, out, process)
        self.wait_until(lambda: "waiting after step 6 for room" in self.said(), process)
        self.assertIn("are missing", self.said())
        disk.make_room()
        self.assertEqual(process.wait(timeout=TIMEOUT_SECONDS), 0, self.said())
        self.assertIn("note: there is room again", self.said())
        self.assertEqual(small_job.outcome(EPS, out, STEPS), self.expected)
        self.assertTrue(os.path.isdir(os.path.join(out, "checkpoint-6")))

    def test_full_disk_is_waited_for(self):
        self.check_waits({"storage.kind": "dram"})

    def test_full_disk_with_cuts_is_waited_for(self):
        self.check_waits({})

    def test_interrupted_wait_ends(self):
        disk = self.disk(64)
        out = os.path.join(disk.path, "out")
        process = self.start(out, {"storage.kind": "dram"})
        self.fill_after_the_first_step(disk, out, process)
        self.wait_until(lambda: "waiting after step 6 for room" in self.said(), process)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=TIMEOUT_SECONDS), TERMINATED, self.said())
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            for line in f:
                json.loads(line)


def mounts():
    """Returns whether this process may mount file systems."""
    folder = os.path.join(TMP, "probe")
    os.makedirs(folder, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        return False
    subprocess.run(["umount", folder], check=True)
    return True


if __name__ == "__main__":
    if not mounts() and "EPS_TEST_NAMESPACE" not in os.environ:
        os.environ["EPS_TEST_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", sys.executable,
                              *sys.argv])
    EPS = os.path.abspath(sys.argv.pop(1))
    os.chdir(TMP)
    unittest.main(verbosity=2)
