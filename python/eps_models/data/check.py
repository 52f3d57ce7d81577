"""Checks an .epsd file completely: the header, the digests, and what its numbers may be."""

import array
import hashlib
from typing import Iterator

from eps_models.data import epsd, errors, layout
from eps_models.data.progress import Progress

_BLOCK = 1 << 20


def verify(path: str) -> epsd.Reader:
    """Returns the file if all of docs/formats/data.md holds. Errors: MISSING, or INVALID with the
    place and both values."""
    reader = epsd.Reader(path)
    progress = Progress("verify")
    end = layout.HEADER_BYTES
    for column in reader.header.columns:
        if any(reader.bytes_between(end, column.offset)):
            raise errors.invalid(f"{path}: a byte between {end} and {column.offset} is not 0")
        end = column.end()
        _check_digest(reader, column, progress)
    if reader.header.find("tokens"):
        _check_ids(reader)
    if reader.header.kind == "stream":
        _check_ends(reader)
    else:
        for i in range(reader.header.samples):
            _check_row(reader, i)
            if i % 1024 == 0:
                progress.show(f"row {i:,} of {reader.header.samples:,}")
    progress.clear()
    return reader


def _check_digest(reader: epsd.Reader, column: layout.Column, progress: Progress) -> None:
    found = hashlib.sha256()
    for first in range(0, column.bytes, _BLOCK):
        found.update(reader.raw(column, first, min(_BLOCK, column.bytes - first)))
        progress.show(f"column {column.name}, {first >> 20:,} of {column.bytes >> 20:,} MiB")
    if found.hexdigest() != column.sha256:
        raise errors.invalid(
            f"{reader.path}: column {column.name} (bytes {column.offset} to {column.end()}) is "
            f"damaged: it has SHA-256 {found.hexdigest()}, the header says {column.sha256}")


def _number_blocks(reader: epsd.Reader, name: str) -> Iterator[tuple[int, array.array]]:
    """Yields (first element, numbers) of a column in blocks."""
    column = reader.header.find(name)
    count = column.bytes // layout.ITEM_BYTES[column.dtype]
    for first in range(0, count, _BLOCK):
        yield first, reader.numbers(name, first, min(_BLOCK, count - first))


def _check_ids(reader: epsd.Reader) -> None:
    limit = reader.header.vocab_size
    for first, ids in _number_blocks(reader, "tokens"):
        if max(ids) >= limit:
            place = next(i for i, token in enumerate(ids) if token >= limit)
            raise errors.invalid(f"{reader.path}: token {first + place} has id {ids[place]}; "
                                 f"vocab_size is {limit}")


def _check_ends(reader: epsd.Reader) -> None:
    last = 0
    for first, ends in _number_blocks(reader, "document_ends"):
        for i, end in enumerate(ends, start=first):
            if end <= last:
                raise errors.invalid(f"{reader.path}: document {i} ends at token {end}, the one "
                                     f"before at {last}")
            last = end
    tokens = reader.header.find("tokens")
    count = tokens.bytes // layout.ITEM_BYTES[tokens.dtype]
    if last != count:
        raise errors.invalid(f"{reader.path}: the last document ends at token {last} of {count}")


def _check_row(reader: epsd.Reader, i: int) -> None:
    def refuse(what: str) -> None:
        raise errors.invalid(f"{reader.path}: row {i}: {what}")
    header = reader.header
    if header.find("tokens") is None:
        return
    if header.find("lengths"):
        length = reader.numbers("lengths", i, 1)[0]
        if not 1 <= length <= header.seq_len:
            refuse(f"length {length}; it is 1 to {header.seq_len}")
    row = reader.row(i)
    length = len(row.tokens)
    padding = reader.numbers("tokens", i * header.seq_len + length, header.seq_len - length)
    if any(padding):
        refuse("the padding is not 0")
    for name in ("loss_mask", "document_starts"):
        column = header.find(name)
        if column is None:
            continue
        width = (header.seq_len + 7) // 8
        packed = int.from_bytes(reader.raw(column, i * width, width), "little")
        if packed >> length:
            refuse(f"{name} has a bit after its {length} tokens")
        if name == "document_starts" and not packed & 1:
            refuse("no document starts at its first token")
    if header.find("labels") is None and not _learns(row):
        refuse("it has no token to learn")


def _learns(row: epsd.Row) -> bool:
    """Returns whether a token of the row follows another of its document and is not masked."""
    learned = row.mask if row.mask is not None else b"\1" * len(row.tokens)
    return any(mask and not start for mask, start in zip(learned, row.starts))


def summary(reader: epsd.Reader) -> str:
    """Returns a line about a file: its kind, sizes and tokenizer."""
    header = reader.header
    parts = [f"{header.samples:,} " + ("documents" if header.kind == "stream" else
                                       f"rows of {header.seq_len:,}" if header.seq_len else "rows")]
    tokens = header.find("tokens")
    if tokens:
        count = tokens.bytes // layout.ITEM_BYTES[tokens.dtype]
        if header.find("lengths"):
            places = count
            count = sum(sum(n) for _, n in _number_blocks(reader, "lengths"))
            parts.append(f"{count:,} tokens, {100 * (1 - count / places):.1f} % padding")
        else:
            parts.append(f"{count:,} tokens")
        parts.append(f"{tokens.dtype}, vocabulary {header.vocab_size:,}")
    if header.image:
        parts.append(f"images {header.image.channels} x {header.image.height} x "
                     f"{header.image.width}")
    if header.tokenizer:
        parts.append(f"tokenizer {header.tokenizer[:16]}")
    others = [c.name for c in header.columns
              if c.name not in ("tokens", "document_ends", "lengths")]
    if others:
        parts.append("with " + ", ".join(others))
    return f"{header.kind}: " + "; ".join(parts)
