"""Continues killed runs, of which only the durable state is left, with other settings: other data
need --allow-changes, all differences are named, and no step is lost. Also: cuts by time.

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
USAGE = 64

SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "training.clip": "lagged", "storage.cut_steps": 2,
    "servers.addresses": 2, "checkpoint.save_steps": 0})


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class Run:
    """A run in a folder of its own."""

    def __init__(self, test, name, **settings):
        self.test = test
        self.folder = os.path.join(TMP, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.out = os.path.join(self.folder, "out")
        self.log = os.path.join(self.folder, "log")
        self.settings = dict(SETTINGS, **settings)
        self.data = test.text

    def command(self, *arguments):
        return [EPS, "train", "--model=" + self.test.model, "--data=" + self.data,
                "--out=" + self.out] + [
                    "--%s=%s" % item for item in sorted(self.settings.items())] + list(arguments)

    def start(self, *arguments):
        with open(self.log, "w", encoding="utf-8") as log:
            return subprocess.Popen(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def last_step(self):
        try:
            with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
                return max([json.loads(line)["step"] for line in f if line.endswith("\n")],
                           default=0)
        except OSError:
            return 0

    def wait_for(self, reached, process):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not reached():
            self.test.assertIsNone(process.poll(), read(self.log))
            self.test.assertLess(time.monotonic(), deadline, read(self.log))
            time.sleep(0.005)

    def kill_in_the_middle(self):
        """Kills all processes of the run that it started."""
        for _ in range(10):
            shutil.rmtree(self.out, ignore_errors=True)
            process = self.start()
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self.last_step() < 8 and process.poll() is None:
                self.test.assertLess(time.monotonic(), deadline, read(self.log))
                time.sleep(0.002)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if 8 <= self.last_step() < STEPS:
                return self
            # On a busy machine the run may end before the kill; try again.
        raise AssertionError("no run was killed before its end: " + read(self.log))

    def repeat(self, *arguments, code=0):
        done = subprocess.run(self.command("--resume=latest", *arguments), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
        self.test.assertEqual(done.returncode, code, done.stdout)
        return done.stdout


class ResumeChangesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP, "gpt2")
        cls.other = os.path.join(TMP, "other.txt")
        with open(cls.other, "w", encoding="utf-8") as f:
            f.write(read(cls.text) + "One more line.\n")

    def test_other_data_need_a_word(self):
        for name, settings in (("chosen", {}), ("nvme", {"storage.kind": "nvme"}),
                               ("path", {"storage.path": os.path.join(TMP, "disk-of-path")})):
            with self.subTest(name):
                shutil.rmtree(os.path.join(TMP, "disk-of-path"), ignore_errors=True)
                run = Run(self, "data-" + name, **settings).kill_in_the_middle()
                run.data = self.other
                changes = ["--training.seed=7", "--optimizer.lr=0.002"]
                metrics = read(run.out + "/metrics.jsonl")
                said = run.repeat(*changes, code=USAGE)
                differences = ("data.tokens: ", "data.sha256: ", "training.seed: ",
                               "optimizer.lr: ")
                for text in differences + ("--allow-changes", "other settings"):
                    self.assertIn(text, said)
                self.assertEqual(read(run.out + "/metrics.jsonl"), metrics)
                said = run.repeat("--allow-changes", *changes)
                for text in differences:
                    self.assertIn("note: not the same job as before: " + text, said)
                step = int(re.search(r"^resume: \S+/checkpoint-(\d+), step \1$", said, re.M)[1])
                self.assertGreaterEqual(step, 4)
                self.assertIn("step: %d/%d " % (step + 1, STEPS), said)
                self.assertNotIn("step: %d/%d " % (step, STEPS), said)

    def test_more_steps_lose_none(self):
        run = Run(self, "more-steps").kill_in_the_middle()
        said = run.repeat("--training.steps=%d" % (STEPS + 2))
        self.assertIn("note: not the same job as before: training.steps: 30 there, 32 here", said)
        step = int(re.search(r"^resume: \S+/checkpoint-(\d+), step \1$", said, re.M)[1])
        self.assertGreaterEqual(step, 4)
        self.assertEqual(run.last_step(), STEPS + 2)

    def test_fewer_steps_than_there_are_refused(self):
        run = Run(self, "fewer-steps").kill_in_the_middle()
        said = run.repeat("--training.steps=2", code=USAGE)
        self.assertIn("raise training.steps", said)
        run.repeat()

    def test_the_state_of_another_folder_is_left_alone(self):
        disk = os.path.join(TMP, "shared-disk")
        shutil.rmtree(disk, ignore_errors=True)
        first = Run(self, "first", **{"storage.path": disk}).kill_in_the_middle()
        second = Run(self, "second", **{"storage.path": disk, "training.seed": 5})
        second.data = self.other
        self.assertIn("step: 1/%d " % STEPS, second.repeat())
        said = first.repeat()
        self.assertRegex(said, r"resume: \S+shared-disk, step [1-9]")

    def test_servers_of_others_name_all_differences(self):
        run = Run(self, "others")
        address = "127.0.0.1:%d" % processes.reserve_port()
        run.settings["servers.addresses"] = address
        log = open(run.folder + "/serve.log", "w", encoding="utf-8")
        self.addCleanup(log.close)
        server = subprocess.Popen([EPS, "serve", "--listen=" + address, "--storage.staging=8MiB",
                                   "--storage.cut_steps=1", "--storage.path=" + run.folder + "/d"],
                                  stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        run.settings["storage.kind"] = "nvme"
        run.kill_in_the_middle()
        run.data = self.other
        said = run.repeat("--training.seed=7", code=USAGE)
        for text in ("data.sha256: ", "training.seed: ", address, "eps checkpoint save"):
            self.assertIn(text, said)


class CutTimeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def test_time_bounds_lost_work(self):
        expected = Run(self, "undisturbed")
        expected.repeat()
        run = Run(self, "by-time", **{
            "storage.kind": "nvme", "storage.cut_steps": 0, "storage.cut_seconds": 1,
            "worker.pass_time": "20ms"})
        process = run.start()
        run.wait_for(lambda: run.last_step() >= 1, process)
        servers = re.search(r"eps status --servers=(\S+)\)", read(run.log))[1]

        def everyone_has_cut():
            said = subprocess.run([EPS, "status", "--json", "--servers=" + servers], check=True,
                                  stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS)
            # The import's cut, and one that the time asked for.
            return all(json.loads(line)["counters"].get("cuts", 0) >= 2
                       for line in said.stdout.splitlines())
        run.wait_for(everyone_has_cut, process)
        os.kill(processes.servers_of(process.pid)[0], signal.SIGKILL)
        self.assertEqual(process.wait(timeout=TIMEOUT_SECONDS), 0, read(run.log))
        back = re.search(r"note: the job continues after step (\d+),", read(run.log))
        self.assertIsNotNone(back, read(run.log))
        self.assertGreater(int(back[1]), 0, read(run.log))
        self.assertEqual(small_job.outcome(EPS, run.out, STEPS),
                         small_job.outcome(EPS, expected.out, STEPS))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
