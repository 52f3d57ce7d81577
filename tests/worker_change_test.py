"""Stops, freezes and kills workers of a run, stops its servers, and starts other workers. Each run
that goes on ends with the weights, the optimizer state and the loss log of an undisturbed run; the
others end with the exit codes of docs/reference/cli.md.

Argument: the path of eps."""

import contextlib
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
STEPS = 40
INTERRUPTED, TERMINATED, UNAVAILABLE = 130, 143, 69

SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "training.parts": 2, "quantization.gradients": "topk:0.2",
    "servers.addresses": 2, "worker.count": 2})
# No cuts: a lost process is noticed.
MEMORY = {"storage.kind": "dram"}
EAGER = dict(MEMORY, **{"training.clip": "lagged"})
SEALED = dict(MEMORY, **{"training.clip": "exact"})
DURABLE = dict(EAGER, **{"storage.kind": "nvme", "storage.cut_steps": 4})
# The workers keep what their gradients left out.
RESIDUALS = {"quantization.residual_home": "worker"}
# Makes a run long enough for the start of another process.
SLOW = {"worker.pass_time": "8ms"}
# A frozen worker is not replaced before its lease ends.
SHORT_LEASE = {"servers.worker_lease": "2s"}


def text_of(path):
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as f:
        return f.read()
    return ""


