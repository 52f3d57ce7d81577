"""A job of a few seconds for tests that run `eps train`: its models, data and settings, and what
is compared of two runs."""

import collections
import json
import os
import shutil
import subprocess

# Models as their config.json; a program is a folder of tests/models.
MODELS = {
    "synthetic": {"model_type": "eps-synthetic", "n_layer": 4, "n_embd": 64, "tied": True},
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 16,
             "vocab_size": 256, "tie_word_embeddings": True, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
             "attn_pdrop": 0.0},
}
SETTINGS = {
    "training.micro_batch_size": 2, "training.micro_batches": 2,
    # Below the norms that occur, so that wherever a run clips, each step depends on a norm.
    "training.max_grad_norm": 0.05, "training.chunk_elements": 2048, "training.seq_len": 16,
    "lr_scheduler.name": "cosine", "lr_scheduler.warmup_steps": 3, "worker.threads": 1,
    "metrics.tensorboard": "false", "storage.staging": "8MiB",
}
# Keys of a line of metrics.jsonl.
COLUMNS = ("step", "loss", "grad_norm", "lr", "tokens")

# The SHA-256 sums of a checkpoint, and the columns of every line of metrics.jsonl.
Outcome = collections.namedtuple("Outcome", "digests log")


def outcome(eps, out, steps):
    """Returns the outcome of a complete run with this output folder."""
    checkpoint = os.path.join(out, "checkpoint-%d" % steps)
    digests = subprocess.run([eps, "checkpoint", "digest", checkpoint], stdout=subprocess.PIPE,
                             text=True, timeout=600, check=True).stdout
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return Outcome([line for line in digests.splitlines() if "sha256" in line],
                   [[line.get(column) for column in COLUMNS] for line in lines])


def write_inputs(folder, name="synthetic"):
    """Writes one of MODELS, or copies a folder of tests/models, and writes the data. Returns the
    paths of model and data."""
    model, text = os.path.join(folder, "model.json"), os.path.join(folder, "text.txt")
    if name in MODELS:
        with open(model, "w", encoding="utf-8") as f:
            json.dump(MODELS[name], f)
    else:
        model = os.path.join(folder, name)
        shutil.copytree(os.path.join(os.path.dirname(__file__), "models", name), model,
                        dirs_exist_ok=True)
    with open(text, "w", encoding="utf-8") as f:
        for i in range(400):
            f.write("%d bottles of beer on the wall, take %d down.\n" % (i, i * i))
    return model, text
