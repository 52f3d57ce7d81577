"""Finds the sizes of a cut model: its vocabulary, its longest row, its classes."""

from typing import Any

import torch
from torch import fx

from eps_models import build, cut, errors, graph as graphs, interpret, measure, program


def describe(model: build.Model, request: build.Request, stages: list[cut.Stage],
             sizes: measure.Sizes, constants: list[torch.Tensor]) -> dict[str, Any]:
    """Returns the format's `shape`. `constants`: those of the first stage."""
    head = build.TASKS[request.task].head
    scores = stages[-1].output().meta["val"]
    dimensions = 3 if head == "tokens" else 2
    if scores.dim() != dimensions or isinstance(scores.shape[-1], torch.SymInt):
        raise errors.unsupported(f"the scores of {model.architecture} have the shape "
                                 f"{list(scores.shape)}; {request.task} needs {dimensions} "
                                 f"dimensions")
    return {
        "vocab_size": _vocabulary(stages[0]),
        "max_seq_len": _max_seq_len(model, request, stages[0], constants,
                                    sizes.longest),
        "width": sizes.width,
        "classes": scores.shape[-1] if head == "classes" else 0,
        "tokens": sizes.tokens,
        "image": sizes.image,
    }


def _tables(stage: cut.Stage) -> list[tuple[fx.Node, fx.Node]]:
    """Returns (weight, indices) of each embedding of a stage."""
    weights = set(stage.weight_nodes())
    return [(node.args[0], node.args[1]) for node in stage.calls()
            if graphs.name_of(node.target) == "aten::embedding" and node.args[0] in weights]


def _column(stage: cut.Stage, node: fx.Node) -> str:
    """Returns the column whose values a node has in another shape; empty if it computes them."""
    while graphs.name_of(node.target) in ("aten::view", "aten::reshape", "aten::to"):
        node = node.args[0]
    columns = stage.placeholders()[-len(stage.columns):]
    return stage.columns[columns.index(node)] if node in columns else ""


def _vocabulary(stage: cut.Stage) -> int:
    """Returns the rows of the table in which token ids are looked up; 0 if the model reads none."""
    if "input_ids" not in stage.columns:
        return 0
    rows = [weight.meta["val"].shape[0] for weight, indices in _tables(stage)
            if _column(stage, indices) == "input_ids"]
    if not rows:
        raise errors.unsupported("input_ids are not looked up in a table of weights")
    return min(rows)


def _max_seq_len(model: build.Model, request: build.Request, stage: cut.Stage,
                 constants: list[torch.Tensor], bound: int) -> int:
    """Returns the longest row: what the config says, and fewer if a table of positions has fewer
    rows or, without masks, a layer sees fewer positions. 0: no bound."""
    if request.task == "image":
        return 0
    longest = getattr(model.config, "max_position_embeddings", None) or bound
    longest = min(longest, bound or longest)
    window = model.sliding_window()
    has_masks = getattr(model.config, "_attn_implementation", None) == "eager"
    if request.variant == "causal" and window and not has_masks:
        longest = min(longest or window, window)
    for weight, indices in _tables(stage):
        rows = weight.meta["val"].shape[0]
        column = _column(stage, indices)
        if column == "position_ids":
            longest = min(longest or rows, rows)
        elif not column:
            longest = longest or rows
            excess = _largest_index(stage, indices, constants, longest, model.config) - (rows - 1)
            longest -= max(excess, 0)
    return longest


def _largest_index(stage: cut.Stage, indices: fx.Node, constants: list[torch.Tensor], tokens: int,
                   config: Any) -> int:
    """Computes indices of a table for one row of that many tokens, none of them padding."""
    text = program.calls_of(stage)
    inputs = len(stage.placeholders())
    text["output"] = inputs + stage.calls().index(indices)
    text["calls"] = text["calls"][:text["output"] - inputs + 1]
    weights = [torch.zeros((), dtype=n.meta["val"].dtype).expand(n.meta["val"].shape)
               for n in stage.weight_nodes()]  # their values do not matter, and take no memory
    token = ((getattr(config, "pad_token_id", None) or 0) + 1) % _vocabulary(stage)
    columns = {"input_ids": torch.full((1, tokens), token),
               "position_ids": torch.arange(tokens)[None],
               "attention_mask": torch.ones(1, tokens, dtype=torch.int64),
               "token_type_ids": torch.zeros(1, tokens, dtype=torch.int64)}
    with torch.no_grad():
        return int(interpret.run(text, None, weights, constants, columns).max())
