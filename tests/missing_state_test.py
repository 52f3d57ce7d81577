"""Takes parts of the durable state of a killed run away and repeats its command. With
--resume=latest the run refuses to start (exit code 66), changes nothing, and ends with the bits of
an undisturbed run once the state is back. With --overwrite it starts over and loses nothing.

Argument: the path of eps."""

import contextlib
import glob
import hashlib
import json
import os
import re
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
STEPS = 24

SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.clip": "lagged"})
DURABLE = {"storage.kind": "nvme", "storage.cut_steps": 1, "servers.addresses": 2}


def files_below(folder):
    """Returns {path: SHA-256} of all files; locks are left out, because readers take them."""
    sums = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if name != "LOCK":
                with open(path, "rb") as f:
                    sums[os.path.relpath(path, folder)] = hashlib.sha256(f.read()).hexdigest()
    return sums


def content(path):
    with open(path, "rb") as f:
        return f.read()


class Run:
    """A durable run in a folder of its own, which is killed in the middle."""

    def __init__(self, test, name):
        self.test = test
        self.folder = os.path.join(TMP, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.out = os.path.join(self.folder, "out")
        self.state = os.path.join(self.folder, "disk", "state")
        self.metrics = os.path.join(self.out, "metrics.jsonl")

    def command(self, resume, settings=None):
        merged = dict(SETTINGS, **dict(DURABLE, **settings or {}))
        return [EPS, "train", "--model=" + self.test.model, "--data=" + self.test.text,
                "--out=" + self.out, "--storage.path=" + self.state, "--resume=" + resume] + (
                    ["--overwrite"] if resume == "none" else []) + [
                        "--%s=%s" % item for item in sorted(merged.items())]

    def start(self, resume="none", settings=None):
        with open(self.folder + ".log", "w", encoding="utf-8") as log:
            return subprocess.Popen(self.command(resume, settings), stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def kill_when(self, reached, process):
        """Kills all processes once `reached` returns true, unless the run ends earlier."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not reached() and process.poll() is None:
            self.test.assertLess(time.monotonic(), deadline, "the run does not get there")
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=TIMEOUT_SECONDS)

    def kill_in_the_middle(self):
        for _ in range(10):
            shutil.rmtree(self.state, ignore_errors=True)
            shutil.rmtree(self.out, ignore_errors=True)
            self.kill_when(lambda: self.last_step() >= 5, self.start())
            if 5 <= self.last_step() < STEPS:
                return self
            # On a busy machine the run may end before the kill; try again.
        raise AssertionError("no run was killed before its end")

    def save_after_a_kill(self):
        """Kills a run and saves its state; returns the checkpoint and its step, whose line is in
        metrics.jsonl."""
        step = 1
        while self.last_step() < step:
            # The kill may fall between the cut of a step and its line in metrics.jsonl.
            self.kill_in_the_middle()
            self.test.eps("checkpoint", "save", self.state, "--out=" + self.out)
            checkpoint, = glob.glob(os.path.join(self.out, "checkpoint-*"))
            step = int(checkpoint.rpartition("-")[2])
        return checkpoint, step

    def rows(self):
        try:
            with open(self.metrics, encoding="utf-8") as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except OSError:
            return []

    def last_step(self):
        return max([row["step"] for row in self.rows()], default=0)

    def repeat(self, resume, code=0, settings=None):
        """Repeats the command; returns its output on both streams."""
        done = subprocess.run(self.command(resume, settings), stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=TIMEOUT_SECONDS)
        self.test.assertEqual(done.returncode, code, done.stdout[-2000:] + done.stderr)
        return done.stderr if code else done.stdout

    def expect_refusal(self, *texts):
        """Expects that --resume=latest is refused with these texts and changes nothing."""
        step, metrics = self.last_step(), content(self.metrics)
        disk = files_below(os.path.dirname(self.state))
        said = self.repeat("latest", code=66)
        for text in texts + ("metrics.jsonl ends at step %d" % step, "--overwrite"):
            self.test.assertIn(text, said)
        self.test.assertNotIn("to continue from the last checkpoint", said)
        self.test.assertEqual(content(self.metrics), metrics)
        self.test.assertEqual(files_below(os.path.dirname(self.state)), disk)
        return said

    def expect_end(self, resume):
        said = self.repeat(resume)
        self.test.expect_outcome(self)
        return said


class MissingStateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        cls.undisturbed = None

    def eps(self, *arguments, code=0):
        done = subprocess.run([EPS] + list(arguments), stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def expect_outcome(self, run):
        if MissingStateTest.undisturbed is None:
            whole = Run(self, "undisturbed")
            whole.repeat("none")
            MissingStateTest.undisturbed = small_job.outcome(EPS, whole.out, STEPS)
        self.assertEqual(small_job.outcome(EPS, run.out, STEPS), MissingStateTest.undisturbed)

    def test_a_missing_state_is_refused(self):
        run = Run(self, "no-state").kill_in_the_middle()
        away = run.folder + "/away"
        os.rename(run.state, away)
        self.assertIn("there is no checkpoint", run.expect_refusal(run.state))
        self.assertFalse(os.path.exists(run.state))
        # The mount point of a disk that is not mounted.
        os.makedirs(run.state)
        run.expect_refusal(run.state)
        os.rmdir(run.state)
        os.rename(away, run.state)
        run.expect_end("latest")

    def test_an_older_checkpoint_is_offered_by_name(self):
        run = Run(self, "older-checkpoint")
        checkpoint, step = run.save_after_a_kill()
        shutil.rmtree(run.state)
        # The run went on after the checkpoint.
        with open(run.metrics, "a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step + 3, "loss": 1.0}) + "\n")
        run.expect_refusal(run.state, "--resume=" + checkpoint)
        said = run.expect_end(checkpoint)
        self.assertIn("note: --resume=%s: starting over at step %d" % (checkpoint, step), said)

    def test_a_checkpoint_of_the_last_step_is_enough(self):
        run = Run(self, "last-checkpoint")
        _, step = run.save_after_a_kill()
        rows = [row for row in run.rows() if row["step"] <= step]
        with open(run.metrics, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        shutil.rmtree(run.state)
        run.expect_end("latest")

    def test_jobs_without_a_catalogue_are_refused(self):
        run = Run(self, "no-catalogue").kill_in_the_middle()
        catalogue = os.path.join(run.state, "server-1", "catalogue")
        os.rename(catalogue, run.folder + "/away")
        run.expect_refusal(catalogue)
        said = self.eps("serve", "--storage.kind=nvme", "--listen=127.0.0.1:0",
                        "--storage.path=" + os.path.dirname(catalogue), code=66)
        self.assertIn(catalogue + " is missing", said)
        os.rename(run.folder + "/away", catalogue)
        run.expect_end("latest")

    def test_one_missing_server_is_refused(self):
        run = Run(self, "no-server").kill_in_the_middle()
        server = os.path.join(run.state, "server-1")
        os.rename(server, run.folder + "/away")
        run.expect_refusal(server, os.path.join(run.state, "server-0"))
        self.assertFalse(os.path.exists(server))
        os.rename(run.folder + "/away", server)
        run.expect_end("latest")

    def test_none_starts_over_and_keeps_the_rest(self):
        killed = Run(self, "start-over").kill_in_the_middle()
        for name, missing in (("all", ""), ("catalogue", "server-0/catalogue"),
                              ("server", "server-0")):
            run = Run(self, "start-over-" + name)
            shutil.rmtree(run.folder)
            shutil.copytree(killed.folder, run.folder)
            shutil.rmtree(os.path.join(run.state, missing))
            rest = files_below(run.state)
            said = run.expect_end("none")
            self.assertEqual(said.count("note: --resume=none: starting over at step 0"), 1, said)
            lost = os.path.join(run.state, "lost+found")
            if not rest:
                self.assertFalse(os.path.exists(lost))
                continue
            kept = files_below(lost)
            for path in rest:
                if not path.startswith("job-"):  # the configuration
                    self.assertEqual(kept[path], rest[path])
            said = self.eps("state", "ls", run.state)
            paths = re.findall(r"^set aside: (\S+), ", said, re.M)
            self.assertEqual(paths, sorted(glob.glob(lost + "/*")))
            self.assertIn(os.path.join(lost, "server-1"), paths)
            self.eps("state", "rm", run.state, *paths)
            self.assertNotIn("set aside", self.eps("state", "ls", run.state))
            self.assertEqual(os.listdir(lost), [])

    def test_a_kill_before_the_first_cut_just_works(self):
        for name, pattern in (("catalogue", "server-0/catalogue"), ("new", "server-*/job-*.new"),
                              ("slots", "server-1/job-*/slot-1.eps")):
            run = Run(self, "early-" + name)
            run.kill_when(lambda: glob.glob(os.path.join(run.state, pattern)), run.start())
            run.expect_end("latest")

    def test_state_that_disappears_in_mid_run_ends_it(self):
        run = Run(self, "disappears")
        away = run.folder + "/away"
        for _ in range(10):
            shutil.rmtree(run.folder)
            os.makedirs(run.folder)
            process = run.start()
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while run.last_step() < 5 and process.poll() is None:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.002)
            if process.poll() is not None:
                continue
            # The supervisor must not restart a process before all folders are gone. A worker that
            # lives would notice that its server has lost the job, perhaps before the supervisor.
            os.kill(process.pid, signal.SIGSTOP)
            killed = [pid for role, pid in processes.children_of(process.pid).items()
                      if role != "supervisor"]
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            # The supervisor must see all ends at once: the end of a worker alone is a reason, too.
            while not all(map(processes.has_ended, killed)):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.002)
            step = run.last_step()
            if step < STEPS:
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.assertLess(step, STEPS)
        os.rename(run.state, away)
        os.kill(process.pid, signal.SIGCONT)
        code = process.wait(timeout=TIMEOUT_SECONDS)
        with open(run.folder + ".log", encoding="utf-8") as log:
            said = log.read()
        self.assertEqual(code, 66, said)
        self.assertIn("the servers have no state of this job any more", said)
        self.assertGreaterEqual(run.last_step(), step)
        shutil.rmtree(run.state)
        os.rename(away, run.state)
        run.expect_end("latest")

    def run_on_servers_of_others(self, name, count):
        """Returns a run that was killed in the middle, its settings, the folders of its servers,
        and a context in which they run."""
        run = Run(self, name)
        addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(count)]
        folders = [os.path.join(run.state, "of-%d" % i) for i in range(count)]
        settings = {"servers.addresses": ",".join(addresses), "worker.count": 1}

        @contextlib.contextmanager
        def servers():
            with open(run.folder + ".serve.log", "a", encoding="utf-8") as log:
                started = [subprocess.Popen(
                    [EPS, "serve", "--listen=" + address, "--storage.kind=nvme",
                     "--storage.staging=8MiB", "--storage.cut_steps=1", "--storage.path=" + folder],
                    stdout=log, stderr=log) for address, folder in zip(addresses, folders)]
                try:
                    yield
                finally:
                    for process in started:
                        process.kill()
                        process.wait()

        for _ in range(10):
            shutil.rmtree(run.state, ignore_errors=True)
            shutil.rmtree(run.out, ignore_errors=True)
            for folder in folders:
                os.makedirs(folder)
            with servers():
                run.kill_when(lambda: run.last_step() >= 5, run.start(settings=settings))
            if 5 <= run.last_step() < STEPS:
                return run, settings, folders, servers
        raise AssertionError("no run was killed before its end")

    def check_without_folders(self, run, settings, lost, servers):
        """Returns what a resumed run says without these folders; checks it with them."""
        metrics = content(run.metrics)
        for folder in lost:
            os.rename(folder, folder + "-away")
            os.makedirs(folder)
        with servers():
            said = run.repeat("latest", code=66, settings=settings)
        self.assertEqual(content(run.metrics), metrics)
        for folder in lost:
            shutil.rmtree(folder)
            os.rename(folder + "-away", folder)
        with servers():
            run.repeat("latest", settings=settings)
        self.expect_outcome(run)
        return said

    def test_servers_of_others_without_the_job_are_refused(self):
        run, settings, folders, servers = self.run_on_servers_of_others("others", 1)
        step = run.last_step()
        said = self.check_without_folders(run, settings, folders, servers)
        self.assertIn("is not on " + settings["servers.addresses"], said)
        self.assertIn("metrics.jsonl ends at step %d" % step, said)

    def test_one_missing_folder_of_others_is_refused(self):
        run, settings, folders, servers = self.run_on_servers_of_others("others-folder", 2)
        said = self.check_without_folders(run, settings, folders[1:], servers)
        self.assertIn("no cut is there on all shards", said)
        self.assertRegex(said, r"shard 1 at \S+ has none")


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
