"""Writes a cache of the Hugging Face hub, as huggingface_hub lays it out."""

import hashlib
import os
import pathlib
import shutil

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


def write(cache: pathlib.Path, name: str, folder: pathlib.Path,
          commit: str = COMMIT) -> pathlib.Path:
    """Puts the files of a folder into the cache, as the branch main of a model; returns the
    snapshot."""
    root = cache / ("models--" + name.replace("/", "--"))
    snapshot = root / "snapshots" / commit
    for path in (root / "refs", root / "blobs", snapshot):
        path.mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(commit)
    for file in sorted(p for p in folder.iterdir() if p.is_file()):
        blob = root / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, blob)
        os.symlink(os.path.relpath(blob, snapshot), snapshot / file.name)
    return snapshot


def make_read_only(cache: pathlib.Path) -> None:
    """Takes away the permission to write; root may write nevertheless."""
    for path in (cache, *cache.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)


def make_writable(cache: pathlib.Path) -> None:
    """Gives the permission to write back."""
    for path in (cache, *cache.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def contents(cache: pathlib.Path) -> list[str]:
    """Returns the paths of everything in the cache, to notice a write."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*"))
