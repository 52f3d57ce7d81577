#!/usr/bin/env python3
"""Compares the predictions of `eps plan` for jobs on this machine with real runs of the jobs.

A round measures the machine (`eps bench calibrate`), plans every job with the result and runs it; a
job's step time is the median of its steps after warm-up. The jobs are the small GPT-2 and variants
that differ from it in one setting each. They use the calibration of the small GPT-2's shape. Memory
is compared with the accounts of the servers (`eps status`) and of the worker (its report): `state`
and `stash` must be as planned, and nothing may exceed what is planned as "at most".

Exit code: 0 if both goals are reached (median error of step times at most 10 %, of exact memory at
most 2 %), 1 if one is missed, 2 if something did not run.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import time

import report

STEP_GOAL = 0.10
MEMORY_GOAL = 0.02
TIMEOUT_S = 600
POLL_S = 0.05

# `model` holds the values of config.json that differ from small_gpt2.json.
Job = collections.namedtuple("Job", "name model arguments")
JOBS = [
    Job("small GPT-2", {}, []),
    Job("16 layers", {"n_layer": 16}, []),
    Job("width 512", {"n_embd": 512, "n_head": 16}, []),
    Job("mx6 and bf16", {}, ["--quantization.weights=mx6", "--quantization.gradients=bf16"]),
    Job("sealed, exact clipping", {}, ["--training.clip=exact"]),
    Job("1 server", {}, ["--servers=1"]),
    Job("8 micro-batches", {}, ["--training.micro_batches=8"]),
]
DATA = "/usr/share/common-licenses"

# Seconds of a step; bytes by (tier, kind) as (planned, measured, whether the plan is exact).
Outcome = collections.namedtuple("Outcome", "planned measured memory")


class DidNotRun(Exception):
    pass


def run(command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            check=False, timeout=TIMEOUT_S, **options)
    if result.returncode != 0:
        raise DidNotRun(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr}")
    return result.stdout


def reporting_programs(eps, folder):
    """Returns a copy of the front whose workers also write their report into `folder`."""
    eps = pathlib.Path(eps).resolve()
    worker = eps.parent.parent / "worker" / "eps-worker"
    copy = pathlib.Path(folder) / "eps"
    shutil.copy(eps, copy)
    script = pathlib.Path(folder) / "eps-worker"
    script.write_text(f'#!/bin/sh\n[ "$1" != worker ] && exec "{worker}" "$@"\n'
                      f'exec "{worker}" "$@" --report="{folder}/report.jsonl"\n',
                      encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(copy)


def arguments_of(job, root, folder):
    model = pathlib.Path(folder) / "model"
    model.mkdir(exist_ok=True)
    small = json.loads(report.SMALL_GPT2_MODEL.read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**small, **job.model}), encoding="utf-8")
    return [f"--config={root / 'bench/record/small_gpt2.yaml'}", f"--model={model}",
            "--worker.device=cpu", *job.arguments]


def planned_memory(plan):
    return {(tier["tier"], use["kind"]): (use["bytes"], use["exact"])
            for tier in plan["memory"] for use in tier["uses"]}


def accounts(front, addresses):
    """Returns the peaks of the servers' accounts by kind, summed over the servers."""
    peaks = collections.Counter()
    for line in run([front, "status", f"--servers={addresses}", "--json"]).splitlines():
        for kind, use in json.loads(line)["memory"].items():
            peaks[kind] += use["peak_bytes"]
    return peaks


def address_of(log):
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("job: "):
            return line.partition("--servers=")[2].rstrip(")")
    return None


def steps_of(metrics):
    if not metrics.exists():
        return []
    lines = metrics.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    return [json.loads(line)["step_seconds"] for line in lines]


