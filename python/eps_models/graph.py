"""Rewrites an exported graph so that every node is a call without side effects.

Afterwards no node writes a value that another node reads, asserts anything, or draws a random
number, except dropout and attention with dropout.
"""

import operator
import re
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from eps_models import errors

_aten = torch.ops.aten
_ASSERTS = ("aten::_assert_tensor_metadata", "aten::_assert_async", "aten::_assert_scalar",
            "aten::sym_constrain_range", "aten::sym_constrain_range_for_size")
DROPOUTS = ("aten::dropout", "aten::scaled_dot_product_attention")
# New memory has old content, which a program must not see; what reads none of it gets zeros.
_FILLED = {_aten.empty.memory_format: _aten.zeros.default,
           _aten.empty_like.default: _aten.zeros_like.default,
           _aten.new_empty.default: _aten.new_zeros.default}
NO_END = 2**63 - 1  # x[a:] is traced as x[a:2**63 - 1]
# Python's functions of sizes.
SIZES = {operator.add: "int.add", operator.sub: "int.sub", operator.mul: "int.mul",
         operator.floordiv: "int.floordiv"}


def name_of(target: Any) -> str:
    """Returns the name of an operator, without its overload, or of a Python function."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name
    return getattr(target, "__name__", str(target))


def simplify(program: torch.export.ExportedProgram) -> fx.Graph:
    """Returns the program's graph, rewritten in place. Errors: UNSUPPORTED with the operator."""
    module = program.graph_module
    graph = module.graph
    learned = dependents(graph, program.graph_signature.inputs_to_parameters)
    for node in list(graph.nodes):
        if node.op == "call_function" and isinstance(node.target,
                                                     torch._ops.HigherOrderOperator):
            _inline(module, node, keeps_gradients=node not in learned)
    for node in list(graph.nodes):
        if node.op == "call_function" and name_of(node.target) in _ASSERTS:
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.op == "call_function":
            _rewrite(graph, node)
    _erase_unused(graph)
    for node in graph.nodes:
        if node.op == "call_function":
            _refuse(node)
    return graph


