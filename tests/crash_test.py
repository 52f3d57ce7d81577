"""Checks that killing processes at any time changes no bit. A run on durable servers goes from its
first step to its last; its processes are killed at random times, and if `eps train` itself ends,
the same command continues the run. Every run must end with the weights, the optimizer state and the
loss log of an undisturbed run, however few kills it met, and the actions of its servers are checked
against the rules of the protocol's model (servers.trace, check_trace). The kills must explain each
earlier end of `eps train`: its exit code and its message.

Arguments: the paths of eps and check_trace. EPS_KILLS: kills per setting (default 12, and 51 with
EPS_LONG=1). EPS_KILLS_TALLY: a file to which each run appends a JSON line with its kills and its
difference, if any; the seed is then new each time. EPS_KILLS_MODEL=gpt2 or tiny_llama: workers
compute a small model with LibTorch, which is slower to start (default: synthetic)."""

import collections
import contextlib
import json
import os
import random
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
CHECK_TRACE = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
KILLS = int(os.environ.get("EPS_KILLS", "51" if os.environ.get("EPS_LONG") else "12"))
TALLY = os.environ.get("EPS_KILLS_TALLY", "")
MODEL = os.environ.get("EPS_KILLS_MODEL", "synthetic")
TIMEOUT_SECONDS = 600
STEPS = 40

BASE = dict(small_job.SETTINGS, **{"training.steps": STEPS, "storage.max_restarts": 1000})

# A kill: the victim, "everything" for all processes of the run, and whether the run had its job at
# that time, and thus restarts servers and workers itself.
Kill = collections.namedtuple("Kill", "victim had_job")
UNAVAILABLE = 69  # exit code of a run that lost a process before it had its job
LOST = re.compile(r"^eps: (server|worker) \d+ was ended by signal 9 ", re.MULTILINE)
LOST_DEVICE = re.compile(r"^eps: server \d+ ended with exit code 69\n(.*\n)*?eps serve: device "
                         r"csd-\d [(]\S+/medium[)] was ended by signal 9 ", re.MULTILINE)
COMMANDS = {"server": "serve", "worker": "worker"}


def unexplained(code, said, kills):
    """Returns why these kills do not explain an end of `eps train`; None if they do."""
    victims = {kill.victim for kill in kills}
    if code == 0:
        return None  # complete, and compared
    if code == -signal.SIGKILL:
        return None if victims & {"everything", "supervisor"} else "nobody killed it"
    early = {kill.victim.split()[0] for kill in kills if not kill.had_job}
    if code == UNAVAILABLE and LOST_DEVICE.search(said):
        return None if "device" in early else "no device was killed before the run had its job"
    lost = LOST.search(said)
    if code != UNAVAILABLE or not lost:
        return "exit code %d names no killed process" % code
    # A child that has not become a server or worker yet has the command line of eps train.
    if not early & {COMMANDS[lost.group(1)], "train"}:
        return "no %s was killed before the run had its job" % lost.group(1)
    return None


class UnexplainedTest(unittest.TestCase):
    """Checks which ends of `eps train` the kills explain."""

    LOST = "eps: server 1 was ended by signal 9 (Killed); the kernel sends it when memory runs out"

    def explained(self, code, *kills, said=LOST):
        return unexplained(code, "batch: 2\n" + said, [Kill(*kill) for kill in kills]) is None

    def test_a_complete_run(self):
        self.assertTrue(self.explained(0, ("serve 0", True)))

    def test_a_killed_run(self):
        self.assertTrue(self.explained(-9, ("serve 0", True), ("supervisor", True)))
        self.assertTrue(self.explained(-9, ("everything", False)))
        self.assertFalse(self.explained(-9, ("serve 0", False)))
        self.assertFalse(self.explained(-11, ("supervisor", True)))

    def test_a_process_lost_before_the_job(self):
        self.assertTrue(self.explained(69, ("serve 0", False)))
        self.assertTrue(self.explained(69, ("serve 0", False), ("worker 0", True)))
        self.assertTrue(self.explained(69, ("train 1", False)))
        self.assertFalse(self.explained(69, ("train 1", True)))
        self.assertFalse(self.explained(69, ("serve 0", True)))
        self.assertFalse(self.explained(69, ("worker 0", False)))
        self.assertFalse(self.explained(69))

    def test_a_device_lost_before_the_job(self):
        said = ("eps: server 1 ended with exit code 69\n... I listening\neps serve: device csd-0 "
                "(/state/medium) was ended by signal 9 (Killed) during Sync of 0 bytes")
        self.assertTrue(self.explained(69, ("device 3", False), said=said))
        self.assertFalse(self.explained(69, ("device 3", True), said=said))
        self.assertFalse(self.explained(69, ("serve 1", False), said=said))

    def test_an_error_after_an_early_kill(self):
        self.assertFalse(self.explained(65, ("serve 0", False)))
        self.assertFalse(self.explained(69, ("serve 0", False), said="eps: server 1: no reply"))
        self.assertFalse(self.explained(69, ("supervisor", False)))


class CrashTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP, MODEL)

    def command(self, out, resume, settings):
        merged = dict(BASE, **settings)
        return [EPS, "train", "--model=" + self.model, "--data=" + self.text, "--out=" + out,
                "--resume=" + resume] + ["--%s=%s" % item for item in sorted(merged.items())]

    def start(self, out, resume, settings):
        log = open(os.path.join(TMP, "run.log"), "w", encoding="utf-8")
        with log:
            return subprocess.Popen(self.command(out, resume, settings), stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def said(self):
        with open(os.path.join(TMP, "run.log"), encoding="utf-8", errors="replace") as f:
            return f.read()[-2000:]

    def end_of(self, process):
        """Returns the exit code. On a timeout, fails and shows what the servers wait for."""
        try:
            return process.wait(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            with open(os.path.join(TMP, "run.log"), encoding="utf-8", errors="replace") as f:
                servers = re.findall(r"[(]eps status (--servers=[^)]+)", f.read())
            status = [subprocess.run([EPS, "status", s], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True,
                                     timeout=TIMEOUT_SECONDS).stdout for s in servers]
            for pid in processes.children_of(process.pid).values():
                os.kill(pid, signal.SIGKILL)
            self.fail("the run does not end: %s%s" % (self.said(), "".join(status)))

    def outcome(self, out, steps=STEPS):
        return small_job.outcome(EPS, out, steps)

    def broken_rule(self, folder, logged):
        """Returns the rule that the servers broke in the last complete run; None if none."""
        found = subprocess.run([CHECK_TRACE] + ["--logs"] * logged + [folder], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               timeout=TIMEOUT_SECONDS)
        print(found.stdout.splitlines()[0], flush=True)
        return found.stdout if found.returncode != 0 else None

    def undisturbed(self, name, settings, steps=STEPS):
        out = os.path.join(TMP, name + "-undisturbed")
        shutil.rmtree(out, ignore_errors=True)
        settings = {k: v for k, v in settings.items()
                    if not k.startswith("storage.") and k != "servers.trace"}
        start = time.monotonic()
        process = self.start(out, "none", settings)
        self.assertEqual(process.wait(timeout=TIMEOUT_SECONDS), 0, self.said())
        return self.outcome(out, steps), time.monotonic() - start

    def kill_some(self, process, dice):
        """Kills one process of the run, or all of them at once. Returns the name of the victim."""
        alive = {**processes.children_of(process.pid), **processes.devices_of(process.pid)}
        victim = dice.choice(["everything"] + sorted(alive))
        for pid in alive.values() if victim == "everything" else [alive[victim]]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return victim

    def started(self):
        """Returns whether the live run has its job, and thus restarts its processes itself."""
        with open(os.path.join(TMP, "run.log"), encoding="utf-8", errors="replace") as f:
            return "\njob: " in f.read()

    def kill_while_it_runs(self, process, goal, seconds, dice):
        """Kills until there are `goal` kills or `eps train` has ended; returns the kills."""
        kills = []
        while len(kills) < goal:
            try:
                # Kill more often near the beginning, during recovery.
                process.wait(timeout=dice.uniform(0.02, 1.0) ** 2 * seconds)
                break
            except subprocess.TimeoutExpired:
                had_job = self.started()
                kills.append(Kill(self.kill_some(process, dice), had_job))
        return kills

    def run_with_kills(self, out, settings, goal, seconds, dice):
        """Runs the job once, with at most `goal` kills. If `eps train` ends before the job does, as
        its kills explain, the same command continues. Returns the kills."""
        shutil.rmtree(out, ignore_errors=True)
        kills = []
        resume = "none"
        while True:
            process = self.start(out, resume, settings)
            # Without state to resume from, the run starts over.
            resume = "latest"
            since = self.kill_while_it_runs(process, goal - len(kills), seconds, dice)
            kills += since
            code = self.end_of(process)
            why = unexplained(code, self.said(), since)
            if why:
                self.fail("%s; kills: %s; exit code %d: %s" % (why, since, code, self.said()))
            if code == 0:
                return kills

    def difference(self, out, expected, trace, logged):
        """Returns how a complete run differs from the undisturbed one; None if it does not."""
        found = self.outcome(out)
        if found != expected:
            return "expected %s, found %s" % (expected, found)
        return self.broken_rule(trace, logged)

    def check(self, name, settings):
        out = os.path.join(TMP, name)
        trace = os.path.join(out, "trace")
        settings = dict({"storage.kind": "nvme", "servers.trace": trace}, **settings)
        expected, seconds = self.undisturbed(name, settings)
        self.assertEqual([row[0] for row in expected.log], list(range(1, STEPS + 1)))
        seed = int(time.time()) if TALLY else 1
        dice = random.Random(seed)
        total = runs = 0
        while total < KILLS:
            kills = self.run_with_kills(out, settings, KILLS - total, seconds, dice)
            total += len(kills)
            runs += 1
            difference = self.difference(out, expected, trace,
                                         settings.get("storage.log") == "contributions")
            self.tally({"setting": name, "model": MODEL, "seed": seed, "run": runs,
                        "kills": len(kills), "difference": difference,
                        "victims": collections.Counter(kill.victim for kill in kills)})
            self.assertIsNone(difference, "run %d of seed %d" % (runs, seed))

    def tally(self, line):
        print(json.dumps(line), flush=True)
        if TALLY:
            with open(TALLY, "a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")

    def test_eager_and_two_servers(self):
        self.check("eager", {"servers.addresses": 2, "training.clip": "lagged",
                             "quantization.gradients": "topk:0.2",
                             "quantization.residual_home": "worker", "storage.cut_steps": 3})

    def test_sealed_and_every_step_cut(self):
        self.check("sealed", {"servers.addresses": 2, "training.clip": "exact",
                              "storage.cut_steps": 1})

    def test_three_servers_two_workers_and_sparse_gradients(self):
        self.check("sparse", {"servers.addresses": 3, "worker.count": 2, "training.parts": 2,
                              "training.clip": "none", "quantization.gradients": "topk:0.1",
                              "quantization.weights": "mx9", "storage.cut_steps": "auto"})

    def test_state_in_dram_copied_by_few_buffers(self):
        self.check("dram", {"servers.addresses": 2, "training.clip": "lagged",
                            "quantization.gradients": "topk:0.2", "storage.kind": "dram",
                            "storage.path": os.path.join(TMP, "dram", "state"),
                            "storage.staging": "128KiB", "storage.cut_steps": 2})

    def test_state_on_three_drives(self):
        drives = [os.path.join(TMP, "drives", name) for name in "abc"]
        self.check("drives", {"servers.addresses": 2, "training.clip": "exact",
                              "quantization.gradients": "topk:0.2",
                              "storage.path": os.path.join(TMP, "drives", "state"),
                              "storage.drives": ",".join(drives), "storage.cut_steps": 2})

    def test_state_in_storage_devices(self):
        self.check("devices", {"servers.addresses": 2, "training.clip": "exact",
                               "storage.kind": "csd", "storage.csd.devices": 2,
                               "storage.csd.dram": "4MiB", "storage.cut_steps": 2})

    def test_contributions_logged(self):
        self.check("logged", {"servers.addresses": 2, "worker.count": 2, "training.parts": 2,
                              "training.clip": "lagged", "quantization.gradients": "topk:0.2",
                              "storage.log": "contributions", "storage.cut_steps": 4})

    def test_servers_and_workers_restarted_by_the_test(self):
        self.start_again_by_hand("by-hand", logged=False)

    def test_servers_with_logs_restarted_by_the_test(self):
        self.start_again_by_hand("by-hand-logged", logged=True)

    def wait_for_steps(self, out, train, steps):
        """Waits until eps train has written that many lines of its log."""
        end = time.monotonic() + TIMEOUT_SECONDS
        metrics = os.path.join(out, "metrics.jsonl")
        found = 0
        while found < steps:
            self.assertIsNone(train.poll(), "eps train has ended")
            self.assertLess(time.monotonic(), end, "%d steps were logged, not %d" % (found, steps))
            time.sleep(0.05)
            if os.path.exists(metrics):
                with open(metrics, encoding="utf-8") as f:
                    found = sum(1 for _ in f)

    def terms(self, servers):
        """Waits until all servers report their job, then returns the term of each."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            status = subprocess.run([EPS, "status", "--json", servers], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS)
            found = [json.loads(line) for line in status.stdout.splitlines()]
            if status.returncode == 0 and all(s["state"] in ("running", "done") for s in found):
                return [server["term"] for server in found]
            self.assertLess(time.monotonic(), end, status.stdout + status.stderr)
            time.sleep(0.1)

    def test_a_copied_folder_does_not_stand_for_its_original(self):
        """A server's folder is copied, the server continues and dies, and the copy replaces the
        folder: the copy's log is outdated, so all servers return to their common cut."""
        with self.by_hand("copied", cut_steps=200, logged=True) as run:
            run.start("train")
            self.wait_for_steps(run.out, run.started["train"], 5)
            term = self.terms(run.servers)
            folder = run.folder_of_server(1)
            run.started["serve 1"].send_signal(signal.SIGSTOP)
            shutil.copytree(folder, folder + "-copy")
            run.started["serve 1"].send_signal(signal.SIGCONT)
            self.wait_for_steps(run.out, run.started["train"], 40)
            run.kill("serve 1")
            os.rename(folder, folder + "-original")
            os.rename(folder + "-copy", folder)
            run.start("serve 1")
            run.wait_for_end()
            self.assertGreater(self.terms(run.servers)[0], term[0], "the job was not rolled back")

    def start_again_by_hand(self, name, logged):
        with self.by_hand(name, cut_steps=2, logged=logged) as run:
            run.start("train")
            self.wait_for_steps(run.out, run.started["train"], 1)
            term = self.terms(run.servers)
            dice = random.Random(1)
            # A worker's death in an eager step rolls the job back; that of a server with a log does
            # not.
            victims = [name for name in sorted(run.commands)
                       if name != "train" and not (logged and name == "worker")]
            for _ in range(max(4, KILLS // 8)):
                time.sleep(dice.uniform(0.1, 1.5))
                victim = dice.choice(victims)
                run.kill(victim)
                run.start(victim)
            run.wait_for_end()
            if logged:
                self.assertEqual(self.terms(run.servers), term, "the job was rolled back")

    @contextlib.contextmanager
    def by_hand(self, name, cut_steps, logged):
        """Starts two servers and a worker, each as its own process, for a job of 300 steps, and
        compares its result with an undisturbed run."""
        settings = {"training.clip": "lagged", "storage.cut_steps": cut_steps,
                    "training.steps": 300}
        expected, _ = self.undisturbed(name, settings, steps=300)
        run = ByHand(self, name, settings, logged)
        try:
            yield run
        finally:
            run.stop()
        self.assertEqual(self.outcome(run.out, steps=300), expected)
        self.assertIsNone(self.broken_rule(run.trace, logged))


class ByHand:
    """The processes of a job, which the test starts, kills and restarts itself."""

    def __init__(self, test, name, settings, logged):
        self.test = test
        self.folder = os.path.join(TMP, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.out = os.path.join(self.folder, "out")
        self.trace = os.path.join(self.folder, "trace")
        addresses = ["127.0.0.1:%d" % processes.reserve_port() for _ in range(2)]
        self.servers = "--servers=" + ",".join(addresses)
        durable = ["--storage.kind=nvme", "--storage.staging=8MiB", "--servers.trace=" + self.trace,
                   "--storage.log=" + ("contributions" if logged else "none")]
        cuts = "--storage.cut_steps=%d" % settings["storage.cut_steps"]
        self.commands = {"serve %d" % i: [EPS, "serve", "--listen=" + address, cuts,
                                          "--storage.path=" + self.folder_of_server(i)] + durable
                         for i, address in enumerate(addresses)}
        self.commands["worker"] = [EPS, "worker", self.servers, "--worker.threads=1",
                                   "--data=" + test.text]
        self.started = {}
        for process in self.commands:
            self.start(process)
        train = test.command(self.out, "none", dict(settings, **{"worker.count": 0}))
        self.commands["train"] = train + [self.servers] + durable

    def folder_of_server(self, number):
        return os.path.join(self.folder, "server-%d" % number)

    def log_of(self, name):
        return os.path.join(self.folder, name + ".log")

    def start(self, name):
        with open(self.log_of(name), "a", encoding="utf-8") as log:
            self.started[name] = subprocess.Popen(self.commands[name], stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=subprocess.STDOUT)

    def kill(self, name):
        self.started[name].kill()
        self.started[name].wait()

    def wait_for_end(self):
        code = self.started["train"].wait(timeout=TIMEOUT_SECONDS)
        with open(self.log_of("train"), encoding="utf-8") as log:
            self.test.assertEqual(code, 0, log.read()[-2000:])

    def stop(self):
        for name in self.started:
            self.kill(name)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    CHECK_TRACE = os.path.abspath(sys.argv.pop(1))
    tests = processes.tests_of_shard(UnexplainedTest, CrashTest) if len(sys.argv) == 1 else []
    unittest.main(verbosity=2, argv=sys.argv + tests)
