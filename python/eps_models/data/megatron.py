"""Reads indexed datasets of Megatron-LM: PREFIX.bin holds token ids, and PREFIX.idx says where.

PREFIX.idx is little-endian: the 9 bytes MMIDIDX, 0, 0; u64 version 1; u8 type of the ids; u64
number of sequences S; u64 number of document borders D; S times i32 tokens of a sequence; S times
i64 the place of its first byte in PREFIX.bin; D times i64 the sequence with which a document
begins, the last of them S.
"""

import array
import dataclasses
import mmap
import os
import struct
from typing import Iterator

from eps_models.data import errors, records
from eps_models.data.errors import BadRow

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
# Type codes of the format, and those of Python's array.
_TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}
_ENDS = (".bin", ".idx")
_NO_ID = 2**32 - 1  # above every vocabulary


@dataclasses.dataclass(frozen=True)
class Index:
    """The content of an index, whose places lie within its PREFIX.bin."""
    prefix: str
    kind: str  # type code of array
    lengths: array.array
    pointers: array.array
    borders: array.array


def prefix_of(path: str) -> str:
    """Returns the PREFIX of PREFIX, PREFIX.bin or PREFIX.idx."""
    return path[:-len(_ENDS[0])] if path.endswith(_ENDS) else path


def read_index(prefix: str) -> Index:
    """Reads PREFIX.idx. Errors: MISSING without one of the files, INVALID with what is wrong."""
    path = prefix + ".idx"
    for each in (path, prefix + ".bin"):
        if not os.path.isfile(each):
            raise errors.missing(f"there is no {each}; a dataset of Megatron-LM is PREFIX.bin and "
                                 f"PREFIX.idx")
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
        magic, version, code, sequences, borders = (
            _HEADER.unpack(header) if len(header) == _HEADER.size else (b"", 0, 0, 0, 0))
        if magic != _MAGIC or version != _VERSION or code not in _TYPES:
            raise errors.invalid(f"{path} is no index of Megatron-LM of version {_VERSION} with "
                                 f"integer ids")
        size, expected = os.path.getsize(path), _HEADER.size + 12 * sequences + 8 * borders
        if size != expected:
            raise errors.invalid(f"{path} has {size:,} bytes; {sequences:,} sequences and "
                                 f"{borders:,} borders of documents take {expected:,} (modes of "
                                 f"multimodal sequences are not read)")
        lengths, pointers, ends = (_numbers(file, kind, count) for kind, count in
                                   (("i", sequences), ("q", sequences), ("q", borders)))
    index = Index(prefix, _TYPES[code], lengths, pointers, ends)
    _check(index, path)
    return index


def _numbers(file, kind: str, count: int) -> array.array:
    numbers = array.array(kind)
    numbers.frombytes(file.read(count * numbers.itemsize))
    return numbers


def _check(index: Index, path: str) -> None:
    item, room = array.array(index.kind).itemsize, os.path.getsize(index.prefix + ".bin")
    for i, (length, pointer) in enumerate(zip(index.lengths, index.pointers)):
        if length < 0 or pointer < 0 or pointer + length * item > room:
            raise errors.invalid(f"{path}: sequence {i:,} is at byte {pointer:,} and has "
                                 f"{length:,} tokens of {item} bytes, but {index.prefix}.bin has "
                                 f"{room:,} bytes")
    borders = index.borders
    rises = all(a <= b for a, b in zip(borders, borders[1:]))
    if len(borders) < 2 or borders[0] != 0 or borders[-1] != len(index.lengths) or not rises:
        raise errors.invalid(f"{path}: the borders of documents do not lead from 0 to "
                             f"{len(index.lengths):,}")


def documents(inputs: list[str]) -> Iterator[records.Record]:
    """Yields the documents of datasets, each the ids of its sequences as bytes of u32."""
    for prefix in (prefix_of(path) for path in inputs):
        index = read_index(prefix)
        if not os.path.getsize(prefix + ".bin"):
            continue
        with open(prefix + ".bin", "rb") as file, mmap.mmap(
                file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for number, (first, end) in enumerate(zip(index.borders, index.borders[1:])):
                yield f"{prefix}: document {number:,}", _ids(index, content, first, end)


def _ids(index: Index, content: mmap.mmap, first: int, end: int) -> bytes:
    ids = array.array(index.kind)
    for i in range(first, end):
        begin = index.pointers[i]
        ids.frombytes(content[begin:begin + index.lengths[i] * ids.itemsize])
    return array.array("I", (i if 0 <= i <= _NO_ID else _NO_ID for i in ids)).tobytes()


def ids_of(place: str, record: bytes, vocabulary: int) -> array.array:
    """Returns the ids of a document. Errors: BadRow for none, or for one outside the vocabulary."""
    ids = array.array("I")
    ids.frombytes(record)
    if not ids:
        raise BadRow(place, "is an empty document")
    wrong = next((i for i, token in enumerate(ids) if token >= vocabulary), None)
    if wrong is not None:
        found = f"the id {ids[wrong]:,}" if ids[wrong] < _NO_ID else "a negative or too large id"
        raise BadRow(place, f"has {found} at token {wrong:,}; the vocabulary has {vocabulary:,} "
                            f"ids, so the dataset was made with another tokenizer")
    return ids
