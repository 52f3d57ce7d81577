"""GPT-2 as a PyTorch user writes it, with recomputed blocks, and the timing of its steps."""

import statistics
import time

import shape as shapes
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual."""

    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x):
        samples, seq, width = x.shape
        q, k, v = (part.view(samples, seq, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, seq, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Returns the mean loss of a batch of tokens and labels. The blocks keep their inputs only."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.seq, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        if sum(weight.numel() for weight in self.parameters()) != shapes.parameters(shape):
            raise ValueError(f"the model has other parameters than the formula: {shape}")

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


def run(peer, shape, device, precision, step):
    """Times `step`, a function of tokens and labels that returns the loss; prints the peer's line.

    All samples are one batch: no other split moves the weights less often. Fails if the loss does
    not fall.
    """
    torch.manual_seed(1)
    tokens = torch.randint(shape.vocab, (shape.samples, shape.seq + 1), device=device)
    seconds, losses = [], []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(shape.steps + 2):
        begin = time.perf_counter()
        losses.append(step(tokens[:, :-1], tokens[:, 1:]).item())  # waits for the device
        seconds.append(time.perf_counter() - begin)
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"{peer} does not train: its losses are {losses}")
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    print(shapes.line(peer, shape, statistics.median(seconds[2:]), precision, peak))
