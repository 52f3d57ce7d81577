"""The shape of a GPT-2 that all peers train, and the formulas that all of them share.

    shape.py --layers=12 --width=2048 ...      prints the shape as a config.json of GPT-2

A module without LibTorch, because gpu_session.sh uses it where python3 has none.
"""

import argparse
import collections
import json
import shutil
import subprocess

# samples: sequences of one step. steps: timed ones, after a warm-up.
Shape = collections.namedtuple("Shape", "layers width heads seq vocab samples steps")
DEFAULTS = Shape(layers=12, width=2048, heads=16, seq=1024, vocab=256, samples=16, steps=4)

# Dense BF16 peaks from NVIDIA's data sheets, by a part of the device's name; the first one counts.
PEAK_FLOPS = [("NVL", 835e12), ("H100 PCIe", 756e12), ("H100", 989e12), ("H200", 989e12),
              ("A100", 312e12)]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description="Trains a GPT-2 of a shape.")
    for name, value in DEFAULTS._asdict().items():
        parser.add_argument("--" + name, type=int, default=value)
    return Shape(**vars(parser.parse_args(arguments)))


def tokens(shape):
    return shape.samples * shape.seq


def parameters(shape):
    """Counts embeddings, blocks and the last norm; the head is the embedding of tokens."""
    block = 12 * shape.width ** 2 + 13 * shape.width
    return (shape.vocab + shape.seq + 2) * shape.width + shape.layers * block


def step_flops(parameter_count, token_count):
    """Returns the operations of a step: forward 2, backward 4 for each parameter and token.

    It leaves out what is computed a second time, and the products of attention.
    """
    return 6 * parameter_count * token_count


def peak_flops(device):
    """Returns the peak of a device by its name, None if the name is unknown."""
    return next((peak for part, peak in PEAK_FLOPS if part in device), None)


def mfu(parameter_count, token_count, seconds, device):
    """Returns the share of the device's dense BF16 peak that a step uses, None without a peak."""
    peak = peak_flops(device)
    return step_flops(parameter_count, token_count) / seconds / peak if peak else None


def device_name():
    """Returns the name of the first GPU, "" if there is none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    return subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"],
        stdout=subprocess.PIPE, check=False, timeout=60).stdout.decode().strip()


def line(peer, shape, seconds, precision, peak_device_bytes):
    """Returns the line of JSON that reports a peer's step; None stands for an unknown figure."""
    return json.dumps({
        "peer": peer, "tokens": tokens(shape), "parameters": parameters(shape), "step_s": seconds,
        "mfu": mfu(parameters(shape), tokens(shape), seconds, device_name()),
        "peak_device_bytes": peak_device_bytes, "precision": precision})


def config(shape):
    """Returns the config.json of the shape."""
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": shape.layers,
            "n_embd": shape.width, "n_head": shape.heads, "n_positions": shape.seq,
            "n_ctx": shape.seq, "vocab_size": shape.vocab, "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            "tie_word_embeddings": True}


if __name__ == "__main__":
    print(json.dumps(config(parse())))
