#!/usr/bin/env python3
"""Measures what it costs a job to restart all of its servers, one after the other, as an upgrade
does (docs/guides/upgrade.md).

Two servers, one worker whose passes sleep, and a driver run a job of a fixed number of steps. In
each round every server gets SIGTERM, and is started again when it has ended; the next one follows
after some steps. A step is lost if the worker computes it twice. In the end the digests and the
metrics are compared with those of a run that nobody disturbed.

Exit code: 0 if every goal is reached, 1 if one is missed or the digests differ, 2 if something did
not run.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import operations
import report

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import small_job  # noqa: E402

STEPS_BETWEEN = 5
DRAINED = 143  # the exit code of a server that leaves an unfinished job
MARGIN_S = 2.0
LOST, LOST_GOAL = "steps lost, all servers restarted in turn", 0
STOP = "seconds, SIGTERM to the end of a server"


def drain_seconds(eps):
    """Returns the default of servers.drain_timeout."""
    text = subprocess.run([eps, "config", "print"], stdout=subprocess.PIPE, text=True, check=True,
                          timeout=60).stdout
    return float(re.search(r"drain_timeout: \"?(\d+)s", text)[1])


def lost_steps(lines):
    """Returns how many steps a worker has computed again, from the lines of its report."""
    steps = [json.loads(line)["step"] for line in lines]
    return len(steps) - len(set(steps))


def restart(cluster, i):
    """Restarts server i. Returns the seconds from SIGTERM to its end, and to the next step."""
    server, step = cluster.server_processes[i], cluster.open_step()
    begin = time.monotonic()
    server.terminate()
    code = server.wait(timeout=operations.TIMEOUT_S)
    ended = time.monotonic()
    if code != DRAINED:
        raise operations.DidNotRun(f"server {i} ended with {code}, not {DRAINED}")
    cluster.server_processes[i] = cluster.serve(i)
    computed = worker_steps(cluster)
    operations.wait_for(f"a step after {step}", lambda: worker_steps(cluster) > computed)
    stepped = time.monotonic()
    operations.wait_for(f"{STEPS_BETWEEN} more steps",
                        lambda: worker_steps(cluster) >= computed + STEPS_BETWEEN)
    return ended - begin, stepped - begin


def worker_lines(cluster):
    text = (cluster.folder / "worker.jsonl").read_text(encoding="utf-8")
    return [line for line in text.splitlines(True) if line.endswith("}\n")]


def worker_steps(cluster):
    return len(worker_lines(cluster))


def undisturbed(eps, cluster, steps):
    """Returns the outcome of the same job in one quiet run."""
    out = cluster.folder / "undisturbed"
    subprocess.run([eps, "train", f"--config={cluster.folder}/job.yaml", f"--out={out}",
                    "--servers=2", "--workers=1", "--worker.threads=1"], check=True,
                   stdout=subprocess.DEVNULL, timeout=operations.TIMEOUT_S)
    return small_job.outcome(eps, str(out), steps)


def measure(options, folder):
    cluster = operations.Cluster(options.eps, folder, options.steps)
    stops = []
    try:
        for index in range(options.rounds):
            for i in range(len(cluster.addresses)):
                stopped, stepped = restart(cluster, i)
                stops.append(stopped)
                print(f"round {index + 1}, server {i}: ended after {stopped:.2f} s; the next step "
                      f"{stepped:.2f} s after SIGTERM", flush=True)
        if cluster.job()["phase"] != "RUNNING":
            raise operations.DidNotRun("the job ended before the last restart; raise --steps")
        operations.wait_for("the end of the job",
                            lambda: cluster.job()["phase"] not in ("STARTING", "RUNNING"))
        if cluster.job()["exit_code"] != 0:
            raise operations.DidNotRun(f"the job failed: {cluster.job()}")
        ours = small_job.outcome(options.eps, str(folder / "jobs/job"), options.steps)
        equal = ours == undisturbed(options.eps, cluster, options.steps)
        return lost_steps(worker_lines(cluster)), stops, equal
    finally:
        cluster.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(operations.ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-rolling-restart-") as name:
        try:
            goal = drain_seconds(options.eps) + MARGIN_S
            lost, stops, equal = measure(options, pathlib.Path(name))
        except (operations.DidNotRun, OSError, subprocess.SubprocessError) as failure:
            print(failure, file=sys.stderr)
            return 2
    print(f"digests and metrics {'equal' if equal else 'DIFFER from'} those of a quiet run")
    print(operations.line(LOST, [lost], LOST_GOAL, 0))
    print(operations.line(STOP, stops, goal, 2))
    return 0 if equal and lost <= LOST_GOAL and report.spread(stops).median <= goal else 1


if __name__ == "__main__":
    sys.exit(main())
