#!/usr/bin/env python3
"""Compares `eps simulate` with real runs of two server and four worker processes.

Passes and links wait instead of computing: the model is the synthetic one with worker.pass_time,
and links are shaped (shaped_link.py). The simulator receives exactly these rates. Server processors
and disks are those of planner/hardware/two_core_box.yaml and matter little here; the time of a sync
is measured. So six processes fit on a small machine and no parameter is fitted. Other programs on
the machine make runs slower than simulated, never faster.

Steps: medians after warm-up. Deaths: a process is killed with SIGKILL at the same point of the same
steps on both sides. Compared are the time of the steps from the first cut to the end of the run,
and the time from a death until its step is complete; the numbers of steps computed twice must be
equal. The time for which a process is away is measured before, in a separate run whose passes take
no time and which cuts after every step.

Exit code: 0 if all figures are within the goal, 1 if one is not, 2 if something did not run. Links
need root, `ip` and `tc`.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import report
import shaped_link

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parents[2] / "tests"))
import processes  # noqa: E402

GOAL = 0.15
TIMEOUT_S = 300
POLL_S = 0.005
SERVERS = 2
WORKERS = 4
SAMPLES = 1    # per part
SEQ_LEN = 16
CUT_STEPS = 5
# A run with deaths is compared from its first cut on, because the simulated run begins with a cut.
# The deaths come in these steps, which begin two steps after a cut, after this share of the step:
# in the backward pass, so that the servers already have some of its gradients.
BEGIN = CUT_STEPS
STEPS_OF_DEATHS = tuple(cuts * CUT_STEPS + 3 for cuts in (2, 3, 4))
DEATH_AT = 0.7
# TCP delivers 1,448 bytes of a frame of 1,514 bytes (the rest are headers of Ethernet, IP, TCP and
# its timestamps); tc counts whole frames.
TCP_SHARE = 1448 / 1514
# Longer than the largest burst of requests takes, so that TCP never loses or resends a packet.
LINK_QUEUE = "500ms"
LOOPBACK = "2GB/s"
GOES_ON = re.compile(r"^note: the job continues after step (\d+)", re.M)

# `pass_ms`: time of a forward pass over a stage. `train`: arguments of eps train and eps simulate.
# `simulate`: arguments of the simulator alone. `megabits`: rate per direction of the link of the
# machine that holds both servers; 0 means no link. `slow`: factor by which passes of the last
# worker are slower. `victim`: the process that is killed, named as in tests/processes.py.
Scenario = collections.namedtuple(
    "Scenario", "name layers width pass_ms train simulate megabits slow victim",
    defaults=((), (), 0, 1, None))
EAGER = ("--training.clip=lagged",)
SEALED = ("--training.clip=exact",)
CUTS = ("--storage.path=STATE", f"--storage.cut_steps={CUT_STEPS}", "--storage.max_restarts=1000")
LOG = ("--storage.log=contributions",)
SCENARIOS = [
    Scenario("compute", 6, 64, 25, EAGER),
    Scenario("compute, sealed", 6, 64, 25, SEALED),
    Scenario("network", 6, 256, 5, EAGER, megabits=100),
    Scenario("network and compute", 6, 256, 40, EAGER, megabits=100),
    Scenario("network, sealed", 6, 256, 5, SEALED, megabits=100),
    Scenario("straggler", 6, 64, 25, EAGER, ("--slow-fraction=0.25", "--slow-factor=2"), slow=2),
    Scenario("worker killed", 6, 64, 25, EAGER + CUTS, victim="worker 3"),
    Scenario("worker killed, sealed", 6, 64, 25, SEALED + CUTS, victim="worker 3"),
    Scenario("server killed", 6, 64, 25, EAGER + CUTS, victim="serve 1"),
    Scenario("server killed, log", 6, 64, 25, EAGER + CUTS + LOG, victim="serve 1"),
]

# One compared figure of a round. `digits` is 0 for whole numbers, which must be equal.
Figure = collections.namedtuple("Figure", "name measured simulated digits")
# Seconds from BEGIN to the end; mean seconds from a death to the end of its step; total number of
# repeated steps.
Death = collections.namedtuple("Death", "total missed repeated")


class DidNotRun(Exception):
    pass


def link_rate(megabits):
    """Returns the bytes per second that TCP delivers over a shaped link."""
    return megabits * 1e6 / 8 * TCP_SHARE


def peak(scenario):
    """Returns the operations per second at which a forward pass over a stage takes pass_ms.

    A sample is one vector through one matrix with a bias (planner/workload.h).
    """
    elements = scenario.width * scenario.width + scenario.width
    return SAMPLES * 2 * elements / (scenario.pass_ms / 1e3)


def hardware_text(scenario, sync_s):
    """Returns the hardware description of a scenario. `sync_s`: seconds of a disk's sync."""
    link = f"{link_rate(scenario.megabits):.0f}B/s" if scenario.megabits else LOOPBACK
    machines = 1 if scenario.megabits else SERVERS  # both servers share one link
    return f"""name: {scenario.name}
source: "worker.pass_time and the shaped link; server processors as two_core_box"
workers:
  - name: waiting
    count: {WORKERS}
    device: {{name: sleep, host: true, memory: 16GB, peak_fp32: {peak(scenario):.0f}FLOP/s}}
    memory: 16GB
    receive: {LOOPBACK}
    send: {LOOPBACK}
    latency: 200us
    encode: 5GB/s
    decode: 5GB/s
servers:
  - name: local
    count: {machines}
    cores: 2
    memory: 16GB
    memory_bandwidth: 100GB/s
    receive: {link}
    send: {link}
    encode: 5GB/s
    update: 3.8GB/s
    storage:
      {{kind: nvme, capacity: 100GB, read: 2.9GB/s, write: 2.5GB/s, sync: {sync_s:.6f}s}}
"""


