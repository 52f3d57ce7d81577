"""Evaluates programs of the format with torch's operators. It reads the text alone, not the graph
from which the text was made."""

import base64
import operator
from typing import Any, Sequence

import torch

_INTEGERS = {"int.add": operator.add, "int.sub": operator.sub, "int.mul": operator.mul,
             "int.floordiv": operator.floordiv}
_MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "preserve": torch.preserve_format}
_ATTENTION = "aten::scaled_dot_product_attention"
_DROPOUT_OF_ATTENTION = 4  # its place among the arguments


def run(program: dict[str, Any], activation: torch.Tensor | None, weights: Sequence[torch.Tensor],
        constants: Sequence[torch.Tensor], columns: dict[str, torch.Tensor],
        dropout: bool = False, shapes_only: bool = False) -> torch.Tensor:
    """Returns the output of a program. Autograd follows the calls as it follows any others.

    `activation`: None if the program reads none. `columns` holds at least those that it reads.
    Without `dropout` nothing is dropped. Everything is computed where the weights are. Tensors of
    `shapes_only` have no values, so their rows have no groups, which changes no shape.
    """
    given = ([activation] if program["activation"] else []) + list(weights) + list(constants)
    slots: list[Any] = given + [columns[name] for name in program["inputs"]]
    device = slots[0].device
    for op, arguments in program["calls"]:
        values = [_value(argument, slots, device) for argument in arguments]
        slots.append(_call(op, values, dropout, shapes_only))
    return slots[program["output"]]


def constant(text: dict[str, Any]) -> torch.Tensor:
    """Returns the value of one of a model's constants."""
    data = bytearray(base64.b64decode(text["data"], validate=True))
    dtype = getattr(torch, text["dtype"])
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(text["shape"]).clone()


def _call(op: str, values: list[Any], dropout: bool, shapes_only: bool) -> Any:
    if op == "item":
        return values[0][values[1]]
    if op in _INTEGERS:
        return _INTEGERS[op](*values)
    if op == "grouped_mm":
        return values[0] @ values[1][0] if shapes_only else _grouped_mm(*values)
    if not dropout and op == "aten::dropout":
        return values[0]
    if not dropout and op == _ATTENTION and len(values) > _DROPOUT_OF_ATTENTION:
        values = values[:_DROPOUT_OF_ATTENTION] + [0.0] + values[_DROPOUT_OF_ATTENTION + 1:]
    function = _operator(op)
    arguments = list(zip(function._schema.arguments, values, strict=False))
    return function(*[value for argument, value in arguments if not argument.kwarg_only],
                    **{argument.name: value for argument, value in arguments
                       if argument.kwarg_only})


def _operator(op: str) -> Any:
    namespace, _, name = op.partition("::")
    packet, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _grouped_mm(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiplies each group of rows by a matrix of its own; group e ends before row ends[e]."""
    parts, start = [], 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            parts.append(rows[start:end] @ weights[expert])
        start = max(start, end)
    return torch.cat(parts) if parts else rows.new_zeros(0, weights.shape[2])


def _value(argument: Any, slots: list[Any], device: torch.device) -> Any:
    if isinstance(argument, list):
        return [_value(element, slots, device) for element in argument]
    if not isinstance(argument, dict):
        return argument
    (kind, value), = argument.items()
    if kind == "slot":
        return slots[value]
    if kind == "dtype":
        return getattr(torch, value)
    if kind == "device":
        return device
    if kind == "memory_format":
        return _MEMORY_FORMATS[value]
    if kind == "float":
        return float(value)
    raise ValueError(f"an argument of unknown kind {kind}")
