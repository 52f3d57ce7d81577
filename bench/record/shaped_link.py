#!/usr/bin/env python3
"""Measures training over a link of limited rate: parameters per second, by codecs.

`eps serve` runs in a separate network namespace, `eps train` and its worker outside; a veth pair
connects them, and both of its ends are limited to --rate (tc tbf). The model is a GPT-2 with 16
tokens per step, so that a step waits for the link. Each round runs every setting once, beginning
with another one. A round's figure is the model's parameters / the median of its timed steps; the
result is the median over the rounds of its ratio to fp32 of the same round, with the extremes. Also
reported is the share that the busier direction used of the rate of a plain TCP connection, which is
measured before each round in both directions. All rounds of a setting must be one job with finite
losses that are equal bit for bit.

Exit code: 0 if measured, 1 if losses are not finite or differ between rounds, 2 if something did
not run. Needs root, `ip` and `tc`.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import report
from step_ratio import job_of_output

# Name -> codec of weights, codec of gradients, home of residuals.
SETTINGS = {
    "fp32": ("fp32", "fp32", "server"),
    "bf16": ("bf16", "bf16", "server"),
    "fp8_e4m3": ("fp8_e4m3", "fp8_e4m3", "server"),
    "mx6, topk:0.01": ("mx6", "topk:0.01", "server"),
    "the same, residuals here": ("mx6", "topk:0.01", "worker"),  # at the worker
}
BASE = "fp32"
MODEL = {"model_type": "gpt2", "n_layer": 6, "n_head": 8, "n_embd": 512, "n_positions": 16,
         "vocab_size": 256, "tie_word_embeddings": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0}
# Addresses reserved for benchmarks (RFC 2544).
WORKER_ADDRESS = "198.18.77.1"
SERVER_ADDRESS = "198.18.77.2"
ROUND_TIMEOUT_S = 600
START_TIMEOUT_S = 60
POLL_S = 0.005
RAW_BYTES = 64 << 20
LISTENING = "listening on "

# Bytes that have passed one end of the link, at a time in seconds.
LinkSample = collections.namedtuple("LinkSample", "time down up")
# One run of one setting: seconds of each timed step; bytes per second on the link, down and up.
Run = collections.namedtuple("Run", "job losses seconds down up")
# Bytes per second of a plain TCP connection.
Raw = collections.namedtuple("Raw", "down up")


def parameters(model):
    """Returns the number of elements in all tensors of a GPT-2 with a tied head."""
    width, layers = model["n_embd"], model["n_layer"]
    block = 12 * width * width + 13 * width
    return layers * block + 2 * width + (model["vocab_size"] + model["n_positions"]) * width


def rate_of(run, count):
    """Returns parameters per second."""
    return count / report.spread(run.seconds).median


def share_of_limit(run, raw):
    """Returns the share of the TCP rate that the busier direction used."""
    return max(run.down / raw.down, run.up / raw.up)


def between(begin, end):
    """Returns (down, up) in bytes per second."""
    seconds = end.time - begin.time
    return (end.down - begin.down) / seconds, (end.up - begin.up) / seconds


def rotated(names, index):
    at = index % len(names)
    return names[at:] + names[:at]


def problem_of(rounds):
    """Returns what is wrong with the runs of all rounds ({setting: Run}), or None."""
    for name in rounds[0]:
        runs = [r[name] for r in rounds]
        if runs[0].job is None or any(run.job != runs[0].job for run in runs):
            return f"{name}: jobs {', '.join(str(run.job) for run in runs)}: expected one"
        for i, run in enumerate(runs, start=1):
            if not run.losses or not all(math.isfinite(x) for x in run.losses):
                return f"{name}, round {i}: losses {run.losses}: expected finite ones"
            if run.losses != runs[0].losses:
                return f"{name}, round {i}: losses {run.losses}, in round 1 {runs[0].losses}"
    jobs = [run.job for run in rounds[0].values()]
    if len(set(jobs)) != len(jobs):
        return "two settings are the same job"
    return None


def result_lines(rounds, raws, count):
    lines = [f"{'weights, gradients':<26}{'M parameters/s':<28}{'ratio to ' + BASE:<26}"
             f"{'of TCP':<10}MB per step, down and up"]
    for name in rounds[0]:
        runs = [r[name] for r in rounds]
        rates = [rate_of(run, count) / 1e6 for run in runs]
        ratios = [rate_of(r[name], count) / rate_of(r[BASE], count) for r in rounds]
        share = report.spread([share_of_limit(*pair) for pair in zip(runs, raws)]).median
        bytes_per_step = [report.spread([rate(run) * report.spread(run.seconds).median / 1e6
                                         for run in runs]).median
                          for rate in (lambda run: run.down, lambda run: run.up)]
        lines.append(f"{name:<26}{report.format_spread(rates, 2):<28}"
                     f"{report.format_spread(ratios, 2):<26}{share:<10.2f}"
                     f"{bytes_per_step[0]:.1f}, {bytes_per_step[1]:.1f}")
    lines.append("plain TCP: " + ", ".join(
        f"{direction} {report.format_spread([getattr(raw, direction) * 8e-9 for raw in raws], 3)} "
        "Gbit/s" for direction in ("down", "up")))
    return lines


def check_host():
    """Returns what the host lacks, or None."""
    if os.geteuid() != 0:
        return "needs root to create a network namespace and shape a link; run it with sudo"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"{program} was not found; install iproute2"
    return None


def call(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                            timeout=60)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {result.returncode}: "
                           f"{result.stdout.decode(errors='replace').strip()}")


class Link:
    """A namespace and a shaped veth pair into it, for the duration of the context. Packets that
    would wait longer than `queue` are dropped."""

    def __init__(self, rate, queue="20ms"):
        self.rate = rate
        self.queue = queue
        self.namespace = f"eps-link-{os.getpid()}"
        self.ends = (f"epsw{os.getpid()}", f"epss{os.getpid()}")  # at most 15 characters

    def __enter__(self):
        call("ip", "netns", "add", self.namespace)
        try:
            self.connect()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def connect(self):
        here, there = self.ends
        call("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns",
             self.namespace)
        # The servers in the namespace reach each other over this device.
        call(*self.inside(), "ip", "link", "set", "lo", "up")
        for end, address, inside in ((here, WORKER_ADDRESS, []),
                                     (there, SERVER_ADDRESS, self.inside())):
            call(*inside, "ip", "address", "add", address + "/30", "dev", end)
            call(*inside, "ip", "link", "set", end, "up")
            call(*inside, "tc", "qdisc", "add", "dev", end, "root", "tbf", "rate", self.rate,
                 "burst", "256kb", "latency", self.queue)

    def __exit__(self, *_):
        with contextlib.suppress(RuntimeError):
            call("ip", "link", "delete", self.ends[0])
        call("ip", "netns", "delete", self.namespace)

    def inside(self):
        return ["ip", "netns", "exec", self.namespace]

    def sample(self):
        folder = pathlib.Path("/sys/class/net") / self.ends[0] / "statistics"
        down, up = (int((folder / name).read_text(encoding="ascii"))
                    for name in ("rx_bytes", "tx_bytes"))
        return LinkSample(time.monotonic(), down, up)


def read_until(process, marker):
    """Returns the text after `marker` in the first line of the process's output that has it."""
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if marker in line:
                return line.partition(marker)[2].strip()
    finally:
        timer.cancel()
    raise RuntimeError(f"a program ended with code {process.wait()} before it printed \"{marker}\"")