def write_inputs(scenario, folder, sync_s):
    model = {"model_type": "eps-synthetic", "n_layer": scenario.layers, "n_embd": scenario.width,
             "tied": False}
    (folder / "model.json").write_text(json.dumps(model), encoding="utf-8")
    (folder / "hardware.yaml").write_text(hardware_text(scenario, sync_s), encoding="utf-8")


def job_arguments(scenario, folder):
    """Returns the arguments common to eps train and eps simulate."""
    return [f"--model={folder}/model.json", f"--training.micro_batch_size={SAMPLES}",
            f"--training.seq_len={SEQ_LEN}", f"--training.parts={WORKERS}",
            *(a.replace("STATE", f"{folder}/state") for a in scenario.train)]


def simulate_command(eps, scenario, folder, steps, deaths=(), away=0):
    """Returns the command. `deaths`: seconds from the start; `away`: seconds of each absence."""
    command = [eps, "simulate", "--json", f"--hardware={folder}/hardware.yaml",
               f"--servers.addresses={SERVERS}", f"--steps={steps}", *scenario.simulate,
               *job_arguments(scenario, folder)]
    if deaths:
        role = "worker" if scenario.victim.startswith("worker") else "server"
        command += [f"--{role}-restart={away:.6f}s",
                    "--deaths=" + ",".join(f"{at:.6f}s:{role}" for at in deaths)]
    return command


