#!/usr/bin/env python3
"""Runs benchmarks that judge themselves and records their output in docs/benchmarks.md.

A section holds the command, the machine, the commit and the verbatim output. The programs
interleave what they measure with its limit, and exit with 0 if the goal is reached, 1 if not.
"""

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import time

import report
import summary

TIMEOUT_S = 1800

# `programs` are command lines from the root of the tree; `targets` is what they need built.
Benchmark = collections.namedtuple("Benchmark", "title intro targets programs")

BENCHMARKS = {
    "depth": Benchmark(
        "Memory against depth",
        "Peaks of a GPT-2 of width 128 at a growing number of layers: only the stash and the "
        "servers' state may grow with it.",
        ["//cli:eps"], [["bazel-bin/cli/eps", "bench", "depth"]]),
    "rules": Benchmark(
        "Update rules against the memory",
        "Time of pure memory traffic over the same bytes / time of the rule's kernel, per round: "
        "1.0 is the memory's limit, the goal is at least 0.90.",
        ["//bench:rules_bench"],
        [["bazel-bin/bench/rules_bench", "64", "15", "1"],
         ["bazel-bin/bench/rules_bench", "64", "15", "2"]]),
    "adamw-torch": Benchmark(
        "AdamW against torch's fused AdamW",
        "Time of the kernel of torch.optim.AdamW(fused=True) on the processor / time of the "
        "update kernel, per round, with the same number of threads; the goal is at least 1.20. "
        "Both move 28 bytes per parameter: where both reach the memory's limit, the ratio is "
        "1.0. `scaled` includes the pass that clipping costs torch; our kernel includes it "
        "always.",
        ["//bench:adamw_torch_bench"], [["bazel-bin/bench/adamw_torch_bench", "64", "25", "2"]]),
    "transport": Benchmark(
        "The chunk stream against TCP and protobuf",
        "Throughput of the chunk stream from a server process to a worker process over loopback "
        "/ of the same bytes over another transport, per round; every byte is compared after "
        "each fetch. Codecs and checksums of chunks are left out. Goals: at least 0.95 of a TCP "
        "socket whose reader copies the bytes to their place, 1.3 of protobuf messages in a "
        "gRPC stream, 2.0 of a gRPC call per slice; the processes of the latter two use default "
        "settings. The chunk stream over mutual TLS is compared with that without it; the goal is "
        "0.70.",
        ["//bench/peers:transport_bench"],
        [["bazel-bin/bench/peers/transport_bench", "512", "25"]]),
    "codecs": Benchmark(
        "Codecs against the memory",
        "Time of memory traffic of the same bytes (read 4 and write n per element, or the reverse) "
        "/ time of the codec, per round. Goals: 0.90 (bf16, fp16, fp8), 0.80 (mx, OCP).",
        ["//bench:codec_bench"], [["bazel-bin/bench/codec_bench", "64", "7", "2"]]),
    "one-pass": Benchmark(
        "One pass over a chunk",
        "Decode, reduce, update and encode in one pass / in separate passes and by other "
        "programs' methods; states and bytes of all variants are compared first. Times are "
        "processor times per thread.",
        ["//bench:one_pass_bench"], [["bazel-bin/bench/one_pass_bench", "64", "9", "2", "mx9"]]),
    "nvme": Benchmark(
        "State on NVMe against the disk",
        "Time of io_uring alone for the same bytes, with O_DIRECT at queue depth 8 and the syncs "
        "of a commit / time of the NVMe backend, per round. Goals: 0.95 for writing, 0.90 for "
        "updating, 5 against values in RocksDB (leveled, without WAL), 4 against BlobDB, at most "
        "0.20 processor seconds per GB.",
        ["//bench:nvme_bench"], [["bazel-bin/bench/nvme_bench", "384", "27"]]),
    "spill": Benchmark(
        "Gradients that wait on the disk",
        "Time of a step of mode sealed with state on NVMe whose reduced gradients wait in memory / "
        "of one whose gradients wait on the disk, per round; the states are compared at the end. "
        "Two bf16 parts are reduced for each chunk. The goal is 0.80: at most 1.25 times the time.",
        ["//bench:spill_bench"], [["bazel-bin/bench/spill_bench", "384", "27"]]),
    "near-storage": Benchmark(
        "State on storage devices",
        "Time of a step of GPT-2 4.0B on the machine of Smart-Infinity with its state on RAID0 / "
        "in devices that update it, by number of devices. Every variant runs through our backends "
        "and real device processes, whose media, links and updaters have the paper's rates, "
        "divided; the GPU sleeps. All states are compared with that of a backend in memory. RAID0 "
        "is shown with the host of the paper, whose software limits it, and with its link alone. "
        "Goals at 10 devices: 2.2 for sealed, 3.5 for eager, 1.0 for sealed over the link alone, "
        "and 0.9 of the time of its busiest link; at 20: 1.2. Then other optimizers, the paper's "
        "ratios of compression, GPUs on the devices' side of the link, and a device as fast as "
        "this machine beside the NVMe backend; goals there: 0.9 of NVMe's speed, and of that of "
        "the reads and writes alone.",
        ["//bench/near:csd_bench"],
        [["bazel-bin/bench/near/csd_bench", "a5000", "9", "64", "10"],
         ["bazel-bin/bench/near/csd_bench", "a5000", "5", "64", "1,2,4,6,8"],
         ["bazel-bin/bench/near/csd_bench", "a5000", "9", "128", "16,20"],
         ["bazel-bin/bench/near/csd_bench", "a100", "3", "64", "1,4,10"],
         ["bazel-bin/bench/near/csd_bench", "optimizers", "5", "64", "6,10"],
         ["bazel-bin/bench/near/csd_bench", "ratios", "5", "64", "6,10"],
         ["bazel-bin/bench/near/csd_bench", "congested", "5", "64", "10"],
         ["bazel-bin/bench/near/csd_bench", "unpaced", "9"]]),
    "durability": Benchmark(
        "The cost of durable state",
        "Steps of the small GPT-2 (8,192 tokens each) with durable state / without, in the "
        "same round.",
        ["//cli:eps", "//worker:eps-worker"],
        [["bench/record/durability.py", "steps", "--rounds=3", "--steps=6"]]),
    "durability-cost": Benchmark(
        "The cost of cuts",
        "The small GPT-2 with state in memory on one server, and cuts "
        "(`storage.cut_steps=auto`). Goal: the elapsed time and the processor time of cuts "
        "together are at most 1 % of the run.",
        ["//cli:eps", "//worker:eps-worker"],
        [["bench/record/durability.py", "cost", "--rounds=3"]]),
    "kills": Benchmark(
        "Time to recover from a killed process",
        "Random processes of a run of the small GPT-2 are killed, one after the other.",
        ["//cli:eps", "//worker:eps-worker"], [["bench/record/durability.py", "kills"]]),
    "restarts": Benchmark(
        "Time to restart a server with a large state",
        "Time from the start of its process until it serves / time to read the state once.",
        ["//cli:eps", "//worker:eps-worker"], [["bench/record/durability.py", "restarts"]]),
    "plans": Benchmark(
        "Plans against runs",
        "Predictions of `eps plan` for jobs on this machine, right after `eps bench calibrate`, "
        "and the measured values: the median of 20 steps each, per round. Goals: a median error "
        "of the jobs' step times of at most 10 %, an error of exact memory of at most 2 %, and "
        "no use above a bound that is planned as at most.",
        ["//cli:eps"], [["bench/record/plan_accuracy.py"]]),
    "simulations": Benchmark(
        "Simulations against runs",
        "Predictions of `eps simulate` for jobs of two server and four worker processes, and "
        "the measured values. Passes and links wait instead of computing, by the rates in the "
        "simulator's description. Goal: a median difference of at most 15 % for every figure. "
        "Needs root.",
        ["//cli:eps"], [["bench/record/simulate_accuracy.py"]]),
    "fine-tuning": Benchmark(
        "Fine-tuning exported models",
        "Steps of 1,024 tokens of a Llama of width 1,024 (26 million parameters), as an exported "
        "program on one server and one worker, in BF16 and with LoRA adapters / in FP32 with all "
        "weights; BF16 weights also on the wire. A whole job of 40 steps of another Llama "
        "(12.8 million parameters), from the start of `eps train` to its checkpoint with the "
        "optimizer's state / from the start of a Python program to the folder that "
        "transformers.Trainer saves; the losses agree. The stash of a small model of five families "
        "as planned and as measured.",
        ["//cli:eps", "//worker:eps-worker"], [["bench/record/fine_tuning.py", "--rounds=3"]]),
    "data-making": Benchmark(
        "Making data files",
        "Tokens per second of `eps data make jsonl`, from a JSONL file to a stream of documents / "
        "of a Python program with datasets.map, from the same file to rows in an Arrow folder, "
        "each with its start; the same tokenizer and as many processes as cores. The ids of both "
        "agree. Padding of the rows of 1,024 tokens into which EPS packs the same documents.",
        ["//cli:eps"], [["bench/record/data_making.py"]]),
    "operations": Benchmark(
        "Looking at a job, and a job without a driver",
        "Steps of a synthetic job of two servers and one worker whose passes sleep: with four "
        "programs `eps dashboard`, each asked by a browser's requests once a second, and a scrape "
        "of each server a second / with nobody who looks; after the driver was killed / before. "
        "The seconds from the kill until the next driver, which is started at once, has the job: "
        "a lease lasts 30 s.",
        ["//cli:eps", "//worker:eps-worker"], [["bench/record/operations.py"]]),
    "rolling-restart": Benchmark(
        "Restarting all servers of a job",
        "A synthetic job of two servers and one worker whose passes sleep. In each round each "
        "server gets SIGTERM and is started again. A step is lost if the worker computes it twice. "
        "A server may take servers.drain_timeout and 2 s. Digests and metrics are compared with "
        "those of a run that nobody disturbed.",
        ["//cli:eps", "//worker:eps-worker"], [["bench/record/rolling_restart.py"]]),
    "guard": Benchmark(
        "The guard of roles and tokens",
        "Processor time that a server with TLS spends on a call before its handler runs: it reads "
        "the role in the caller's certificate, looks the RPC up, and verifies the token. The goal "
        "is at most 20 microseconds.",
        ["//bench:guard_bench"], [["bazel-bin/bench/guard_bench", "25"]]),
    "topk": Benchmark(
        "Sparse gradients",
        "Bits per sent element against the entropy of their positions, encoding against dense "
        "bf16, and the update from one sparse part against one dense bf16 part.",
        ["//bench:topk_bench"], [["bazel-bin/bench/topk_bench", "64", "9", "2"]]),
    "shaped-link": Benchmark(
        "Training over a link of 1 Gbit/s",
        "Parameters of the model / time of a step that waits for the link, by codecs; ratios "
        "are to fp32 of the same round. `of TCP` is the share that the busier direction used of "
        "the rate of a plain TCP connection over the same link. Needs root; other programs on "
        "the processors slow the faster settings more.",
        ["//cli:eps"], [["bench/record/shaped_link.py", "--rounds=7"]]),
}


