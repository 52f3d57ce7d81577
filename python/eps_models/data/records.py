"""Reads the records of raw files in blocks: text, JSON lines, CSV, Parquet."""

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import lzma
import pathlib
import zlib
from typing import Any, Iterable, Iterator

from eps_models.data import errors
from eps_models.data.errors import BadRow

# A block ends at these sizes. They are fixed, so the blocks do not depend on the processes.
_BLOCK_RECORDS = 256
_BLOCK_CHARACTERS = 1 << 20

# A record and its place for messages: FILE:LINE, or FILE with the number of the row.
Record = tuple[str, Any]
Block = list[Record]


def blocks_of(records: Iterable[Record]) -> Iterator[Block]:
    """Groups records into blocks for the processes."""
    block: Block = []
    characters = 0
    for place, record in records:
        block.append((place, record))
        characters += len(record) if isinstance(record, (str, bytes)) else 0
        if len(block) >= _BLOCK_RECORDS or characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def text_documents(files: list[str], unit: str) -> Iterator[Record]:
    """Yields the documents of text files as bytes: each file, line or paragraph, without the line
    ends between them. Empty ones are left out."""
    for path in files:
        with _reading(path) as file:
            if unit == "file":
                content = file.read()
                if content:
                    yield path, content
            elif unit == "line":
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield f"{path}:{number}", line.rstrip(b"\r\n")
            else:
                yield from _paragraphs(path, file)


def _paragraphs(path: str, lines: Iterable[bytes]) -> Iterator[Record]:
    numbered = enumerate(lines, start=1)
    for blank, group in itertools.groupby(numbered, key=lambda pair: not pair[1].strip()):
        if not blank:
            group = list(group)
            yield f"{path}:{group[0][0]}", b"".join(line for _, line in group).rstrip(b"\r\n")


def rows_of_json(files: list[str]) -> Iterator[Record]:
    """Yields the lines of JSONL files as bytes, without blank ones; `parsed` reads them. A file
    whose first byte is a bracket holds one list, and its elements are the rows."""
    for path in files:
        with _reading(path) as file:
            first = file.readline().lstrip()
        if first.startswith(b"["):
            yield from _elements(path)
        else:
            yield from text_documents([path], "line")


def _elements(path: str) -> Iterator[Record]:
    with _reading(path) as file:
        try:
            rows = json.load(file)
        except ValueError as error:
            raise errors.invalid(f"{path} is no JSON: {error}") from error
    for number, row in enumerate(rows):
        place = f"{path} row {number}"
        yield place, row if isinstance(row, dict) else BadRow(place, "is no JSON object")


def rows_of_csv(files: list[str]) -> Iterator[Record]:
    """Yields the rows of CSV files, and of .tsv files with tabs, as {column: text}. The first row
    names the columns."""
    csv.field_size_limit(1 << 30)
    for path in files:
        delimiter = "\t" if ".tsv" in path.lower() else ","
        with _reading(path) as raw:
            file = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            try:
                names = next(reader, None)
                if not names:
                    raise errors.invalid(f"{path} is empty; its first row names the columns")
                for row in reader:
                    place = f"{path}:{reader.line_num}"
                    if len(row) == len(names):
                        yield place, dict(zip(names, row))
                    elif row:
                        yield place, BadRow(place, f"{len(row)} fields; the first row names "
                                                   f"{len(names)}")
            except (csv.Error, UnicodeDecodeError) as error:
                raise errors.invalid(f"{path}:{reader.line_num}: {error}") from error


def rows_of_parquet(files: list[str], fields: list[str]) -> Iterator[Record]:
    """Yields the rows of Parquet and Arrow files as {column: value}, with these columns only."""
    try:
        import pyarrow  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise errors.missing(
            f"Parquet and Arrow need Python's pyarrow ({error}): install the one that "
            f"third_party/install/models_requirements.txt pins, or convert the file to JSONL"
        ) from error
    for path in files:
        _open(path).close()
        number = 0
        try:
            for batch in _batches(path, fields):
                for row in batch.to_pylist():
                    yield f"{path} row {number}", row
                    number += 1
        except (pyarrow.ArrowException, OSError) as error:
            raise errors.invalid(f"{path}: {error}") from error