def run_json(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            check=False, timeout=TIMEOUT_S)
    if result.returncode != 0:
        raise DidNotRun(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


def simulated_step(simulation):
    return simulation["step"]["duration"]


def difference(figure):
    return figure.simulated / figure.measured - 1


def is_met(rounds):
    """Judges one figure's `rounds` by the median difference; whole numbers must be equal."""
    if rounds[0].digits == 0:
        return all(f.measured == f.simulated for f in rounds)
    return abs(statistics.median(difference(f) for f in rounds)) <= GOAL


def table(outcomes):
    """Returns (lines, whether all goals are met). `outcomes`: {scenario: [[Figure] per round]}."""
    lines = [f"{'scenario':23}{'figure':25}{'measured':25}{'simulated':25}{'difference %':23}goal"]
    all_met = True
    for name, rounds in outcomes.items():
        for figures in zip(*rounds):
            met = is_met(figures)
            all_met = all_met and met
            first = figures[0]
            measured = report.format_spread([f.measured for f in figures], first.digits)
            simulated = report.format_spread([f.simulated for f in figures], first.digits)
            differences = "-" if first.digits == 0 else report.format_spread(
                [100 * difference(f) for f in figures], 1)
            lines.append(f"{name:23}{first.name:25}{measured:25}{simulated:25}{differences:23}"
                         f"{'met' if met else 'MISSED'}")
    return lines, all_met


def records_of(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in
            path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()]


class Job:
    """The real processes of a scenario, for the duration of the context."""

    def __init__(self, options, scenario, folder, steps):
        self.options = options
        self.scenario = scenario
        self.folder = pathlib.Path(folder)
        self.steps = steps
        self.metrics = self.folder / "out/metrics.jsonl"
        self.log = self.folder / "train.log"
        self.stack = contextlib.ExitStack()
        self.process = None
        self.began = None

    def __enter__(self):
        (self.folder / "text.txt").write_text("some bottles of beer\n" * 100, encoding="ascii")
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        self.began = report.sample_cpu(os.getpid(), time.monotonic())
        return self

    def __exit__(self, *_):
        end = report.sample_cpu(os.getpid(), time.monotonic())
        self.options.others.append(report.others_share(self.began, end, self.options.cores))
        self.stack.close()

    def spawn(self, command, log):
        file = self.stack.enter_context(open(log, "w", encoding="utf-8"))
        process = self.stack.enter_context(subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=dict(os.environ, OMP_WAIT_POLICY="passive")))
        self.stack.callback(process.kill)  # children of eps train end with it
        return process

    def start(self):
        s = self.scenario
        workers_apart = s.slow != 1
        servers = self.serve_apart() if s.megabits or workers_apart else str(SERVERS)
        pass_time = f"--worker.pass_time={s.pass_ms}ms"
        self.process = self.spawn(
            [self.options.eps, "train", *job_arguments(s, self.folder), f"--servers={servers}",
             f"--data={self.folder}/text.txt", f"--out={self.folder}/out", "--overwrite", pass_time,
             f"--workers={0 if workers_apart else WORKERS}", "--worker.device=cpu",
             f"--training.steps={self.steps}", "--metrics.tensorboard=false"], self.log)
        for rank in range(WORKERS if workers_apart else 0):
            time_ms = s.pass_ms * (s.slow if rank == WORKERS - 1 else 1)
            self.spawn([self.options.eps, "worker", f"--servers={servers}",
                        f"--worker.rank={rank}", f"--worker.count={WORKERS}",
                        f"--worker.pass_time={time_ms}ms"], self.folder / f"worker-{rank}.log")

    def serve_apart(self):
        """Starts servers to which eps train attaches; returns their addresses."""
        inside, address = [], "127.0.0.1"
        if self.scenario.megabits:
            link = self.stack.enter_context(
                shaped_link.Link(f"{self.scenario.megabits}mbit", LINK_QUEUE))
            inside, address = link.inside(), shaped_link.SERVER_ADDRESS
        addresses = []
        for index in range(SERVERS):
            log = self.stack.enter_context(
                open(self.folder / f"serve-{index}.log", "w", encoding="utf-8"))
            process = self.stack.enter_context(shaped_link.running(
                [*inside, self.options.eps, "serve", f"--listen={address}:0", "--insecure",
                 f"--servers.peers={address}:0"], log))
            addresses.append(shaped_link.read_until(process, shaped_link.LISTENING))
        return ",".join(addresses)

    def last_step(self):
        records = records_of(self.metrics)
        return records[-1]["step"] if records else 0

    def wait_for_step(self, step):
        """Waits until the step is complete; returns the time."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.last_step() < step:
            if time.monotonic() > deadline or self.process.poll() not in (None, 0):
                said = self.log.read_text(encoding="utf-8")[-2000:]
                raise DidNotRun(f"{self.scenario.name}: no step {step}: {said}")
            time.sleep(POLL_S)
        return time.monotonic()

    def kill(self):
        victim = processes.children_of(self.process.pid)[self.scenario.victim]
        os.kill(victim, signal.SIGKILL)
        return time.monotonic()

    def borders(self):
        """Returns the steps after which the job continued, one for each rollback."""
        return [int(step) for step in GOES_ON.findall(self.log.read_text(encoding="utf-8"))]


def sync_seconds(folder):
    """Returns the seconds until a small write is on the disk."""
    seconds = []
    with open(folder / "sync", "wb", buffering=0) as file:
        for _ in range(20):
            begin = time.monotonic()
            file.write(bytes(1 << 16))
            os.fdatasync(file.fileno())
            seconds.append(time.monotonic() - begin)
    return statistics.median(seconds)


def measure_steps(options, scenario, folder):
    """Returns [Figure] of a run without deaths."""
    last = options.warmup + options.steps
    with Job(options, scenario, folder, last + 1) as job:
        job.wait_for_step(last)
        seconds = [r["step_seconds"] for r in records_of(job.metrics)[options.warmup:last]]
    simulation = run_json(simulate_command(options.eps, scenario, folder, options.steps))
    return [Figure("step, s", statistics.median(seconds), simulated_step(simulation), 3)]


def time_away(options, scenario, folder):
    """Returns the seconds from a kill to the first new step, less the short time of a step."""
    bare = scenario._replace(pass_ms=0, train=tuple(
        "--storage.cut_steps=1" if a.startswith("--storage.cut_steps") else a
        for a in scenario.train))
    away = []
    with Job(options, bare, folder, 1_000_000) as job:
        for _ in range(options.restarts):
            job.wait_for_step(job.last_step() + 20)
            killed = job.kill()
            away.append(job.wait_for_step(job.last_step() + 1) - killed)
        step = statistics.median(r["step_seconds"] for r in records_of(job.metrics))
    return statistics.median(away) - step


def simulate_deaths(options, scenario, folder, away):
    """Returns (Death of the simulated run, seconds from the begin of a step to a death). Each death
    comes at the time that the run has reached with the deaths before."""
    def simulate(steps):
        return run_json(simulate_command(options.eps, scenario, folder, steps, deaths, away))
    deaths, missed = [], []
    into = DEATH_AT * simulated_step(simulate(1))
    for met in STEPS_OF_DEATHS:
        deaths.append(simulate(met - 1 - BEGIN)["wall"] + into)
        missed.append(simulate(met - BEGIN)["wall"] - deaths[-1])
    whole = simulate(options.steps)
    return Death(whole["wall"], statistics.mean(missed), whole["lost_steps"]), into


def run_deaths(options, scenario, folder, into):
    """Returns the Death of a real run."""
    last = BEGIN + options.steps
    missed, repeated = [], 0
    with Job(options, scenario, folder, last + 1) as job:
        begin = job.wait_for_step(BEGIN)
        for met in STEPS_OF_DEATHS:
            time.sleep(max(0.0, job.wait_for_step(met - 1) + into - time.monotonic()))
            before = len(job.borders())
            killed = job.kill()
            missed.append(job.wait_for_step(met) - killed)
            repeated += sum(met - 1 - border for border in job.borders()[before:])
        total = job.wait_for_step(last) - begin
    return Death(total, statistics.mean(missed), repeated)


def measure_deaths(options, scenario, folder, away):
    """Returns [Figure] of a run in which a process is killed, each time between two cuts."""
    simulated, into = simulate_deaths(options, scenario, folder, away)
    measured = run_deaths(options, scenario, folder, into)
    return [Figure("all steps, s", measured.total, simulated.total, 2),
            Figure("from death to step, s", measured.missed, simulated.missed, 2),
            Figure("steps repeated", measured.repeated, simulated.repeated, 0)]


def measure(options, scenario):
    with tempfile.TemporaryDirectory(prefix="eps-simulate-") as name:
        folder = pathlib.Path(name)
        write_inputs(scenario, folder, sync_seconds(folder))
        if scenario.victim is None:
            return measure_steps(options, scenario, folder)
        away = time_away(options, scenario, folder)
        shutil.rmtree(folder / "state")
        shutil.rmtree(folder / "out")
        return measure_deaths(options, scenario, folder, away)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(report.ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=3, help="untimed steps before them")
    parser.add_argument("--restarts", type=int, default=7, help="kills that measure the time away")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    options = parser.parse_args(arguments)
    options.cores = len(os.sched_getaffinity(0))
    options.others = []  # per run, the share of the cores that other programs took
    if BEGIN + options.steps <= STEPS_OF_DEATHS[-1]:
        parser.error(f"steps must exceed {STEPS_OF_DEATHS[-1] - BEGIN}, the step of the last death")
    return options


def main():
    options = parse_arguments(sys.argv[1:])
    scenarios = [s for s in SCENARIOS if options.only in s.name]
    missing = shaped_link.check_host() if any(s.megabits for s in scenarios) else None
    if missing:
        print(f"simulate_accuracy: {missing}", file=sys.stderr)
        return 2
    outcomes = {s.name: [] for s in scenarios}
    for _ in range(options.rounds):
        for scenario in scenarios:
            try:
                outcomes[scenario.name].append(measure(options, scenario))
            except (DidNotRun, RuntimeError, OSError, subprocess.SubprocessError) as failure:
                print(f"simulate_accuracy: {scenario.name}: {failure}", file=sys.stderr)
                return 2
    lines, met = table(outcomes)
    print(f"{SERVERS} servers, {WORKERS} workers; {options.rounds} rounds of {options.steps} "
          f"steps; goal: the median difference is at most {GOAL:.0%}")
    print("\n".join(lines))
    print(f"other programs took {report.format_spread([100 * o for o in options.others], 0)} % of "
          f"the {options.cores} cores meanwhile; load average {os.getloadavg()[2]:.1f}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