def train(front, arguments, folder, options):
    """Trains; returns (median step seconds, servers' peaks, last line of the worker's report)."""
    out = pathlib.Path(folder) / "out"
    shutil.rmtree(out, ignore_errors=True)
    log = pathlib.Path(folder) / "train.log"
    total = options.warmup + options.steps
    command = [front, "train", "--storage.kind=dram", *arguments, f"--data={DATA}", f"--out={out}",
               "--training.steps=1000000", "--metrics.tensorboard=false"]
    deadline = time.monotonic() + TIMEOUT_S
    with open(log, "w", encoding="utf-8") as file, subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            while len(steps_of(out / "metrics.jsonl")) < total:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise DidNotRun(f"{' '.join(command)}: " + log.read_text(encoding="utf-8"))
                time.sleep(POLL_S)
            peaks = accounts(front, address_of(log))
        finally:
            process.kill()
    seconds = steps_of(out / "metrics.jsonl")[options.warmup:total]
    lines = (pathlib.Path(folder) / "report.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(seconds), peaks, json.loads(lines[total - 1])


def compare(front, hardware, job, root, folder, options):
    arguments = arguments_of(job, root, folder)
    plan = json.loads(run([front, "plan", f"--hardware={hardware}", "--json", *arguments]))
    seconds, peaks, worker = train(front, arguments, folder, options)
    measured = {("server memory", kind): peak for kind, peak in peaks.items()}
    measured["worker memory", "stash"] = worker["stash_peak_bytes"]
    memory = {key: (planned, measured[key], exact)
              for key, (planned, exact) in planned_memory(plan).items() if key in measured}
    return Outcome(plan["step"]["seconds"], seconds, memory)


def error(planned, measured):
    return planned / measured - 1


def step_lines(outcomes):
    """Returns the table of step times. `outcomes`: {job name: [Outcome per round]}."""
    lines = [f"{'job':24} {'planned ms':>26} {'measured ms':>26} {'error %':>22}"]
    for name, rounds in outcomes.items():
        planned = report.format_spread([1e3 * o.planned for o in rounds], 1)
        measured = report.format_spread([1e3 * o.measured for o in rounds], 1)
        errors = report.format_spread([100 * error(o.planned, o.measured) for o in rounds], 1)
        lines.append(f"{name:24} {planned:>26} {measured:>26} {errors:>22}")
    return lines


def memory_lines(outcomes):
    lines = [f"{'job':24} {'memory':28} {'planned':>12} {'measured':>12} {'ratio':>7}"]
    for name, rounds in outcomes.items():
        for (tier, kind), (planned, measured, exact) in rounds[-1].memory.items():
            what = f"{tier}: {kind}" + ("" if exact else ", at most")
            ratio = f"{planned / measured:7.3f}" if measured else "      -"
            lines.append(f"{name:24} {what:28} {planned:12.0f} {measured:12.0f} {ratio}")
    return lines


def judge(outcomes):
    """Returns (median error of step times, largest of exact memory, kinds above their bound)."""
    steps = statistics.median(abs(statistics.median(error(o.planned, o.measured) for o in rounds))
                              for rounds in outcomes.values())
    every = [use for rounds in outcomes.values() for o in rounds for use in o.memory.items()]
    exact = max(abs(error(p, m)) for _, (p, m, is_exact) in every if is_exact and m)
    above = sorted({f"{tier}: {kind}" for (tier, kind), (p, m, is_exact) in every
                    if not is_exact and m > p})
    return steps, exact, above


def main():
    root = pathlib.Path(report.ROOT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(root / "bazel-bin/cli/eps"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a job")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--jobs", help="names of jobs to run, separated by commas (default: all)")
    options = parser.parse_args()
    jobs = [job for job in JOBS if not options.jobs or job.name in options.jobs.split(",")]
    outcomes = {job.name: [] for job in jobs}
    with tempfile.TemporaryDirectory(prefix="eps-accuracy-") as folder:
        try:
            front = reporting_programs(options.eps, folder)
            for _ in range(options.rounds):
                report.wait_until_quiet(0.10, len(os.sched_getaffinity(0)), options.patience,
                                        time.monotonic, time.sleep)
                hardware = os.path.join(folder, "here.yaml")
                run([front, "bench", "calibrate", f"--out={hardware}", "--device=cpu"])
                for job in jobs:
                    outcomes[job.name].append(
                        compare(front, hardware, job, root, folder, options))
        except (DidNotRun, OSError, subprocess.SubprocessError) as failure:
            print(failure, file=sys.stderr)
            return 2
    print("\n".join([*step_lines(outcomes), "", *memory_lines(outcomes), ""]))
    steps, exact, above = judge(outcomes)
    ok = steps <= STEP_GOAL and exact <= MEMORY_GOAL and not above
    print(f"median error of step times {steps:.1%}, goal at most {STEP_GOAL:.0%}: "
          f"{'reached' if steps <= STEP_GOAL else 'MISSED'}")
    print(f"largest error of exact memory {exact:.2%}, goal at most {MEMORY_GOAL:.0%}: "
          f"{'reached' if exact <= MEMORY_GOAL else 'MISSED'}")
    print(f"above what was planned as at most: {', '.join(above) or 'nothing'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
