"""Gradients of a program as a worker computes them, and of the exported graph as a whole."""

import torch
from torch import fx

from eps_models import build, graph, staged, trace

_DROPOUT_ARGUMENT = {"aten::dropout": 1, "aten::scaled_dot_product_attention": 4}


def staged_gradients(model: staged.StagedModel, weights: staged.Tensors, columns: staged.Tensors,
                     d_scores: torch.Tensor) -> staged.Tensors:
    """Returns {tensor: gradient}: each stage is computed again from its activation, and the uses of
    a tensor are summed from the last stage to the first. Nothing is dropped."""
    outputs = model.forward(weights, columns)
    gradients: staged.Tensors = {}
    upper = d_scores
    for number in reversed(range(len(outputs))):
        names = model.names(number)
        leaves = [weights[n].detach().clone().requires_grad_() for n in names]
        activation = outputs[number - 1].detach().requires_grad_() if number else None
        result = model.stage(number, activation, leaves, columns)
        inputs = ([activation] if number else []) + leaves
        found = list(torch.autograd.grad(result, inputs, upper, allow_unused=True))
        if number:
            upper = found.pop(0)
        for name, gradient in zip(names, found):
            if gradient is not None:
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return {t["name"]: gradients.get(t["name"], torch.zeros_like(weights[t["name"]]))
            for t in model.text["tensors"]}


class Uncut:
    """The exported graph of a model with weights, as one module that drops nothing."""

    def __init__(self, model: build.Model, request: build.Request):
        self._module = trace.trace(model, request).module(check_guards=False)
        _turn_off_dropout(self._module)
        # Of a tied tensor, the exported module keeps any one name.
        names = {id(p): name for name, p in reversed(list(
            model.module.named_parameters(remove_duplicate=False)))}
        self._parameters = {names[id(model.module.get_parameter(n.removeprefix("model.")))]: p
                            for n, p in self._module.named_parameters()}

    def gradients(self, columns: staged.Tensors, d_scores: torch.Tensor) -> staged.Tensors:
        """Returns {parameter: gradient}."""
        result = self._module(*columns.values())
        found = torch.autograd.grad(result, list(self._parameters.values()), d_scores,
                                    allow_unused=True)
        return {name: torch.zeros_like(p) if gradient is None else gradient
                for (name, p), gradient in zip(self._parameters.items(), found)}


def _turn_off_dropout(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        name = graph.name_of(node.target) if node.op == "call_function" else ""
        place = _DROPOUT_ARGUMENT.get(name)
        if place is None:
            continue
        arguments = list(node.args)
        if place < len(arguments):
            arguments[place] = 0.0
        node.args = tuple(arguments)
        if "dropout_p" in node.kwargs:
            node.kwargs = {**node.kwargs, "dropout_p": 0.0}
    module.recompile()
