"""Splits an .epsd file in two by the hash of its documents."""

import hashlib
import os
import pathlib

from eps_models.data import check, epsd, errors, layout, packing
from eps_models.data.progress import Progress

_WHOLE = 1 << 64


def names(path: str) -> tuple[str, str]:
    """Returns the names of the two files: F.train.epsd and F.eval.epsd beside F.epsd."""
    stem = pathlib.Path(path)
    stem = stem.with_name(stem.name.removesuffix(".epsd"))
    return f"{stem}.train.epsd", f"{stem}.eval.epsd"


def is_held_out(content: bytes, fraction: float) -> bool:
    """Returns whether a document belongs to the held-out file: equal documents always do alike."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") < fraction * _WHOLE


def split(path: str, fraction: float, overwrite: bool) -> tuple[str, str]:
    """Writes both files and returns their names. Errors: as check.verify; USAGE if one of the files
    exists, INVALID if one would be empty."""
    if not 0 < fraction < 1:
        raise errors.usage(f"--eval={fraction}: give the held-out share, between 0 and 1")
    outputs = names(path)
    for output in outputs:
        if os.path.exists(output) and not overwrite:
            raise errors.usage(f"{output} exists; remove it, or give --overwrite")
    reader = check.verify(path)
    header = reader.header
    dtypes = {column.name: column.dtype for column in header.columns}
    with epsd.Writer(outputs[0], header.kind, dtypes) as train, \
            epsd.Writer(outputs[1], header.kind, dtypes) as held_out:
        sides = [_Side(writer, header, dtypes) for writer in (train, held_out)]
        progress = Progress("split")
        for i in range(header.samples):
            for document in _documents(reader, i):
                sides[is_held_out(_content(document), fraction)].add(document)
            progress.show(f"sample {i:,} of {header.samples:,}")
        progress.clear()
        for side, output in zip(sides, outputs):
            side.finish()
            if side.samples == 0:
                raise errors.invalid(f"{path} has too few documents for --eval={fraction}: "
                                     f"{output} would be empty")
        for side, writer, held in zip(sides, (train, held_out), (False, True)):
            writer.finish(samples=side.samples, seq_len=header.seq_len,
                          vocab_size=header.vocab_size, tokenizer=header.tokenizer,
                          image=header.image, masking=header.masking,
                          provenance={**header.provenance, "held_out": fraction if held else
                                      1 - fraction})
    return outputs


def _content(document: epsd.Document) -> bytes:
    return epsd.little_endian("u32", document.tokens) + (document.pixels or b"")


def _documents(reader: epsd.Reader, i: int) -> list[epsd.Document]:
    """Returns the documents of sample i. Those of a packed row are apart again."""
    if reader.header.kind == "stream":
        return [reader.document(i)]
    row = reader.row(i)
    if reader.header.find("document_starts") is None:
        return [epsd.Document(row.tokens, row.mask, row.types, row.label, row.pixels)]
    starts = [place for place, start in enumerate(row.starts) if start]
    return [epsd.Document(row.tokens[begin:end], None if row.mask is None else row.mask[begin:end])
            for begin, end in zip(starts, [*starts[1:], len(row.tokens)])]


class _Side:
    """One of the two files."""

    def __init__(self, writer: epsd.Writer, header: layout.Header, dtypes: dict[str, str]):
        self._writer = writer
        self._rows = None
        self._packer = None
        self._tokens = 0
        self.samples = 0
        if header.kind == "rows":
            self._rows = epsd.RowWriter(writer, dtypes, header.seq_len)
            if "document_starts" in dtypes:
                self._packer = packing.Packer(header.seq_len)

    def add(self, document: epsd.Document) -> None:
        if self._rows is None:
            self._tokens += len(document.tokens)
            self._writer.append("tokens", document.tokens)
            self._writer.append("document_ends", [self._tokens])
            self.samples += 1
        elif self._packer is None:
            self._add_row(packing.single(document))
        else:
            for row in self._packer.add(document):
                self._add_row(row)

    def finish(self) -> None:
        for row in self._packer.finish() if self._packer else ():
            self._add_row(row)

    def _add_row(self, row: epsd.Row) -> None:
        self._rows.add(row)
        self.samples += 1
