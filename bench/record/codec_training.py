#!/usr/bin/env python3
"""Measures the effect of codecs on training: held-out losses of `eps train` with each codec.

Runs the small GPT-2 through real processes for every setting and seed, and appends each finished
run to the tally. Finished runs are not repeated and interrupted runs leave nothing: start the
program again to continue. --report runs nothing; it prints the table and writes it into a page,
with a picture of the curves.

Exit code: 0, 1 if a goal is missed, 2 if something did not run.
"""

import argparse
import collections
import hashlib
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import codec_training_picture
import codec_training_tally as tally
import report

SECTION = "codec-training"
TITLE = "The effect of codecs on training"
QUICKSTART_FOLDER = "/usr/share/common-licenses"
EVAL_SAMPLES = 64
SEQ_LEN = 256
EVALUATIONS = 20
POLL_S = 0.2
SILENCE_S = 600     # a run is abandoned after this time without a new record
TERMINATION_S = 60  # an interrupted run finishes its step and writes a checkpoint
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
WIRE = re.compile(r"^wire per step: fetch ([\d.]+) (\w+) \(\S+\), push ([\d.]+) (\w+) \(", re.M)

# Two text files and the digest of both.
Data = collections.namedtuple("Data", "train held_out digest")


class RunFailed(Exception):
    pass


def license_texts():
    """Returns the license texts of Debian, without links, which only repeat files."""
    return [path for path in sorted(pathlib.Path(QUICKSTART_FOLDER).rglob("*"))
            if path.is_file() and not path.is_symlink()]


def split_data(paths, seq_len, folder):
    """Joins the texts and holds out their end, which has the samples of the evaluation."""
    text = b"".join(pathlib.Path(path).read_bytes() for path in paths)
    apart = EVAL_SAMPLES * seq_len + 1
    if len(text) < 2 * apart:
        raise RunFailed(f"the texts have {len(text)} bytes, of which {apart} are held out: "
                        f"too few to train on; name more of them (--data)")
    train, held_out = os.path.join(folder, "train.txt"), os.path.join(folder, "held_out.txt")
    pathlib.Path(train).write_bytes(text[:-apart])
    pathlib.Path(held_out).write_bytes(text[-apart:])
    return Data(train, held_out, hashlib.sha256(b"%d " % apart + text).hexdigest()[:16])


def train_command(options, data, setting, seed, out):
    return [options.eps, "train", *report.SMALL_GPT2, f"--out={out}", f"--data={data.train}",
            f"--data.eval_path={data.held_out}", f"--training.eval_samples={EVAL_SAMPLES}",
            f"--training.eval_steps={max(1, options.steps // EVALUATIONS)}",
            f"--training.steps={options.steps}", f"--training.seq_len={options.seq_len}",
            f"--training.seed={seed}", "--worker.device=cpu", "--metrics.tensorboard=false",
            *options.extra, *tally.quantization(setting, options.steps)]


def environment():
    """Returns our environment without variables that would set configuration keys."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EPS_")}
    return dict(kept, OMP_WAIT_POLICY="passive")


def wire_bytes(output):
    """Returns the (fetched, pushed) bytes per step that eps train prints at its start."""
    match = WIRE.search(output)
    if match is None:
        raise RunFailed("eps train did not print its bytes per step on the wire")
    fetched, fetched_unit, pushed, pushed_unit = match.groups()
    return float(fetched) * UNITS[fetched_unit], float(pushed) * UNITS[pushed_unit]


def codec_share(path):
    """Returns the share of a model's parameters that are matrices of inner layers, to which
    quantization.weights and quantization.gradients apply; reads its safetensors header."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    inner = total = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        size = math.prod(tensor["shape"])
        total += size
        if ".h." in name and len(tensor["shape"]) == 2:
            inner += size
    return inner / total


