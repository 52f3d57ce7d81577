#!/usr/bin/env python3
"""Measures what it costs to look at a job, and how long a job is without a driver.

Two servers, one worker whose passes sleep, and a driver of the board run one job for the whole
measurement. In turns, four programs `eps dashboard` with a browser's requests and two scrapes look
at it each second, or nobody does. Then the driver is killed, and the next one is started at once;
the steps in between are compared with those before. A round counts only if the job trained on.

Exit code: 0 if every goal is reached, 1 if one is missed, 2 if something did not run.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import report

ROOT = pathlib.Path(report.ROOT)
TIMEOUT_S = 300
WINDOW_S = 8.0
SETTLE_S = 2.0
VIEWERS = 4
LOOKED_AT, LOOKED_AT_GOAL = "step, 4 pages and 2 scrapes a second / none", 1.02
UNDRIVEN, UNDRIVEN_GOAL = "step, without a driver / with one", 1.02
FAILOVER, FAILOVER_GOAL = "seconds, driver killed to driven again", 35.0
CONFIG = """
model: {path: MODEL}
data: {path: DATA}
training: {steps: STEPS, micro_batch_size: 2, micro_batches: 2, seq_len: 16, clip: lagged}
checkpoint: {save_steps: 0}
"""
MODEL = {"model_type": "eps-synthetic", "n_layer": 8, "n_embd": 256, "tied": True}


class DidNotRun(Exception):
    """Something did not run as it should."""


def line(label, values, goal, digits=3):
    """Returns the line of a figure: it is reached if the median is at most the goal."""
    verdict = "reached" if report.spread(values).median <= goal else "MISSED"
    return f"{label:44} {report.format_spread(values, digits)} goal at most {goal:g}: {verdict}"


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def wait_for(what, reached):
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        if time.monotonic() > deadline:
            raise DidNotRun(f"{what}: not within {TIMEOUT_S} s")
        time.sleep(0.1)


class Cluster:
    """Two servers, a worker and a driver that run a job. Call end() at last."""

    def __init__(self, eps, folder, steps=1000000):
        self.eps, self.folder, self.processes = eps, folder, []
        self.addresses = [free_address() for _ in range(2)]
        self.http = [free_address() for _ in range(2)]
        self.servers = "--servers=" + ",".join(self.addresses)
        (folder / "model.json").write_text(json.dumps(MODEL), encoding="utf-8")
        (folder / "text.txt").write_text("Ninety-nine bottles of beer.\n" * 4000, encoding="utf-8")
        job = CONFIG.replace("MODEL", str(folder / "model.json")).replace(
            "DATA", str(folder / "text.txt")).replace("STEPS", str(steps))
        (folder / "job.yaml").write_text(job, encoding="utf-8")
        self.server_processes = [self.serve(i) for i in range(len(self.addresses))]
        self.start("worker", self.servers, f"--data={folder}/text.txt", "--worker.threads=1",
                   "--worker.pass_time=3ms", f"--report={folder}/worker.jsonl")
        self.driver = self.drive()
        self.run("submit", "-f", folder / "job.yaml", self.servers)
        wait_for("20 steps", lambda: self.job()["step"] > 20)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, *arguments):
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen([self.eps, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def serve(self, i):
        return self.start("serve", f"--listen={self.addresses[i]}",
                          f"--servers.http={self.http[i]}",
                          f"--servers.peers={','.join(self.addresses)}",
                          f"--storage.path={self.folder}/state-{i}")

    def run(self, *arguments):
        done = subprocess.run([self.eps, *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S)
        if done.returncode != 0:
            raise DidNotRun(f"eps {' '.join(map(str, arguments))}: {done.stdout}")
        return done.stdout

    def drive(self):
        return self.start("driver", self.servers, f"--out={self.folder}/jobs",
                          f"--data-root={self.folder}")

    def job(self):
        return json.loads(self.run("job", "show", "job", self.servers, "--json"))

    def open_step(self):
        return json.loads(self.run("status", f"--servers={self.addresses[0]}", "--json"))["step"]

    def step_seconds(self, first, last):
        """Returns the median time of the steps `first` to `last`, once a driver has logged them."""
        def found():
            with open(self.folder / "jobs/job/metrics.jsonl", encoding="utf-8") as log:
                records = [json.loads(text) for text in log if text.endswith("}\n")]
            return [r["step_seconds"] for r in records if first <= r["step"] <= last]
        wait_for(f"step {last} in metrics.jsonl", lambda: len(found()) == last - first + 1)
        if last - first < 5:
            raise DidNotRun(f"only {last - first + 1} steps in a window")
        return statistics.median(found())

    def window(self):
        """Lets the job train for WINDOW_S; returns the median time of a step."""
        time.sleep(SETTLE_S)
        first = self.open_step() + 1
        time.sleep(WINDOW_S)
        return self.step_seconds(first, self.open_step() - 1)


class Viewers:
    """Programs `eps dashboard`, each with a thread that asks what a browser asks; and scrapes."""

    def __init__(self, cluster):
        self.cluster, self.ends, self.answers = cluster, threading.Event(), 0
        addresses = [free_address() for _ in range(VIEWERS)]
        self.programs = [cluster.start("dashboard", cluster.servers, f"--listen={a}")
                         for a in addresses]
        paths = [[f"http://{a}/api/state", f"http://{a}/api/steps?job=0&after=0"]
                 for a in addresses] + [[f"http://{a}/metrics"] for a in cluster.http]
        self.threads = [threading.Thread(target=self.ask, args=(each,)) for each in paths]
        for thread in self.threads:
            thread.start()

    def ask(self, paths):
        while not self.ends.wait(1.0):
            for path in paths:
                try:
                    with urllib.request.urlopen(path, timeout=10) as answer:
                        answer.read()
                    self.answers += 1
                except OSError:
                    pass  # it starts, or ends

    def end(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        for program in self.programs:
            program.terminate()
            program.wait()
        if self.answers < VIEWERS * WINDOW_S:
            raise DidNotRun(f"the viewers got only {self.answers} answers")


def look_at(cluster, rounds):
    ratios = []
    for index in range(rounds):
        alone = cluster.window()
        viewers = Viewers(cluster)
        try:
            seen = cluster.window()
        finally:
            viewers.end()
        ratios.append(seen / alone)
        print(f"round {index + 1}: {1e3 * alone:.1f} ms a step, {1e3 * seen:.1f} ms with viewers",
              flush=True)
    return ratios


def fail_over(cluster, rounds):
    ratios, times = [], []
    for index in range(rounds):
        driven = cluster.window()
        before = cluster.job()["lease_generation"]
        os.killpg(cluster.driver.pid, signal.SIGKILL)
        cluster.driver.wait()
        killed, first = time.monotonic(), cluster.open_step() + 1
        cluster.driver = cluster.drive()
        wait_for("another driver", lambda: cluster.job()["lease_generation"] > before)
        times.append(time.monotonic() - killed)
        last = cluster.open_step() - 1
        ratios.append(cluster.step_seconds(first, last) / driven)
        print(f"round {index + 1}: driven again after {times[-1]:.1f} s and {last - first + 1} "
              "steps", flush=True)
    return ratios, times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-operations-") as name:
        cluster = None
        try:
            cluster = Cluster(options.eps, pathlib.Path(name))
            looked_at = look_at(cluster, options.rounds)
            undriven, times = fail_over(cluster, options.kills)
        except (DidNotRun, OSError, subprocess.SubprocessError) as failure:
            print(failure, file=sys.stderr)
            return 2
        finally:
            if cluster is not None:
                cluster.end()
    figures = [(LOOKED_AT, looked_at, LOOKED_AT_GOAL), (UNDRIVEN, undriven, UNDRIVEN_GOAL),
               (FAILOVER, times, FAILOVER_GOAL)]
    for label, values, goal in figures:
        print(line(label, values, goal, 1 if label == FAILOVER else 3))
    return 0 if all(report.spread(v).median <= goal for _, v, goal in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
