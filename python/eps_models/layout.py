"""Describes the weights of a cut model: names, ties, roles, initial values, and which stages need
them to compute gradients."""

import operator
from typing import Any

from torch import fx

from eps_models import build, cut, errors, graph as graphs

_VIEWS = {"aten::t", "aten::transpose", "aten::permute", "aten::view", "aten::reshape",
          "aten::to", "aten::contiguous", "aten::unsqueeze", "aten::squeeze", "aten::expand",
          "aten::alias", "aten::numpy_T", "aten::slice", "aten::select", "aten::detach"}
_TRANSPOSES = {"aten::t", "aten::transpose", "aten::numpy_T"}
# The most specific role of a tensor in a stage wins.
_ROLES = ("linear_in_out", "linear_out_in", "embedding", "norm", "bias", "other")
# Calls that are linear in all arguments that depend on weights, each with the others fixed: a
# gradient through them depends on no weight. A product is linear if one factor depends on weights.
_LINEAR = _VIEWS | {"aten::add", "aten::sub", "aten::neg", "aten::embedding", "aten::dropout",
                    "aten::cat", "aten::stack", "aten::index", "aten::sum", "aten::mean",
                    "aten::flatten", "aten::split", "aten::chunk", "aten::unbind", "aten::where",
                    "aten::index_select", "aten::clone", "aten::masked_fill"}
# Products: (places of the factors of which only one may depend on weights).
_PRODUCTS = {"aten::mul": (0, 1), "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::matmul": (0, 1),
             "aten::addmm": (1, 2), "aten::baddbmm": (1, 2), "aten::linear": (0, 1),
             "aten::conv2d": (0, 1)}


def names(model: build.Model) -> dict[str, list[str]]:
    """Returns {name: aliases} of the distinct parameters: of a tied tensor, the first name counts.
    """
    grouped: dict[int, list[str]] = {}
    for name, parameter in model.module.named_parameters(remove_duplicate=False):
        grouped.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in grouped.values()}


def initial_values(model: build.Model, name: str) -> dict[str, Any]:
    """Returns a tensor's initial values in the format's form. Errors: UNSUPPORTED if the model
    computes them in a way that the format does not know."""
    init = model.init.of(model.module.get_parameter(name))
    if init.kind not in ("normal", "uniform", "zeros", "ones"):
        raise errors.unsupported(f"{name} is initialized by {init.by or init.kind}; use normal_, "
                                 f"uniform_, zeros_ or ones_ of torch.nn.init")
    return {"kind": init.kind, "a": float(init.a), "b": float(init.b)}


def role(weight: fx.Node) -> str:
    """Returns how a stage reads one of its weights, from the calls that read it."""
    found = set()
    waiting = [(weight, False)]
    while waiting:
        node, transposed = waiting.pop()
        for user in node.users:
            name = graphs.name_of(user.target)
            if name in _VIEWS:
                waiting.append((user, transposed != (name in _TRANSPOSES)))
            elif name == "aten::index" and node.meta["val"].dim() > 2:
                waiting.append((user, transposed))  # the matrices of some experts
            elif user.op == "call_function":
                found.add(_role_in(user, node, transposed, weight.meta["val"].dim()))
    return min(found, key=_ROLES.index, default="other")


def _role_in(user: fx.Node, node: fx.Node, transposed: bool, dimensions: int) -> str:
    name = graphs.name_of(user.target)
    place = user.args.index(node) if node in user.args else -1
    if name in ("aten::embedding", "aten::index", "aten::index_select") and place == 0:
        return "embedding"
    if name == "aten::linear":
        return ("", "linear_out_in", "bias")[place]
    if name in ("aten::mm", "aten::matmul", "aten::bmm", "aten::_grouped_mm",
                "transformers::grouped_mm_fallback"):
        in_out = (place == 1) != transposed
        return "linear_in_out" if in_out else "linear_out_in"
    if name in ("aten::addmm", "aten::baddbmm"):
        return "bias" if place == 0 else (
            "linear_in_out" if (place == 2) != transposed else "linear_out_in")
    if name in ("aten::layer_norm", "aten::rms_norm"):
        return "norm" if place == 2 else "bias"
    if name == "aten::conv2d" and place == 2:
        return "bias"
    if dimensions == 1 and name == "aten::mul":
        return "norm"
    if dimensions == 1 and name == "aten::add":
        # RMSNorm of Gemma multiplies by 1 + weight.
        others = [a for a in user.args if a is not node]
        return "norm" if others and not isinstance(others[0], fx.Node) else "bias"
    return "other"


def needs_weights(stage: cut.Stage) -> bool:
    """Returns whether a gradient of the stage may depend on the value of one of its weights."""
    learned = set(stage.weight_nodes())
    if stage.has_activation:
        learned.add(stage.placeholders()[0])
    for node in stage.calls():
        inputs = [n for n in node.all_input_nodes if n in learned]
        if not inputs:
            continue
        learned.add(node)
        name = graphs.name_of(node.target)
        factors = [node.args[place] for place in _PRODUCTS.get(name, ())]
        is_product = bool(factors) and not all(
            isinstance(f, fx.Node) and f in learned for f in factors)
        is_quotient = name == "aten::div" and node.args[1] not in inputs
        if not (node.target is operator.getitem or name in _LINEAR or is_product or is_quotient):
            return True
    return False
