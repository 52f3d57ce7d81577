#!/usr/bin/env python3
"""Compares a training step through servers and wire with the same model in one process.

Rounds alternate between `eps train` and whole_model_step, which trains the same GPT-2 on the same
samples in one process, also with recomputed blocks; both have the same cores and threads. A round's
figure is the median of its steps after warm-up. The result is the median over pairs of rounds of
the ratio, because a machine that slows down for a while slows down both. A pair in which other
programs took more than --max-others of the cores is shown and repeated. The two must agree on the
job's id and on the losses of every step.

Exit code: 0 if the goal is reached, 1 if it is missed or the losses differ, 2 if something did not
run.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import report

GOAL = 1.10
SECTION = "step-ratio"
ROUND_TIMEOUT_S = 1800
POLL_S = 0.01
FIRST_LOSS_TOLERANCE = 1e-6  # same weights and samples: only the rounding of sums differs
LOSS_TOLERANCE = 1e-3        # a wrong update shows after one step
MIN_QUIET_PAIRS = 5

# One round of one program: seconds of each timed step, CPU seconds of all its processes per step,
# and the share of the cores that other programs took.
Round = collections.namedtuple("Round", "job losses seconds cpu others")


def train_command(eps, out, steps, extra):
    return [eps, "train", *report.SMALL_GPT2, report.SMALL_GPT2_DATA, f"--out={out}", "--overwrite",
            f"--training.steps={steps}", "--worker.device=cpu", "--storage.kind=dram",
            "--training.micro_batch_size=8",
            "--training.micro_batches=4", *extra]


def whole_command(whole, config, steps):
    return [whole, f"--config={config}", f"--steps={steps}"]


def job_of_output(lines):
    """Returns the job id that `eps train` prints, or the one in the first line of the peer."""
    for line in lines:
        if line.startswith("job: "):
            return line.split()[1]
        if line.startswith('{"job"'):
            return json.loads(line)["job"]
    return None


def relative(a, b):
    return abs(a - b) / max(abs(a), abs(b), 1e-30)


def loss_difference(ours, theirs):
    """Returns how two lists of losses differ, or None if they are of the same training."""
    if not ours or len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)} losses"
    for step, (a, b) in enumerate(zip(ours, theirs), start=1):
        tolerance = FIRST_LOSS_TOLERANCE if step == 1 else LOSS_TOLERANCE
        if relative(a, b) > tolerance:
            return f"step {step}: loss {a} through servers, {b} in one process"
    return None


def is_quiet(pair, limit):
    return all(r.others <= limit for r in pair)


def step_ratio(pair):
    return report.spread(pair[0].seconds).median / report.spread(pair[1].seconds).median


def cpu_ratio(pair):
    return pair[0].cpu / pair[1].cpu


Verdict = collections.namedtuple("Verdict", "text ratios used reached")


def judge(pairs, max_others):
    """Judges the quiet pairs if there are enough of them, else all pairs."""
    quiet = [p for p in pairs if is_quiet(p, max_others)]
    used = quiet if len(quiet) >= MIN_QUIET_PAIRS else pairs
    ratios = [step_ratio(p) for p in used]
    reached = report.spread(ratios).median <= GOAL
    which = (f"{len(quiet)} of {len(pairs)} pairs, in which others took at most "
             f"{max_others:.0%} of the cores" if used is quiet else
             f"all {len(pairs)} pairs, of which only {len(quiet)} were undisturbed")
    text = (f"ratio {report.format_spread(ratios)} over {which}: goal at most {GOAL:.2f} "
            f"{'reached' if reached else 'MISSED'}")
    return Verdict(text, ratios, used, reached)


class Follower:
    """Runs one program and samples CPU time at the ends of its steps."""

    def __init__(self, command, log_path, metrics_path, environment):
        self.metrics_path = metrics_path  # None: the records are on stdout
        self.log_path = log_path
        self.log = open(log_path, "w", encoding="utf-8")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            command, stdout=self.log, stderr=subprocess.STDOUT, env=environment)

    def records(self):
        path = self.metrics_path or self.log_path
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            whole = file.read().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith('{"step"')]

    def output(self):
        with open(self.log_path, encoding="utf-8") as file:
            return file.read().splitlines()

    def run(self, warmup, steps):
        deadline = time.monotonic() + ROUND_TIMEOUT_S
        samples = []
        try:
            while self.process.poll() is None and time.monotonic() < deadline:
                done = len(self.records())
                if len(samples) < 2 and done >= (warmup, warmup + steps)[len(samples)]:
                    samples.append(report.sample_cpu(self.process.pid, time.monotonic()))
                time.sleep(POLL_S)
        finally:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(timeout=60)
            self.log.close()
        records = self.records()
        if self.process.returncode != 0 or len(samples) != 2 or len(records) < warmup + steps:
            tail = "\n".join(self.output()[-10:])
            raise RuntimeError(
                f"exit code {self.process.returncode}, {len(records)} steps:\n{tail}")
        timed = records[warmup:warmup + steps]
        begin, end = samples
        cores = len(os.sched_getaffinity(0))
        return Round(
            job=job_of_output(self.output()),
            losses=[r["loss"] for r in records[:warmup + steps]],
            seconds=[r["step_seconds"] for r in timed],
            cpu=(end.own - begin.own) / report.TICKS_PER_SECOND / steps,
            others=report.others_share(begin, end, cores))


class DifferentTraining(Exception):
    pass


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        # One step more than is timed, so that the processes still run at the last sample.
        self.steps = options.warmup + options.steps + 1
        # Both programs wait for threads as a worker does.
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        self.config = os.path.join(folder, "config.yaml")

    def through_servers(self):
        out = os.path.join(self.folder, "run")
        shutil.rmtree(out, ignore_errors=True)
        command = train_command(self.options.eps, out, self.steps, self.options.extra)
        result = Follower(command, os.path.join(self.folder, "eps.log"),
                          os.path.join(out, "metrics.jsonl"),
                          self.environment).run(self.options.warmup, self.options.steps)
        shutil.copy(os.path.join(out, "logs", "config.yaml"), self.config)
        return result

    def in_one_process(self):
        command = whole_command(self.options.whole, self.config, self.steps)
        return Follower(command, os.path.join(self.folder, "whole.log"), None,
                        self.environment).run(self.options.warmup, self.options.steps)

    def pair(self, index):
        report.wait_until_quiet(self.options.max_others, self.options.cores, self.options.patience,
                                time.monotonic, time.sleep)
        if index % 2 == 0:  # so that a drift of the machine's speed favours neither
            ours = self.through_servers()
            return ours, self.in_one_process()
        theirs = self.in_one_process()
        return self.through_servers(), theirs

    def pairs(self):
        """Runs pairs until enough were undisturbed or time is up. Raises DifferentTraining."""
        pairs = []
        quiet = 0
        deadline = time.monotonic() + 60 * self.options.max_minutes
        while quiet < self.options.rounds and (not pairs or time.monotonic() < deadline):
            pair = self.pair(len(pairs))
            problem = check_same_training(pair)
            if problem:
                raise DifferentTraining(problem)
            pairs.append(pair)
            quiet += is_quiet(pair, self.options.max_others)
            print(f"pair {len(pairs)}: servers {report.format_spread(pair[0].seconds)} s, "
                  f"one process {report.format_spread(pair[1].seconds)} s, ratio "
                  f"{step_ratio(pair):.3f}, CPU {pair[0].cpu:.2f} / {pair[1].cpu:.2f} s, others "
                  f"{pair[0].others:.0%}, {pair[1].others:.0%}", flush=True)
        return pairs


def check_same_training(pair):
    ours, theirs = pair
    if ours.job is None or ours.job != theirs.job:
        return f"job {ours.job} through servers, {theirs.job} in one process: not the same job"
    return loss_difference(ours.losses, theirs.losses)


def section_body(options, pairs, verdict):
    ours = [report.spread(p[0].seconds).median for p in verdict.used]
    theirs = [report.spread(p[1].seconds).median for p in verdict.used]
    rows = "\n".join(
        f"| {i} | {report.spread(a.seconds).median:.3f} | {report.spread(b.seconds).median:.3f} | "
        f"{step_ratio((a, b)):.3f} | {cpu_ratio((a, b)):.3f} | {a.others:.0%}, {b.others:.0%} |"
        for i, (a, b) in enumerate(pairs, start=1))
    extra = "".join(" --eps-arg=" + e for e in options.extra)
    return f"""## A step through servers and wire against one process

