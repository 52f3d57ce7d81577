"""The header of an .epsd file (docs/formats/data.md): its fields, its text and its rules."""

import dataclasses
import hashlib
import json
import re
import struct
from typing import Any

from eps_models.data import errors

MAGIC = b"EPSDATA1"
VERSION = 1
HEADER_BYTES = 4096
ALIGNMENT = 4096
_PREFIX = struct.Struct("<8sII32s")  # magic, version, bytes of the JSON, SHA-256 of the header
MAX_JSON_BYTES = HEADER_BYTES - _PREFIX.size
MAX_U16_VOCABULARY = 1 << 16
MAX_SAMPLES = 1 << 36
MAX_SEQ_LEN = 1 << 24
MAX_IMAGE_SIDE = 1 << 13
MAX_VOCABULARY = 1 << 31
MAX_SPECIAL_TOKENS = 256

ITEM_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "f32": 4}
# The columns of each kind in the order of the file, with the types that each may have.
COLUMNS = {
    "stream": {"tokens": ("u16", "u32"), "document_ends": ("u64",)},
    "rows": {"tokens": ("u16", "u32"), "loss_mask": ("bit",), "document_starts": ("bit",),
             "lengths": ("u32",), "token_types": ("u8",), "labels": ("i32", "f32"),
             "pixels": ("u8",)},
}
_PER_TOKEN = ("tokens", "loss_mask", "document_starts", "token_types")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Column:
    """One array of the file."""
    name: str
    dtype: str
    offset: int
    bytes: int
    sha256: str

    def end(self) -> int:
        return self.offset + self.bytes


@dataclasses.dataclass(frozen=True)
class Image:
    """The shape of an image, and how its bytes become numbers: (byte / 255 - mean) / std."""
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def bytes(self) -> int:
        return self.channels * self.height * self.width


@dataclasses.dataclass(frozen=True)
class Masking:
    """The tokens of a tokenizer that masking needs to know: the one that hides others, and those
    that it never hides, in increasing order."""
    mask_token: int
    special_tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Header:
    """The fields of a header. `samples`: rows, or documents of a stream. `seq_len` and `vocab_size`
    are 0 without tokens; a stream has no seq_len. `tokenizer`: SHA-256 of the tokenizer's files, or
    empty. `masking`: None if the tokenizer has no mask token."""
    kind: str
    samples: int
    seq_len: int
    vocab_size: int
    tokenizer: str
    provenance: dict[str, Any]
    columns: tuple[Column, ...]
    image: Image | None = None
    masking: Masking | None = None

    def find(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


def token_dtype(vocab_size: int) -> str:
    """Returns the smallest type that holds every id."""
    return "u16" if vocab_size <= MAX_U16_VOCABULARY else "u32"


def aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def row_bytes(column: str, dtype: str, seq_len: int, image: Image | None) -> int:
    """Returns the bytes of one row in a column of kind `rows`."""
    if dtype == "bit":
        return (seq_len + 7) // 8
    if column == "pixels":
        return image.bytes()
    return ITEM_BYTES[dtype] * (seq_len if column in _PER_TOKEN else 1)


def to_bytes(header: Header) -> bytes:
    """Returns the 4,096 bytes of a header. Errors: USAGE if its text does not fit."""
    fields = dataclasses.asdict(header)
    for optional in ("image", "masking"):
        if fields[optional] is None:
            del fields[optional]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False,
                      allow_nan=False).encode()
    if len(text) > MAX_JSON_BYTES:
        raise errors.usage(f"the header's text has {len(text)} bytes; {MAX_JSON_BYTES} fit")
    def whole(digest: bytes) -> bytes:
        head = _PREFIX.pack(MAGIC, VERSION, len(text), digest) + text
        return head + bytes(HEADER_BYTES - len(head))
    return whole(hashlib.sha256(whole(bytes(32))).digest())


def parse(raw: bytes, path: str, file_bytes: int) -> Header:
    """Reads the first bytes of a file of `file_bytes`. Errors: INVALID with the place and both
    values for everything that docs/formats/data.md forbids."""
    def refuse(what: str):
        raise errors.invalid(f"{path}: header: {what}")
    if raw[:len(MAGIC)] != MAGIC:
        refuse(f"begins with {raw[:8]!r}; an .epsd file begins with {MAGIC!r}")
    if len(raw) < HEADER_BYTES:
        refuse(f"the file has {len(raw)} bytes; a header has {HEADER_BYTES:,}")
    _, version, length, digest = _PREFIX.unpack_from(raw)
    if version != VERSION:
        refuse(f"version {version}; this program reads version {VERSION}")
    found = hashlib.sha256(raw[:16] + bytes(32) + raw[_PREFIX.size:HEADER_BYTES]).digest()
    if found != digest:
        refuse(f"damaged: it has SHA-256 {found.hex()}, its bytes 16 to 47 say {digest.hex()}")
    if length > MAX_JSON_BYTES:
        refuse(f"the text has {length} bytes; {MAX_JSON_BYTES:,} fit")
    try:
        header = _from_fields(json.loads(raw[_PREFIX.size:_PREFIX.size + length]))
    except (ValueError, TypeError, KeyError) as error:
        refuse(f"the text does not have the fields of the format: {error}")
    wrong = _wrong(header, file_bytes)
    if wrong:
        refuse(wrong)
    return header


