"""Traces a model with torch.export for any batch and any length."""

import contextlib
import io
import re

import torch

from eps_models import build, errors

# Sizes of the example. No two are equal, so that no two sizes are taken for one.
BATCH, TOKENS = 3, 11


class Scores(torch.nn.Module):
    """The model as a function from columns to scores."""

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model = module
        self._names = names

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        named = dict(zip(self._names, columns))
        config = getattr(self.model, "config", None)
        if getattr(config, "use_cache", None) is not None:
            named["use_cache"] = False
        if getattr(config, "is_encoder_decoder", False):
            named["decoder_input_ids"] = named["input_ids"]
        result = self.model(**named)
        if isinstance(result, torch.Tensor):
            return result
        if not hasattr(result, "logits"):
            raise errors.unsupported(f"forward of {type(self.model).__name__} returns a "
                                     f"{type(result).__name__}; let it return the scores only, one "
                                     f"tensor [B, T, vocabulary]")
        return result.logits


def example(model: build.Model, dtype: torch.dtype, batch: int = BATCH,
            tokens: int = TOKENS) -> dict[str, torch.Tensor]:
    """Returns columns of that size. The values are legal and otherwise meaningless."""
    values = {
        "input_ids": lambda: torch.zeros(batch, tokens, dtype=torch.int64),
        "position_ids": lambda: torch.arange(tokens).expand(batch, tokens).contiguous(),
        "attention_mask": lambda: torch.ones(batch, tokens, dtype=torch.int64),
        "token_type_ids": lambda: torch.zeros(batch, tokens, dtype=torch.int64),
        "pixel_values": lambda: torch.zeros(batch, *image_shape(model), dtype=dtype),
    }
    return {name: values[name]() for name in model.columns}


def image_shape(model: build.Model) -> list[int]:
    """Returns [channels, height, width] of an image; empty if the model reads none."""
    if "pixel_values" not in model.columns:
        return []
    size = getattr(model.config, "image_size", None)
    channels = getattr(model.config, "num_channels", None)
    if size is None or channels is None:
        raise errors.unsupported(f"{model.architecture}: its config has no image_size or "
                                 f"num_channels, so the shape of an image is unknown")
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return [channels, height, width]


def trace(model: build.Model, request: build.Request) -> torch.export.ExportedProgram:
    """Traces the model in train mode. Errors: UNSUPPORTED, with the reason that torch gives, if the
    model branches on data or only works for some batches or lengths."""
    dynamic = torch.export.Dim.DYNAMIC
    columns = example(model, request.dtype)
    sizes = tuple({0: dynamic} if name == "pixel_values" else {0: dynamic, 1: dynamic}
                  for name in columns)
    wrapped = Scores(model.module, model.columns).train()
    try:
        # torch prints the graph when it fails.
        with build.masks_of(request.variant), contextlib.redirect_stdout(
                io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return torch.export.export(wrapped, tuple(columns.values()),
                                       dynamic_shapes=(sizes,), strict=False)
    except errors.ExportError:
        raise
    except Exception as error:  # torch raises errors of many classes
        raise errors.unsupported(f"{model.architecture} cannot be traced: "
                                 f"{_reason(error)}") from error


def _reason(error: BaseException) -> str:
    text = str(error)
    if "data-dependent" in text.lower() or "GuardOnDataDependent" in type(error).__name__:
        where = re.findall(r'File "([^"]+)", line (\d+)', text)
        place = f" ({where[-1][0].rpartition('/')[2]}:{where[-1][1]})" if where else ""
        return (f"it branches on data{place}: {_first_line(text)}; compute both cases and choose "
                f"with torch.where")
    if text.startswith("Constraints violated"):
        places = re.findall(r"^ +- (.+)", text, re.MULTILINE)
        return f"it works for some sizes only: {places[0] if places else _first_line(text)}"
    return _first_line(text) or type(error).__name__


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].rstrip(".")


def longest(program: torch.export.ExportedProgram) -> int:
    """Returns the largest number of tokens for which a trace holds; 0 if there is no bound.

    Errors: UNSUPPORTED if it does not hold for every batch and every shorter row. The smallest
    traced size is 2; families_test shows that the result also holds for 1.
    """
    bound = 0
    column = next(n for n in program.graph.nodes
                  if n.name == program.graph_signature.user_inputs[0]).meta["val"]
    batch = column.shape[0].node.expr
    for symbol, limits in program.range_constraints.items():
        is_limited = limits.upper < 2**40
        if int(limits.lower) > 2 or (is_limited and symbol == batch):
            raise errors.unsupported(f"the model has a branch on a size: its trace holds for "
                                     f"{limits.lower} <= {symbol} <= {limits.upper} only")
        if is_limited:
            bound = min(bound or int(limits.upper), int(limits.upper))
    return bound