def read_records(path):
    """Returns the records of all complete lines of metrics.jsonl."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().rpartition("\n")[0].splitlines()]


def curve_of(records):
    return [[r["step"], r["eval_loss"]] for r in records if "eval_loss" in r]


def follow(process, metrics, on_record):
    """Waits for a process and reports its records; raises RunFailed if it writes no more."""
    told = 0
    last_sign = time.monotonic()
    while True:
        ended = process.poll() is not None
        records = read_records(metrics)
        for record in records[told:]:
            on_record(record)
        if len(records) > told:
            told = len(records)
            last_sign = time.monotonic()
        if ended:
            return records
        if time.monotonic() - last_sign > SILENCE_S:
            raise RunFailed(f"no new step for {SILENCE_S} seconds")
        time.sleep(POLL_S)


def end(process):
    """Ends a process that is still running after an exception."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=TERMINATION_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def train(command, out, log_path, on_record):
    """Runs a training to its end; returns (records, output, seconds). Raises RunFailed."""
    start = time.monotonic()
    with open(log_path, "w", encoding="utf-8") as log:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                              stderr=subprocess.STDOUT, env=environment()) as process:
            try:
                records = follow(process, os.path.join(out, "metrics.jsonl"), on_record)
            finally:
                end(process)
    seconds = time.monotonic() - start
    output = pathlib.Path(log_path).read_text(encoding="utf-8", errors="replace")
    if process.returncode != 0:
        tail = "\n".join(output.splitlines()[-8:])
        raise RunFailed(f"exit code {process.returncode}:\n{tail}")
    return records, output, seconds


class Runner:
    def __init__(self, options, data):
        self.options = options
        self.data = data

    def key(self, setting, seed):
        return tally.key_of({"setting": setting, "seed": seed, "steps": self.options.steps,
                             "data": self.data.digest, "arguments": self.options.extra})

    def wanted(self):
        """Returns all keys, seed by seed, so that an incomplete tally has pairs."""
        return [self.key(setting, seed) for seed in self.options.seeds
                for setting in self.options.settings]

    def run(self, setting, seed):
        """Runs one training; returns its line of the tally. Raises RunFailed."""
        steps = self.options.steps
        with tempfile.TemporaryDirectory(prefix="eps-codec-training-") as folder:
            out = os.path.join(folder, "out")
            times = []

            def on_record(record):
                if "eval_loss" not in record:
                    times.append(record["step_seconds"])
                    return
                left = (steps - record["step"]) * statistics.median(times) if times else 0
                loss = tally.finite_or_inf(record["eval_loss"])
                print(f"  {setting}, seed {seed}: step {record['step']}/{steps}, held-out loss "
                      f"{loss:.4f}, {left / 60:.1f} min of steps left", flush=True)

            records, output, seconds = train(
                train_command(self.options, self.data, setting, seed, out), out,
                os.path.join(folder, "eps.log"), on_record)
            curve = curve_of(records)
            if not curve or curve[-1][0] != steps or len(times) != steps:
                raise RunFailed(f"{len(times)} of {steps} steps, {len(curve)} evaluations: the "
                                f"run ended early")
            fetched, pushed = wire_bytes(output)
            share = codec_share(os.path.join(out, f"checkpoint-{steps}", "model.safetensors"))
        return {"setting": setting, "seed": seed, "steps": steps, "data": self.data.digest,
                "arguments": self.options.extra, "eval_samples": EVAL_SAMPLES, "curve": curve,
                "seconds": round(seconds, 1), "step_seconds": statistics.median(times),
                "fetched_bytes_per_step": fetched, "pushed_bytes_per_step": pushed,
                "codec_share": round(share, 4), "machine": report.machine(),
                "cores": len(os.sched_getaffinity(0)), "commit": report.commit()}