def _from_fields(fields: dict[str, Any]) -> Header:
    columns = tuple(Column(**column) for column in fields.pop("columns"))
    image = fields.pop("image", None)
    if image is not None:
        image = Image(**{**image, "mean": tuple(image["mean"]), "std": tuple(image["std"])})
    masking = fields.pop("masking", None)
    if masking is not None:
        masking = Masking(**{**masking, "special_tokens": tuple(masking["special_tokens"])})
    header = Header(columns=columns, image=image, masking=masking, **fields)
    numbers = [header.samples, header.seq_len, header.vocab_size]
    numbers += [masking.mask_token, *masking.special_tokens] if masking else []
    numbers += [n for c in columns for n in (c.offset, c.bytes)]
    if any(type(n) is not int or n < 0 for n in numbers):
        raise TypeError("a number is not a non-negative integer")
    if not isinstance(header.provenance, dict):
        raise TypeError("provenance is not an object")
    return header


def _wrong(header: Header, file_bytes: int) -> str:
    """Returns the first rule that a header breaks; empty if it keeps all."""
    if header.kind not in COLUMNS:
        return f"kind {header.kind!r}; the kinds are {', '.join(COLUMNS)}"
    if not 1 <= header.samples <= MAX_SAMPLES:
        return f"samples is {header.samples}; it is 1 to 2^36"
    if header.tokenizer and not _SHA256.fullmatch(header.tokenizer):
        return f"tokenizer {header.tokenizer!r} is no SHA-256"
    return _wrong_sizes(header) or _wrong_columns(header) or _wrong_places(header, file_bytes)


def _wrong_sizes(header: Header) -> str:
    tokens = header.find("tokens")
    if header.kind == "stream" and (tokens is None or header.find("document_ends") is None):
        return "a stream has the columns tokens and document_ends"
    if tokens is None and header.find("pixels") is None:
        return "rows have the column tokens or pixels"
    has_length = tokens is not None and header.kind == "rows"
    if has_length != (1 <= header.seq_len <= MAX_SEQ_LEN) or header.seq_len > MAX_SEQ_LEN:
        return f"seq_len is {header.seq_len}; it is 1 to 2^24 for rows of tokens, else 0"
    if (tokens is not None) != (header.vocab_size > 0) or header.vocab_size > MAX_VOCABULARY:
        return f"vocab_size is {header.vocab_size}; it is 1 to 2^31 with tokens, else 0"
    if tokens is not None and tokens.dtype != token_dtype(header.vocab_size):
        return (f"tokens are {tokens.dtype}; a vocabulary of {header.vocab_size} ids is stored as "
                f"{token_dtype(header.vocab_size)}")
    image = header.image
    if (image is None) != (header.find("pixels") is None):
        return "image and the column pixels need each other"
    if image and not all(1 <= n <= MAX_IMAGE_SIDE for n in
                         (image.channels, image.height, image.width)):
        return f"image has the shape {image.channels} x {image.height} x {image.width}"
    if image and (len(image.mean) != image.channels or len(image.std) != image.channels or
                  not all(s > 0 for s in image.std)):
        return "image needs one mean and one positive std for each channel"
    return _wrong_masking(header)


def _wrong_masking(header: Header) -> str:
    if header.masking is None:
        return ""
    special = header.masking.special_tokens
    if len(special) > MAX_SPECIAL_TOKENS or list(special) != sorted(set(special)):
        return f"special_tokens is no list of at most {MAX_SPECIAL_TOKENS} ids in increasing order"
    highest = max([header.masking.mask_token, *special])
    if highest >= header.vocab_size:
        return f"masking has the id {highest}; the vocabulary has {header.vocab_size} ids"
    return ""


def _wrong_columns(header: Header) -> str:
    known = COLUMNS[header.kind]
    names = [column.name for column in header.columns]
    if names != [name for name in known if name in names]:
        return (f"columns {', '.join(names)}; {header.kind} may have {', '.join(known)}, in this "
                f"order")
    for c in header.columns:
        if c.dtype not in known[c.name]:
            return f"column {c.name} is {c.dtype}; it may be {' or '.join(known[c.name])}"
        if c.name in (*_PER_TOKEN, "lengths") and header.kind == "rows" and header.seq_len == 0:
            return f"column {c.name} needs the column tokens"
        if not _SHA256.fullmatch(c.sha256):
            return f"column {c.name}: {c.sha256!r} is no SHA-256"
        if header.kind == "rows" or c.name == "document_ends":
            size = header.samples * (8 if header.kind == "stream" else row_bytes(
                c.name, c.dtype, header.seq_len, header.image))
            if c.bytes != size:
                return f"column {c.name} has {c.bytes} bytes; {header.samples} samples have {size}"
        elif c.bytes == 0 or c.bytes % ITEM_BYTES[c.dtype] != 0:
            return f"column {c.name} has {c.bytes} bytes of {c.dtype}"
    return ""


def _wrong_places(header: Header, file_bytes: int) -> str:
    end = HEADER_BYTES
    for column in header.columns:
        if column.offset != aligned(end):
            return f"column {column.name} begins at {column.offset}; its place is {aligned(end)}"
        end = column.end()
    if file_bytes != end:
        return f"the file has {file_bytes} bytes; its columns end at {end}"
    return ""
