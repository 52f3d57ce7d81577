"""Compares a program with its model: python -m eps_models.check DIR.

Exports the model of DIR, computes scores for rows of different lengths by the program and by
transformers, with the weights in DIR, and compares them bit for bit. A module of FILE.py:FUNCTION
is compared with random weights. The exit code is 0 if the scores are equal, 1 if not, and otherwise
that of eps_models.export.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

from eps_models import errors

errors.require_packages()

import safetensors.torch  # noqa: E402
import torch  # noqa: E402

from eps_models import build, export, files, measure, staged, trace  # noqa: E402

_BATCH = 2
_LENGTHS = (1, 17, 40)


def load(folder: pathlib.Path, request: build.Request) -> build.Model:
    """Returns the model of a folder with its weights, in train mode. Errors: MISSING if it has
    none."""
    model = build.build(request)
    if not files.names_in(folder):
        raise errors.missing(f"{folder} has no model.safetensors")
    options: dict[str, Any] = {"dtype": request.dtype,
                               "trust_remote_code": request.trust_remote_code}
    if getattr(model.config, "_experts_implementation", None) == request.experts:
        options["experts_implementation"] = request.experts
    if request.task == "regress":
        options["num_labels"] = 1
    module = type(model.module).from_pretrained(folder, **options)
    for parameter in module.parameters():
        # Sums depend on the alignment of memory, and files are mapped where they begin.
        parameter.data = parameter.data.clone()
    return dataclasses.replace(model, module=module.train())


def with_random_weights(request: build.Request) -> build.Model:
    """Returns the module of a FILE.py:FUNCTION with random weights, in train mode."""
    model = build.build(request)
    parameters = list(model.module.parameters())
    values = measure.sample_weights([p.shape for p in parameters], request.dtype, seed=0)
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            parameter.copy_(value)
    return model


def stored_weights(folder: pathlib.Path) -> staged.Tensors:
    """Returns all tensors in a folder's *.safetensors."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    weights: staged.Tensors = {}
    for name in names:
        weights.update(safetensors.torch.load_file(folder / name))
    return weights


def scores(model: build.Model, columns: staged.Tensors) -> torch.Tensor:
    """Returns the scores that transformers computes in eval mode."""
    module = model.module.eval()
    try:
        with torch.no_grad():
            return trace.Scores(module, tuple(columns))(*columns.values())
    finally:
        module.train()


def columns_of(model: build.Model, request: build.Request, text: dict[str, Any], batch: int,
               tokens: int, seed: int) -> staged.Tensors:
    """Returns random columns: rows padded at the right by different counts, and, if packed, with
    two documents each."""
    generator = torch.Generator().manual_seed(seed)
    columns = trace.example(model, request.dtype, batch, tokens)
    size = (batch, tokens)
    if "input_ids" in columns:
        ids = torch.randint(text["shape"]["vocab_size"], size, generator=generator)
        padding = getattr(model.config, "pad_token_id", None)
        if padding is not None:  # inside a row, it would move the positions of some models
            ids[ids == padding] = (padding + 1) % text["shape"]["vocab_size"]
        columns["input_ids"] = ids
    if "token_type_ids" in columns:
        columns["token_type_ids"] = torch.randint(2, size, generator=generator)
    if "attention_mask" in columns:
        lengths = torch.tensor([max(tokens - 3 * (i + 1), 1) for i in range(batch)])
        columns["attention_mask"] = (torch.arange(tokens) < lengths[:, None]).to(torch.int64)
    if "position_ids" in columns and tokens > 1:
        first = 2 * tokens // 3
        row = torch.cat([torch.arange(first), torch.arange(tokens - first)])
        columns["position_ids"] = row.expand(size).contiguous()
    if "pixel_values" in columns:
        columns["pixel_values"].normal_(generator=generator)
    return columns


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a check."""
    architecture: str
    stages: int
    programs: int
    logits_equal: bool
    largest_difference: float


def check(request: build.Request) -> Result:
    """Exports a model and compares. Errors: as export, and MISSING for a folder without weights."""
    ours = staged.StagedModel(export.export(request))
    if build.is_function(request.source):
        model = with_random_weights(request)
        weights = {t["name"]: model.module.get_parameter(t["name"]).detach()
                   for t in ours.text["tensors"]}
    else:
        folder = pathlib.Path(request.source)
        model = load(folder, request)
        weights = ours.gather(stored_weights(folder))
    largest, equal = 0.0, True
    longest = ours.text["shape"]["max_seq_len"] or max(_LENGTHS)
    for tokens in sorted({min(length, longest) for length in _LENGTHS}):
        columns = columns_of(model, request, ours.text, _BATCH, tokens, seed=tokens)
        theirs = scores(model, columns)
        mine = ours.forward(weights, columns)[-1]
        equal = equal and torch.equal(mine, theirs)
        largest = max(largest, float((mine - theirs).abs().max()))
    return Result(ours.text["architecture"], len(ours.text["stages"]), len(ours.text["programs"]),
                  equal, largest)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eps model check", description=__doc__.split("\n")[0])
    export.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    request = export.request_of(arguments)
    is_own = build.is_function(request.source)
    if not is_own and not pathlib.Path(request.source).is_dir():
        raise errors.missing(f"there is no folder {request.source}; a check needs its weights")
    result = check(request)
    if arguments.json:
        print(json.dumps({"architecture": result.architecture, "stages": result.stages,
                          "programs": result.programs, "logits_equal": result.logits_equal}))
    else:
        difference = "" if result.logits_equal else f" by up to {result.largest_difference:g}"
        print(f"{result.architecture}: {result.stages} stages, {result.programs} programs; the "
              f"scores {'equal those' if result.logits_equal else 'differ from those'} of "
              f"{request.source if is_own else 'transformers'}{difference}")
    return 0 if result.logits_equal else 1


if __name__ == "__main__":
    sys.exit(export.run(main, sys.argv[1:]))
