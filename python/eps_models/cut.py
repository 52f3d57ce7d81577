"""Cuts a graph into stages: all that comes before the layers, each layer, all that comes after.

The layers are the children of the outermost ModuleLists whose children are of one class. A node
belongs to the layer in whose forward function it was traced, but never to an earlier stage than
its inputs. A value that depends on no weight (a mask, RoPE's sines, positions) is computed again in
each stage that reads it.
"""

import dataclasses
import re
from typing import Any, Iterable

import torch
from torch import fx

from eps_models import errors, graph as graphs

_sym_size = torch.ops.aten.sym_size.int


@dataclasses.dataclass
class Stage:
    """One stage. The placeholders of `graph` are the activation if there is one, then one for each
    of `weights`, `constants` and `columns`, which name them; its output is one value."""
    name: str
    graph: fx.Graph
    has_activation: bool
    weights: list[str]
    constants: list[str]
    columns: list[str]

    def placeholders(self) -> list[fx.Node]:
        return [n for n in self.graph.nodes if n.op == "placeholder"]

    def weight_nodes(self) -> list[fx.Node]:
        first = int(self.has_activation)
        return self.placeholders()[first:first + len(self.weights)]

    def calls(self) -> list[fx.Node]:
        return [n for n in self.graph.nodes if n.op == "call_function"]

    def output(self) -> fx.Node:
        return next(iter(reversed(self.graph.nodes))).args[0]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The names of parameters, constants and columns, by the names of their placeholders."""
    parameters: dict[str, str]
    constants: dict[str, str]
    columns: dict[str, str]


def inputs_of(program: torch.export.ExportedProgram, columns: Iterable[str]) -> Inputs:
    """Returns the inputs of a program whose user inputs are these columns, in order."""
    signature = program.graph_signature

    def stripped(names: dict[str, str]) -> dict[str, str]:
        return {node: name.removeprefix("model.") for node, name in names.items()}

    return Inputs(stripped(signature.inputs_to_parameters),
                  {**stripped(signature.inputs_to_buffers),
                   **stripped(signature.inputs_to_lifted_tensor_constants)},
                  dict(zip(signature.user_inputs, columns)))


def layer_paths(module: torch.nn.Module, wanted: str) -> list[str]:
    """Returns the paths of all layers, in the order of their module lists.

    `wanted`: the path of the one list to cut at; empty: all outermost ones. Errors: UNSUPPORTED if
    there is none.
    """
    lists = {path: child for path, child in module.named_modules()
             if isinstance(child, torch.nn.ModuleList) and len(child) > 0
             and len({type(layer) for layer in child}) == 1}
    if wanted:
        if wanted not in lists:
            raise errors.usage(f"--layers={wanted} is no ModuleList of equal layers; there are "
                               f"{', '.join(lists) or 'none'}")
        lists = {wanted: lists[wanted]}
    outer = [path for path in lists
             if not any(path.startswith(other + ".") for other in lists)]
    if not outer:
        raise errors.unsupported(f"{type(module).__name__} has no ModuleList of equal layers to "
                                 f"cut at; put its layers into one torch.nn.ModuleList")
    return [f"{path}.{i}" for path in outer for i in range(len(lists[path]))]


def cut(graph: fx.Graph, inputs: Inputs, layers: list[str]) -> list[Stage]:
    """Cuts the graph. Errors: UNSUPPORTED, with its name, if a value crosses a cut beside the
    activation, or if dropout does not depend on a weight."""
    learned = graphs.dependents(graph, inputs.parameters)
    stage_of = _assign(graph, layers, learned)
    result = _output(graph)
    last = len(layers) + 1
    crossing = [_crossing(graph, stage_of, s, layers) for s in range(last)]
    names = ["embedding", *layers, "head"]
    return [_extract(names[s], graph, inputs, stage_of, s, crossing[s - 1] if s else None,
                     crossing[s] if s < last else result)
            for s in range(last + 1)]


def _output(graph: fx.Graph) -> fx.Node:
    return next(iter(reversed(graph.nodes))).args[0][0]


def _assign(graph: fx.Graph, layers: list[str], learned: set[fx.Node]) -> dict[fx.Node, int]:
    """Returns the stage of each call that depends on a weight."""
    numbers = {path: number for number, path in enumerate(layers, start=1)}
    pattern = re.compile("(?:^|model\\.)(%s)(?:$|\\.)" % "|".join(
        re.escape(path) for path in sorted(layers, key=len, reverse=True)))
    stage_of: dict[fx.Node, int] = {}
    reached = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node not in learned:
            if graphs.name_of(node.target) == "aten::dropout":
                raise errors.unsupported(f"{graphs.place_of(node)} applies dropout to "
                                         f"{node.args[0]}, which depends on no weight")
            continue
        stage = max([stage_of[n] for n in node.all_input_nodes if n in stage_of], default=0)
        layer = _layer(node, pattern)
        if layer is not None:
            stage = max(stage, numbers[layer])
            reached = max(reached, stage)
        elif reached == len(layers):
            stage = len(layers) + 1
        stage_of[node] = stage
    if reached != len(layers):
        raise errors.unsupported(f"no call belongs to the layer {layers[reached]}")
    return stage_of


def _layer(node: fx.Node, pattern: re.Pattern) -> str | None:
    for path, _ in reversed(list((node.meta.get("nn_module_stack") or {}).values())):
        match = pattern.match(path)
        if match:
            return match.group(1)
    return None


def _crossing(graph: fx.Graph, stage_of: dict[fx.Node, int], stage: int,
              layers: list[str]) -> fx.Node:
    """Returns the one value of stages up to `stage` that later stages read."""
    found = [node for node, s in stage_of.items()
             if s <= stage and any(stage_of.get(user, -1) > stage for user in node.users)]
    where = f"the cut before {layers[stage] if stage < len(layers) else 'the head'}"
    if len(found) != 1:
        values = "; ".join(f"{n.name} = {graphs.name_of(n.target)} of {graphs.place_of(n)}"
                           for n in found)
        raise errors.unsupported(f"{len(found)} values cross {where}, and only one can: "
                                 f"{values or 'none'}. Let a layer read only what the layer before "
                                 f"returns: add the values up, or compute one again in each layer")
    return found[0]


class _Copier:
    """Copies the part of a graph that computes one stage's output into a graph of its own."""

    def __init__(self, stage_of: dict[fx.Node, int], stage: int, activation: fx.Node | None):
        self.stage_of, self.stage, self.activation = stage_of, stage, activation
        self.needed: set[fx.Node] = set()

    def is_size_of_activation(self, node: fx.Node) -> int | None:
        """Returns the dimension of the activation that has the size `node`, if it has."""
        if self.activation is None or node.target is not _sym_size:
            return None
        sizes = list(self.activation.meta["val"].shape)
        value = node.meta["val"]
        return next((d for d, size in enumerate(sizes)
                     if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr), None)

    def collect(self, node: fx.Node) -> None:
        """Marks all nodes of the stage that compute `node`, without recursion."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in self.needed:
                continue
            self.needed.add(node)
            if node.op == "placeholder" or node is self.activation:
                continue
            if self.is_size_of_activation(node) is not None:
                self.needed.add(self.activation)
                continue
            if self.stage_of.get(node, self.stage) != self.stage:
                raise AssertionError(f"{node.name} crosses a cut")
            waiting.extend(node.all_input_nodes)

    def in_order(self, learned: list[fx.Node]) -> list[fx.Node]:
        """Returns the calls in the order of the text: those that depend on weights as they were
        traced, each after the values without weights that it is the first to read. So a value that
        all stages compute has the same place in equal stages."""
        ordered: dict[fx.Node, None] = {}
        for last in learned:
            waiting = [last] if last in self.needed and last is not self.activation else []
            while waiting:
                node = waiting[-1]
                inputs = [] if self.is_size_of_activation(node) is not None else [
                    n for n in node.all_input_nodes
                    if n.op == "call_function" and n is not self.activation and n not in ordered]
                if inputs:
                    waiting.extend(reversed(inputs))
                    continue
                ordered[waiting.pop()] = None
        return list(ordered)


def _extract(name: str, graph: fx.Graph, inputs: Inputs, stage_of: dict[fx.Node, int], stage: int,
             activation: fx.Node | None, output: fx.Node) -> Stage:
    copier = _Copier(stage_of, stage, activation)
    copier.collect(output)
    body = copier.in_order([n for n in graph.nodes if n in stage_of])
    new = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    if activation is not None:
        copied[activation] = _placeholder(new, "activation", activation)
    groups: list[list[str]] = []
    for kind in (inputs.parameters, inputs.constants, inputs.columns):
        used = _used(body, kind, copier)
        if kind is inputs.columns:
            used.sort(key=list(kind).index)
        for node_name in used:
            node = next(n for n in graph.nodes if n.name == node_name)
            copied[node] = _placeholder(new, node_name, node)
        groups.append([kind[n] for n in used])
    sizes: dict[Any, fx.Node] = {}
    for node in body:
        dimension = copier.is_size_of_activation(node)
        if dimension is None:
            copied[node] = new.node_copy(node, lambda n: copied[n])
        else:
            if dimension not in sizes:
                sizes[dimension] = new.call_function(_sym_size, (copied[activation], dimension))
                sizes[dimension].meta = dict(node.meta)
            copied[node] = sizes[dimension]
    new.output(copied[output])
    return Stage(name, new, activation is not None, *groups)


def _placeholder(graph: fx.Graph, name: str, of: fx.Node) -> fx.Node:
    node = graph.placeholder(name)
    node.meta = dict(of.meta)
    return node


def _used(body: list[fx.Node], kind: dict[str, str], copier: _Copier) -> list[str]:
    """Returns the placeholders of a kind that the calls read, in the order of their first use."""
    used: dict[str, None] = {}
    for node in body:
        if copier.is_size_of_activation(node) is not None:
            continue
        for n in node.all_input_nodes:
            if n.op == "placeholder" and n.name in kind:
                used[n.name] = None
    return list(used)