def run_missing(options, runner, book):
    """Runs what the tally lacks; returns the number of failed runs."""
    wanted = runner.wanted()
    todo = tally.missing(book.runs(), wanted)
    print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are in {book.path}", flush=True)
    failed = 0
    took = []
    for index, key in enumerate(todo, start=1):
        if not tally.missing(book.runs(), [key]):  # another process has added it
            continue
        setting, seed = key[:2]
        eta = f", about {statistics.mean(took) * (len(todo) - index + 1) / 60:.0f} min for all" \
            if took else ""
        print(f"run {index} of {len(todo)}: {setting}, seed {seed}, {options.steps} steps{eta}",
              flush=True)
        try:
            run = runner.run(setting, seed)
        except (RunFailed, OSError) as error:
            failed += 1
            print(f"{setting}, seed {seed}: {error}", file=sys.stderr, flush=True)
            continue
        book.add(run)
        took.append(run["seconds"])
        group = tally.latest_group(book.runs(), options.steps, options.extra)
        difference = tally.paired(group, setting)
        versus = f", {100 * difference[seed]:+.2f} % to FP32" \
            if seed in difference and setting != tally.BASELINE else ""
        print(f"{setting}, seed {seed}: held-out loss {tally.final_loss(run):.4f}{versus}, "
              f"{run['seconds']:.0f} s, {run['step_seconds']:.3f} s per step", flush=True)
    return failed


def write_report(options, runs):
    picture = pathlib.Path(options.picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(codec_training_picture.draw(runs), encoding="utf-8")
    link = os.path.relpath(picture, pathlib.Path(options.page).parent)
    named = "" if options.section == SECTION else (
        f' --section={options.section} --title="{options.title}" --picture=docs/{link}')
    choice = "" if options.seq_len == SEQ_LEN else f" --seq-len={options.seq_len}"
    if options.settings != list(tally.SETTINGS):
        choice += " --settings " + " ".join(options.settings)
    report.write_section(options.page, options.section,
                         tally.section_body(runs, link, options.title, named, choice))


def whole_number(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return value


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = report.ROOT
    parser.add_argument("--eps", default=str(root / "bazel-bin/cli/eps"))
    parser.add_argument("--steps", type=whole_number, default=1250)
    parser.add_argument("--seeds", type=whole_number, nargs="+", default=[1, 2, 3])
    parser.add_argument("--settings", nargs="+", default=list(tally.SETTINGS),
                        help="e.g. fp32 mx6 topk:0.1 topk:0.1-no-feedback mx6+topk:0.01")
    parser.add_argument("--data", nargs="+", default=[],
                        help="text files instead of Debian's license texts, whose end is held out")
    parser.add_argument("--seq-len", type=whole_number, default=SEQ_LEN)
    parser.add_argument("--eps-arg", dest="extra", action="append", default=[],
                        help="passed to every eps train (repeatable)")
    parser.add_argument("--tally", default=str(root / "bench/record/codec_training.jsonl"),
                        help="file of the finished runs")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report")
    parser.add_argument("--page", default=str(root / "docs/benchmarks.md"))
    parser.add_argument("--section", default=SECTION, help="the section of the page")
    parser.add_argument("--title", default=TITLE, help="the heading of the section")
    parser.add_argument("--picture", default=str(root / "docs/images/codec_training.svg"))
    options = parser.parse_args(arguments)
    try:
        for setting in options.settings:
            tally.quantization(setting, options.steps)
    except ValueError as error:
        parser.error(str(error))
    return options


def main():
    options = parse_arguments(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    book = tally.Tally(options.tally)
    failed = 0
    try:
        if not options.report:
            with tempfile.TemporaryDirectory(prefix="eps-codec-data-") as folder:
                data = split_data(options.data or license_texts(), options.seq_len, folder)
                failed = run_missing(options, Runner(options, data), book)
        runs = tally.latest_group(book.runs(), options.steps, options.extra)
    except (RunFailed, OSError, ValueError) as error:
        print(f"codec_training: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 128 + signal.SIGINT
    if not runs:
        print(f"codec_training: {book.path} has no run of {options.steps} steps", file=sys.stderr)
        return 2
    table = tally.rows(runs)
    print(tally.format_table(table))
    if options.report:
        write_report(options, runs)
    if failed:
        return 2
    return 1 if any(row.verdict == "MISSED" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
