#!/usr/bin/env python3
"""Measures fine-tuning of exported models: BF16 against FP32, LoRA against all weights, a whole job
against transformers.Trainer, and planned against measured memory.

Each round runs every setting once, in turn, on the same cores; a ratio is that of one round. A
setting's step time is the median of its steps after warm-up; its bytes are those that the worker
counts in a step, and its state is the servers' account. The Trainer trains the same model from the
same weights on the same tokens, with the same batch and AdamW; the job's time is that of the
process, from its start to the saved folder.

Exit code: 0 if every goal is reached, 1 if one is missed, 2 if something did not run.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import plan_accuracy
import report

ROOT = pathlib.Path(report.ROOT)
PEER = ROOT / "bench/record/trainer_peer.py"
PYTHON = ROOT / "third_party/.oracles/bin/python"
STUBS = ROOT / "third_party/.oracles/stub_libs"
SEQ_LEN, SAMPLES, MICRO_BATCHES = 256, 2, 2
LR = "1e-4"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
         "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 16,
         "num_key_value_heads": 16, "vocab_size": 256, "max_position_embeddings": SEQ_LEN,
         "tie_word_embeddings": False}
# The job that is compared as a whole fits a machine that also runs the Trainer.
WHOLE = {**LLAMA, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 8}
# Models whose planned stash is compared with the worker's.
_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
          "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": SEQ_LEN}
FAMILIES = {
    "llama": {**_SIZES, "num_key_value_heads": 4},
    "gpt_neox": _SIZES,
    "opt": {**_SIZES, "ffn_dim": 512, "word_embed_proj_dim": 256},
    "qwen3": {**_SIZES, "num_key_value_heads": 2, "head_dim": 64},
    "gemma3_text": {**_SIZES, "num_key_value_heads": 2, "head_dim": 64},
}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "gpt_neox": "GPTNeoXForCausalLM",
                 "opt": "OPTForCausalLM", "qwen3": "Qwen3ForCausalLM",
                 "gemma3_text": "Gemma3ForCausalLM"}
SETTINGS = {
    "fp32": [],
    "bf16": ["--training.precision=bf16", "--quantization.weights=bf16",
             "--quantization.norm_weights=bf16"],
    "lora": ["--lora.r=16"],
}

# Of one step: its seconds, and the bytes that the worker fetched and pushed. The peak bytes of its
# stash, and those of the servers' state.
Run = collections.namedtuple("Run", "seconds fetched pushed stash state")
# A ratio of two settings, and its upper limit.
Goal = collections.namedtuple("Goal", "what numerator denominator field limit")
GOALS = [
    Goal("step time, BF16 / FP32", "bf16", "fp32", "seconds", 0.50),
    Goal("bytes fetched, BF16 / FP32", "bf16", "fp32", "fetched", 0.505),
    Goal("stash, BF16 / FP32", "bf16", "fp32", "stash", 0.505),
    Goal("bytes pushed, LoRA r=16 / all weights", "lora", "fp32", "pushed", 0.02),
    Goal("server state, LoRA r=16 / all weights", "lora", "fp32", "state", 0.36),
    Goal("step time, LoRA r=16 / all weights", "lora", "fp32", "seconds", 0.80),
]
WHOLE_LIMIT = 1.10
STASH_ERROR_LIMIT = 0.05


def write_model(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def job_arguments(model, extra):
    return [f"--model={model}", "--servers=1", "--worker.device=cpu",
            f"--training.seq_len={SEQ_LEN}", f"--training.micro_batch_size={SAMPLES}",
            f"--training.micro_batches={MICRO_BATCHES}", "--training.parts=1",
            "--data.order=sequential", f"--optimizer.lr={LR}", "--lr_scheduler.name=constant",
            *extra]


def measure(front, folder, extra, options, model="model"):
    """Trains with one setting and returns its Run."""
    arguments = job_arguments(folder / model, extra)
    seconds, peaks, last = plan_accuracy.train(front, arguments, folder, options)
    lines = (folder / "report.jsonl").read_text(encoding="utf-8").splitlines()
    before = json.loads(lines[options.warmup + options.steps - 2])
    return Run(seconds, last["fetched_bytes"] - before["fetched_bytes"],
               last["pushed_bytes"] - before["pushed_bytes"], last["stash_peak_bytes"],
               peaks["state"])


def seconds_of(command, folder):
    """Runs a command to its end; returns (seconds, its output)."""
    start = time.monotonic()
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, check=False, timeout=plan_accuracy.TIMEOUT_S)
    if result.returncode != 0:
        raise plan_accuracy.DidNotRun(f"{' '.join(map(str, command))}: {result.stderr[-2000:]}")
    return time.monotonic() - start, result.stdout


def whole_jobs(eps, folder, options):
    """Returns (seconds of eps train, of the Trainer). The losses must be of the same training."""
    out = folder / "whole-out"
    shutil.rmtree(out, ignore_errors=True)
    arguments = job_arguments(folder / "whole", [
        f"--data={folder / 'whole.txt'}", f"--out={out}", f"--training.steps={options.job_steps}",
        "--optimizer.weight_decay=0", "--storage.kind=dram", "--metrics.tensorboard=false"])
    ours, _ = seconds_of([eps, "train", *arguments], folder)
    losses = [json.loads(line)["loss"]
              for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    theirs, printed = seconds_of(
        [PYTHON, PEER, folder / "whole", folder / "whole.txt", f"--steps={options.job_steps}",
         f"--seq-len={SEQ_LEN}", f"--batch={SAMPLES}", f"--accumulate={MICRO_BATCHES}",
         f"--lr={LR}", f"--out={folder / 'peer-out'}"], folder)
    peer = json.loads(printed.splitlines()[-1])
    for step, (a, b) in enumerate(zip(losses, peer, strict=True), 1):
        if abs(a - b) > 1e-2 * abs(b):
            raise plan_accuracy.DidNotRun(f"step {step}: loss {a} with EPS, {b} with the Trainer")
    return ours, theirs


def stash_error(front, folder, family, options):
    """Returns the relative error of the planned stash of a family of models."""
    write_model(folder / family, {"model_type": family, "architectures": [ARCHITECTURES[family]],
                                  **FAMILIES[family]})
    measured = measure(front, folder, [], options, model=family).stash
    plan = json.loads(plan_accuracy.run(
        [front, "plan", "--hardware=two_core_box", "--json",
         *job_arguments(folder / "out" / "model", [f"--data={plan_accuracy.DATA}"])]))
    planned, _ = plan_accuracy.planned_memory(plan)["worker memory", "stash"]
    print(f"{ARCHITECTURES[family]}: stash {planned:.0f} bytes planned, {measured} measured",
          flush=True)
    return abs(plan_accuracy.error(planned, measured))


def ratio_of(goal, runs):
    return getattr(runs[goal.numerator], goal.field) / getattr(runs[goal.denominator], goal.field)


def verdict(what, ratios, limit):
    """Returns (whether the median is within the limit, the line that says so)."""
    met = report.spread(ratios).median <= limit
    return met, (f"{what:40} {report.format_spread(ratios)} goal at most {limit:g}: "
                 f"{'reached' if met else 'MISSED'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a setting")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--job-steps", type=int, default=40, help="steps of the whole job")
    parser.add_argument("--patience", type=float, default=60)
    options = parser.parse_args()
    # Both sides compute with as many threads as there are cores, which do not spin.
    os.environ.update(OMP_WAIT_POLICY="passive", EPS_PYTHON=str(PYTHON), LD_LIBRARY_PATH=str(STUBS))
    rounds, jobs = [], []
    with tempfile.TemporaryDirectory(prefix="eps-fine-tuning-") as name:
        folder = pathlib.Path(name)
        try:
            front = plan_accuracy.reporting_programs(options.eps, folder)
            write_model(folder / "model", LLAMA)
            seconds_of([PYTHON, PEER, "--make", json.dumps(WHOLE), folder / "whole",
                        folder / "whole.txt"], folder)
            errors = [stash_error(front, folder, family, options) for family in FAMILIES]
            for index in range(options.rounds):
                report.wait_until_quiet(0.10, len(os.sched_getaffinity(0)), options.patience,
                                        time.monotonic, time.sleep)
                order = list(SETTINGS)[::1 if index % 2 == 0 else -1]
                rounds.append({key: measure(front, folder, SETTINGS[key], options)
                               for key in order})
                jobs.append(whole_jobs(options.eps, folder, options))
                print(f"round {index + 1}: " + ", ".join(
                    f"{key} {rounds[-1][key].seconds:.2f} s" for key in SETTINGS)
                    + f"; whole job {jobs[-1][0]:.1f} s, Trainer {jobs[-1][1]:.1f} s", flush=True)
        except (plan_accuracy.DidNotRun, OSError, subprocess.SubprocessError) as failure:
            print(failure, file=sys.stderr)
            return 2
    verdicts = [verdict(goal.what, [ratio_of(goal, runs) for runs in rounds], goal.limit)
                for goal in GOALS]
    verdicts.append(verdict("whole job, EPS / transformers.Trainer",
                            [ours / theirs for ours, theirs in jobs], WHOLE_LIMIT))
    verdicts.append(verdict("error of the planned stash, 5 families", errors, STASH_ERROR_LIMIT))
    print("\n".join(line for _, line in verdicts))
    return 0 if all(met for met, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
