"""Reads and writes .epsd files (docs/formats/data.md). Standard library only."""

import array
import dataclasses
import hashlib
import mmap
import os
import pathlib
import sys
from typing import Any

from eps_models.data import errors, layout

_CODES = {"u8": "B", "bit": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "f32": "f"}
_BIT_DIGITS = bytes.maketrans(b"\0\1", b"01")
_DIGIT_BITS = bytes.maketrans(b"01", b"\0\1")


def little_endian(dtype: str, values: Any) -> bytes:
    """Returns numbers as the bytes of a column. Errors: OverflowError for one that does not fit."""
    numbers = array.array(_CODES[dtype], values)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()


def bits(flags: bytes) -> bytes:
    """Packs bytes of 0 and 1 into bits, the first into the lowest bit of the first byte."""
    return int(flags.translate(_BIT_DIGITS)[::-1] or b"0", 2).to_bytes((len(flags) + 7) // 8,
                                                                        "little")


def flags_of(packed: bytes, count: int) -> bytes:
    """Returns the first `count` bits as bytes of 0 and 1."""
    digits = format(int.from_bytes(packed, "little"), f"0{count}b").encode()
    return digits[::-1][:count].translate(_DIGIT_BITS)


@dataclasses.dataclass
class Document:
    """One document, or one row that is not packed. `mask`: a byte of 0 or 1 for each token, 1 if
    the token is learned; None: all are. `types`: a byte for each token, or None."""
    tokens: array.array
    mask: bytes | None = None
    types: bytes | None = None
    label: int | float | None = None
    pixels: bytes | None = None


@dataclasses.dataclass
class Row:
    """One row of tokens, without its padding. `starts`: a byte for each token, 1 at the first token
    of a document."""
    tokens: array.array
    mask: bytes | None
    starts: bytes
    types: bytes | None = None
    label: int | float | None = None
    pixels: bytes | None = None


class Reader:
    """A file, mapped into memory. Opening checks the header and all sizes."""

    def __init__(self, path: str):
        self.path = path
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.header = layout.parse(file.read(layout.HEADER_BYTES), path, size)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise errors.missing(f"{path}: {error.strerror}") from error

    def raw(self, column: layout.Column, first: int = 0, count: int | None = None) -> bytes:
        """Returns `count` bytes of a column from its byte `first` on; by default all."""
        begin = column.offset + first
        return self._map[begin:column.end() if count is None else begin + count]

    def bytes_between(self, first: int, end: int) -> bytes:
        return self._map[first:end]

    def numbers(self, name: str, first: int, count: int) -> array.array:
        """Returns `count` numbers of a column from its element `first` on."""
        column = self.header.find(name)
        width = layout.ITEM_BYTES[column.dtype]
        numbers = array.array(_CODES[column.dtype], self.raw(column, first * width, count * width))
        if sys.byteorder != "little":
            numbers.byteswap()
        return numbers

    def document(self, i: int) -> Document:
        """Returns document i of a stream."""
        begin = self.numbers("document_ends", i - 1, 1)[0] if i > 0 else 0
        end = self.numbers("document_ends", i, 1)[0]
        return Document(self.numbers("tokens", begin, end - begin))

    def row(self, i: int) -> Row:
        """Returns row i."""
        header = self.header
        length = header.seq_len
        if header.find("lengths"):
            length = self.numbers("lengths", i, 1)[0]
        def flags(name: str) -> bytes | None:
            column = header.find(name)
            if column is None:
                return None
            width = (header.seq_len + 7) // 8
            return flags_of(self.raw(column, i * width, width), header.seq_len)[:length]
        starts = bytearray(flags("document_starts") or bytes(length))
        if starts:
            starts[0] = 1
        tokens, types = array.array("I"), None
        if header.find("tokens"):
            tokens = array.array("I", self.numbers("tokens", i * header.seq_len, length))
        if header.find("token_types"):
            types = bytes(self.numbers("token_types", i * header.seq_len, length))
        label = self.numbers("labels", i, 1)[0] if header.find("labels") else None
        pixels = None
        if header.image:
            size = header.image.bytes()
            pixels = self.raw(header.find("pixels"), i * size, size)
        return Row(tokens, flags("loss_mask"), bytes(starts), types, label, pixels)


class Writer:
    """Writes a file beside its final name, as .NAME.PID.*, and renames it when it is complete.

    Use as a context manager: without finish(), everything written is removed. Errors: OSError.
    """

    def __init__(self, path: str, kind: str, dtypes: dict[str, str]):
        self._path = pathlib.Path(path)
        self._hidden = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._kind = kind
        self._dtypes = dtypes
        # The first column is written in its place; the others wait in files of their own.
        self._files = {name: open(f"{self._hidden}.{name}", "w+b") for name in dtypes}
        self._main = next(iter(self._files.values()))
        self._main.seek(layout.HEADER_BYTES)
        self._sums = {name: hashlib.sha256() for name in dtypes}
        self._sizes = dict.fromkeys(dtypes, 0)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        for name, file in self._files.items():
            file.close()
            pathlib.Path(f"{self._hidden}.{name}").unlink(missing_ok=True)

    def append(self, name: str, values: Any) -> None:
        """Appends numbers to a column."""
        self.append_bytes(name, little_endian(self._dtypes[name], values))

    def append_bytes(self, name: str, data: bytes) -> None:
        self._files[name].write(data)
        self._sums[name].update(data)
        self._sizes[name] += len(data)

    def finish(self, **fields: Any) -> layout.Header:
        """Completes the file with these fields of the header and gives it its name."""
        columns = []
        end = layout.HEADER_BYTES
        for name, dtype in self._dtypes.items():
            offset = layout.aligned(end)
            columns.append(layout.Column(name, dtype, offset, self._sizes[name],
                                         self._sums[name].hexdigest()))
            end = columns[-1].end()
            if self._files[name] is not self._main:
                self._copy(name, offset)
        header = layout.Header(kind=self._kind, columns=tuple(columns), **fields)
        self._main.seek(0)
        self._main.write(layout.to_bytes(header))
        self._main.truncate(end)
        self._main.flush()
        os.fsync(self._main.fileno())
        os.replace(self._main.name, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return header

    def _copy(self, name: str, offset: int) -> None:
        source = self._files[name]
        source.seek(0)
        self._main.seek(offset)
        while block := source.read(1 << 20):
            self._main.write(block)


class RowWriter:
    """Writes rows of one length to the columns that the writer has."""

    def __init__(self, writer: Writer, dtypes: dict[str, str], seq_len: int):
        self._writer = writer
        self._dtypes = dtypes
        self._seq_len = seq_len
        self.rows = 0
        self.tokens = 0

    def add(self, row: Row) -> None:
        padding = self._seq_len - len(row.tokens)
        values = {
            "tokens": lambda: row.tokens + array.array("I", bytes(4 * padding)),
            "lengths": lambda: [len(row.tokens)],
            "token_types": lambda: (row.types or bytes(len(row.tokens))) + bytes(padding),
            "labels": lambda: [row.label],
            "pixels": lambda: row.pixels,
        }
        flags = {"loss_mask": row.mask, "document_starts": row.starts}
        for name in self._dtypes:
            if name in flags:
                mask = flags[name] if flags[name] is not None else b"\1" * len(row.tokens)
                self._writer.append_bytes(name, bits(mask + bytes(padding)))
            else:
                self._writer.append(name, values[name]())
        self.rows += 1
        self.tokens += len(row.tokens)
