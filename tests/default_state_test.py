"""Checks what `eps train --out=DIR` promises without a further flag: a killed process, or the kill
of all of them, changes no bit, and the cuts that make this possible go with the last checkpoint.

Argument: the path of eps."""

import json
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
STEPS = 40

SETTINGS = {key: value for key, value in small_job.SETTINGS.items()
            if not key.startswith("storage.")}
SETTINGS.update({"training.steps": STEPS, "training.clip": "exact", "servers.addresses": 2,
                 "worker.pass_time": "10ms"})


class DefaultStateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        out = os.path.join(TMP, "undisturbed")
        cls.said = cls.run_to_end(out, **{"storage.kind": "dram"})
        cls.expected = small_job.outcome(EPS, out, STEPS)

    @classmethod
    def command(cls, out, resume="none", **settings):
        merged = dict(SETTINGS, **settings)
        return [EPS, "train", "--model=" + cls.model, "--data=" + cls.text, "--out=" + out,
                "--resume=" + resume] + ["--%s=%s" % item for item in sorted(merged.items())]

    @classmethod
    def run_to_end(cls, out, resume="none", **settings):
        if resume == "none":
            shutil.rmtree(out, ignore_errors=True)
        return subprocess.run(cls.command(out, resume, **settings), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_SECONDS, check=True).stdout

    def start(self, out):
        shutil.rmtree(out, ignore_errors=True)
        with open(out + ".log", "w", encoding="utf-8") as log:
            return subprocess.Popen(self.command(out), stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def said_by(self, out):
        with open(out + ".log", encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_for_step(self, out, step, process):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
                    steps = [json.loads(line)["step"] for line in f if line.endswith("\n")]
            except OSError:
                steps = []
            if steps and steps[-1] >= step:
                return
            self.assertIsNone(process.poll(), self.said_by(out))
            self.assertLess(time.monotonic(), deadline, self.said_by(out))
            time.sleep(0.01)

    def kill(self, process, role):
        os.kill(processes.children_of(process.pid)[role], signal.SIGKILL)

    def test_killed_worker_and_server_change_nothing(self):
        out = os.path.join(TMP, "killed")
        process = self.start(out)
        self.wait_for_step(out, 5, process)
        self.assertTrue(os.path.isdir(os.path.join(out, "state", "server-1")))
        self.kill(process, "worker 0")
        self.wait_for_step(out, 15, process)
        self.kill(process, "serve 1")
        self.assertEqual(process.wait(timeout=TIMEOUT_SECONDS), 0, self.said_by(out))
        said = self.said_by(out)
        self.assertIn("restarting worker 0", said)
        self.assertIn("restarting server 1", said)
        self.assertEqual(small_job.outcome(EPS, out, STEPS), self.expected)
        self.assertFalse(os.path.exists(os.path.join(out, "state")), "it goes with the checkpoint")

    def test_killed_run_goes_on(self):
        out = os.path.join(TMP, "all-killed")
        process = self.start(out)
        self.wait_for_step(out, 12, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=TIMEOUT_SECONDS)
        said = self.run_to_end(out, resume="latest")
        self.assertIn("resume: %s/state, step" % out, said)
        self.assertEqual(small_job.outcome(EPS, out, STEPS), self.expected)
        self.assertFalse(os.path.exists(os.path.join(out, "state")))

    def test_killed_run_may_start_over(self):
        out = os.path.join(TMP, "over")
        process = self.start(out)
        self.wait_for_step(out, 12, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=TIMEOUT_SECONDS)
        said = subprocess.run(self.command(out) + ["--overwrite"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_SECONDS, check=True).stdout
        self.assertIn("note: removing the state of an earlier run", said)
        self.assertEqual(small_job.outcome(EPS, out, STEPS), self.expected)

    def test_one_line_says_what_it_costs(self):
        out = os.path.join(TMP, "line")
        said = self.run_to_end(out)
        lines = [line for line in said.splitlines() if line.startswith("state: ")]
        self.assertEqual(len(lines), 1, said)
        self.assertRegex(lines[0], r"take \S+ MiB of disk .*storage.kind=dram")
        self.assertNotIn("state: ", self.said, "the key turns it off")
        self.assertEqual(small_job.outcome(EPS, out, STEPS), self.expected)

    def test_kept_state_is_readable(self):
        out = os.path.join(TMP, "kept")
        self.run_to_end(out, **{"storage.keep": "true"})
        listed = subprocess.run([EPS, "checkpoint", "ls", os.path.join(out, "state")],
                                stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS,
                                check=True).stdout
        self.assertIn("step %d" % STEPS, listed)

    def test_checkpoint_does_not_name_the_folder(self):
        out = os.path.join(TMP, "moved")
        self.run_to_end(out)
        path = os.path.join(out, "checkpoint-%d" % STEPS, "eps", "config.yaml")
        with open(path, encoding="utf-8") as f:
            self.assertNotIn(os.path.join(out, "state"), f.read())
        elsewhere = os.path.join(TMP, "elsewhere")
        shutil.rmtree(elsewhere, ignore_errors=True)
        os.rename(out, elsewhere)
        said = self.run_to_end(elsewhere, resume="latest", **{"training.steps": STEPS + 4})
        self.assertIn("state: cuts in %s/state" % elsewhere, said)
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    os.chdir(TMP)
    unittest.main(verbosity=2)
