"""How records of each kind become documents, and which columns they need."""

import array
import dataclasses
import json
from typing import Any, Iterator

from eps_models.data import errors, images, labels, layout, megatron, records
from eps_models.data.epsd import Document
from eps_models.data.errors import BadRow
from eps_models.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `eps data make`; __main__.py explains them."""
    kind: str
    inputs: list[str]
    tokenizer: str = ""
    out: str = ""
    seq_len: int = 0
    pack: bool = True
    documents: str = "file"
    field: str = ""
    fields: tuple[str, ...] = ()
    label: str = ""
    label_type: str = "class"
    classes: tuple[str, ...] = ()
    frame: str = "auto"
    truncate: bool = False
    chat_template: str = ""
    size: str = ""
    channels: int = 3
    processor: str = ""
    bad_rows: str = "error"
    processes: int = 1
    overwrite: bool = False

    def as_text(self) -> str:
        """Returns what was changed of the options that shape the documents."""
        shaping = ("seq_len", "pack", "documents", "field", "fields", "label", "label_type",
                   "classes", "frame", "truncate", "size", "channels", "bad_rows")
        usual = Options(self.kind, [])
        changed = {name: getattr(self, name) for name in shaping
                   if getattr(self, name) != getattr(usual, name)}
        return json.dumps(changed, ensure_ascii=False)


class Recipe:
    """Turns records into documents. Forked processes call `documents`."""

    def __init__(self, options: Options, vocabulary: Vocabulary | None):
        self.options = options
        self.vocabulary = vocabulary

    def is_stream(self) -> bool:
        return False

    def packs(self) -> bool:
        return False

    def image(self) -> layout.Image | None:
        return None

    def columns(self) -> dict[str, str]:
        """Returns {name: dtype} of the columns, in the order of the file."""
        raise NotImplementedError

    def read(self) -> Iterator[records.Record]:
        raise NotImplementedError

    def documents(self, block: records.Block) -> list[Document | BadRow]:
        """Returns what each record of a block becomes."""
        results: list[Document | BadRow] = []
        for place, record in block:
            try:
                results.append(self.document(place, record))
            except BadRow as bad:
                results.append(bad)
            except errors.DataError as error:
                if error.code != errors.INVALID:
                    raise
                results.append(BadRow(place, str(error)))
        return results

    def document(self, place: str, record: Any) -> Document:
        raise NotImplementedError

    def token_columns(self) -> dict[str, str]:
        return {"tokens": layout.token_dtype(self.vocabulary.size)}


class Texts(Recipe):
    """Records that are one text each: a stream, or rows of --seq-len tokens."""

    def is_stream(self) -> bool:
        return self.options.seq_len == 0

    def packs(self) -> bool:
        return self.options.pack

    def columns(self) -> dict[str, str]:
        if self.is_stream():
            return {**self.token_columns(), "document_ends": "u64"}
        starts = {"document_starts": "bit"} if self.options.pack else {}
        return {**self.token_columns(), **starts, "lengths": "u32"}

    def read(self) -> Iterator[records.Record]:
        options = self.options
        if options.kind == "text":
            return records.text_documents(options.inputs, options.documents)
        if options.kind == "jsonl":
            return records.rows_of_json(options.inputs)
        if options.kind == "csv":
            return records.rows_of_csv(options.inputs)
        return records.rows_of_parquet(options.inputs, [options.field])

    def documents(self, block: records.Block) -> list[Document | BadRow]:
        results: list[Any] = [self._text(place, record) for place, record in block]
        good = [i for i, result in enumerate(results) if not isinstance(result, BadRow)]
        frames = self.options.frame == "auto"
        before = array.array("I", self.vocabulary.before if frames else [])
        after = array.array("I", self.vocabulary.after if frames else [])
        for i, ids in zip(good, self.vocabulary.encode([results[i] for i in good])):
            results[i] = (Document(before + ids + after) if ids else
                          BadRow(block[i][0], "is an empty text"))
        return results

    def _text(self, place: str, record: Any) -> str | BadRow:
        try:
            if self.options.kind == "text":
                return record.decode("utf-8")
            return records.text_field(place, records.parsed(place, record), self.options.field)
        except UnicodeDecodeError as error:
            return BadRow(place, f"is not UTF-8: {error}")
        except BadRow as bad:
            return bad


class Megatron(Texts):
    """Documents that are token ids already, in datasets of Megatron-LM: a stream, or rows."""

    def read(self) -> Iterator[records.Record]:
        return megatron.documents(self.options.inputs)

    def documents(self, block: records.Block) -> list[Document | BadRow]:
        return Recipe.documents(self, block)

    def document(self, place: str, record: Any) -> Document:
        return Document(megatron.ids_of(place, record, self.vocabulary.size))


class Chats(Recipe):
    """Records with a list of messages; only what the assistant wrote is learned."""

    def packs(self) -> bool:
        return self.options.pack

    def columns(self) -> dict[str, str]:
        starts = {"document_starts": "bit"} if self.options.pack else {}
        return {**self.token_columns(), "loss_mask": "bit", **starts, "lengths": "u32"}

    def read(self) -> Iterator[records.Record]:
        return records.open_records(self.options.inputs, [self.options.field])

    def document(self, place: str, record: Any) -> Document:
        messages = records.field(place, records.parsed(place, record), self.options.field)
        document = fitted(self.vocabulary.chat(messages), self.options)
        if 1 not in document.mask[1:]:
            raise BadRow(place, f"no token of the assistant is among the first "
                                f"{self.options.seq_len:,}")
        return document


class Pairs(Recipe):
    """Records with one or two texts, and a label."""

    def columns(self) -> dict[str, str]:
        types = {"token_types": "u8"} if self.vocabulary.has_types else {}
        label = {}
        if self.options.label:
            label["labels"] = "i32" if self.options.label_type == "class" else "f32"
        return {**self.token_columns(), "lengths": "u32", **types, **label}

    def read(self) -> Iterator[records.Record]:
        wanted = [*self.options.fields, *([self.options.label] if self.options.label else [])]
        return records.open_records(self.options.inputs, wanted)

    def document(self, place: str, record: Any) -> Document:
        options = self.options
        fields = records.parsed(place, record)
        texts = [records.text_field(place, fields, name) for name in options.fields]
        document = fitted(self.vocabulary.pair(texts[0], texts[1] if len(texts) > 1 else None,
                                               options.seq_len if options.truncate else None),
                          options)
        if options.label and options.label_type == "class":
            document.label = labels.class_of(place, fields, options.label, list(options.classes))
        elif options.label:
            document.label = labels.number_of(place, fields, options.label)
        return document


class Images(Recipe):
    """Images with the number of their class."""

    def image(self) -> layout.Image:
        return images.shape(self.options.size, self.options.channels, self.options.processor)

    def columns(self) -> dict[str, str]:
        return {"labels": "i32", "pixels": "u8"}

    def read(self) -> Iterator[records.Record]:
        return images.rows(self.options.inputs)

    def document(self, place: str, record: Any) -> Document:
        return images.document(place, record, self.image())


RECIPES = {"text": Texts, "jsonl": Texts, "csv": Texts, "parquet": Texts, "chat": Chats,
           "pairs": Pairs, "images": Images, "megatron": Megatron}


def fitted(document: Document, options: Options) -> Document:
    """Returns a document that fits into a row. Errors: INVALID if it is longer and --truncate is
    not given."""
    count = len(document.tokens)
    if count <= options.seq_len:
        return document
    if not options.truncate:
        raise errors.invalid(f"has {count:,} tokens; a row has --seq-len={options.seq_len}: raise "
                             f"it, or give --truncate")
    keep = options.seq_len
    return dataclasses.replace(
        document, tokens=array.array("I", document.tokens[:keep]),
        mask=document.mask and document.mask[:keep], types=document.types and document.types[:keep])
