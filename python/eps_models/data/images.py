"""Reads images as rows of bytes, with the number of their class."""

import array
import json
import os
import pathlib
from typing import Any, Iterator

from eps_models.data import errors, labels, records, vocabulary
from eps_models.data.epsd import Document
from eps_models.data.errors import BadRow
from eps_models.data.layout import Image

_MODES = {1: "L", 3: "RGB"}


def rows(inputs: list[str]) -> Iterator[records.Record]:
    """Yields (place, {image: path, label: number}). An input is a folder with one folder for each
    class, numbered in the order of their names, or a JSONL or CSV file with the fields image (a
    path, from the file's folder) and label."""
    for path in inputs:
        if not os.path.isdir(path):
            folder = pathlib.Path(path).parent
            for place, record in records.open_records([path], ["image", "label"]):
                yield place, (folder, record)
            continue
        classes = sorted(p for p in pathlib.Path(path).iterdir() if p.is_dir())
        if not classes:
            raise errors.invalid(f"{path} has no folders; it holds one for each class")
        for label, folder in enumerate(classes):
            for file in sorted(p for p in folder.rglob("*") if p.is_file()):
                yield str(file), (pathlib.Path(), {"image": str(file), "label": label})


def shape(side: str, channels: int, processor: str) -> Image:
    """Returns the shape of --size=HEIGHTxWIDTH (or one number), and mean and standard deviation of
    the preprocessor_config.json of --processor=DIR (0 and 1 without it)."""
    parts = side.lower().split("x")
    if len(parts) not in (1, 2) or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise errors.usage(f"--size={side}: give HEIGHTxWIDTH, such as 224x224")
    mean, std = [0.0] * channels, [1.0] * channels
    if processor:
        folder = vocabulary.folder_of(processor, "--processor")
        path = pathlib.Path(folder) / "preprocessor_config.json"
        try:
            config = json.loads(path.read_bytes())
        except OSError as error:
            raise errors.missing(f"--processor: {path}: {error.strerror}") from error
        except ValueError as error:
            raise errors.invalid(f"--processor: {path}: {error}") from error
        if config.get("do_normalize", True):
            mean, std = config.get("image_mean", mean), config.get("image_std", std)
        if len(mean) != channels or len(std) != channels:
            raise errors.invalid(f"--processor: {path} normalizes {len(mean)} channels; "
                                 f"--channels is {channels}")
    return Image(channels, int(parts[0]), int(parts[-1]), tuple(map(float, mean)),
                 tuple(map(float, std)))


def document(place: str, record: Any, image: Image) -> Document:
    """Returns an image, resized, as bytes [channels, height, width]. Errors: BadRow."""
    pil = _import_pil()
    folder, fields = record
    fields = records.parsed(place, fields)
    path = folder / records.text_field(place, fields, "image")
    try:
        with pil.open(path) as picture:
            resized = picture.convert(_MODES[image.channels]).resize(
                (image.width, image.height), resample=2)  # bilinear
    except (OSError, ValueError, SyntaxError) as error:
        raise BadRow(place, f"{path} is no image that can be read: {error}") from error
    planes = [channel.tobytes() for channel in resized.split()]
    return Document(array.array("I"), label=labels.class_of(place, fields, "label", []),
                    pixels=b"".join(planes))


def _import_pil() -> Any:
    try:
        from PIL import Image as pil  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise errors.missing(
            f"images need Python's pillow ({error}): install the one that "
            f"third_party/install/models_requirements.txt pins") from error
    return pil
