"""Jobs on the board of running servers: submitted, driven by `eps driver`, paused, cancelled, and
continued by other drivers. Each job that succeeds ends with the weights and the loss log of an
undisturbed `eps train`.

Argument: the path of eps."""

import glob
import json
import os
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
USAGE, NO_INPUT, CANCELLED, NOT_ALLOWED, TERMINATED = 64, 66, 76, 77, 143

SETTINGS = dict({key: value for key, value in small_job.SETTINGS.items()
                 if not key.startswith(("worker.", "storage."))},
                **{"training.steps": STEPS, "training.clip": "exact", "checkpoint.save_steps": 10})
SERVER = ["--storage.staging=8MiB", "--storage.cut_steps=2"]
# A step takes about 60 ms, so that a test can act in the middle of a job.
SLOW = "--worker.pass_time=15ms"


def job_text(model, data, **settings):
    """Returns the YAML of a job; JSON is YAML, too."""
    sections = {"model": {"path": model}, "data": {"path": data}}
    for key, value in dict(SETTINGS, **settings).items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return json.dumps(sections, indent=1) + "\n"


def text_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


class BoardTest(unittest.TestCase):
    undisturbed = {}

    @classmethod
    def setUpClass(cls):
        cls.inputs = {}
        for name in ("synthetic", "gpt2"):
            folder = os.path.join(TMP, "inputs-" + name)
            os.makedirs(folder, exist_ok=True)
            cls.inputs[name] = small_job.write_inputs(folder, name)

    def setUp(self):
        self.folder = os.path.join(TMP, self._testMethodName)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.processes = []
        self.addCleanup(self.end)
        self.addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        self.servers = [self.serve(i) for i in range(2)]

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, log, *arguments):
        with open(os.path.join(self.folder, log), "a", encoding="utf-8") as f:
            process = subprocess.Popen([EPS, *arguments], stdin=subprocess.DEVNULL, stdout=f,
                                       stderr=subprocess.STDOUT, cwd=TMP)
        self.processes.append(process)
        return process

    def serve(self, i, *arguments):
        return self.start("server-%d.log" % i, "serve", "--listen=" + self.addresses[i],
                          "--storage.path=%s/server-%d" % (self.folder, i), *SERVER, *arguments)

    def work(self, *arguments, model="synthetic"):
        return self.start("worker.log", "worker", "--servers=" + self.addresses[0],
                          "--data=" + self.inputs[model][1], "--worker.threads=1", *arguments)

    def drive(self, *arguments, out="jobs"):
        return self.start("driver.log", "driver", "--servers=" + ",".join(self.addresses),
                          "--out=" + os.path.join(self.folder, out), *arguments)

    def said(self):
        """Returns what all processes of the test said."""
        said = []
        for root, _, names in os.walk(self.folder):
            said += ["%s: %s" % (name, text_of(os.path.join(root, name))[-2500:])
                     for name in sorted(names) if name.endswith(".log")]
        return "\n".join(said)

    def eps(self, *arguments, code=0):
        done = subprocess.run([EPS, *arguments, "--servers=" + ",".join(self.addresses)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, code, done.stdout + self.said())
        return done.stdout

    def submit(self, name, *arguments, model="synthetic", code=0, **settings):
        path = os.path.join(self.folder, name + ".yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(job_text(*self.inputs[model], **settings))
        return self.eps("submit", "-f", path, *arguments, code=code)

    def lead(self):
        """Returns the status of the lead."""
        return json.loads(self.eps("status", "--json").splitlines()[0])

    def job(self, name):
        return json.loads(self.eps("job", "show", name, "--json"))

    def wait_until(self, reached, what):
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not reached():
            self.assertLess(time.monotonic(), deadline, what + ": " + self.said())
            time.sleep(0.05)

    def metrics(self, name, out="jobs"):
        path = os.path.join(self.folder, out, name, "metrics.jsonl")
        return [json.loads(line) for line in text_of(path).splitlines(True)
                if line.endswith("\n")]

    def wait_for_step(self, name, step, out="jobs"):
        self.wait_until(lambda: any(row["step"] >= step for row in self.metrics(name, out)),
                        "step %d" % step)

    def wait_for_end(self, name):
        self.wait_until(lambda: self.job(name)["exit_code"] is not None, "the end of " + name)
        return self.job(name)

    def check_outcome(self, name, out="jobs", model="synthetic", parts=1):
        """Compares a job that has succeeded with an undisturbed run."""
        job = self.wait_for_end(name)
        folder = os.path.join(self.folder, out, name)
        self.assertEqual((job["phase"], job["exit_code"]), ("SUCCEEDED", 0), self.said())
        self.assertEqual((job["step"], job["steps"]), (STEPS, STEPS))
        self.assertEqual(job["checkpoint"], os.path.join(folder, "checkpoint-%d" % STEPS))
        if (model, parts) not in self.undisturbed:
            run = os.path.join(TMP, "undisturbed-%s-%d" % (model, parts))
            shutil.rmtree(run, ignore_errors=True)
            settings = dict(SETTINGS, **{"worker.threads": 1, "servers.addresses": 2,
                                         "training.parts": parts})
            subprocess.run([EPS, "train", "--out=" + run, "--model=" + self.inputs[model][0],
                            "--data=" + self.inputs[model][1]] +
                           ["--%s=%s" % item for item in settings.items()], check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           timeout=TIMEOUT_SECONDS)
            BoardTest.undisturbed[model, parts] = small_job.outcome(EPS, run, STEPS)
        self.assertEqual(small_job.outcome(EPS, folder, STEPS), self.undisturbed[model, parts])
        return job

    def test_a_submitted_job_succeeds(self):
        self.drive("--once")
        self.work(model="gpt2")
        self.submit("first", "--wait", "--timeout=600", model="gpt2")
        job = self.check_outcome("first", model="gpt2")
        self.assertEqual(job["driver"], "")
        self.assertEqual(self.processes[2].wait(timeout=TIMEOUT_SECONDS), 0, self.said())
        self.assertIn("first ", self.eps("job", "ls"))
        self.eps("job", "watch", "first")
        # The folder of a removed job stays, and the name is free again.
        self.eps("job", "rm", "first")
        self.eps("job", "show", "first", code=NO_INPUT)
        self.assertTrue(os.path.isdir(job["checkpoint"]))

    def states(self, i):
        """Returns the folders of the jobs whose state a server has."""
        return sorted(glob.glob("%s/server-%d/job-*" % (self.folder, i)))

    def test_servers_take_one_job_after_another(self):
        self.drive()
        worker = self.work("--worker.stay", model="gpt2")
        self.submit("first", model="gpt2", **{"training.seed": 5})
        self.assertEqual(self.wait_for_end("first")["phase"], "SUCCEEDED", self.said())
        states = [self.states(i) for i in range(2)]
        self.submit("second", model="gpt2")
        self.check_outcome("second", model="gpt2")
        for i in range(2):
            self.assertEqual(len(self.states(i)), 1, "the state of a job that is over goes")
            self.assertNotEqual(self.states(i), states[i])
        # The board remembers that a removed job is over, and its servers let it go, too.
        self.eps("job", "rm", "second")
        for i in range(2):
            self.servers[i].kill()
            self.servers[i].wait()
            self.servers[i] = self.serve(i)
        self.submit("third", **{"training.seed": 6})
        self.assertEqual(self.wait_for_end("third")["phase"], "SUCCEEDED", self.said())
        self.assertEqual([len(self.states(i)) for i in range(2)], [1, 1])
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(timeout=TIMEOUT_SECONDS), TERMINATED, self.said())

    def test_another_driver_continues_after_a_kill(self):
        driver = self.drive()
        self.work(SLOW)
        self.submit("killed")
        self.wait_for_step("killed", 12)
        self.wait_until(lambda: self.job("killed")["step"] >= 10, "a report")
        lease = self.job("killed")["lease_generation"]
        children = processes.children_of(driver.pid)
        driver.kill()
        driver.wait()
        # The run dies with its driver, or it would go on without a lease.
        self.wait_until(lambda: not os.path.exists("/proc/%d" % children["train 0"]), "the child")
        logged = len(self.metrics("killed"))
        self.assertLess(logged, STEPS)
        # Its gate ends with its lease, and the job trains on without a driver.
        self.wait_until(lambda: self.lead()["state"] == "done", "the last step")
        self.drive("--once")
        job = self.check_outcome("killed")
        self.assertGreater(job["lease_generation"], lease)

    def test_a_pause_lasts_until_the_resume(self):
        self.drive()
        self.work(SLOW)
        self.submit("paused")
        self.wait_for_step("paused", 3)
        # The servers know that a driver with a lease has the job.
        said = self.eps("train", "--config=%s/jobs/paused/job.yaml" % self.folder, "--workers=0",
                        "--out=%s/other" % self.folder, "--storage.kind=nvme", code=75)
        self.assertIn("is driven through the board of jobs", said)
        self.eps("job", "pause", "paused", "--wait", "--timeout=600")
        job = self.job("paused")
        self.assertEqual((job["phase"], job["desired"], job["driver"]), ("PAUSED", "PAUSE", ""))
        step = job["step"]
        self.assertLess(step, STEPS)
        self.assertEqual(os.path.basename(job["checkpoint"]), "checkpoint-%d" % step)
        # The next job does not take its servers.
        self.submit("next", **{"training.seed": 5})
        time_to_claim = time.monotonic() + 2
        self.wait_until(lambda: time.monotonic() > time_to_claim, "two seconds")
        self.assertEqual(self.job("next")["phase"], "QUEUED")
        self.assertEqual(self.job("paused")["step"], step)
        # Servers that were restarted know it, too, although workers wait for the next step.
        for server in self.servers:
            server.kill()
            server.wait()
        self.servers = [self.serve(i) for i in range(2)]
        self.wait_until(lambda: self.lead()["state"] == "running" and self.lead()["workers"],
                        "the worker")
        self.assertEqual(list(self.lead()["gates"]), ["board"])
        self.assertEqual(self.lead()["step"], step + 1)
        self.eps("job", "cancel", "next", "--wait")
        self.eps("job", "resume", "paused", "--wait", "--timeout=600")
        self.check_outcome("paused")

    def test_a_checkpoint_is_written_when_asked(self):
        self.drive()
        self.work(SLOW)
        self.submit("asked")
        self.wait_for_step("asked", 3)
        self.wait_until(lambda: self.job("asked")["phase"] == "RUNNING", "the first report")
        path = self.eps("job", "checkpoint", "asked", "--wait", "--timeout=600").strip()
        step = int(path.rpartition("-")[2])
        self.assertTrue(3 < step < STEPS and step % 10 != 0, path)
        subprocess.run([EPS, "checkpoint", "verify", path], check=True, timeout=TIMEOUT_SECONDS,
                       stdout=subprocess.DEVNULL)
        job = self.check_outcome("asked")
        self.assertGreaterEqual(step, job["checkpoint_wanted"])
        self.eps("job", "checkpoint", "asked", code=65)

    def test_cancelled_jobs_end_with_76(self):
        self.submit("queued")
        self.eps("job", "cancel", "queued", "--wait")
        self.assertEqual(self.job("queued")["exit_code"], CANCELLED)
        self.drive()
        self.work(SLOW, "--worker.stay")
        self.submit("running")
        self.wait_for_step("running", 3)
        self.assertIn("CANCELLED", self.eps("job", "cancel", "running", "--wait"))
        job = self.job("running")
        self.assertEqual((job["phase"], job["exit_code"]), ("CANCELLED", CANCELLED))
        self.assertLess(job["step"], STEPS)
        self.submit("running", "--wait", code=CANCELLED)
        self.eps("job", "resume", "running", code=65)
        self.submit("later")
        self.check_outcome("later")

    def test_a_name_belongs_to_one_job(self):
        first = json.loads(self.submit("same", "--json"))
        self.assertEqual(json.loads(self.submit("same", "--json")), first)
        self.assertEqual(sorted(first), ["name", "revision", "uid"])
        said = self.submit("same", code=USAGE, **{"training.seed": 7})
        self.assertIn("another job has the name same: line ", said)
        self.assertIn("did you mean same?", self.eps("job", "show", "sane", code=NO_INPUT))
        said = self.submit("bad", code=USAGE, **{"worker.count": 3})
        self.assertIn("worker", said)
        self.assertEqual(len(json.loads(self.eps("job", "ls", "--json"))["jobs"]), 1)

    def test_the_board_outlives_its_servers(self):
        self.drive()
        self.work(SLOW)
        self.submit("lasting", "--label=team=a")
        self.wait_for_step("lasting", 3)
        subprocess.run([EPS, "job", "drain-server", "--servers=" + self.addresses[1]], check=True,
                       stdout=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS)
        self.assertEqual(self.servers[1].wait(timeout=TIMEOUT_SECONDS), TERMINATED, self.said())
        self.servers[1] = self.serve(1)
        self.wait_for_step("lasting", 8)
        before = self.job("lasting")
        for server in self.servers:
            server.kill()
            server.wait()
        self.servers = [self.serve(i) for i in range(2)]
        self.check_outcome("lasting")
        after = self.job("lasting")
        for key in ("uid", "labels", "created", "lease_generation"):
            self.assertEqual(after[key], before[key])

    def test_jobs_read_only_below_data_roots(self):
        root = os.path.join(self.folder, "root")
        os.makedirs(root)
        shutil.copy(self.inputs["synthetic"][0], root)
        os.symlink(self.inputs["synthetic"][1], os.path.join(root, "link.txt"))
        self.drive("--data-root=" + root)
        model = os.path.join(root, "model.json")
        for name, data in (("outside", self.inputs["synthetic"][1]),
                           ("link", os.path.join(root, "link.txt"))):
            self.inputs = {name: (model, data)}
            self.submit(name, "--wait", "--timeout=600", model=name, code=NOT_ALLOWED)
            job = self.job(name)
            self.assertEqual((job["phase"], job["exit_code"]), ("FAILED", NOT_ALLOWED))
            self.assertIn("data.path: " + data, job["error"])
            self.assertIn("--data-root", job["error"])

    def parts(self):
        """Returns how many parts each worker has, in ascending order."""
        return sorted(len(worker["parts"]) for worker in self.lead()["workers"])

    def test_workers_come_and_go(self):
        self.drive()
        slow = "--worker.pass_time=10ms"
        first = self.work(slow)
        self.submit("scaled", **{"training.parts": 4})
        self.wait_for_step("scaled", 2)
        self.assertEqual(self.parts(), [4])
        self.eps("job", "scale", "scaled", "--workers=2")
        second = self.work(slow)
        self.wait_until(lambda: self.parts() == [2, 2], "a share for the second worker")
        third = self.work(slow)
        self.wait_until(lambda: self.parts() == [0, 2, 2], "a standby")
        drained = next(worker["worker"] for worker in self.lead()["workers"] if worker["parts"])
        self.eps("job", "drain", "scaled", "--worker=" + drained)
        self.wait_until(lambda: self.parts() == [2, 2], "a share for the third worker")
        self.wait_until(lambda: 0 in (first.poll(), second.poll()), "the end of a worker")
        self.eps("job", "scale", "scaled", "--workers=1")
        self.wait_until(lambda: self.parts() == [0, 4], "one worker for all parts")
        self.assertEqual(self.job("scaled")["workers_wanted"], 1)
        self.eps("job", "scale", "scaled", "--workers=2")
        self.wait_until(lambda: self.parts() == [2, 2], "two shares")
        third.kill()
        self.wait_until(lambda: self.parts() == [4], "the survivor")
        self.assertLess(self.job("scaled")["step"], STEPS)
        self.check_outcome("scaled", parts=4)

    def test_a_stopped_driver_leaves_its_job(self):
        driver = self.drive()
        self.work(SLOW)
        self.submit("handed")
        self.wait_for_step("handed", 5)
        driver.send_signal(signal.SIGTERM)
        self.assertEqual(driver.wait(timeout=TIMEOUT_SECONDS), TERMINATED, self.said())
        job = self.job("handed")
        self.assertEqual((job["phase"], job["driver"]), ("RUNNING", ""))
        # The next one has another disk: it gets all records from the lead.
        self.drive("--once", out="elsewhere")
        self.check_outcome("handed", out="elsewhere")


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    tests = processes.tests_of_shard(BoardTest) if len(sys.argv) == 1 else []
    unittest.main(verbosity=2, argv=sys.argv + tests)
