"""Runs the programs of EPS on a job. Uses Python's standard library only."""

import dataclasses
import json
import os
import subprocess

import jobs
import tensors

TIMEOUT_SECONDS = 600


@dataclasses.dataclass
class Run:
    """The results of a training run of either side."""
    losses: list
    grad_norms: list  # of the mean gradient, before clipping
    lrs: list
    weights: dict     # {name: (shape, values)}
    moments: dict     # {field of the optimizer's state: {name: (shape, values)}}
    folder: str       # the checkpoint's; empty if the run wrote none


def call(*command, timeout=TIMEOUT_SECONDS):
    """Runs a program that must succeed; returns its standard output."""
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            timeout=timeout)
    if result.returncode != 0:
        raise RuntimeError("%s ended with %d:\n%s\n%s" % (
            " ".join(map(str, command)), result.returncode,
            result.stdout.decode(errors="replace")[-3000:],
            result.stderr.decode(errors="replace")[-3000:]))
    return result.stdout


def settings(job):
    """Returns the job as settings of EPS. Settings left to EPS's defaults have torch's values."""
    optimizer = {}
    for name in jobs.PARAMETERS[job.optimizer]:
        value = getattr(job, name)
        optimizer["optimizer." + name] = "%r,%r" % value if name == "betas" else json.dumps(value)
    if job.groups:
        optimizer["optimizer.groups"] = json.dumps([
            {"match": match, "lr_multiplier": multiplier,
             "weight_decay": "auto" if decay is None else decay}
            for match, multiplier, decay in job.groups])
    return {
        "optimizer.name": job.optimizer, **optimizer,
        "training.label_smoothing": job.label_smoothing,
        "training.steps": jobs.STEPS, "training.seq_len": job.seq_len,
        "training.micro_batch_size": job.micro_batch_size,
        "training.micro_batches": job.micro_batches, "training.parts": job.parts,
        "training.clip": job.clip, "training.max_grad_norm": job.max_grad_norm,
        "training.loss_block_tokens": job.loss_block_tokens, "data.order": "sequential",
        "optimizer.lr": job.lr, "optimizer.weight_decay": job.weight_decay,
        "lr_scheduler.name": job.schedule, "lr_scheduler.warmup_steps": job.warmup_steps,
        "servers.addresses": job.servers, "worker.count": job.workers, "worker.threads": 1,
    }


def records(out):
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def train(eps, job, inputs, out, changes=None):
    """Trains with `eps train`; `changes` are settings that override the job's."""
    merged = dict(settings(job), **(changes or {}))
    call(eps, "train", "--model=" + inputs.folder, "--data=" + inputs.data, "--out=" + out,
         "--overwrite", *["--%s=%s" % item for item in merged.items()])
    lines = records(out)
    steps = merged["training.steps"]
    if [line["step"] for line in lines] != list(range(1, steps + 1)):
        raise RuntimeError(f"metrics.jsonl does not hold the steps 1 to {steps}: {lines}")
    folder = os.path.join(out, "checkpoint-%d" % steps)
    return Run(losses=[line["loss"] for line in lines],
               grad_norms=[line["grad_norm"] for line in lines],
               lrs=[line["lr"] for line in lines],
               weights=tensors.read_safetensors(os.path.join(folder, "model.safetensors")),
               moments={field: tensors.read_safetensors(
                   os.path.join(folder, "eps", field + ".safetensors"))
                        for field in job.state_fields},
               folder=folder)


def logits(print_logits, folder, ids):
    """Returns the scores of EPS's model: one row of the vocabulary per position, concatenated."""
    return tensors.floats(call(print_logits, folder, ",".join(map(str, ids))))


def generate(eps, folder, ids, count):
    """Returns `eps generate`'s likeliest continuation; the vocabulary must not be bytes."""
    text = call(eps, "generate", "--model=" + folder, "--tokens=%d" % count, "--temperature=0",
                "--prompt-ids=" + ",".join(map(str, ids))).decode()
    return [int(word) for word in text.strip().split(",")][len(ids):]