def _batches(path: str, fields: list[str]) -> Iterator[Any]:
    """Yields the record batches of a file, by its first bytes: Parquet, Arrow's file or stream."""
    from pyarrow import ipc, parquet  # pylint: disable=import-outside-toplevel
    with open(path, "rb") as file:
        magic = file.read(6)
        if magic.startswith(b"PAR1"):
            with parquet.ParquetFile(path) as table:
                _check_columns(path, table.schema_arrow.names, fields)
                yield from table.iter_batches(batch_size=_BLOCK_RECORDS, columns=fields)
            return
        file.seek(0)
        is_file = magic == b"ARROW1"
        with (ipc.open_file(file) if is_file else ipc.open_stream(file)) as table:
            _check_columns(path, table.schema.names, fields)
            batches = (map(table.get_batch, range(table.num_record_batches)) if is_file else
                       iter(table))
            for batch in batches:
                yield batch.select(fields)


def _check_columns(path: str, names: list[str], fields: list[str]) -> None:
    lacking = [name for name in fields if name not in names]
    if lacking:
        raise errors.invalid(f"{path} has no column {lacking[0]}; it has {', '.join(names)}")


def parsed(place: str, record: Any) -> dict[str, Any]:
    """Returns a record as an object; parses it if it is a line of JSON. Errors: BadRow."""
    if isinstance(record, BadRow):
        raise record
    if isinstance(record, dict):
        return record
    try:
        value = json.loads(record)
    except ValueError as error:  # also invalid UTF-8
        raise BadRow(place, f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRow(place, "is no JSON object")
    return value


def field(place: str, record: dict[str, Any], name: str) -> Any:
    """Returns a field of a record. Errors: BadRow with the fields that there are."""
    if name not in record:
        raise BadRow(place, f"has no field {name}; it has {', '.join(map(str, record)) or 'none'}")
    return record[name]


def text_field(place: str, record: dict[str, Any], name: str) -> str:
    value = field(place, record, name)
    if not isinstance(value, str):
        raise BadRow(place, f"the field {name} is no text but {json.dumps(value)[:60]}")
    return value


def open_records(files: list[str], fields: list[str]) -> Iterator[Record]:
    """Yields the records of JSONL, CSV, TSV, Parquet or Arrow files, by the ends of their names."""
    for path in files:
        endings = [suffix.lower() for suffix in pathlib.PurePath(path).suffixes]
        if endings and endings[-1] in (".gz", ".bz2", ".xz"):
            endings.pop()
        ending = endings[-1] if endings else ""
        if ending in (".jsonl", ".ndjson", ".json"):
            yield from rows_of_json([path])
        elif ending in (".csv", ".tsv"):
            yield from rows_of_csv([path])
        elif ending in (".parquet", ".arrow"):
            yield from rows_of_parquet([path], fields)
        else:
            raise errors.usage(f"{path}: give files that end in .jsonl, .csv, .tsv, .parquet or "
                               f".arrow")


def _open(path: str) -> Any:
    """Opens a file for reading bytes; gzip, bzip2 and xz are unpacked."""
    try:
        with open(path, "rb") as file:
            magic = file.read(6)
        for opener, first in ((gzip.open, b"\x1f\x8b"), (bz2.open, b"BZh"),
                              (lzma.open, b"\xfd7zXZ\0")):
            if magic.startswith(first):
                return opener(path, "rb")
        return open(path, "rb")
    except OSError as error:
        raise errors.missing(f"{path}: {error.strerror}") from error


@contextlib.contextmanager
def _reading(path: str) -> Iterator[Any]:
    """As _open; an unreadable byte is an error that names the file."""
    with _open(path) as file:
        try:
            yield file
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise errors.invalid(f"{path}: cannot be read: {error}") from error
