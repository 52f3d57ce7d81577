"""Makes an .epsd file from raw files."""

import os
import sys
from typing import Any

from eps_models.data import epsd, errors, layout, packing, parallel, records
from eps_models.data import vocabulary as vocabularies
from eps_models.data.errors import BadRow
from eps_models.data.progress import Progress
from eps_models.data.recipes import Options, RECIPES, Recipe, Texts

_SHOWN_BAD_ROWS = 10
_NAMED_INPUTS = 8
_MAX_NAME = 200


def make(options: Options) -> layout.Header:
    """Makes options.out. Errors: a DataError or OSError; then there is no file of that name."""
    _check(options)
    vocabulary = None
    if options.kind != "images":
        vocabulary = vocabularies.load(options.tokenizer, _template(options.chat_template))
    recipe = RECIPES[options.kind](options, vocabulary)
    with epsd.Writer(options.out, "stream" if recipe.is_stream() else "rows",
                     recipe.columns()) as writer:
        sink = _StreamSink(writer) if recipe.is_stream() else _RowSink(writer, recipe)
        skipped = _run(recipe, sink)
        if sink.samples() == 0:
            raise errors.invalid(f"no documents in {', '.join(options.inputs)[:_MAX_NAME]}"
                                 f"{f' ({skipped:,} bad rows skipped)' if skipped else ''}: "
                                 f"{options.out} is not written")
        return writer.finish(
            samples=sink.samples(), seq_len=0 if recipe.is_stream() else _seq_len(recipe),
            vocab_size=vocabulary.size if vocabulary else 0,
            tokenizer=vocabulary.digest if vocabulary else "", image=recipe.image(),
            masking=vocabulary.masking if vocabulary else None,
            provenance=_provenance(recipe, sink, skipped))


def _seq_len(recipe: Recipe) -> int:
    return 0 if recipe.vocabulary is None else recipe.options.seq_len


def _check(options: Options) -> None:
    if os.path.exists(options.out) and not options.overwrite:
        raise errors.usage(f"--out: {options.out} exists; name another file, or give --overwrite")
    if options.kind == "images" and options.channels not in (1, 3):
        raise errors.usage(f"--channels={options.channels}: 1 (grey) and 3 (red, green, blue) are "
                           f"possible")
    if options.seq_len > layout.MAX_SEQ_LEN:
        raise errors.usage(f"--seq-len={options.seq_len}: a row has at most "
                           f"{layout.MAX_SEQ_LEN:,} tokens")


def _template(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.missing(f"--chat-template: {path}: {error}") from error


class _StreamSink:
    """Appends documents to a stream."""

    def __init__(self, writer: epsd.Writer):
        self._writer = writer
        self.tokens = 0
        self.documents = 0

    def add(self, document: epsd.Document) -> None:
        self._writer.append("tokens", document.tokens)
        self.tokens += len(document.tokens)
        self._writer.append("document_ends", [self.tokens])
        self.documents += 1

    def finish(self) -> None:
        pass

    def samples(self) -> int:
        return self.documents

    def summary(self) -> dict[str, int]:
        return {"documents": self.documents, "tokens": self.tokens}


class _RowSink:
    """Puts documents into rows."""

    def __init__(self, writer: epsd.Writer, recipe: Recipe):
        self._rows = epsd.RowWriter(writer, recipe.columns(), _seq_len(recipe))
        self._packer = packing.Packer(recipe.options.seq_len) if recipe.packs() else None
        self._cuts = isinstance(recipe, Texts)
        self._seq_len = recipe.options.seq_len
        self.documents = 0

    @property
    def tokens(self) -> int:
        return self._rows.tokens

    def add(self, document: epsd.Document) -> None:
        self.documents += 1
        if self._packer:
            for row in self._packer.add(document):
                self._rows.add(row)
        elif self._cuts:
            for piece in packing.pieces(document, self._seq_len):
                self._rows.add(packing.single(piece))
        else:
            self._rows.add(packing.single(document))

    def finish(self) -> None:
        for row in self._packer.finish() if self._packer else ():
            self._rows.add(row)

    def samples(self) -> int:
        return self._rows.rows

    def summary(self) -> dict[str, int]:
        return {"documents": self.documents, "tokens": self.tokens}


def _run(recipe: Recipe, sink: Any) -> int:
    """Passes all documents to the sink in order; returns the number of bad rows skipped."""
    skipped = 0
    progress = Progress("data")
    blocks = records.blocks_of(recipe.read())
    for results in parallel.ordered_map(recipe.documents, blocks, recipe.options.processes):
        for result in results:
            if not isinstance(result, BadRow):
                sink.add(result)
                continue
            if recipe.options.bad_rows == "error":
                progress.clear()
                raise BadRow(result.place, f"{result.reason}; correct the row, or leave such rows "
                                           f"out with --bad-rows=skip")
            skipped += 1
            if skipped <= _SHOWN_BAD_ROWS:
                progress.clear()
                print(f"skipped: {result}", file=sys.stderr)
        progress.show(f"{sink.documents:,} documents, {sink.tokens:,} tokens, "
                      f"{sink.tokens / progress.seconds():,.0f} tokens/s")
    sink.finish()
    progress.clear()
    return skipped


def _provenance(recipe: Recipe, sink: Any, skipped: int) -> dict[str, Any]:
    options = recipe.options
    inputs = [{"name": os.path.basename(path)[:_MAX_NAME],
               "bytes": os.path.getsize(path) if os.path.isfile(path) else 0}
              for path in options.inputs[:_NAMED_INPUTS]]
    made_by = recipe.vocabulary.made_by if recipe.vocabulary else ""
    return {"made_by": "eps data make" + (f", {made_by}" if made_by else ""),
            "format": options.kind, "options": options.as_text()[:_MAX_NAME * 2],
            "inputs": inputs, "input_count": len(options.inputs), "skipped": skipped,
            "tokenizer_folder": options.tokenizer[:_MAX_NAME * 2], **sink.summary()}
