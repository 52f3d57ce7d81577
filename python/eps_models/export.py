"""Exports a model as a program of stages: python -m eps_models.export DIR --out=OUT.

Reads DIR/config.json and the headers of DIR/*.safetensors; writes OUT/eps/program.json, and if OUT
is not DIR, links beside it to the files of DIR, so that OUT is a folder of the model. DIR may also
be the name of a model in the cache of the Hugging Face hub, or FILE.py:FUNCTION, which returns a
torch.nn.Module. The exit code is 0, or that of the error: 64 for wrong arguments, 65 for a model
that cannot be described, 66 for a missing file.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import traceback

from eps_models import errors

errors.require_packages()

import torch  # noqa: E402
import transformers  # noqa: E402

from eps_models import build, cut, describe, files, graph, hub, lora, program, trace  # noqa: E402

VERSION = "1"
# Of a folder of a model: its configuration, weights, tokenizer and templates.
_LINKED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_TESTED = {torch: "2.11.0", transformers: "5.23.0"}


def made_by() -> str:
    """Returns the versions of what wrote a program, as one line."""
    return (f"eps_models {VERSION}, torch {torch.__version__}, "
            f"transformers {transformers.__version__}")


def export(request: build.Request) -> str:
    """Returns the text of the model's program. Errors: ExportError with what to change."""
    model = build.build(request)
    traced = trace.trace(model, request)
    inputs = cut.inputs_of(traced, model.columns)
    stages = cut.cut(graph.simplify(traced), inputs,
                     cut.layer_paths(model.module, request.layers))
    folder = pathlib.Path(request.source)
    stored = files.names_in(folder) if folder.is_dir() else set()
    return program.text_of(describe.describe(model, request, stages, traced, stored, made_by()))


def write(text: str, out: pathlib.Path) -> pathlib.Path:
    """Writes OUT/eps/program.json: the whole file or nothing."""
    path = out / "eps" / "program.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".program.json.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    return path


def link(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Links in `out` to the files of a model's folder. Files that `out` has itself stay."""
    if out.resolve() == folder.resolve():
        return
    for file in sorted(f for pattern in _LINKED for f in folder.glob(pattern) if f.is_file()):
        place = out / file.name
        if place.is_symlink():
            place.unlink()
        if not place.exists():
            place.symlink_to(file.absolute())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say which model is meant."""
    parser.add_argument("source", metavar="DIR",
                        help="folder with config.json, ORG/NAME of a model in the Hugging Face "
                             "cache, or FILE.py:FUNCTION")
    parser.add_argument("--task", choices=sorted(build.TASKS),
                        help="default: that of the class that config.json names, else causal_lm")
    parser.add_argument("--variant", choices=build.VARIANTS,
                        help="causal: one document per row (default of causal_lm); packed: "
                             "several; encoder: with padding (default of the other tasks)")
    parser.add_argument("--dtype", choices=sorted(build.DTYPES), default="float32")
    parser.add_argument("--layers", default="", metavar="NAME",
                        help="module list to cut at, if the tool finds no or another one")
    parser.add_argument("--experts", choices=build.EXPERTS, default=build.EXPERTS[0],
                        help="batched_mm copies the matrices of each token: small models only")
    parser.add_argument("--trust-remote-code", action="store_true",
                        help="run the Python code in DIR")
    parser.add_argument("--lora-r", type=int, default=0, metavar="N",
                        help="rank of LoRA adapters; all other weights are then frozen (0: none)")
    parser.add_argument("--lora-alpha", type=float, default=0, metavar="X",
                        help="their scale is alpha / r (default: 2 r)")
    parser.add_argument("--lora-dropout", type=float, default=0, metavar="P",
                        help="dropout of what the adapters read")
    parser.add_argument("--lora-targets", default="", metavar="NAME,NAME",
                        help="layers that get adapters, or all-linear (default: what peft chooses)")


def request_of(arguments: argparse.Namespace) -> build.Request:
    """Returns the request. Errors: USAGE if the variant is none of the task's, MISSING for a model
    that the cache of the hub does not hold, or only in part."""
    try:
        source = str(hub.folder_of(arguments.source, needs_weights=True))
    except hub.NotInCache as error:
        raise errors.missing(str(error)) from error
    task = arguments.task or build.task_of(source)
    variants = build.TASKS[task].variants
    variant = arguments.variant or variants[0]
    if variant not in variants:
        raise errors.usage(f"--task={task} has no variant {variant}; choose "
                           f"{' or '.join(variants)}")
    if arguments.lora_r < 0 or arguments.lora_alpha < 0 or not 0 <= arguments.lora_dropout < 1:
        raise errors.usage("--lora-r and --lora-alpha are at least 0, --lora-dropout is below 1")
    adapters = lora.Lora(arguments.lora_r, arguments.lora_alpha, arguments.lora_dropout,
                         tuple(name for name in arguments.lora_targets.split(",") if name))
    return build.Request(source, task, variant,
                         build.DTYPES[arguments.dtype], arguments.layers, arguments.experts,
                         arguments.trust_remote_code, adapters)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eps model export", description=__doc__.split("\n")[0])
    add_arguments(parser)
    parser.add_argument("--out", default="", metavar="DIR",
                        help="folder to write to; it gets links to the model's files (default: "
                             "DIR)")
    arguments = parser.parse_args(argv)
    request = request_of(arguments)
    for package, version in _TESTED.items():
        if package.__version__.split("+")[0] != version:
            print(f"eps model: tested with {package.__name__} {version}, but here is "
                  f"{package.__version__}", file=sys.stderr)
    is_folder = request.source == arguments.source and not build.is_function(request.source)
    if not arguments.out and not is_folder:
        raise errors.usage("--out=FOLDER is missing: where to write the program of "
                           + arguments.source)
    out = pathlib.Path(arguments.out or request.source)
    written = write(export(request), out)
    link(pathlib.Path(request.source), out)
    print(written)
    return 0


def run(command, argv: list[str]) -> int:
    """Runs a command line; returns its exit code. An ExportError is printed as one line, any other
    error with the calls that led to it."""
    try:
        return command(argv)
    except errors.ExportError as error:
        print(f"eps model: {error}", file=sys.stderr)
        return error.code
    except SystemExit as end:  # argparse ends with 2
        return errors.USAGE if end.code else 0
    except KeyboardInterrupt:
        return errors.INTERRUPTED
    except Exception:  # 1 would mean that a comparison found a difference
        traceback.print_exc()
        return errors.INTERNAL


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
