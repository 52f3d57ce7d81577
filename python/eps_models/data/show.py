"""Shows one sample of an .epsd file as text."""

import array
import itertools
import os
from typing import Iterator

from eps_models.data import epsd, errors, vocabulary as vocabularies

_GREY, _PLAIN = "\x1b[90m", "\x1b[0m"
# Around masked tokens where there are no colours.
_OPEN, _CLOSE = "[-", "-]"


def vocabulary_of(reader: epsd.Reader, given: str) -> vocabularies.Vocabulary | None:
    """Returns the vocabulary of --tokenizer, or the one that the file was made with if its folder
    is still there; None if it is not. Errors: INVALID if it is another tokenizer."""
    header = reader.header
    name = given or header.provenance.get("tokenizer_folder", "")
    if not name:
        return None
    try:
        folder = name if name == vocabularies.BYTES else vocabularies.folder_of(name)
    except errors.DataError:
        if given:
            raise
        return None
    if not given and folder != vocabularies.BYTES and not os.path.isdir(folder):
        return None
    found = "" if folder == vocabularies.BYTES else vocabularies.digest_of(folder)
    if found != header.tokenizer:
        if not given:
            return None
        raise errors.invalid(
            f"--tokenizer: {name} has the digest {found or 'of no tokenizer'}; {reader.path} was "
            f"made with {header.tokenizer or vocabularies.BYTES}")
    return vocabularies.load(name)


def sample_text(reader: epsd.Reader, i: int, vocabulary: vocabularies.Vocabulary | None,
                colours: bool) -> str:
    """Returns sample i: its text, or its ids without a vocabulary, with masked tokens marked.
    Errors: USAGE if there is no such sample."""
    header = reader.header
    if not 0 <= i < header.samples:
        raise errors.usage(f"--sample={i}: {reader.path} has the samples 0 to {header.samples - 1}")
    if header.kind == "stream":
        return _text(reader.document(i).tokens, vocabulary)
    row = reader.row(i)
    lines = []
    for begin, end in _documents(row):
        mask = None if row.mask is None else row.mask[begin:end]
        lines.append(_marked(row.tokens[begin:end], mask, vocabulary, colours))
    if row.types is not None:
        lines.append(f"token_types: {' '.join(map(str, row.types))}")
    if row.label is not None:
        lines.append(f"label: {row.label}")
    if row.pixels is not None:
        image = header.image
        lines.append(f"image: {image.channels} x {image.height} x {image.width}, mean byte "
                     f"{sum(row.pixels) / len(row.pixels):.1f}")
    return "\n".join(lines)


def _documents(row: epsd.Row) -> Iterator[tuple[int, int]]:
    starts = [i for i, start in enumerate(row.starts) if start]
    yield from zip(starts, [*starts[1:], len(row.tokens)])


def _marked(tokens: array.array, mask: bytes | None,
            vocabulary: vocabularies.Vocabulary | None, colours: bool) -> str:
    if mask is None:
        return _text(tokens, vocabulary)
    pieces = []
    for learned, group in itertools.groupby(range(len(tokens)), key=lambda i: mask[i]):
        places = list(group)
        text = _text(tokens[places[0]:places[-1] + 1], vocabulary)
        if learned:
            pieces.append(text)
        elif colours:
            pieces.append(f"{_GREY}{text}{_PLAIN}")
        else:
            pieces.append(f"{_OPEN}{text}{_CLOSE}")
    return ("" if vocabulary else " ").join(pieces)


def _text(tokens: array.array, vocabulary: vocabularies.Vocabulary | None) -> str:
    return vocabulary.decode(tokens) if vocabulary else " ".join(map(str, tokens))
