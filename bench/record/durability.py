#!/usr/bin/env python3
"""Measures the cost of durable state during training, and the delay that a killed process causes.

Steps: rounds of the small GPT-2 alternate between state in memory without cuts and durable
state, each with real processes. A round's figures are the median of its steps after warm-up, and
the processor seconds of all its processes per step. All rounds must have the same losses.

Cost: the same model with state in memory on one server, with cuts at the interval that the server
derives (storage.cut_steps=auto), without cuts, and with many cuts. The cost counts the time from
each border until its cut is durable, as if training waited for it, and the server's processor time
per cut. The latter is the difference between the runs with many cuts and without, which exceeds the
noise.

Kills: in a run on durable servers, processes are killed with SIGKILL one after the other. The
result is the time from a kill until the job is open again, and until the first new step.

Restarts: a server with a large state is killed and restarted. The result is the time from its start
until it serves the job, compared with the time to read that state once from the same files by
direct I/O.

Exit code: 0 if measured, 1 if losses differ, 2 if something did not run.
"""

import argparse
import collections
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import report
import step_ratio

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import processes  # noqa: E402

TIMEOUT_S = 600
POLL_S = 0.005
READ_BYTES = 4 << 20
STATES = {
    "memory": ["--storage.kind=dram"],
    "memory, with cuts": ["--storage.path="],  # a folder of the round
    "nvme": ["--storage.kind=nvme"],
    "nvme, with a log": ["--storage.kind=nvme", "--storage.log=contributions"],
}
LOGS = ("none", "contributions")
SERVERS = re.compile(r"[(]eps status (--servers=[^)]+)")
GOES_ON = re.compile(r"^note: the job continues after step (\d+)", re.M)

COSTS = {"without cuts": ["--storage.kind=dram"],
         "auto": ["--storage.cut_steps=auto", "--storage.path="],
         "many cuts": ["--storage.cut_steps=2", "--storage.path="]}
COST_GOAL = 0.01

# The work of a run's server between two steps: seconds per step, and per step its processor
# seconds, the seconds that its cuts took, and their number.
Cost = collections.namedtuple("Cost", "losses step cpu cutting cuts")

# Seconds from a kill to the open job and to the next new step; number of steps computed twice.
Gap = collections.namedtuple("Gap", "victim opened stepped repeated")


class DidNotRun(Exception):
    pass


def environment():
    return dict(os.environ, OMP_WAIT_POLICY="passive")


