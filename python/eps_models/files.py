"""Says where each weight is in a folder's *.safetensors: under which names, in which pieces.

transformers stores some tensors under other names than its modules have, or in pieces (experts one
by one). Its own code for saving is run on stand-ins whose elements are row numbers, so the names
and the places of all pieces are found without a weight.
"""

import dataclasses
import json
import pathlib
from typing import Any

import torch
import transformers
from transformers import conversion_mapping, core_model_loading

from eps_models import build, errors, lora


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a tensor is: the file names of its pieces, from its first row on, and the other names
    of a tied tensor. `is_new`: the folder has weights, but not this one."""
    pieces: list[str]
    aliases: list[str]
    is_new: bool

    def text(self) -> dict[str, Any]:
        kind = "new" if self.is_new else "name" if len(self.pieces) == 1 else "stack"
        return {"kind": kind, "names": self.pieces}


def names_in(folder: pathlib.Path) -> set[str]:
    """Returns the names of all tensors in a folder's *.safetensors; empty if it has none.

    Errors: MISSING for a shard that the index names, UNSUPPORTED for a file that is no safetensors,
    and for weights in other formats.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = [f for f in ("model.safetensors",) if (folder / f).is_file()]
    if not files:
        others = sorted(f.name for pattern in ("*.safetensors", "pytorch_model*", "tf_model*")
                        for f in folder.glob(pattern))
        if others:
            raise errors.unsupported(f"{folder} holds weights in {others[0]}, but neither "
                                     f"model.safetensors nor model.safetensors.index.json")
    return {name for file in files for name in _header(folder / file)}


def _header(path: pathlib.Path) -> list[str]:
    if not path.is_file():
        raise errors.missing(f"there is no {path}, which model.safetensors.index.json names")
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size) if size <= path.stat().st_size else b""
    try:
        return [name for name in json.loads(text) if name != "__metadata__"]
    except ValueError as error:
        raise errors.unsupported(f"{path} is no safetensors file") from error


def places(model: build.Model, names: dict[str, list[str]], stored: set[str]) -> dict[str, Place]:
    """Returns the place of each tensor of `names`, which maps it to its aliases.

    `stored`: the names in the folder's files. A stored name matches if transformers, as it loads,
    gives it the same name as the one under which it would save the tensor.
    """
    of_model = {name for name in names if not lora.is_adapter(name)}
    pieces = {**{name: [name] for name in names}, **_pieces(model)}
    canonical = _canonical(model)
    by_canonical = {canonical(name): name for name in sorted(stored)}
    result = {}
    for name, aliases in names.items():
        found = {n: [by_canonical.get(canonical(p)) for p in pieces[n]] for n in (name, *aliases)}
        is_there = {n: all(f is not None for f in files) for n, files in found.items()}
        first = next((n for n in (name, *aliases) if is_there[n]), name)
        others = [n for n in (name, *aliases) if n != first]
        result[name] = Place(found[first] if is_there[first] else pieces[first],
                             [f for n in others
                              for f in (found[n] if is_there[n] else pieces[n])],
                             name not in of_model or bool(stored) and not is_there[first])
    return result


def _pieces(model: build.Model) -> dict[str, list[str]]:
    """Returns {parameter: file names of its pieces in the order of their rows}."""
    parameters = {name: parameter for name, parameter
                  in model.module.named_parameters(remove_duplicate=False)
                  if not lora.is_adapter(name)}
    if not isinstance(model.module, transformers.PreTrainedModel):
        return {name: [lora.plain(name)] for name in parameters}
    starts, stand_ins, next_row = {}, {}, 0
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        shape = shape[:-1] + (1,) if len(shape) > 1 else shape
        count = torch.Size(shape).numel()
        stand_ins[lora.plain(name)] = torch.arange(next_row, next_row + count).reshape(shape)
        starts[name] = next_row
        next_row += count
    try:
        saved = core_model_loading.revert_weight_conversion(model.module, dict(stand_ins))
    except Exception as error:  # operations that move columns fail in many ways
        raise errors.unsupported(f"{model.architecture} stores its weights in a form that is not "
                                 f"known here: {error}") from error
    return {name: _in_order(name, starts[name], stand_ins[lora.plain(name)], saved)
            for name in parameters}


def _in_order(name: str, start: int, whole: torch.Tensor,
              saved: dict[str, torch.Tensor]) -> list[str]:
    inside = {int(t.flatten()[0]): n for n, t in saved.items()
              if t.numel() and start <= int(t.flatten()[0]) < start + whole.numel()}
    rows = start
    pieces = [inside[at] for at in sorted(inside)]
    for piece in pieces:
        values = saved[piece].flatten()
        is_matrix = len(pieces) == 1 or saved[piece].dim() == 2
        same_height = values.numel() * len(pieces) == whole.numel()
        if not (is_matrix and same_height and
                torch.equal(values, torch.arange(rows, rows + values.numel()))):
            raise errors.unsupported(f"{name} is stored as {piece} with its rows in another order, "
                                     f"or in matrices of different heights")
        rows += values.numel()
    if rows != start + whole.numel():
        raise errors.unsupported(f"{name} is not among the tensors that transformers saves")
    return pieces


def _canonical(model: build.Model) -> Any:
    """Returns a function from a stored name to the one that it has after loading."""
    if not isinstance(model.module, transformers.PreTrainedModel):
        return lambda name: name
    transforms = conversion_mapping.get_model_conversion_mapping(model.module)
    renamings = [t for t in transforms if isinstance(t, core_model_loading.WeightRenaming)]
    prefix = model.module.base_model_prefix + "."
    def canonical(name: str) -> str:
        return core_model_loading.apply_renamings(name, renamings).removeprefix(prefix)
    return canonical
