"""Writes checkpoints of running jobs by `eps checkpoint save --servers`: each is the one that the
run itself would write at that border, and the run ends with the bits of an undisturbed one.

Argument: the path of eps."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import processes
import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 30
USAGE, UNAVAILABLE, INTERRUPTED = 64, 69, 130

SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "training.clip": "exact", "servers.addresses": 2,
    "checkpoint.save_steps": 0})
# Two parts of the state that only the servers have: residuals, and the norm of the last step.
SPARSE = {"quantization.gradients": "topk:0.05", "training.clip": "lagged"}


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class RunningSaveTest(unittest.TestCase):
    undisturbed = {}

    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def setUp(self):
        self.folder = os.path.join(TMP, self._testMethodName)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.out = os.path.join(self.folder, "out")
        self.log = os.path.join(self.folder, "log")
        self.process = None
        self.addCleanup(self.end)

    def end(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def command(self, out, settings):
        merged = dict(SETTINGS, **settings)
        return [EPS, "train", "--model=" + self.model, "--data=" + self.text, "--out=" + out] + [
            "--%s=%s" % item for item in sorted(merged.items())]

    def expected(self, settings):
        """Returns the output folder of an undisturbed run that saves every border."""
        key = json.dumps(settings, sort_keys=True)
        if key not in self.undisturbed:
            out = os.path.join(TMP, "undisturbed-%d" % len(self.undisturbed))
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run(self.command(out, dict(settings, **{"checkpoint.save_steps": 1})),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True,
                           timeout=TIMEOUT_SECONDS)
            self.undisturbed[key] = out
        return self.undisturbed[key]

    def start(self, settings):
        """Starts a run; returns the addresses of its servers once it trains."""
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command(self.out, settings),
                                            stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        self.wait_for(lambda: "\nstep: 3/" in read(self.log))
        return re.search(r"eps status --servers=(\S+)\)", read(self.log))[1].split(",")

    def wait_for(self, reached):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not reached():
            self.assertIsNone(self.process.poll(), read(self.log))
            self.assertLess(time.monotonic(), deadline, read(self.log))
            time.sleep(0.01)

    def save(self, server, out, *arguments):
        return subprocess.run([EPS, "checkpoint", "save", "--servers=" + server, "--out=" + out,
                               *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)

    def digest(self, checkpoint):
        said = subprocess.run([EPS, "checkpoint", "digest", checkpoint], stdout=subprocess.PIPE,
                              text=True, timeout=TIMEOUT_SECONDS, check=True).stdout
        return [line for line in said.splitlines() if "sha256" in line]

    def check_saved(self, saved, expected):
        """Compares a checkpoint that the tool says it wrote; returns its path."""
        self.assertEqual(saved.returncode, 0, saved.stdout)
        checkpoint = re.search(r"^checkpoint: (\S+)$", saved.stdout, re.MULTILINE)[1]
        name = os.path.basename(checkpoint)
        self.assertEqual(self.digest(checkpoint), self.digest(os.path.join(expected, name)))
        subprocess.run([EPS, "checkpoint", "verify", checkpoint], stdout=subprocess.DEVNULL,
                       timeout=TIMEOUT_SECONDS, check=True)
        return checkpoint

    def check_run(self, expected):
        self.assertEqual(self.process.wait(timeout=TIMEOUT_SECONDS), 0, read(self.log))
        self.assertEqual(small_job.outcome(EPS, self.out, STEPS),
                         small_job.outcome(EPS, expected, STEPS))

    def test_saves_what_the_run_would_write(self):
        for name, settings in (("plain", {}), ("sparse", SPARSE)):
            with self.subTest(name):
                shutil.rmtree(self.out, ignore_errors=True)
                expected = self.expected(settings)
                servers = self.start(dict(settings, **{"worker.pass_time": "10ms"}))
                # Any server names all others.
                saved = self.save(servers[-1], os.path.join(self.folder, name))
                checkpoint = self.check_saved(saved, expected)
                self.assertIsNone(self.process.poll(), "the run was over before the save")
                self.check_run(expected)
                theirs = os.path.join(expected, os.path.basename(checkpoint))
                self.assertEqual(json.loads(read(checkpoint + "/trainer_state.json")),
                                 json.loads(read(theirs + "/trainer_state.json")))
                self.assertEqual(read(checkpoint + "/eps/config.yaml"),
                                 read("%s/checkpoint-%d/eps/config.yaml" % (self.out, STEPS)))
                self.check_continues(checkpoint, expected)

    def check_continues(self, checkpoint, expected):
        out = checkpoint + "-continued"
        subprocess.run([EPS, "train", "--resume=" + checkpoint, "--out=" + out],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True,
                       timeout=TIMEOUT_SECONDS)
        last = "checkpoint-%d" % STEPS
        self.assertEqual(self.digest(os.path.join(out, last)),
                         self.digest(os.path.join(expected, last)))

    def test_saves_beside_the_saves_of_the_run(self):
        expected = self.expected({})
        servers = self.start({"worker.pass_time": "10ms", "checkpoint.save_steps": 1})
        count = 0
        while self.process.poll() is None:
            saved = self.save(servers[0], os.path.join(self.folder, "saved-%d" % count))
            if saved.returncode == 0:
                self.check_saved(saved, expected)
                count += 1
            else:  # the run has ended
                self.assertEqual(saved.returncode, UNAVAILABLE, saved.stdout)
                self.assertIn(servers[0], saved.stdout)
        self.assertGreater(count, 0)
        self.check_run(expected)
        for step in range(1, STEPS + 1):
            name = "checkpoint-%d" % step
            self.assertEqual(self.digest(os.path.join(self.out, name)),
                             self.digest(os.path.join(expected, name)))

    def test_the_folder_of_the_run_is_its_own(self):
        servers = self.start({"worker.pass_time": "10ms"})
        saved = self.save(servers[0], self.out)
        self.assertEqual(saved.returncode, USAGE, saved.stdout)
        self.assertIn("%s is in use by process %d" % (self.out, self.process.pid), saved.stdout)
        self.check_run(self.expected({}))

    def end_a_save(self, server, number):
        """Ends a save by a signal while it holds the job; returns the step and its exit code."""
        for attempt in range(10):
            saved = os.path.join(self.folder, "saved-%d" % attempt)
            tool = subprocess.Popen([EPS, "checkpoint", "save", "--servers=" + server,
                                     "--out=" + saved], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(tool.stdout.close)
            line = next((line for line in tool.stdout if line.startswith("holding ")), "")
            tool.send_signal(number)
            code = tool.wait(timeout=TIMEOUT_SECONDS)
            self.assertRegex(line, r"^holding the job after step \d+$")
            if code != 0:
                self.assertEqual([n for n in os.listdir(saved) if n.startswith("checkpoint-")], [])
                return int(line.split()[-1]), code
            # The open step was about to end, and the save was faster than the signal.
        raise AssertionError("no save was ended in time")

    def status(self, server):
        return json.loads(subprocess.run([EPS, "status", "--json", "--servers=" + server],
                                         check=True, stdout=subprocess.PIPE, text=True,
                                         timeout=TIMEOUT_SECONDS).stdout)

    def gates(self, server):
        return {holder: step for holder, step in self.status(server)["gates"].items()
                if holder.startswith("save/")}

    def test_a_killed_save_lets_the_job_go_on(self):
        expected = self.expected({})
        servers = self.start({"worker.pass_time": "60ms", "servers.gate_timeout": "15s"})
        step, code = self.end_a_save(servers[0], signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)
        self.assertEqual(list(self.gates(servers[0]).values()), [step])
        # The job stands at the border until the gate lapses.
        self.wait_for(lambda: "\nstep: %d/" % (step + 1) in read(self.log))
        self.assertEqual(self.gates(servers[0]), {})
        self.check_run(expected)

    def test_a_save_that_lives_keeps_its_gate(self):
        # A step takes longer than a gate lasts.
        servers = self.start({"worker.pass_time": "120ms", "servers.gate_timeout": "1s"})
        with subprocess.Popen([EPS, "checkpoint", "save", "--servers=" + servers[0],
                               "--out=" + os.path.join(self.folder, "saved")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as tool:
            line = next(line for line in tool.stdout if line.startswith("holding "))
            step = int(line.split()[-1])
            while True:
                status = self.status(servers[0])
                if status["step"] > step:
                    break
                self.assertIn(step, status["gates"].values())
            self.assertEqual(tool.wait(timeout=TIMEOUT_SECONDS), 0)

    def test_a_stopped_save_lifts_its_gate(self):
        expected = self.expected({})
        servers = self.start({"worker.pass_time": "60ms", "servers.gate_timeout": "1000s"})
        _, code = self.end_a_save(servers[0], signal.SIGINT)
        self.assertEqual(code, INTERRUPTED)
        self.assertEqual(self.gates(servers[0]), {})
        self.check_run(expected)

    def test_refusals_name_the_reason(self):
        for arguments, code, text in (
                (["--servers=127.0.0.1:1"], UNAVAILABLE, "127.0.0.1:1"),
                (["--servers=2"], USAGE, "host:port"),
                (["state", "--servers=127.0.0.1:1"], USAGE, "either STATE"),
                ([], USAGE, "either STATE")):
            done = subprocess.run([EPS, "checkpoint", "save", "--out=" + self.out, *arguments],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertIn(text, done.stdout)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    tests = processes.tests_of_shard(RunningSaveTest) if len(sys.argv) == 1 else []
    unittest.main(verbosity=2, argv=sys.argv + tests)
