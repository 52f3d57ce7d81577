"""Summaries of the oracle's runs, small enough for the tree: golden/<job>.json.

They hold the results of PyTorch and transformers, so that every test run can compare with them,
even where neither is installed. Uses Python's standard library only.
"""

import json
import math
import pathlib

import compare
import tensors

FOLDER = pathlib.Path(__file__).resolve().parent / "golden"
SAMPLES = 64


def sampled(name, count):
    """Returns which elements of a tensor are kept: evenly spread, with the first and the last."""
    places = compare.compared(name, count)
    wanted = min(SAMPLES, len(places))
    return [places[i * (len(places) - 1) // (wanted - 1)] for i in range(wanted)]


def norm(name, values):
    return math.sqrt(math.fsum(values[i] * values[i]
                               for i in compare.compared(name, len(values))))


def float32(value):
    """Rounds to the nine digits that identify any float32."""
    return float("%.9g" % value)


def summary(job, inputs, run, prompt, logits, made_by):
    """Returns a golden file's content; `logits` follow `prompt` with the initial weights."""
    return {
        "job": job.name, "made_by": made_by, "inputs_sha256": inputs.sha256,
        "losses": run.losses, "grad_norms": run.grad_norms, "lrs": run.lrs,
        "tensors": {name: {"shape": list(shape), "norm": norm(name, values),
                           "samples": [float32(values[i]) for i in sampled(name, len(values))]}
                    for name, (shape, values) in run.weights.items()},
        "prompt": prompt, "logits": [float32(value) for value in logits],
    }


def path(job):
    return FOLDER / (job.name + ".json")


def write(job, content):
    """Writes one tensor or series per line."""
    def line(key, value):
        return "%s: %s" % (json.dumps(key), json.dumps(value))

    parts = [line(key, value) for key, value in content.items() if key != "tensors"]
    rows = ",\n  ".join(line(name, entry) for name, entry in content["tensors"].items())
    parts.append('"tensors": {\n  %s\n }' % rows)
    path(job).write_text("{\n %s\n}\n" % ",\n ".join(parts), encoding="utf-8")


def read(job):
    return json.loads(path(job).read_text(encoding="utf-8"))


def same_inputs(inputs, content):
    if inputs.sha256 == content["inputs_sha256"]:
        return []
    return ["the job's inputs are no longer those of the golden file; tests/oracles/README.md says "
            "how to regenerate it"]


def weights(ours, content):
    expected = content["tensors"]
    if {k: list(v[0]) for k, v in ours.items()} != {k: v["shape"] for k, v in expected.items()}:
        return [f"tensors: {sorted(ours)}, expected {sorted(expected)} with the same shapes"]
    complaints = compare.elements(
        ((name, i, values[i], kept) for name, (_, values) in ours.items()
         for i, kept in zip(sampled(name, len(values)), expected[name]["samples"])),
        content["lrs"])
    for name, (shape, values) in ours.items():
        ours_norm, kept = norm(name, values), expected[name]["norm"]
        if not abs(ours_norm - kept) <= compare.WEIGHT_TOLERANCE * math.sqrt(tensors.count(shape)):
            complaints.append(f"norm of {name} is {ours_norm!r}, expected {kept!r}")
    return complaints


def run(ours, content):
    """Compares a run with a golden file; returns complaints like the functions of compare."""
    return (compare.series("loss", ours.losses, content["losses"], compare.LOSS_TOLERANCE) +
            compare.series("grad_norm", ours.grad_norms, content["grad_norms"],
                           compare.NORM_TOLERANCE) +
            compare.series("lr", ours.lrs, content["lrs"], compare.LR_TOLERANCE) +
            weights(ours.weights, content))