class Run:
    """One `eps train` in a folder of its own, and workers that the test starts beside it."""

    def __init__(self, test, name, settings):
        self.test = test
        self.folder = os.path.join(TMP, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.settings = dict(SETTINGS, **settings)
        self.out = os.path.join(self.folder, "out")
        self.log = os.path.join(self.folder, "train.log")
        self.started = []

    def start(self, resume="none", **more):
        settings = dict(self.settings, **more)
        self.train = self.launch(self.log, [
            "train", "--model=" + self.test.model, "--data=" + self.test.text, "--out=" + self.out,
            "--resume=" + resume] + ["--%s=%s" % item for item in sorted(settings.items())])
        return self

    def launch(self, log, arguments):
        with open(log, "a", encoding="utf-8") as f:
            process = subprocess.Popen([EPS] + arguments, stdin=subprocess.DEVNULL, stdout=f,
                                       stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def start_worker(self, rank, log):
        """Starts a worker with the settings of those that the run has started."""
        servers = re.search(r"[(]eps status (--servers=[^)]+)", text_of(self.log)).group(1)
        return self.launch(log, [
            "worker", "--config=" + os.path.join(self.out, "logs", "config.yaml"), servers,
            "--worker.rank=%d" % rank, "--worker.count=%d" % self.settings["worker.count"]])

    def worker_log(self, rank):
        return os.path.join(self.out, "logs", "worker-%d.log" % rank)

    def server_log(self, server):
        return text_of(os.path.join(self.out, "logs", "server-%d.log" % server))

    def servers(self):
        return processes.servers_of(self.train.pid)

    def signal_worker(self, rank, number):
        os.kill(processes.workers_of(self.train.pid)[rank], number)

    def rows(self):
        return [json.loads(line) for line in text_of(self.out + "/metrics.jsonl").splitlines(True)
                if line.endswith("\n")]

    def last_step(self):
        return max([row["step"] for row in self.rows()], default=0)

    def wait_until(self, reached, what):
        """Waits for a condition while the run goes on."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not reached():
            if self.train.poll() is not None and not reached():
                self.test.fail("the run ended before %s: %s" % (what, self.said()))
            if time.monotonic() > deadline:
                self.test.fail("not within %d s: %s: %s" % (TIMEOUT_SECONDS, what, self.said()))
            time.sleep(0.02)

    def wait_for_step(self, step):
        self.wait_until(lambda: self.last_step() >= step, "step %d" % step)

    def wait_for_text(self, log, text, times=1):
        self.wait_until(lambda: text_of(log).count(text) >= times, "\"%s\" in %s" % (text, log))

    def said(self):
        """Returns what the run and its workers said, and what its servers wait for."""
        said = [text_of(self.log)[-4000:]]
        servers = re.findall(r"[(]eps status (--servers=[^)]+)", said[0])
        if self.train.poll() is None and servers:
            said.append(subprocess.run([EPS, "status", servers[-1]], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True,
                                       timeout=TIMEOUT_SECONDS).stdout)
        for root, _, names in os.walk(self.folder):
            said += ["%s: %s" % (name, text_of(os.path.join(root, name))[-2000:])
                     for name in names if "worker" in name and name.endswith(".log")]
        return "\n".join(said)

    def expect_end(self, code, process=None):
        process = process or self.train
        try:
            found = process.wait(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.test.fail("it does not end: " + self.said())
        self.test.assertEqual(found, code, self.said())

    def terms(self):
        return {row["term"] for row in self.rows()}

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()  # its children die with it
                process.wait()


class WorkerChangeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def run_of(self, name, *settings):
        """Starts a run that is stopped at the end of the test."""
        merged = {key: value for part in (SLOW,) + settings for key, value in part.items()}
        run = Run(self, name, merged)
        self.addCleanup(run.stop)
        return run.start()

    def expect_outcome(self, run):
        """Expects the outcome of an undisturbed run, in memory and as fast as it can be."""
        kept = {key: value for key, value in run.settings.items()
                if not key.startswith("storage.") and key not in dict(SLOW, **SHORT_LEASE)}
        whole = Run(self, os.path.basename(run.folder) + "-undisturbed", kept)
        self.addCleanup(whole.stop)
        whole.start().expect_end(0)
        self.assertEqual(small_job.outcome(EPS, run.out, STEPS),
                         small_job.outcome(EPS, whole.out, STEPS))

    def expect_one_term(self, run):
        self.assertEqual(len(run.terms()), 1, run.terms())
        self.assertNotIn("note: the job continues after step", text_of(run.log))

    # ------------------------------------------------------------------ eps train is stopped

    def check_interrupted(self, number, code):
        run = self.run_of("interrupted-%d" % number, EAGER)
        run.wait_for_step(4)
        run.train.send_signal(number)
        run.expect_end(code)
        step = run.last_step()
        said = text_of(run.log)
        self.assertLess(step, STEPS)
        self.assertIn("next:\n", said)
        self.assertIn("eps train --out=%s --resume=latest\n" % run.out, said)
        self.assertIn("eps: interrupted after step %d of %d" % (step, STEPS), said)
        self.assertIn("checkpoint-%d\n" % step, text_of(run.out + "/latest"))
        run.start("latest", **{"worker.pass_time": "0s"}).expect_end(0)
        self.expect_outcome(run)

    def test_an_interrupted_run_ends_with_130(self):
        self.check_interrupted(signal.SIGINT, INTERRUPTED)

    def test_a_terminated_run_ends_with_143(self):
        self.check_interrupted(signal.SIGTERM, TERMINATED)

    def test_a_second_signal_ends_at_once(self):
        for second, code in ((signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)):
            run = self.run_of("twice-%d" % second, EAGER)
            run.wait_for_step(1)
            # Without its workers, the run cannot finish the step.
            for rank in (0, 1):
                run.signal_worker(rank, signal.SIGSTOP)
            run.train.send_signal(signal.SIGINT)
            run.wait_for_text(run.log, "interrupted: finishing the step")
            run.train.send_signal(second)
            run.expect_end(code)

    # ------------------------------------------------------------------ a worker is stopped

    def check_stopped_worker(self, name, settings):
        run = self.run_of(name, settings)
        run.wait_for_step(4)
        run.signal_worker(1, signal.SIGTERM)
        run.wait_for_text(run.log, "note: worker 1 was stopped; starting a replacement\n")
        run.expect_end(0)
        self.assertRegex(text_of(run.worker_log(1)), r"drained after step \d+ of %d" % STEPS)
        self.expect_one_term(run)
        self.assertNotIn("note: restarting", text_of(run.log))
        self.expect_outcome(run)

    def test_a_stopped_worker_is_replaced_durable(self):
        self.check_stopped_worker("stopped-durable", DURABLE)

    def test_a_stopped_worker_is_replaced_eager(self):
        self.check_stopped_worker("stopped-eager", EAGER)

    def test_a_stopped_worker_is_replaced_sealed(self):
        self.check_stopped_worker("stopped-sealed", SEALED)

    def test_a_stopped_worker_hands_over_its_residuals(self):
        for name, settings in (("eager", EAGER), ("sealed", SEALED)):
            self.check_stopped_worker("stopped-residuals-" + name, dict(settings, **RESIDUALS))

    def test_all_workers_hand_over_their_residuals(self):
        self.check_all_replaced("stopped-all-residuals", dict(SEALED, **RESIDUALS))

    def test_all_workers_are_replaced(self):
        self.check_all_replaced("stopped-all", EAGER)

    def check_all_replaced(self, name, settings):
        run = self.run_of(name, settings)
        run.wait_for_step(4)
        for rank in (0, 1):
            run.signal_worker(rank, signal.SIGTERM)
        for rank in (0, 1):
            run.wait_for_text(run.log, "note: worker %d was stopped" % rank)
        run.expect_end(0)
        self.expect_one_term(run)
        self.expect_outcome(run)

    def test_a_worker_that_is_always_stopped_ends_the_run(self):
        run = self.run_of("stopped-always", EAGER, {"storage.max_restarts": 1})
        run.wait_for_step(1)
        stopped = set()
        while run.train.poll() is None:
            # None of these lives long enough to complete a step.
            pid = processes.workers_of(run.train.pid).get(1)
            if pid is not None and pid not in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                stopped.add(pid)
            self.assertLess(len(stopped), 10, run.said())
            time.sleep(0.005)
        run.expect_end(UNAVAILABLE)
        self.assertIn("was stopped again before a step was complete", text_of(run.log))

    # ------------------------------------------------------------------ two workers of one rank

    def start_standby(self, run):
        """Starts a second worker of rank 1; returns it and its log once it is a standby."""
        for rank in (0, 1):
            run.wait_for_text(run.worker_log(rank), "joined the job")
        log = os.path.join(run.folder, "worker-standby.log")
        standby = run.start_worker(1, log)
        run.wait_for_text(log, "standby: ")
        return standby, log

    def test_a_second_worker_of_a_rank_stands_by(self):
        run = self.run_of("standby", DURABLE)
        standby, log = self.start_standby(run)
        run.expect_end(0)
        run.expect_end(0, standby)
        self.assertNotIn("joined the job", text_of(log))
        self.expect_one_term(run)
        self.expect_outcome(run)

    def check_frozen_worker(self, name, settings):
        """Returns the terms of a run in which a standby takes over from a frozen worker."""
        run = self.run_of(name, settings, SHORT_LEASE)
        standby, log = self.start_standby(run)
        frozen = processes.workers_of(run.train.pid)[1]
        os.kill(frozen, signal.SIGSTOP)
        run.wait_for_text(log, "joined the job")
        run.wait_for_step(run.last_step() + 3)
        os.kill(frozen, signal.SIGCONT)
        run.wait_for_text(run.worker_log(1), "joining again")
        run.expect_end(0)
        run.expect_end(0, standby)
        self.expect_outcome(run)
        return run.terms()

    def test_a_standby_takes_over_durable(self):
        # The frozen worker may have pushed a part of a step, which returns the job to its last cut.
        self.assertLessEqual(len(self.check_frozen_worker("frozen-durable", DURABLE)), 2)

    def test_a_standby_takes_over_sealed(self):
        self.assertEqual(len(self.check_frozen_worker("frozen-sealed", SEALED)), 1)

    # ------------------------------------------------------------------ a server is stopped

    def check_stopped_server(self, name, server, settings):
        run = self.run_of(name, DURABLE, {"storage.cut_steps": STEPS}, settings)
        run.wait_for_step(4)
        os.kill(run.servers()[server], signal.SIGTERM)
        run.wait_for_text(run.log, "note: restarting server %d (restart 1 of at most 10): "
                          "server %d ended with exit code 143" % (server, server))
        run.expect_end(0)
        self.assertIn("drained: every server has the cut of step", run.server_log(server))
        steps = [row["step"] for row in run.rows()]
        self.assertEqual(steps, sorted(set(steps)))
        # Nothing was taken back: the job continues where the log ends.
        borders = re.findall(r"the job continues after step (\d+), term", text_of(run.log))
        self.assertEqual(len(borders), 1, run.said())
        first_terms = [row["step"] for row in run.rows() if row["term"] == 1]
        self.assertEqual(max(first_terms), int(borders[0]))
        self.assertNotIn("rolled back", text_of(run.log))
        self.expect_outcome(run)

    def test_a_stopped_server_repeats_no_step(self):
        self.check_stopped_server("stopped-server", 1, {})

    def test_a_stopped_lead_repeats_no_step(self):
        self.check_stopped_server("stopped-lead", 0, {"training.clip": "exact"})

    def test_a_drain_ends_without_workers(self):
        run = self.run_of("drain-timeout", DURABLE, {"servers.drain_timeout": "1s"})
        run.wait_for_step(2)
        for rank in (0, 1):
            run.signal_worker(rank, signal.SIGSTOP)
        os.kill(run.servers()[1], signal.SIGTERM)
        run.wait_for_text(run.log, "server 1 ended with exit code 143")
        self.assertIn("not drained in 1000 ms", run.server_log(1))
        for rank in (0, 1):
            run.signal_worker(rank, signal.SIGCONT)
        run.expect_end(0)
        self.expect_outcome(run)

    def test_a_signal_to_all_ends_the_run(self):
        run = self.run_of("all-stopped", DURABLE, {"servers.drain_timeout": "5s"})
        run.wait_for_step(4)
        everybody = [*run.servers().values(), *processes.workers_of(run.train.pid).values()]
        for pid in [run.train.pid] + everybody:
            os.kill(pid, signal.SIGTERM)
        run.expect_end(TERMINATED)
        self.assertNotIn("note: restarting server", text_of(run.log))
        run.start("latest", **{"worker.pass_time": "0s"}).expect_end(0)
        self.expect_outcome(run)

    # ------------------------------------------------------------------ a worker is killed

    def test_a_killed_worker_ends_an_eager_run(self):
        run = self.run_of("killed-eager", EAGER, {"checkpoint.save_steps": 2})
        run.wait_for_step(5)
        run.signal_worker(1, signal.SIGKILL)
        run.expect_end(UNAVAILABLE)
        said = text_of(run.log)
        self.assertIn("eps train --out=%s --resume=latest\n" % run.out, said)
        self.assertIn("eps: worker 1 was ended by signal 9", said)
        run.start("latest", **{"worker.pass_time": "0s"}).expect_end(0)
        self.expect_outcome(run)

    def test_a_killed_worker_ends_a_run_with_its_residuals(self):
        run = self.run_of("killed-residuals", SEALED, RESIDUALS, {"checkpoint.save_steps": 2})
        run.wait_for_step(5)
        run.signal_worker(1, signal.SIGKILL)
        run.expect_end(65)
        said = text_of(run.log)
        self.assertIn("eps train --out=%s --resume=latest\n" % run.out, said)
        self.assertIn("quantization.residual_home=worker", said)
        run.start("latest", **{"worker.pass_time": "0s"}).expect_end(0)
        self.expect_outcome(run)

    def test_a_killed_worker_is_replaced_sealed(self):
        run = self.run_of("killed-sealed", SEALED)
        run.wait_for_step(4)
        run.signal_worker(1, signal.SIGKILL)
        run.wait_for_text(run.log, "note: restarting worker 1 (restart 1 of at most 10): ")
        run.expect_end(0)
        self.expect_one_term(run)
        self.expect_outcome(run)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    tests = processes.tests_of_shard(WorkerChangeTest) if len(sys.argv) == 1 else []
    unittest.main(verbosity=2, argv=sys.argv + tests)
