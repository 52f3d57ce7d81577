"""Writes the metrics of a run as an offline run of Weights & Biases.

    python -m eps_metrics.wandb_run DIR [--project=NAME] [--name=NAME]

DIR is the output folder of eps train. The run lies in DIR/wandb, and `wandb sync` sends it. Nothing
is sent here. The whole history is written each time, and replaces what an earlier call wrote: the
run keeps its id, so that a run that was continued stays one run.
"""

import argparse
import json
import logging
import os
import pathlib
import secrets
import shutil
import sys
from typing import Any, Iterator

_USAGE, _INVALID, _MISSING = 64, 65, 66
_ID_FILE = "eps-run-id"  # in DIR/wandb
_NO_METRIC = ("step", "term", "version", "skipped")
_TRAIN_NAMES = {"lr": "learning_rate"}  # as in TensorBoard's event files


class ToolError(Exception):
    """What ends the tool, with its exit code."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors have the exit code of usage."""

    def error(self, message: str) -> None:
        raise ToolError(_USAGE, f"{self.prog}: {message}")


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ToolError(_MISSING, f"metrics.wandb needs the package wandb: {sys.executable} cannot "
                        f"import it ({error}); third_party/install/setup_models.sh installs a "
                        f"Python that has it, and EPS_PYTHON names another one") from error
    return wandb


def named(line: dict[str, Any]) -> dict[str, float]:
    """Returns the figures of a line of metrics.jsonl as train/NAME or eval/NAME. Those that are not
    finite, null in the file, are left out."""
    figures = {}
    for key, value in line.items():
        if key in _NO_METRIC or value is None:
            continue
        if key.startswith("eval_"):
            figures["eval/" + key.removeprefix("eval_")] = value
        else:
            figures["train/" + _TRAIN_NAMES.get(key, key)] = value
    return figures


def rows(path: pathlib.Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (step, figures) in order. A step and its evaluation are one row, because a step of
    wandb cannot be written twice. A last line that is not complete is left out: its run goes on."""
    step, figures = None, {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break
        try:
            line = json.loads(text)
            of_step = int(line["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(_INVALID, f"{path}: line {number}: expected an object with a step, "
                            f"found {text[:60].strip()}") from error
        if of_step != step:
            if step is not None:
                yield step, figures
            step, figures = of_step, {}
        figures.update(named(line))
    if step is not None:
        yield step, figures


def _settings_of_run(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the configuration that the newest checkpoint keeps; empty without one."""
    import yaml
    try:
        newest = (folder / "latest").read_text(encoding="utf-8").strip()
        text = (folder / newest / "eps" / "config.yaml").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return yaml.safe_load(text) or {}


def _run_id(folder: pathlib.Path) -> str:
    path = folder / _ID_FILE
    if not path.exists():
        path.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def write(folder: pathlib.Path, project: str, name: str) -> pathlib.Path:
    """Writes the run and returns its folder. Errors: MISSING without metrics.jsonl or wandb."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise ToolError(_MISSING, f"{metrics}: no such file; expected the output folder of a run")
    history = list(rows(metrics))
    wandb = _import_wandb()
    place = folder / "wandb"
    place.mkdir(exist_ok=True)
    run_id = _run_id(place)
    for earlier in place.glob(f"offline-run-*-{run_id}"):
        shutil.rmtree(earlier)
    settings = wandb.Settings(
        console="off", disable_code=True, disable_git=True, save_code=False, silent=True,
        x_disable_meta=True, x_disable_stats=True, x_save_requirements=False)
    run = wandb.init(mode="offline", dir=folder, project=project, id=run_id,
                     name=name or folder.resolve().name, config=_settings_of_run(folder),
                     settings=settings)
    for step, figures in history:
        run.log(figures, step=step)
    written = pathlib.Path(run.settings.sync_dir)
    run.finish()
    return written


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="eps wandb", description="Writes the metrics of a run as an offline run "
                     "of Weights & Biases, DIR/wandb/offline-run-*, which `wandb sync` sends.")
    parser.add_argument("folder", metavar="DIR", nargs="?", help="output folder of eps train")
    parser.add_argument("--project", default="eps", help="the project at wandb (default: eps)")
    parser.add_argument("--name", default="", help="the run's name (default: that of the folder)")
    parser.add_argument("--check", action="store_true", help="only check that wandb is installed")
    arguments = parser.parse_args(argv)
    if arguments.folder is None and not arguments.check:
        parser.error("DIR is missing: the output folder of eps train")
    return arguments


def main(argv: list[str]) -> int:
    """Runs the tool; returns its exit code."""
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # sends nothing, also not of itself
    try:
        arguments = _parse(argv)
        if arguments.check:
            _import_wandb()
            return 0
        written = write(pathlib.Path(arguments.folder), arguments.project, arguments.name)
    except ToolError as error:
        print(f"eps wandb: {error}", file=sys.stderr)
        return error.code
    print(f"wandb: {written} (send it with `wandb sync {written}`)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