def wait_for(what, condition, process):
    """Waits until `condition` returns a value other than None; returns it."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        value = condition()
        if value is not None:
            return value
        if process.poll() is not None:
            raise DidNotRun(f"exit code {process.returncode} while waiting for {what}")
        time.sleep(POLL_S)
    raise DidNotRun(f"no {what} in {TIMEOUT_S} s")


def text_of(path):
    return pathlib.Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""


def last_step(metrics):
    lines = text_of(metrics).rpartition("\n")[0].splitlines()
    return json.loads(lines[-1])["step"] if lines else 0


def step_rounds(options, folder):
    """Runs all states in interleaved rounds; returns {state: [Round]}."""
    rounds = {name: [] for name in STATES}
    for index in range(options.rounds):
        for name in sorted(STATES, reverse=index % 2 == 1):
            out = os.path.join(folder, "steps")
            shutil.rmtree(out, ignore_errors=True)
            report.wait_until_quiet(0.10, len(os.sched_getaffinity(0)), options.patience,
                                    time.monotonic, time.sleep)
            extra = [key + out + "/state" if key.endswith("=") else key for key in STATES[name]]
            command = step_ratio.train_command(
                options.eps, out, options.warmup + options.steps + 1, extra)
            follower = step_ratio.Follower(command, os.path.join(folder, "steps.log"),
                                           os.path.join(out, "metrics.jsonl"), environment())
            rounds[name].append(follower.run(options.warmup, options.steps))
    return rounds


def step_lines(rounds):
    lines = ["state               step / step in memory       processor s per step / in memory"]
    for name, runs in rounds.items():
        pairs = list(zip(runs, rounds["memory"]))
        ratios = [step_ratio.step_ratio(pair) for pair in pairs]
        cpu = [step_ratio.cpu_ratio(pair) for pair in pairs]
        lines.append(f"{name:<20}{report.format_spread(ratios):<28}{report.format_spread(cpu)}")
    return lines


def losses_differ(rounds):
    return len({tuple(r.losses) for runs in rounds.values() for r in runs}) > 1


def servers_now(run, eps, log):
    """Returns (time, processor seconds of the servers, seconds of their cuts, number of cuts)."""
    servers = [pid for name, pid in processes.children_of(run.pid).items() if "serve" in name]
    ticks = sum(report.sample_cpu(pid, 0).own for pid in servers)
    now = time.monotonic()
    address = SERVERS.findall(text_of(log))[-1]
    status = subprocess.run([eps, "status", "--json", address], stdout=subprocess.PIPE, text=True,
                            timeout=60, check=True).stdout
    counters = json.loads(status.splitlines()[0])["counters"]
    return (now, ticks / report.TICKS_PER_SECOND, counters.get("cut_ms", 0) / 1e3,
            counters.get("cuts", 0))


def cost_of(options, folder, extra):
    out, log = os.path.join(folder, "cost"), os.path.join(folder, "cost.log")
    shutil.rmtree(out, ignore_errors=True)
    metrics = os.path.join(out, "metrics.jsonl")
    extra = [key + out + "/state" if key.endswith("=") else key for key in extra]
    command = [options.eps, "train", *report.SMALL_GPT2, report.SMALL_GPT2_DATA, f"--out={out}",
               "--training.steps=1000000", "--servers=1", "--worker.device=cpu",
               "--metrics.tensorboard=false", *extra]
    with open(log, "w", encoding="utf-8") as file, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=environment()) as run:
        try:
            samples = []
            # The first cuts do not follow the interval, because it is derived from them.
            for steps in (options.cost_warmup, options.cost_warmup + options.cost_steps):
                wait_for(f"step {steps}", lambda: last_step(metrics) >= steps or None, run)
                samples.append((last_step(metrics), *servers_now(run, options.eps, log)))
        finally:
            run.kill()
    steps, seconds, cpu, cutting, cuts = (end - begin for begin, end in zip(*samples))
    lines = text_of(metrics).splitlines()[:options.cost_steps]
    losses = [json.loads(line)["loss"] for line in lines]
    return Cost(losses, seconds / steps, cpu / steps, cutting / steps, cuts / steps)


def measure_cost(options, folder):
    runs = {name: [] for name in COSTS}
    for index in range(options.rounds):
        for name in sorted(COSTS, reverse=index % 2 == 1):
            runs[name].append(cost_of(options, folder, COSTS[name]))
    if len({tuple(r.losses) for rounds in runs.values() for r in rounds}) > 1:
        print("LOSSES DIFFER between rounds")
        return 1
    auto, plain, many = (runs[name] for name in ("auto", "without cuts", "many cuts"))
    per_cut = [(m.cpu - p.cpu) / m.cuts for m, p in zip(many, plain)]
    cutting = [a.cutting / a.step for a in auto]
    more = [a.cuts * each / a.step for a, each in zip(auto, per_cut)]
    both = [a + b for a, b in zip(cutting, more)]
    reached = report.spread(both).median <= COST_GOAL
    took = [r.cutting / r.cuts for r in many]
    print(f"a cut takes {report.format_spread(took, 3)} s, and "
          f"{report.format_spread(per_cut, 3)} processor s")
    print(f"auto: one every {report.format_spread([1 / a.cuts for a in auto], 1)} steps; "
          f"a part {report.format_spread(cutting, 4)} of the time, and of a processor's "
          f"{report.format_spread(more, 4)}")
    print(f"both: {report.format_spread(both, 4)}: goal at most {COST_GOAL} "
          f"{'reached' if reached else 'MISSED'}")
    return 0


def kill_gaps(options, folder, kept):
    """Returns the gaps of one run in which servers and workers are killed repeatedly; `kept` is its
    storage.log. With contributions in the log, a server's death does not roll the job back."""
    out, log = os.path.join(folder, "kills-" + kept), os.path.join(folder, kept + ".log")
    metrics = os.path.join(out, "metrics.jsonl")
    command = [options.eps, "train", *report.SMALL_GPT2, report.SMALL_GPT2_DATA, f"--out={out}",
               "--training.steps=1000000",
               "--worker.device=cpu", "--servers=2", "--storage.kind=nvme",
               f"--storage.cut_steps={options.cut_steps}", f"--storage.log={kept}",
               "--storage.max_restarts=100000",
               "--metrics.tensorboard=false"]
    dice = random.Random(1)
    gaps = []
    with open(log, "w", encoding="utf-8") as file, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=environment()) as run:
        try:
            wait_for("a step", lambda: last_step(metrics) or None, run)
            while len(gaps) < options.kills:
                time.sleep(dice.uniform(1, 4))
                children = processes.children_of(run.pid)
                victim = dice.choice([name for name in sorted(children) if name != "supervisor"])
                before = len(GOES_ON.findall(text_of(log)))
                reached = last_step(metrics)
                start = time.monotonic()
                os.kill(children[victim], signal.SIGKILL)
                border = wait_for(
                    "recovery", lambda: border_after(log, before, metrics, reached), run)
                opened = time.monotonic() - start
                wait_for("a new step", lambda: last_step(metrics) > reached or None, run)
                gaps.append(Gap(victim, opened, time.monotonic() - start, reached - int(border)))
        finally:
            run.kill()
    return gaps


