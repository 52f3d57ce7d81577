"""Puts a cut model together as one JSON object of the format."""

import base64
import sys
from typing import Any

import torch

from eps_models import (build, cut, errors, files, interpret, layout, lora, measure, program,
                        shape, trace)

_MAX_CONSTANT_BYTES = 64 * 1024
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16",
           torch.float64: "float64", torch.int64: "int64", torch.int32: "int32",
           torch.bool: "bool"}


class _Constants:
    """The distinct constants of a model, numbered as they are first used."""

    def __init__(self, traced: torch.export.ExportedProgram):
        self._values = {name.removeprefix("model."): value for name, value in
                        {**dict(traced.named_buffers()), **traced.constants}.items()}
        self._numbers: dict[str, int] = {}
        self.texts: list[dict[str, Any]] = []
        self.values: list[torch.Tensor] = []

    def number(self, name: str) -> int:
        value = self._values[name].detach().contiguous()
        size = value.numel() * value.element_size()
        if size > _MAX_CONSTANT_BYTES or value.dtype not in _DTYPES:
            raise errors.unsupported(f"the buffer {name} has {size} bytes of {value.dtype}; a "
                                     f"constant has at most {_MAX_CONSTANT_BYTES}")
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        text = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape),
                "data": base64.b64encode(data).decode()}
        key = program.canonical(text)
        if key not in self._numbers:
            self._numbers[key] = len(self.texts)
            self.texts.append(text)
            self.values.append(value)
        return self._numbers[key]


class _Description:
    """Collects the tensors, programs and stages of one model."""

    def __init__(self, model: build.Model, request: build.Request, stages: list[cut.Stage],
                 traced: torch.export.ExportedProgram):
        self.model, self.request, self.stages = model, request, stages
        self.constants = _Constants(traced)
        self.names = layout.names(model)
        self.first_name = {n: first for first, aliases in self.names.items()
                           for n in (first, *aliases)}
        tokens, width = self._activation()
        self.sizes = measure.Sizes(width, tokens, trace.longest(traced), trace.image_shape(model),
                                   request.dtype)
        self.programs: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}

    def _activation(self) -> tuple[int, int]:
        """Returns (tokens, width) of the activation, whose shape is [B, T, width]; tokens is 0 if T
        is that of input_ids."""
        width, tokens = 0, None
        for stage in self.stages[:-1]:
            value = stage.output().meta["val"]
            if value.dim() != 3 or isinstance(value.shape[2], torch.SymInt) or (
                    value.dtype != self.request.dtype):
                raise errors.unsupported(f"the value after {stage.name} is {value.dtype} of shape "
                                         f"{list(value.shape)}; [B, T, width] of "
                                         f"{self.request.dtype} is needed")
            shape = (0 if isinstance(value.shape[1], torch.SymInt) else value.shape[1],
                     value.shape[2])
            if tokens not in (None, shape[0]) or width not in (0, shape[1]):
                raise errors.unsupported(f"the value after {stage.name} has the shape "
                                         f"{list(value.shape)}, unlike that of the stage before")
            tokens, width = shape
        return tokens, width

    def weight_sizes(self, stage: cut.Stage) -> list[torch.Size]:
        return [self.model.module.get_parameter(name).shape for name in stage.weights]

    def values_of(self, stage: cut.Stage) -> list[torch.Tensor]:
        return [self.constants.values[self.constants.number(name)] for name in stage.constants]

    def program_of(self, stage: cut.Stage) -> int:
        """Returns the number of the stage's program. Stages of equal calls and costs share one."""
        program.check_dimensions(stage)
        text = program.calls_of(stage)
        sizes = self.weight_sizes(stage)
        key = (program.canonical(text), tuple(sizes))
        if key not in self._numbers:
            text.update(measure.costs(text, self.sizes, sizes, self.values_of(stage)))
            if text in self.programs:
                self._numbers[key] = self.programs.index(text)
            else:
                self._numbers[key] = len(self.programs)
                self.programs.append(text)
        return self._numbers[key]

    def stage_text(self, stage: cut.Stage, tensors: list[str]) -> dict[str, Any]:
        uses = [{"tensor": tensors.index(self.first_name[name]), "role": layout.role(node)}
                for name, node in zip(stage.weights, stage.weight_nodes())]
        return {"name": stage.name, "program": self.program_of(stage), "uses": uses,
                "constants": [self.constants.number(name) for name in stage.constants],
                "needs_weights": layout.needs_weights(stage)}

    def tensor_order(self) -> list[str]:
        """Returns the tensors in the order of their first use. Unused ones are left out."""
        return list(dict.fromkeys(self.first_name[name] for stage in self.stages
                                  for name in stage.weights))