def run(command):
    """Runs a command at the root of the tree; returns (exit code, output)."""
    # LibTorch's threads must not spin after their work: that would take cores from later work.
    result = subprocess.run(command, cwd=report.ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, check=False, timeout=TIMEOUT_S,
                            env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    return result.returncode, result.stdout.decode(errors="replace").strip()


def section_body(benchmark, outputs):
    blocks = "\n\n".join(f"`{' '.join(program)}`\n\n```\n{output}\n```"
                         for program, (_, output) in zip(benchmark.programs, outputs))
    missed = any(code != 0 for code, _ in outputs)
    return (f"## {benchmark.title}\n\n{benchmark.intro}\n\n"
            f"Machine: {report.machine()}, {len(os.sched_getaffinity(0))} cores; "
            f"commit {report.commit()}.{' **The goal was missed.**' if missed else ''}\n\n{blocks}")


def record(name, page, patience):
    benchmark = BENCHMARKS[name]
    code, output = run(["bazel", "build", *benchmark.targets])
    if code != 0:
        print(f"{name}: {benchmark.targets} did not build:\n{output}", file=sys.stderr)
        return 2
    if not report.wait_until_quiet(0.10, len(os.sched_getaffinity(0)), patience, time.monotonic,
                                   time.sleep):
        print(f"{name}: other programs keep the machine busy; figures are noisy", file=sys.stderr)
    outputs = [run(program) for program in benchmark.programs]
    for _, text in outputs:
        print(text, flush=True)
    if any(code not in (0, 1) for code, _ in outputs):
        return 2
    report.write_section(page, name, section_body(benchmark, outputs))
    return max(code for code, _ in outputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="default: all")
    parser.add_argument("--page", default=str(pathlib.Path(report.ROOT) / "docs/benchmarks.md"))
    parser.add_argument("--patience", type=float, default=60,
                        help="seconds to wait until the machine is quiet")
    options = parser.parse_args()
    code = max(record(name, options.page, options.patience)
               for name in options.names or BENCHMARKS)
    summary.write(pathlib.Path(options.page))
    return code


if __name__ == "__main__":
    sys.exit(main())