def border_after(log, before, metrics, reached):
    """Returns the step after which the run continues, or None if it does not yet. A server with a
    log, and a worker that dies between two steps, lose nothing: a new step then replaces the
    recovery."""
    borders = GOES_ON.findall(text_of(log))[before:]
    if borders:
        return borders[-1]
    return reached if last_step(metrics) > reached else None


def gap_lines(gaps, cut_steps, kept):
    lines = [f"storage.log={kept}, a cut every {cut_steps} steps",
             "killed        times   s to the open job        s to a new step          steps "
             "repeated"]
    for role in sorted({gap.victim for gap in gaps}):
        mine = [gap for gap in gaps if gap.victim == role]
        lines.append(f"{role:<14}{len(mine):<8}"
                     f"{report.format_spread([g.opened for g in mine], 2):<25}"
                     f"{report.format_spread([g.stepped for g in mine], 2):<25}"
                     f"{report.format_spread([g.repeated for g in mine], 0)}")
    return lines


def read_once(path, count):
    """Returns the seconds to read the first `count` bytes of a file by direct I/O."""
    buffer = mmap.mmap(-1, READ_BYTES)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        start = time.monotonic()
        offset = 0
        while offset < count:
            got = os.preadv(fd, [buffer], offset)
            if got <= 0:
                raise DidNotRun(f"{path} ends at {offset} of {count} bytes")
            offset += got
        return time.monotonic() - start
    finally:
        os.close(fd)


def slot_files(state):
    return sorted(str(p) for p in pathlib.Path(state).rglob("slot-*.eps"))


def restart_seconds(options, folder):
    """Returns (seconds of each restart, seconds of each read of the state, bytes of the state)."""
    model = os.path.join(folder, "model.json")
    pathlib.Path(model).write_text(json.dumps(
        {"model_type": "eps-synthetic", "n_layer": options.layers, "n_embd": 1024, "tied": True}),
                                   encoding="utf-8")
    text = os.path.join(folder, "text.txt")
    pathlib.Path(text).write_text("".join(f"{i} bottles of beer\n" for i in range(400)),
                                  encoding="utf-8")
    out, state = os.path.join(folder, "restart"), os.path.join(folder, "state")
    subprocess.run([options.eps, "train", f"--model={model}", f"--data={text}", f"--out={out}",
                    f"--storage.path={state}", "--storage.kind=nvme", "--training.steps=2",
                    "--training.seq_len=16", "--servers=1", "--metrics.tensorboard=false"],
                   check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, env=environment())
    shutil.rmtree(out)
    count = min(os.path.getsize(path) for path in slot_files(state))
    took, reads = [], []
    for _ in range(options.restarts):
        reads.append(read_once(slot_files(state)[0], count))
        took.append(time_of_server(options.eps, os.path.join(state, "server-0"), folder))
    return took, reads, count


def time_of_server(eps, path, folder):
    log = os.path.join(folder, "serve.log")
    port = processes.reserve_port()
    command = [eps, "serve", f"--listen=127.0.0.1:{port}", f"--storage.path={path}",
               "--storage.kind=nvme"]
    with open(log, "w", encoding="utf-8") as file:
        start = time.monotonic()
        with subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                              env=environment()) as server:
            def serves():
                status = subprocess.run([eps, "status", f"--servers=127.0.0.1:{port}"], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        timeout=60, check=False).stdout
                return True if "DONE" in status.upper() else None
            try:
                wait_for("the port", lambda: "listening" in text_of(log) or None, server)
                wait_for("the job", serves, server)
                return time.monotonic() - start
            finally:
                server.kill()


def measure_steps(options, folder):
    rounds = step_rounds(options, folder)
    print("\n".join(step_lines(rounds)))
    if losses_differ(rounds):
        print("LOSSES DIFFER between rounds")
        return 1
    return 0


def measure_kills(options, folder):
    for kept in LOGS:
        gaps = kill_gaps(options, folder, kept)
        print("\n".join(gap_lines(gaps, options.cut_steps, kept)) + "\n", flush=True)
    return 0


def measure_restarts(options, folder):
    took, reads, count = restart_seconds(options, folder)
    ratios = [t / r for t, r in zip(took, reads)]
    print(f"start of a server with {count / 2**20:.0f} MiB of state until it serves: "
          f"{report.format_spread(took, 2)} s, / reading them once: {report.format_spread(ratios)}")
    return 0


MEASUREMENTS = {"steps": measure_steps, "cost": measure_cost, "kills": measure_kills,
                "restarts": measure_restarts}


def main():
    root = pathlib.Path(report.ROOT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(root / "bazel-bin/cli/eps"))
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a round")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--cost_warmup", type=int, default=40)
    parser.add_argument("--cost_steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cut_steps", default="10")
    parser.add_argument("--layers", type=int, default=64, help="layers of the restarted state")
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--folder", help="folder on the disk to measure (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-durability-", dir=options.folder) as folder:
        try:
            return MEASUREMENTS[options.what](options, folder)
        except (DidNotRun, RuntimeError, subprocess.SubprocessError) as error:
            print(error, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
