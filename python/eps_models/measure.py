"""Measures a program: operations, memory that autograd keeps, and whether its head works row by row
and its documents are isolated when they are packed."""

import dataclasses
import itertools
import math
from typing import Any, Callable, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from eps_models import graph, interpret

_LONGEST = 160  # tokens of a measurement
# Of a packed row: the tokens of the first document and of the second.
_DOCUMENTS = (9, 7)
_BLOCKS = (3, 5)  # rows of the blocks of a head
Shape = tuple[int, int]


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any,
                     **__: Any) -> int:
    """Counts both products. Several heads may share one key."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


_FLOPS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model that its programs have in common. `tokens`: of the activation, 0 if it
    has those of the row; `longest`: tokens of a row for which the programs hold, 0: any."""
    width: int
    tokens: int
    longest: int
    image: list[int]
    dtype: torch.dtype


def costs(program: dict[str, Any], sizes: Sizes, weights: Sequence[torch.Size],
          constants: Sequence[torch.Tensor]) -> dict[str, list[float]]:
    """Returns {"flops": [a, b], "saved": [a, b]}, so that a·B·T + b·B·T² fits three measurements.

    Operations are those of matrix products, convolutions and attention. Nothing is computed: the
    tensors have shapes only. Work that does not grow with T, such as a head that reads one token,
    is spread over the tokens.
    """
    points: list[tuple[Shape, int, int]] = []
    most = min(_LONGEST, sizes.longest or _LONGEST)
    shapes = [(1, max(most // 5, 1)), (2, max(2 * most // 5, 1)), (1, most)]
    if sizes.tokens:
        shapes = [(batch, sizes.tokens) for batch in (1, 2, 3)]
    for batch, length in shapes:
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs = _inputs(program, sizes, weights, batch, length)
            flops, saved = _measure(program, constants, *inputs)
        points.append(((batch, length), flops, saved))
    return {name: _fit([(shape, values[i]) for shape, *values in points],
                       bool(sizes.tokens))
            for i, name in enumerate(("flops", "saved"))}


def _inputs(program: dict[str, Any], sizes: Sizes, weights: Sequence[torch.Size], batch: int,
            length: int) -> tuple[Any, list[Any], dict[str, Any]]:
    def learned(*size: int) -> torch.Tensor:
        return torch.empty(*size, dtype=sizes.dtype, requires_grad=True)

    activation = learned(batch, length, sizes.width) if program["activation"] else None
    columns = {name: torch.empty(batch, length, dtype=torch.int64) for name in program["inputs"]}
    if "pixel_values" in columns:
        columns["pixel_values"] = torch.empty(batch, *sizes.image, dtype=sizes.dtype)
    return activation, [learned(*size) for size in weights], columns


def _measure(program: dict[str, Any], constants: Sequence[torch.Tensor], activation: Any,
             weights: list[Any], columns: dict[str, Any]) -> tuple[int, int]:
    given = {t.untyped_storage()._cdata for t in
             itertools.chain([activation] if activation is not None else [], weights, constants,
                             columns.values())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in given:
            kept[storage._cdata] = storage.nbytes()
        alive.append(tensor)  # so that no other storage gets its address
        return tensor

    alive: list[torch.Tensor] = []
    with FlopCounterMode(display=False, custom_mapping=_FLOPS) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            interpret.run(program, activation, weights, constants, columns, dropout=True,
                          shapes_only=True)
    return counter.get_total_flops(), sum(kept.values())


def _fit(points: list[tuple[Shape, int]], only_samples: bool) -> list[float]:
    """Fits a·B·T + b·B·T² by least squares of the relative errors; neither is negative."""
    rows = [(b * t / max(value, 1), b * t * t / max(value, 1), value / max(value, 1))
            for (b, t), value in points]
    xx, xy, yy, xv, yv = (sum(row[i] * row[j] for row in rows)
                          for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2)))
    determinant = xx * yy - xy * xy
    linear, quadratic = xv / xx, 0.0
    if not only_samples and determinant > 0:
        linear = (xv * yy - yv * xy) / determinant
        quadratic = (yv * xx - xv * xy) / determinant
    if quadratic < 0:
        linear, quadratic = xv / xx, 0.0
    if linear < 0:
        linear, quadratic = 0.0, yv / yy
    return [round(linear, 3), round(quadratic, 3)]


def sample_weights(sizes: Sequence[torch.Size], dtype: torch.dtype,
                   seed: int) -> list[torch.Tensor]:
    """Returns weights for checks: random, and of a size that keeps activations near one."""
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for size in sizes:
        values = torch.empty(size, dtype=dtype).normal_(generator=generator)
        is_vector = len(size) < 2
        weights.append(values.mul_(0.1).add_(1) if is_vector else values.div_(size[-1] ** 0.5))
    return weights


def is_rowwise(program: dict[str, Any], sizes: Sizes, weights: Sequence[torch.Tensor],
               constants: Sequence[torch.Tensor]) -> bool:
    """Returns whether a head that is given in two blocks of rows computes the same scores. Blocks
    of a head with dropout would draw the same mask."""
    if program["inputs"] or any(op in graph.DROPOUTS for op, _ in program["calls"]):
        return False
    generator = torch.Generator().manual_seed(1)
    rows = torch.empty(1, sum(_BLOCKS), sizes.width, dtype=sizes.dtype).normal_(generator=generator)
    with torch.no_grad():
        try:
            whole, *parts = (interpret.run(program, block, weights, constants, {})
                             for block in (rows, *rows.split(_BLOCKS, dim=1)))
        except (RuntimeError, IndexError):
            return False
    joined = [part.shape[:-1] for part in parts] == [(1, n) for n in _BLOCKS]
    return joined and whole.dim() == 3 and _close(whole, torch.cat(parts, dim=1))


def mixes_documents(run: Callable[[dict[str, torch.Tensor]], torch.Tensor], exact: bool) -> str:
    """Returns why a document that comes second in a row gets other scores than alone; empty if it
    gets the same. `run` maps columns to scores or activations. `exact`: the tokens of another
    document may change no bit; they do where a group of tokens is multiplied by one matrix."""
    first, second = _DOCUMENTS
    ids = torch.arange(1, first + second + 1)[None] % 7
    positions = torch.cat([torch.arange(first), torch.arange(second)])[None]
    packed = run({"input_ids": ids, "position_ids": positions})[:, first:]
    changed = ids.clone()
    changed[:, :first] = (changed[:, :first] + 3) % 7
    other = run({"input_ids": changed, "position_ids": positions})[:, first:]
    if not (torch.equal(packed, other) if exact else _close(packed, other)):
        return "it reads the tokens of the first"
    alone = run({"input_ids": ids[:, first:].contiguous(),
                 "position_ids": positions[:, first:].contiguous()})
    return "" if _close(packed, alone) else "it counts its positions from the first"


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compares up to rounding: a wrong row differs by far more."""
    ulps = 64 if a.dtype == torch.float32 else 8
    limit = ulps * torch.finfo(a.dtype).eps * float(a.abs().max())
    return a.shape == b.shape and float((a - b).abs().max()) <= limit
