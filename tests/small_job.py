"""A job of a few seconds for tests that run `eps train`: its model, data and settings, and what two
runs of it are compared by."""

import json
import os

MODEL = {"model_type": "eps-synthetic", "n_layer": 4, "n_embd": 64, "tied": True}
SETTINGS = {
    "training.micro_batch_size": 2, "training.micro_batches": 2,
    # Below the norms, so that where it clips each step depends on a norm.
    "training.max_grad_norm": 0.05, "training.chunk_elements": 2048, "training.seq_len": 16,
    "lr_scheduler.name": "cosine", "lr_scheduler.warmup_steps": 3, "worker.threads": 1,
    "metrics.tensorboard": "false", "storage.staging": "8MiB",
}
# Of a line of metrics.jsonl.
COLUMNS = ("step", "loss", "grad_norm", "lr", "tokens")


def write_inputs(folder):
    """The paths of the model's description and of the data."""
    model, text = os.path.join(folder, "model.json"), os.path.join(folder, "text.txt")
    with open(model, "w", encoding="utf-8") as f:
        json.dump(MODEL, f)
    with open(text, "w", encoding="utf-8") as f:
        for i in range(400):
            f.write("%d bottles of beer on the wall, take %d down.\n" % (i, i * i))
    return model, text