@contextlib.contextmanager
def running(command, log):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.stdout.close()


def receive(connection):
    count = 0
    buffer = bytearray(1 << 20)
    while count < RAW_BYTES:
        got = connection.recv_into(buffer)
        if got == 0:
            raise RuntimeError(f"a TCP connection ended after {count} of {RAW_BYTES} bytes")
        count += got


def send(connection):
    block = bytes(1 << 20)
    for _ in range(RAW_BYTES // len(block)):
        connection.sendall(block)


def serve_raw(address):
    """Runs the far side of measure_raw: receives once, then sends once."""
    with socket.create_server((address, 0)) as listener:
        print(f"{LISTENING}{listener.getsockname()[1]}", flush=True)
        connection, _ = listener.accept()
        with connection:
            receive(connection)
            connection.sendall(b"x")
            connection.recv(1)
            send(connection)


def measure_raw(link):
    command = [*link.inside(), sys.executable, __file__, f"--serve-raw={SERVER_ADDRESS}"]
    with running(command, None) as server:
        address = (SERVER_ADDRESS, int(read_until(server, LISTENING)))
        with socket.create_connection(address, timeout=ROUND_TIMEOUT_S) as connection:
            begin = time.monotonic()
            send(connection)
            connection.recv(1)
            middle = time.monotonic()
            connection.sendall(b"x")
            receive(connection)
            end = time.monotonic()
    return Raw(down=RAW_BYTES / (end - middle), up=RAW_BYTES / (middle - begin))


class Bench:
    def __init__(self, options, folder, link):
        self.options = options
        self.folder = pathlib.Path(folder)
        self.link = link
        (self.folder / "model").mkdir()
        (self.folder / "model/config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        letters = random.Random(1)
        text = "".join(letters.choices("abcdefgh ", k=1 << 16))
        (self.folder / "data.txt").write_text(text, encoding="ascii")

    def command(self, setting, address):
        weights, gradients, home = SETTINGS[setting]
        # One step more than is timed, because the work after the last step is not a step.
        steps = self.options.warmup + self.options.steps + 1
        return [self.options.eps, "train", f"--servers={address}", f"--model={self.folder}/model",
                f"--data={self.folder}/data.txt", f"--out={self.folder}/run", "--overwrite",
                "--worker.device=cpu",
                f"--training.steps={steps}", "--training.clip=lagged",
                f"--quantization.weights={weights}", f"--quantization.gradients={gradients}",
                f"--quantization.residual_home={home}"]

    def run(self, setting):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        serve = [*self.link.inside(), self.options.eps, "serve", f"--listen={SERVER_ADDRESS}:0",
                 "--insecure"]
        with open(self.folder / "serve.log", "w", encoding="utf-8") as log, \
                running(serve, log) as server:
            return self.follow(self.command(setting, read_until(server, LISTENING)))

    def records(self):
        path = self.folder / "run/metrics.jsonl"
        if not path.exists():
            return []
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole]

    def follow(self, command):
        """Runs a training; samples the link when its timed steps begin and end."""
        due = [self.options.warmup, self.options.warmup + self.options.steps]
        samples = []
        log_path = self.folder / "train.log"
        deadline = time.monotonic() + ROUND_TIMEOUT_S
        with open(log_path, "w", encoding="utf-8") as log, subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT,
                env=dict(os.environ, OMP_WAIT_POLICY="passive")) as process:
            while process.poll() is None:
                if len(samples) < 2 and len(self.records()) >= due[len(samples)]:
                    samples.append(self.link.sample())
                if time.monotonic() >= deadline:
                    process.terminate()
                time.sleep(POLL_S)
        output = log_path.read_text(encoding="utf-8").splitlines()
        records = self.records()
        if process.returncode != 0 or len(samples) != 2:
            tail = "\n".join(output[-10:])
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}, "
                               f"{len(records)} steps:\n{tail}")
        down, up = between(*samples)
        return Run(job=job_of_output(output), losses=[r["loss"] for r in records],
                   seconds=[r["step_seconds"] for r in records[due[0]:due[1]]], down=down, up=up)

    def rounds(self):
        """Returns ([{setting: Run}], [Raw]), one of each per round."""
        rounds, raws = [], []
        names = list(SETTINGS)
        for index in range(self.options.rounds):
            raws.append(measure_raw(self.link))
            runs = {name: self.run(name) for name in rotated(names, index)}
            rounds.append({name: runs[name] for name in names})
            print(f"round {index + 1}: " + ", ".join(
                f"{name} {report.spread(run.seconds).median:.3f} s"
                for name, run in rounds[-1].items()), file=sys.stderr, flush=True)
        return rounds, raws


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(report.ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--rate", default="1gbit", help="rate of each direction, as for tc")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a round")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps before them")
    parser.add_argument("--serve-raw", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if min(options.rounds, options.steps, options.warmup) < 1:
        parser.error("rounds, steps and warmup must be at least 1")
    return options


def main():
    options = parse_arguments(sys.argv[1:])
    if options.serve_raw:
        serve_raw(options.serve_raw)
        return 0
    missing = check_host()
    if missing:
        print(f"shaped_link: {missing}", file=sys.stderr)
        return 2
    count = parameters(MODEL)
    try:
        with tempfile.TemporaryDirectory(prefix="eps-shaped-link-") as folder, \
                Link(options.rate) as link:
            rounds, raws = Bench(options, folder, link).rounds()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"shaped_link: {error}", file=sys.stderr)
        return 2
    problem = problem_of(rounds)
    if problem:
        print(f"not the same training: {problem}")
        return 1
    print(f"{options.rate} each way; {count / 1e6:.1f} M parameters, {MODEL['n_positions']} tokens "
          f"per step; {options.rounds} rounds of {options.steps} steps")
    print("\n".join(result_lines(rounds, raws, count)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
