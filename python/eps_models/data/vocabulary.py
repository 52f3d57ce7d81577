"""Turns text into token ids and back: by a tokenizer's folder, or as bytes."""

import array
import hashlib
import json
import os
import pathlib
from typing import Any

from eps_models import hub
from eps_models.data import chats, errors, layout
from eps_models.data.epsd import Document

BYTES = "bytes"  # the name of the vocabulary of 256 bytes
# The files that define the ids of a tokenizer: the first if it is there, else all others.
_WHOLE_FILE = "tokenizer.json"
_OTHER_FILES = ("vocab.json", "merges.txt", "vocab.txt")
_MODEL_FILES = "*.model"


def folder_of(name: str, option: str = "--tokenizer") -> str:
    """Returns the folder that an option names, perhaps by a name in the cache of the Hugging Face
    hub. Errors: MISSING for a model that the cache does not hold, or only in part."""
    try:
        return str(hub.folder_of(name, needs_weights=False))
    except hub.NotInCache as error:
        raise errors.missing(f"{option}: {error}") from error


def digest_of(folder: str) -> str:
    """Returns the SHA-256 that names a tokenizer, as docs/formats/data.md defines it; empty if the
    folder has none of its files."""
    root = pathlib.Path(folder)
    files = [root / _WHOLE_FILE]
    if not files[0].is_file():
        files = [root / name for name in _OTHER_FILES] + list(root.glob(_MODEL_FILES))
    names = sorted(file.name for file in files if file.is_file())
    lines = [f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}\n"
             for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


class ByteVocabulary:
    """The ids are the bytes of UTF-8. Needs no package."""
    size = 256
    digest = ""
    folder = BYTES
    made_by = ""
    has_types = False
    before: list[int] = []
    after: list[int] = []
    masking = None

    def encode(self, texts: list[str]) -> list[array.array]:
        return [array.array("I", list(text.encode("utf-8"))) for text in texts]

    def decode(self, ids: array.array) -> str:
        return bytes(list(ids)).decode("utf-8", errors="replace")

    def pair(self, first: str, second: str | None, longest: int | None) -> Document:
        text = first if second is None else first + "\n" + second
        ids = self.encode([text])[0]
        return Document(ids if longest is None else ids[:longest])

    def chat(self, messages: list[dict[str, Any]]) -> Document:
        raise errors.usage("chats need a tokenizer with a chat template: give --tokenizer=DIR")

    def text_prompt(self, text: str) -> array.array:
        return self.encode([text])[0]

    def chat_prompt(self, messages: list[dict[str, Any]]) -> array.array:
        raise errors.usage("a vocabulary of bytes has no chat template")


class FolderVocabulary:
    """A tokenizer of transformers. `before` and `after` frame a document: the special tokens that
    the tokenizer puts around a text, and its end of text. Errors: MISSING without its folder or the
    packages, INVALID with transformers' reason if it cannot be loaded."""

    def __init__(self, folder: str, chat_template: str = ""):
        if not os.path.isdir(folder):
            raise errors.missing(
                f"--tokenizer: {folder} is no folder. Give the folder of a model or tokenizer, or "
                f"the name of one that is in the cache of the hub after: hf download ORG/NAME")
        self.folder = folder
        self.digest = digest_of(folder)
        transformers = _import_transformers()
        self._tokenizer = _load(transformers, folder)
        if not self._tokenizer.is_fast:
            raise errors.invalid(f"--tokenizer: {folder} has no {_WHOLE_FILE}, and transformers "
                                 f"cannot make one of its files")
        if chat_template:
            self._tokenizer.chat_template = chat_template
        self.made_by = f"transformers {transformers.__version__}"
        self.size = max(len(self._tokenizer),
                        max(self._tokenizer.get_vocab().values(), default=0) + 1)
        self.before, self.after = self._frame()
        self.has_types = "token_type_ids" in self._tokenizer.model_input_names
        self.masking = self._masking()

    def _masking(self) -> layout.Masking | None:
        """Returns None for a tokenizer without a mask token, or with more special tokens than a
        header holds."""
        special = tuple(sorted(set(self._tokenizer.all_special_ids)))
        if self._tokenizer.mask_token_id is None or len(special) > layout.MAX_SPECIAL_TOKENS:
            return None
        return layout.Masking(self._tokenizer.mask_token_id, special)

    def _frame(self) -> tuple[list[int], list[int]]:
        bare = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = self._tokenizer("a")["input_ids"]
        places = [i for i in range(len(whole) - len(bare) + 1) if whole[i:i + len(bare)] == bare]
        if not places:
            return [], []
        before, after = whole[:places[0]], whole[places[0] + len(bare):]
        end = self._tokenizer.eos_token_id
        if end is not None and after[-1:] != [end]:
            after.append(end)
        return before, after

    def encode(self, texts: list[str]) -> list[array.array]:
        """Returns the ids of texts, without special tokens around them."""
        if not texts:
            return []
        ids = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False,
                              return_token_type_ids=False)["input_ids"]
        return [array.array("I", each) for each in ids]

    def decode(self, ids: array.array) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False,
                                      clean_up_tokenization_spaces=False)

    def pair(self, first: str, second: str | None, longest: int | None) -> Document:
        """Encodes one or two texts as the tokenizer frames them ([CLS] a [SEP] b [SEP]). `longest`:
        truncates to so many tokens."""
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        found = self._tokenizer(first, second, return_token_type_ids=self.has_types, **cut)
        types = bytes(found["token_type_ids"]) if self.has_types else None
        return Document(array.array("I", found["input_ids"]), types=types)

    def chat(self, messages: list[dict[str, Any]]) -> Document:
        """Encodes a conversation; the mask selects the tokens of the assistant (chats.py)."""
        return chats.document(self._tokenizer, messages)

    def text_prompt(self, text: str) -> array.array:
        """Returns the ids of a text that a model continues, as transformers encodes it."""
        return array.array("I", self._tokenizer(text)["input_ids"])

    def chat_prompt(self, messages: list[dict[str, Any]]) -> array.array:
        """Returns the ids of a conversation that the assistant continues."""
        text = chats.render(self._tokenizer, messages, add_generation_prompt=True)
        return self.encode([text])[0]


Vocabulary = ByteVocabulary | FolderVocabulary


def load(name: str, chat_template: str = "") -> Vocabulary:
    """Returns the vocabulary of --tokenizer: a folder, a name in the hub's cache, or `bytes`."""
    if name == BYTES:
        return ByteVocabulary()
    return FolderVocabulary(folder_of(name), chat_template)


def _import_transformers() -> Any:
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # processes are forked after its use
    try:
        import transformers  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise errors.missing(
            f"a tokenizer needs Python's transformers ({error}): run "
            f"third_party/install/setup_oracles.sh, or set EPS_PYTHON to a Python that has it; "
            f"--tokenizer=bytes needs no package") from error
    return transformers


def _load(transformers: Any, folder: str) -> Any:
    names = ("tokenizer_config.json", "config.json")
    try:
        if not any(os.path.isfile(os.path.join(folder, name)) for name in names):
            return transformers.PreTrainedTokenizerFast(
                tokenizer_file=os.path.join(folder, _WHOLE_FILE))
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True,
                                                          trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError, json.JSONDecodeError) as error:
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise errors.invalid(f"--tokenizer: transformers cannot load {folder}: {reason}") from error
    except Exception as error:  # tokenizers raises bare exceptions for damaged files
        raise errors.invalid(f"--tokenizer: {folder} cannot be read: {error}") from error
