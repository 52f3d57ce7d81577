"""Continues a run with another optimizer: `eps checkpoint convert` keeps every bit on the way there
and back, and without it a resume refuses the state of another optimizer.

Argument: the path of eps."""

import json
import math
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 8
SAVED = "checkpoint-4"

SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "checkpoint.save_steps": 4, "servers.addresses": 2,
    "storage.kind": "dram"})


class ConvertOptimizerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        cls.out = os.path.join(TMP, "adamw")
        shutil.rmtree(cls.out, ignore_errors=True)
        done = cls.run_eps("train", "--model=" + cls.model, "--data=" + cls.text,
                           "--out=" + cls.out,
                           *["--%s=%s" % item for item in sorted(SETTINGS.items())])
        assert done.returncode == 0, done.stderr

    @staticmethod
    def run_eps(*arguments):
        return subprocess.run([EPS, *arguments], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=TIMEOUT_SECONDS)

    def eps(self, *arguments):
        done = self.run_eps(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def convert(self, source, optimizer, *flags):
        """Returns the output folder of the new job."""
        out = os.path.join(TMP, self._testMethodName + "-" + optimizer)
        shutil.rmtree(out, ignore_errors=True)
        said = self.eps("checkpoint", "convert", os.path.join(source, SAVED),
                        "--optimizer=" + optimizer, "--out=" + out, *flags)
        self.assertIn("to " + optimizer, said)
        return out

    def go_on(self, out):
        self.eps("train", "--config=" + os.path.join(out, SAVED, "eps", "config.yaml"),
                 "--out=" + out, "--resume=latest")

    def digest(self, folder):
        text = self.eps("checkpoint", "digest", folder)
        return [line for line in text.splitlines() if "sha256" in line]

    def test_there_and_back_keeps_every_bit(self):
        back = self.convert(self.convert(self.out, "adam"), "adamw")
        for step in (4, STEPS):
            if step == STEPS:
                self.go_on(back)
            name = "checkpoint-%d" % step
            self.assertEqual(self.digest(os.path.join(back, name)),
                             self.digest(os.path.join(self.out, name)))

    def test_a_reset_state_trains_on(self):
        out = self.convert(self.out, "lion", "--reset-state")
        self.go_on(out)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            steps = {line["step"]: line["loss"] for line in map(json.loads, f)}
        self.assertTrue(all(math.isfinite(steps[step]) for step in range(5, STEPS + 1)), steps)

    def test_a_resume_refuses_another_optimizer(self):
        done = self.run_eps("train", "--model=" + self.model, "--data=" + self.text,
                            "--out=" + os.path.join(TMP, "refused"), "--optimizer.name=adam",
                            "--resume=" + os.path.join(self.out, SAVED),
                            *["--%s=%s" % item for item in sorted(SETTINGS.items())])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("eps checkpoint convert", done.stdout + done.stderr)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
