"""The training jobs that EPS and PyTorch both run, and the inputs that both start from.

Uses Python's standard library only. The inputs are pure functions of a job: weights and tokens
come from the bits of the Mersenne Twister alone, and every weight is a whole number times a power
of two, so that float32 holds it exactly.
"""

import dataclasses
import hashlib
import json
import os
import random

import tensors

STEPS = 20

# The fields of a job that are parameters of an optimizer.
PARAMETERS = {
    "adamw": ("betas", "eps"),
    "adam": ("betas", "eps"),
    "sgd": ("momentum", "dampening", "nesterov"),
    "adagrad": ("lr_decay", "eps"),
    "lion": ("betas",),
    "lamb": ("betas", "eps", "always_adapt"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One job. Some job changes every number from its default, so that none can be ignored."""
    name: str
    tie_word_embeddings: bool
    clip: str  # exact or none
    max_grad_norm: float = 1.0
    seed: int = 1
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 64
    n_inner: int = None
    n_positions: int = 32
    vocab_size: int = 256
    layer_norm_epsilon: float = 1e-5
    seq_len: int = 32
    tokens: int = 50 * 32  # one token short of a 50th sample
    micro_batch_size: int = 4
    micro_batches: int = 1
    parts: int = 1
    workers: int = 1
    servers: int = 1
    loss_block_tokens: int = 1024
    optimizer: str = "adamw"  # a key of PARAMETERS
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    lr_decay: float = 0.0
    always_adapt: bool = False
    lr: float = 1e-3
    betas: tuple = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.1
    schedule: str = "constant"
    warmup_steps: int = 0
    label_smoothing: float = 0.0
    groups: tuple = ()  # of (regular expression, multiplier of lr, weight decay or None)

    @property
    def batch_size(self):
        return self.micro_batch_size * self.micro_batches * self.parts

    @property
    def state_fields(self):
        """Returns the names of the optimizer's state fields in torch."""
        if self.optimizer == "sgd":
            return ("momentum_buffer",) if self.momentum else ()
        return {"adagrad": ("sum",), "lion": ("exp_avg",)}.get(self.optimizer,
                                                               ("exp_avg", "exp_avg_sq"))


JOBS = [
    Job(name="tied_exact", tie_word_embeddings=True, clip="exact", schedule="cosine",
        warmup_steps=3, betas=(0.9, 0.99)),
    Job(name="tied_none", tie_word_embeddings=True, clip="none", schedule="linear", seed=2,
        micro_batch_size=2, micro_batches=2, parts=2, workers=2, servers=2,
        loss_block_tokens=48, seq_len=24, tokens=61 * 24 + 1, layer_norm_epsilon=1e-3),
    Job(name="untied_exact", tie_word_embeddings=False, clip="exact", max_grad_norm=1.2, seed=3,
        vocab_size=320, n_inner=96, micro_batches=2, servers=2, tokens=70 * 32 + 20,
        schedule="constant_with_warmup", warmup_steps=5, eps=1e-6),
    Job(name="untied_none", tie_word_embeddings=False, clip="none", seed=4, vocab_size=320,
        n_layer=2, n_head=2, micro_batch_size=3, parts=2, weight_decay=0.3, lr=2e-3,
        schedule="polynomial", warmup_steps=2),
]


# Compared with PyTorch, but without golden files. The decay is strong enough to show within these
# few steps.
SGD_JOBS = [
    Job(name="sgd_momentum", tie_word_embeddings=True, clip="exact", optimizer="sgd", momentum=0.9,
        lr=0.05, weight_decay=0.5, schedule="linear", warmup_steps=2, micro_batch_size=2,
        micro_batches=2, parts=2, workers=2, servers=2),
    Job(name="sgd_plain", tie_word_embeddings=False, clip="none", optimizer="sgd", lr=0.1,
        weight_decay=0.5, seed=3),
]
# Likewise. Each has a change of every parameter and of the decay that torch must be able to show.
OTHER_JOBS = [
    (Job(name="sgd_nesterov", tie_word_embeddings=True, clip="exact", optimizer="sgd", momentum=0.8,
         nesterov=True, lr=0.05, weight_decay=0.5, seed=6, servers=2),
     ({"momentum": 0.78}, {"nesterov": False}, {"weight_decay": 0.45})),
    (Job(name="sgd_dampened", tie_word_embeddings=True, clip="none", optimizer="sgd", momentum=0.9,
         dampening=0.5, lr=0.1, weight_decay=0.5, seed=7, parts=2, workers=2),
     ({"momentum": 0.88}, {"dampening": 0.48}, {"weight_decay": 0.45})),
    (Job(name="adam", tie_word_embeddings=True, clip="exact", optimizer="adam", betas=(0.85, 0.99),
         eps=1e-6, weight_decay=0.3, seed=8, parts=2, servers=2, schedule="cosine",
         warmup_steps=3),
     ({"betas": (0.84, 0.99)}, {"betas": (0.85, 0.985)}, {"weight_decay": 0.28},
      {"optimizer": "adamw"})),
    (Job(name="adagrad", tie_word_embeddings=True, clip="exact", optimizer="adagrad", lr=5e-3,
         lr_decay=0.1, eps=1e-4, weight_decay=0.3, seed=9, micro_batches=2, servers=2),
     ({"lr_decay": 0.09}, {"eps": 1e-10}, {"weight_decay": 0.28})),
    (Job(name="lion", tie_word_embeddings=False, clip="exact", optimizer="lion", lr=2e-4,
         betas=(0.9, 0.98), weight_decay=1.0, seed=10, workers=2, parts=2, schedule="linear",
         warmup_steps=2),
     ({"betas": (0.89, 0.98)}, {"betas": (0.98, 0.9)}, {"weight_decay": 0.95})),
    (Job(name="lamb", tie_word_embeddings=True, clip="none", optimizer="lamb", lr=5e-3,
         betas=(0.85, 0.99), eps=1e-6, weight_decay=0.3, seed=11, parts=2, workers=2, servers=2,
         schedule="cosine", warmup_steps=3),
     ({"betas": (0.84, 0.99)}, {"betas": (0.85, 0.985)}, {"weight_decay": 0.28},
      {"always_adapt": True}, {"optimizer": "adamw"})),
    (Job(name="lamb_everywhere", tie_word_embeddings=False, clip="exact", optimizer="lamb",
         lr=5e-3, always_adapt=True, eps=1e-4, weight_decay=0.3, seed=12, servers=2),
     ({"eps": 1e-6}, {"always_adapt": False})),
]
# Likewise, with settings that came later.
LATER_JOBS = [
    Job(name="groups_and_smoothing", tie_word_embeddings=True, clip="exact", max_grad_norm=1.2,
        schedule="cosine", warmup_steps=2, micro_batches=2, parts=2, workers=2, servers=2, seed=5,
        weight_decay=0.3, label_smoothing=0.2,
        groups=((r"\.h\.0\.", 0.25, None), (r"attn|wpe", 2.0, 0.9))),
]


def named(name):
    return next(job for job in JOBS if job.name == name)


def config_json(job):
    """Returns a Hugging Face configuration without dropout, whose random numbers would differ."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
        "activation_function": "gelu_new", "n_layer": job.n_layer, "n_head": job.n_head,
        "n_embd": job.n_embd, "n_inner": job.n_inner, "n_positions": job.n_positions,
        "vocab_size": job.vocab_size, "tie_word_embeddings": job.tie_word_embeddings,
        "layer_norm_epsilon": job.layer_norm_epsilon, "initializer_range": 0.02,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": None, "eos_token_id": None,
    }


def shapes(job):
    """Returns {name: shape} of the model's tensors, with their names in transformers."""
    width = job.n_embd
    inner = job.n_inner or 4 * width
    result = {"transformer.wte.weight": (job.vocab_size, width),
              "transformer.wpe.weight": (job.n_positions, width)}

    def add(prefix, *weight):
        result[prefix + ".weight"] = weight
        result[prefix + ".bias"] = weight[-1:]

    for i in range(job.n_layer):
        prefix = f"transformer.h.{i}."
        add(prefix + "ln_1", width)
        add(prefix + "attn.c_attn", width, 3 * width)
        add(prefix + "attn.c_proj", width, width)
        add(prefix + "ln_2", width)
        add(prefix + "mlp.c_fc", width, inner)
        add(prefix + "mlp.c_proj", inner, width)
    add("transformer.ln_f", width)
    if not job.tie_word_embeddings:
        result["lm_head.weight"] = (job.vocab_size, width)
    return result


def initial_weights(job):
    """Draws every element at random, biases too: values of zero or one would hide mistakes."""
    bits = random.Random(job.seed)
    weights = {}
    for name, shape in shapes(job).items():
        norm_weight = len(shape) == 1 and name.endswith(".weight")
        values = []
        for _ in range(tensors.count(shape)):
            word = bits.getrandbits(64)
            # The sum of four uniform numbers is nearly normal; the standard deviation is 0.14.
            total = sum((word >> shift) & 0xffff for shift in (0, 16, 32, 48)) - 2 * 0xffff
            values.append((1.0 if norm_weight else 0.0) + total / 2**18)
        weights[name] = (shape, values)
    return weights


def tokens(job):
    """Returns words of a small vocabulary in random order, learnable within 20 steps."""
    bits = random.Random(1000 + job.seed)

    def below(limit):
        return bits.getrandbits(32) % limit

    words = [[below(job.vocab_size) for _ in range(2 + below(5))] for _ in range(30)]
    result = []
    while len(result) < job.tokens:
        result += words[min(below(30), below(30))]
    return result[:job.tokens]


def sample(job, data, index):
    """Returns the tokens of sample `index` and their labels, one position later."""
    start = index * job.seq_len
    return (data[start:start + job.seq_len], data[start + 1:start + job.seq_len + 1])


def batch(job, data, step):
    """Returns the samples of a step (from 0), in order and wrapping around at the end."""
    whole_samples = (len(data) - 1) // job.seq_len
    first = step * job.batch_size
    return [sample(job, data, (first + i) % whole_samples) for i in range(job.batch_size)]


@dataclasses.dataclass(frozen=True)
class Inputs:
    folder: str       # config.json, model.safetensors
    data: str         # a .bin of uint16 tokens
    sha256: str       # of the three files


def write_inputs(job, folder):
    os.makedirs(folder, exist_ok=True)
    config = os.path.join(folder, "config.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump(config_json(job), file, indent=1)
    weights = os.path.join(folder, "model.safetensors")
    tensors.write_safetensors(weights, initial_weights(job))
    data = os.path.join(folder, "data.bin")
    with open(data, "wb") as file:
        file.write(b"".join(token.to_bytes(2, "little") for token in tokens(job)))
    sha256 = hashlib.sha256()
    for path in (config, weights, data):
        with open(path, "rb") as file:
            sha256.update(file.read())
    return Inputs(folder, data, sha256.hexdigest())
