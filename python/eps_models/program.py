"""Writes the calls of a stage as a program of the format: positional arguments, numbered slots."""

import json
import math
import operator
from typing import Any

import torch
from torch import fx

from eps_models import cut, errors, graph as graphs

# The operators of grouped_mm: rows, matrices, ends of the groups, and nothing else.
_GROUPED_MM = ("transformers::grouped_mm_fallback", "aten::_grouped_mm")
_MAX_INTEGER = 2**28
_MAX_CALLS = 10_000
_MAX_DIMENSIONS = 16
_MAX_STAGES = 4_096
_MAX_BYTES = 3 * 2**20
_MEMORY_FORMATS = {torch.contiguous_format: "contiguous", torch.preserve_format: "preserve"}


def canonical(value: Any) -> str:
    """Returns the one JSON text of a value: sorted keys, no white space, no non-finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False,
                      allow_nan=False)


def text_of(description: dict[str, Any]) -> str:
    """Returns the text of a model. Errors: UNSUPPORTED if readers would refuse its size."""
    text = canonical(description)
    size, stages = len(text.encode()), len(description["stages"])
    if size > _MAX_BYTES or stages > _MAX_STAGES:
        raise errors.unsupported(f"the program has {size} bytes and {stages} stages; {_MAX_BYTES} "
                                 f"bytes and {_MAX_STAGES} stages are possible")
    return text


def calls_of(stage: cut.Stage) -> dict[str, Any]:
    """Returns the program of a stage, without its measured numbers. Errors: UNSUPPORTED with the
    operator whose argument the format cannot hold."""
    slots = {node: slot for slot, node in enumerate(stage.placeholders() + stage.calls())}
    calls = [[_name(node), _arguments(node, slots)] for node in stage.calls()]
    if len(calls) > _MAX_CALLS:
        raise errors.unsupported(f"the stage {stage.name} has {len(calls)} calls; a program has at "
                                 f"most {_MAX_CALLS}")
    return {
        "activation": stage.has_activation,
        "weights": len(stage.weights),
        "constants": len(stage.constants),
        "inputs": stage.columns,
        "calls": calls,
        "output": slots[stage.output()],
    }


def _name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "item"
    if node.target in graphs.SIZES:
        return graphs.SIZES[node.target]
    schema = node.target._schema
    if schema.name in _GROUPED_MM:
        return "grouped_mm"
    return schema.name + ("." + schema.overload_name if schema.overload_name else "")


def _arguments(node: fx.Node, slots: dict[fx.Node, int]) -> list[Any]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return [_value(node, argument, slots) for argument in node.args]
    schema = node.target._schema
    values = []
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            value = node.args[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise errors.unsupported(f"{schema.name} is called without {argument.name}")
        values.append((argument, _normal(node, argument, value)))
    while values and _is_default(*values[-1]):
        values.pop()
    if schema.name in _GROUPED_MM and len(values) != 3:
        raise errors.unsupported(f"{graphs.place_of(node)} calls {schema.name} with a bias or an "
                                 f"element type")
    return [_value(node, value, slots) for _, value in values]


def _normal(node: fx.Node, argument: torch._C.Argument, value: Any) -> Any:
    """Gives arguments without an effect on a stage's result their one form."""
    if argument.name in ("layout", "pin_memory") and argument.kwarg_only:
        return None
    if argument.name == "device" and argument.kwarg_only and not _reads_tensor(node):
        return torch.device("cpu")  # a new tensor is always made on the stage's device
    if value == graphs.NO_END and not isinstance(value, fx.Node):
        return None
    return value


def _reads_tensor(node: fx.Node) -> bool:
    return any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes)


def _is_default(argument: torch._C.Argument, value: Any) -> bool:
    if isinstance(value, torch.device) or not argument.has_default_value():
        return False
    default = argument.default_value
    if isinstance(value, (fx.Node, torch.dtype)) or isinstance(value, bool) != isinstance(
            default, bool):
        return False
    if isinstance(value, (list, tuple)):
        return isinstance(default, (list, tuple)) and list(value) == list(default)
    return value is default or (value is not None and value == default)


def _value(node: fx.Node, value: Any, slots: dict[fx.Node, int]) -> Any:
    """Returns an argument in the format's form."""
    if isinstance(value, fx.Node):
        return {"slot": slots[value]}
    if isinstance(value, (list, tuple)):
        return [_value(node, element, slots) for element in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": ""}
    if isinstance(value, torch.memory_format) and value in _MEMORY_FORMATS:
        return {"memory_format": _MEMORY_FORMATS[value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MAX_INTEGER:
        raise errors.unsupported(f"{graphs.place_of(node)} calls {_name(node)} with {value}; an "
                                 f"integer is at most {_MAX_INTEGER}")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise errors.unsupported(f"{graphs.place_of(node)} calls {_name(node)} with a "
                             f"{type(value).__name__}, which a program cannot hold")


def check_dimensions(stage: cut.Stage) -> None:
    """Refuses values of more dimensions than readers accept."""
    for node in stage.calls():
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() > _MAX_DIMENSIONS:
            raise errors.unsupported(f"{graphs.place_of(node)} makes a tensor of {value.dim()} "
                                     f"dimensions; {_MAX_DIMENSIONS} are possible")
