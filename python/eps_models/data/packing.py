"""Packs documents into rows of one length: best fit, in the order of the documents."""

import array
import bisect
from typing import Iterator

from eps_models.data.epsd import Document, Row

# Rows that are open at once. More leave less padding; the search takes the logarithm.
OPEN_ROWS = 1024


class Packer:
    """Puts each document into the open row that it fills best, or into a new one.

    A document longer than a row is cut into pieces. The result depends on the order of the
    documents only.
    """

    def __init__(self, seq_len: int):
        self._seq_len = seq_len
        self._open: list[tuple[int, int]] = []  # (free tokens, number of the row), sorted
        self._rows: dict[int, Row] = {}
        self._next = 0

    def add(self, document: Document) -> Iterator[Row]:
        """Adds a document; yields the rows that this completes."""
        for piece in pieces(document, self._seq_len):
            yield from self._place(piece.tokens, piece.mask)

    def finish(self) -> Iterator[Row]:
        """Yields the rows that are still open, the oldest first."""
        for number in sorted(self._rows):
            yield self._rows[number]
        self._rows.clear()
        self._open.clear()

    def _place(self, tokens: array.array, mask: bytes | None) -> Iterator[Row]:
        place = bisect.bisect_left(self._open, (len(tokens), -1))
        if place < len(self._open):
            free, number = self._open.pop(place)
        else:
            free, number = self._seq_len, self._next
            self._next += 1
            self._rows[number] = Row(array.array("I"), None if mask is None else b"", b"")
        row = self._rows[number]
        row.tokens.extend(tokens)
        row.starts += b"\1" + bytes(len(tokens) - 1)
        if mask is not None:
            row.mask += b"\0" + mask[1:]
        free -= len(tokens)
        if free < 2:
            yield self._rows.pop(number)
            return
        bisect.insort(self._open, (free, number))
        if len(self._open) > OPEN_ROWS:  # the fullest waits longest for its match
            yield self._rows.pop(self._open.pop(0)[1])


def pieces(document: Document, seq_len: int) -> Iterator[Document]:
    """Cuts a document into pieces that fit into a row. A piece with nothing to learn is dropped."""
    for begin in range(0, len(document.tokens), seq_len):
        piece = slice(begin, begin + seq_len)
        mask = None if document.mask is None else document.mask[piece]
        if learns(document.tokens[piece], mask):
            yield Document(document.tokens[piece], mask)


def learns(tokens: array.array, mask: bytes | None) -> bool:
    """Returns whether a document has a token to learn: one that follows another and is not
    masked."""
    return len(tokens) > 1 and (mask is None or 1 in mask[1:])


def single(document: Document) -> Row:
    """Returns a document as a row of its own."""
    count = len(document.tokens)
    mask = document.mask
    if mask is not None and count:
        mask = b"\0" + mask[1:]
    return Row(document.tokens, mask, b"\1"[:count] + bytes(max(0, count - 1)), document.types,
               document.label, document.pixels)
