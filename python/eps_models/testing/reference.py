"""The same model in transformers: its scores, and the gradients of its uncut graph."""

import dataclasses
from typing import Any

import torch
from torch import fx

from eps_models import build, graph, trace

_DROPOUT_ARGUMENT = {"aten::dropout": 1, "aten::scaled_dot_product_attention": 4}


def load(folder: str, request: build.Request) -> build.Model:
    """Returns the model of a folder with its weights, in train mode."""
    model = build.build(request)
    module = type(model.module).from_pretrained(folder, dtype=request.dtype,
                                                config=model.module.config)
    return dataclasses.replace(model, module=module.train())


def scores(model: build.Model, columns: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the scores that transformers computes in eval mode."""
    module = model.module.eval()
    named: dict[str, Any] = dict(columns)
    if getattr(model.config, "use_cache", None) is not None:
        named["use_cache"] = False
    with torch.no_grad():
        result = module(**named).logits
    module.train()
    return result


def gradients(model: build.Model, request: build.Request, columns: dict[str, torch.Tensor],
              d_scores: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns {parameter: gradient} of the exported graph as a whole, without dropout."""
    module = uncut(model, request)
    result = module(*columns.values())
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(result, list(parameters.values()), d_scores, allow_unused=True)
    return {name.removeprefix("model."): torch.zeros_like(p) if g is None else g
            for (name, p), g in zip(parameters.items(), found)}


def uncut(model: build.Model, request: build.Request) -> fx.GraphModule:
    """Returns the exported graph as a module that drops nothing."""
    module = trace.trace(model, request).module(check_guards=False)
    for node in module.graph.nodes:
        place = _DROPOUT_ARGUMENT.get(graph.name_of(node.target)
                                      if node.op == "call_function" else "")
        if place is None:
            continue
        arguments = list(node.args)
        if place < len(arguments):
            arguments[place] = 0.0
        node.args = tuple(arguments)
        if "dropout_p" in node.kwargs:
            node.kwargs = {**node.kwargs, "dropout_p": 0.0}
    module.recompile()
    return module
