"""Finds models by name in the cache of the Hugging Face hub on this machine. Downloads nothing.

`hf download` and transformers fill the cache: CACHE/models--ORG--NAME/refs/REVISION holds a commit,
and snapshots/COMMIT links to the files of that commit. base/config/hub_cache.h finds the same
folders for eps.
"""

import json
import os
import pathlib
import re

_PART = r"\w(?:(?!--|\.\.)[\w.-]){0,94}(?<![.-])"
_NAME = re.compile(rf"({_PART}(?:/{_PART})?)(?:@((?!/)(?:(?!\.\.)[\w./-])+))?", re.ASCII)
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"


class NotInCache(Exception):
    """A model, or a file of it, that the cache does not hold. The message has the command that
    downloads it."""


def is_name(text: str) -> bool:
    """Returns whether a text can name a model of the hub: NAME or ORG/NAME, perhaps with
    @REVISION."""
    return bool(_NAME.fullmatch(text)) and not text.endswith(".json")


def cache_folder() -> pathlib.Path:
    """Returns the folder of the cache: HF_HUB_CACHE, else HF_HOME/hub, else the default of
    huggingface_hub."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return pathlib.Path(os.environ[variable]).expanduser()
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(above, "huggingface")
    return pathlib.Path(home).expanduser() / "hub"


def folder_of(text: str, needs_weights: bool) -> pathlib.Path:
    """Returns the folder that a text names: itself, or if there is none the snapshot of the model
    of this name. A text that can be no name is returned as it is.

    `needs_weights`: the snapshot must hold config.json and all weights. Errors: NotInCache.
    """
    if os.path.exists(text) or not is_name(text):
        return pathlib.Path(text)
    name, revision = _NAME.fullmatch(text).groups(default="main")
    command = f"hf download {name}" + (f" --revision {revision}" if revision != "main" else "")
    root = cache_folder() / ("models--" + name.replace("/", "--"))
    reference = root / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = root / "snapshots" / commit
    if not is_name(f"{name}@{commit}") or not snapshot.is_dir():
        raise NotInCache(f"{text} is no file or folder, and the cache of the Hugging Face hub "
                         f"({cache_folder()}) does not hold a model of this name"
                         f"{' and revision' if revision != 'main' else ''}; to download it: "
                         f"{command}")
    missing = _missing(snapshot, needs_weights)
    if missing:
        raise NotInCache(f"{snapshot / missing} is missing: the cache holds {name} in part; to "
                         f"download the rest: {command}" + (
                             "; if the hub has no such file, save the model with save_pretrained "
                             "of transformers" if missing == _WEIGHTS else ""))
    return snapshot


def _missing(snapshot: pathlib.Path, needs_weights: bool) -> str:
    """Returns the first file that should be there and is not; empty if none is."""
    dangling = sorted(entry.name for entry in snapshot.iterdir() if not entry.exists())
    if dangling or not needs_weights:
        return next(iter(dangling), "")
    if not (snapshot / "config.json").is_file():
        return "config.json"
    if (snapshot / _WEIGHTS).is_file():
        return ""
    if not (snapshot / _INDEX).is_file():
        return _WEIGHTS
    shards = set(json.loads((snapshot / _INDEX).read_text())["weight_map"].values())
    return next((name for name in sorted(shards) if not (snapshot / name).is_file()), "")