`bench/record/step_ratio.py --rounds={options.rounds} --steps={options.steps}{extra}`

The small GPT-2 and its settings, 8,192 tokens per step (8 samples x 4 micro-batches x 256 tokens){
', ' + ', '.join(options.extra) if options.extra else ''}. *Servers*:
`eps train` with all work of servers, worker and front, on the same cores as *one process*: the same
GPT-2 with recomputed blocks, clipping and LibTorch's fused AdamW. Job id and losses agree.

Machine: {report.machine()}, {len(os.sched_getaffinity(0))} cores used; commit {report.commit()}.

**{verdict.text}.** Median step {report.format_spread(ours)} s through servers,
{report.format_spread(theirs)} s in one process; CPU seconds per step, all processes together:
ratio {report.format_spread([cpu_ratio(p) for p in verdict.used])}.

| pair | servers s | one process s | ratio | CPU ratio | others' share of the cores |
| --- | --- | --- | --- | --- | --- |
{rows}
"""


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(report.ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--whole", default=str(report.ROOT / "bazel-bin/bench/whole_model_step"))
    parser.add_argument("--rounds", type=int, default=9, help="undisturbed pairs of rounds")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a round")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps before them")
    parser.add_argument("--cores", type=int, default=2, help="cores that both may use")
    parser.add_argument("--max-others", type=float, default=0.10,
                        help="share of the cores that others may take in an undisturbed round")
    parser.add_argument("--patience", type=float, default=60,
                        help="how many seconds to wait before a pair for a quiet machine")
    parser.add_argument("--max-minutes", type=float, default=60,
                        help="start no pair after this time")
    parser.add_argument("--eps-arg", dest="extra", action="append", default=[],
                        help="passed to eps train (repeatable)")
    parser.add_argument("--section", default=SECTION, help="section of the page that is written")
    parser.add_argument("--write", help="page to write the result into, e.g. docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.steps, options.warmup, options.cores) < 1:
        parser.error("rounds, steps, warmup and cores must be at least 1")
    return options


def main():
    options = parse_arguments(sys.argv[1:])
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, available[:options.cores])
    print(f"machine: {report.machine()}, {options.cores} of {len(available)} cores; "
          f"commit {report.commit()}; {options.rounds} pairs of {options.steps} steps", flush=True)
    with tempfile.TemporaryDirectory(prefix="eps-step-ratio-") as folder:
        try:
            pairs = Bench(options, folder).pairs()
        except DifferentTraining as error:
            print(f"not the same training: {error}")
            return 1
        except (RuntimeError, OSError) as error:
            print(f"step_ratio: {error}", file=sys.stderr)
            return 2
    verdict = judge(pairs, options.max_others)
    print(verdict.text)
    print("CPU ratio " + report.format_spread([cpu_ratio(p) for p in verdict.used]))
    if options.write:
        report.write_section(options.write, options.section,
                             section_body(options, pairs, verdict))
    return 0 if verdict.reached else 1


if __name__ == "__main__":
    sys.exit(main())