def dependents(graph: fx.Graph, placeholders: Any) -> set[fx.Node]:
    """Returns the placeholders of these names and all nodes whose value depends on one of them."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if (node.name in placeholders if node.op == "placeholder" else
                any(n in found for n in node.all_input_nodes)):
            found.add(node)
    return found


def place_of(node: fx.Node) -> str:
    """Returns the path of the module that a node belongs to and the line of Python that made it,
    for messages."""
    stack = node.meta.get("nn_module_stack") or {}
    path = [path for path, _ in stack.values()][-1:] or [""]
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    line = f" ({lines[-1][0].rpartition('/')[2]}:{lines[-1][1]})" if lines else ""
    return (path[0].removeprefix("model").removeprefix(".") or "the model") + line


def _erase_unused(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users:
            graph.erase_node(node)


def _inline(module: fx.GraphModule, node: fx.Node, keeps_gradients: bool) -> None:
    """Replaces a region without gradients, or without autocast, by its calls."""
    name = node.target.name()
    if name == "wrap_with_set_grad_enabled":
        enabled, region, *inputs = node.args
    elif name == "wrap_with_autocast" and node.args[2] is False:
        enabled, region, inputs = True, node.args[4], node.args[5:]
    else:
        raise errors.unsupported(f"{place_of(node)} uses {name}, which a program cannot hold")
    body = getattr(module, region.target).graph
    values = dict(zip((n for n in body.nodes if n.op == "placeholder"), inputs))
    with module.graph.inserting_before(node):
        for inner in body.nodes:
            if inner.op == "output":
                results = fx.map_arg(inner.args[0], lambda n: values[n])
            elif inner.op != "placeholder":
                values[inner] = module.graph.node_copy(inner, lambda n: values[n])
        if not enabled and not keeps_gradients:
            results = [_detached(module.graph, result) for result in results]
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise errors.unsupported(f"{place_of(user)} uses the results of {name} as a tuple")
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def _detached(graph: fx.Graph, value: Any) -> Any:
    """Keeps gradients from leaving a region without gradients."""
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
        return value
    node = graph.call_function(_aten.detach.default, (value,))
    node.meta = dict(value.meta)
    return node


def _rewrite(graph: fx.Graph, node: fx.Node) -> None:
    name = name_of(node.target)
    if name in ("aten::lift_fresh_copy", "aten::lift_fresh", "aten::detach_", "aten::alias"):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    elif node.target in _FILLED:
        node.target = _FILLED[node.target]
    elif name == "aten::square":
        node.target, node.args = _aten.pow.Tensor_Scalar, (node.args[0], 2)
    elif name == "aten::numpy_T":
        node.target = _aten.t.default
        if node.args[0].meta["val"].dim() > 2:
            node.target = _aten.permute.default
            node.args = (node.args[0], list(reversed(range(node.args[0].meta["val"].dim()))))
    elif name in ("aten::to", "aten::type_as"):
        _rewrite_to(graph, node)
    elif node.target is _aten.slice.Tensor and _is_whole_slice(node):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    elif isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        _rewrite_in_place(node)


def _rewrite_to(graph: fx.Graph, node: fx.Node) -> None:
    """Leaves of all conversions the one of the element type: a stage has one device."""
    dtype = node.kwargs.get("dtype")
    if node.target is _aten.to.dtype:
        dtype = node.args[1]
    elif node.target is _aten.to.device:
        dtype = node.args[2]
    elif node.target in (_aten.to.other, _aten.type_as.default):
        dtype = node.args[1].meta["val"].dtype
    if dtype is None or dtype == node.args[0].meta["val"].dtype:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
        return
    node.target = _aten.to.dtype
    node.args, node.kwargs = (node.args[0], dtype), {}


def _is_whole_slice(node: fx.Node) -> bool:
    start, end, step = (*node.args[2:], *(None, NO_END, 1)[len(node.args) - 2:])
    return start in (None, 0) and end in (None, NO_END) and step == 1


def _rewrite_in_place(node: fx.Node) -> None:
    """Replaces x.f_(...) by f(x, ...). As a model is traced, later reads of x are of the result."""
    name, overload = node.target._schema.name, node.target._overloadname
    target = node.args[0]
    packet = getattr(_aten, name.removeprefix("aten::").removesuffix("_"), None)
    if not name.startswith("aten::") or not name.endswith("_") or packet is None:
        raise errors.unsupported(f"{place_of(node)} calls {name}, which writes its arguments")
    if target.op == "placeholder" or _shares_memory(target) or any(
            node < user for user in target.users):
        raise errors.unsupported(f"{place_of(node)} calls {name} on {target.name}, which is an "
                                 f"input or shares its memory with another value; compute a new "
                                 f"value instead")
    node.target = getattr(packet, overload)


def _shares_memory(node: fx.Node) -> bool:
    """Returns whether a node is a view of another, or another is a view of it."""
    return _is_view(node) or any(_is_view(user) and user.args[0] is node for user in node.users)


def _is_view(node: fx.Node) -> bool:
    """Returns whether a node shares the memory of its first argument."""
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    return (isinstance(node.target, torch._ops.OpOverload) and
            not node.target._schema.is_mutable and
            any(r.alias_info for r in node.target._schema.returns))


def _refuse(node: fx.Node) -> None:
    """Refuses a call whose result is not a function of its arguments, or has a size of its own."""
    if node.target is operator.getitem or node.target in SIZES:
        return
    name = name_of(node.target)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise errors.unsupported(f"{place_of(node)} computes a size with {name}; only + - * // "
                                 f"are possible")
    tags = node.target.tags
    if torch.Tag.nondeterministic_seeded in tags and name not in DROPOUTS:
        raise errors.unsupported(f"{place_of(node)} calls {name}, which draws random numbers; "
                                 f"remove it, or turn it off in config.json")
    if torch.Tag.data_dependent_output in tags or free_unbacked_symbols(node.meta.get("val")):
        raise errors.unsupported(f"{place_of(node)} calls {name}: the size of a value, or a "
                                 f"branch, depends on data; choose with torch.where, which keeps "
                                 f"sizes")