def describe(model: build.Model, request: build.Request, stages: list[cut.Stage],
             traced: torch.export.ExportedProgram, stored: set[str],
             made_by: str) -> dict[str, Any]:
    """Returns the model as an object of the format. `stored`: the names in the folder's files."""
    all_of = _Description(model, request, stages, traced)
    order = all_of.tensor_order()
    unused = sorted(all_of.names.keys() - set(order))
    if unused:
        print(f"eps model: the scores do not depend on {', '.join(unused)}; checkpoints leave this "
              f"out", file=sys.stderr)
    places = files.places(model, all_of.names, stored)
    _check_missing(stages, all_of.first_name, {name: places[name] for name in order})

    def is_frozen(name: str) -> bool:
        is_trained = lora.is_adapter(name) or places[name].is_new
        return request.adapters.r > 0 and not is_trained

    texts = [all_of.stage_text(stage, order) for stage in stages]
    head = all_of.programs[texts[-1]["program"]]
    weights = measure.sample_weights(all_of.weight_sizes(stages[-1]), request.dtype, seed=2)
    kind = build.TASKS[request.task].head
    if request.variant == "packed":
        _check_packing(all_of, texts)
    description = {
        "format": 1, "architecture": model.architecture, "model_type": model.model_type,
        "task": request.task, "variant": request.variant, "dtype": _DTYPES[request.dtype],
        "made_by": made_by,
        "shape": shape.describe(model, request, stages, all_of.sizes,
                                all_of.values_of(stages[0])),
        "constants": all_of.constants.texts,
        "tensors": [{"name": lora.plain(name),
                     "shape": list(model.module.get_parameter(name).shape),
                     "init": layout.initial_values(model, name), "files": places[name].text(),
                     "aliases": places[name].aliases,
                     **({"frozen": True} if is_frozen(name) else {})} for name in order],
        "programs": all_of.programs, "stages": texts,
        "head": {"kind": kind, "rowwise": kind == "tokens" and measure.is_rowwise(
            head, all_of.sizes, weights, all_of.values_of(stages[-1]))},
    }
    if request.adapters.r > 0:
        description["lora"] = lora.describe(request.adapters, order)
    return description


def _check_missing(stages: list[cut.Stage], first_name: dict[str, str],
                   places: dict[str, files.Place]) -> None:
    """Refuses a folder without weights of the layers. A new head gets initial values, and is
    reported."""
    last = {first_name[name] for name in stages[-1].weights}
    absent = [name for name, place in places.items() if place.is_new]
    needed = [name for name in absent if name not in last and not lora.is_adapter(name)]
    if needed:
        raise errors.missing(f"{len(needed)} tensors are not in the folder's *.safetensors, among "
                             f"them {', '.join(needed[:3])}")
    heads = [name for name in absent if not lora.is_adapter(name)]
    if heads:
        print(f"eps model: the folder has no {', '.join(heads)}; training begins with initial "
              f"values", file=sys.stderr)


def _check_packing(all_of: _Description, texts: list[dict[str, Any]]) -> None:
    """Refuses models whose documents read each other. Of stages with one program, the first is
    computed."""
    seen: set[int] = set()
    chosen = []
    for stage, text in zip(all_of.stages, texts):
        if text["program"] not in seen:
            seen.add(text["program"])
            chosen.append((stage, all_of.programs[text["program"]]))

    def run(columns: dict[str, torch.Tensor]) -> torch.Tensor:
        value = None
        with torch.no_grad():
            for seed, (stage, text) in enumerate(chosen):
                weights = measure.sample_weights(all_of.weight_sizes(stage),
                                                 all_of.request.dtype, seed)
                value = interpret.run(text, value, weights, all_of.values_of(stage), columns)
        return value

    has_groups = any(op == "grouped_mm" for _, text in chosen for op, _ in text["calls"])
    reason = measure.mixes_documents(run, exact=not has_groups)
    if reason:
        raise errors.unsupported(
            f"{all_of.model.architecture} cannot read packed rows: a document that comes second in "
            f"a row does not get the scores that it gets alone, for {reason}; use "
            f"--variant=causal")
