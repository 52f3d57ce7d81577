"""The command line: python -m eps_models.data make | show | verify | split."""

import argparse
import errno
import signal
import sys

from eps_models.data import check, epsd, errors, parallel, show, split
from eps_models.data.make import make
from eps_models.data.recipes import Options, RECIPES

_TERMINATED, _INTERRUPTED, _DOES_NOT_FIT, _IO = 143, 130, 71, 74

_KINDS = """kinds:
  text     text files: a document is a file, or --documents=line | paragraph
  jsonl    a text in --field of each line (default: text)
  csv      the same, of .csv and .tsv files
  parquet  the same, of Parquet and Arrow files
  chat     a list of messages in --field (default: messages); what the assistant wrote is learned
  pairs    one or two texts in --fields, and a --label
  images   folders with one folder for each class, or files with the fields image and label
  megatron PREFIX.bin and PREFIX.idx of Megatron-LM; their ids must be those of --tokenizer
Files may be compressed by gzip, bzip2 or xz. chat, pairs and images read JSONL, CSV, TSV, Parquet
and Arrow files, by the ends of their names."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors have the exit code of usage."""

    def error(self, message: str) -> None:
        raise errors.usage(f"{self.prog}: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="eps data", description="Makes, shows, checks and splits .epsd files, "
                     "the training data of eps train.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    _add_make(commands)
    shown = commands.add_parser("show", help="print one sample, masked tokens marked")
    shown.add_argument("file")
    shown.add_argument("--sample", type=int, default=0, help="number of the document or row")
    shown.add_argument("--tokenizer", default="", help="folder of the tokenizer (default: the one "
                       "that the file was made with)")
    verified = commands.add_parser("verify", help="check header, digests and numbers")
    verified.add_argument("file")
    parts = commands.add_parser("split", help="write FILE.train.epsd and FILE.eval.epsd")
    parts.add_argument("file")
    parts.add_argument("--eval", type=float, required=True, metavar="SHARE",
                       help="share of the documents to hold out, such as 0.01")
    parts.add_argument("--overwrite", action="store_true")
    return parser


def _add_make(commands: argparse._SubParsersAction) -> None:
    maker = commands.add_parser("make", help="make an .epsd file", epilog=_KINDS,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add = maker.add_argument
    add("kind", choices=list(RECIPES))
    add("inputs", nargs="+", metavar="IN")
    add("--tokenizer", default="", help="folder of the model or tokenizer, or ORG/NAME in the "
        "Hugging Face cache; bytes: the 256 bytes")
    add("--out", required=True, metavar="FILE", help="the file to make, FILE.epsd")
    add("--overwrite", action="store_true", help="replace the file")
    add("--seq-len", type=int, default=0, help="tokens of a row; 0 makes a stream of documents")
    add("--no-pack", dest="pack", action="store_false", help="one document in a row")
    add("--documents", choices=("file", "line", "paragraph"), default="file",
        help="a document of kind text")
    add("--field", default="", help="field of the text, or of the messages")
    add("--fields", default="", help="fields of kind pairs: A or A,B")
    add("--label", default="", help="field of the label of kind pairs")
    add("--label-type", choices=("class", "number"), default="class")
    add("--classes", default="", help="names of the classes in order: A,B,…")
    add("--frame", choices=("auto", "none"), default="auto",
        help="auto: texts have the special tokens that the tokenizer puts around them, and its end "
             "of text")
    add("--truncate", action="store_true", help="cut chats and pairs that are too long for a row")
    add("--chat-template", default="", metavar="FILE", help="template in place of the tokenizer's")
    add("--size", default="", metavar="HxW", help="height and width of images")
    add("--channels", type=int, default=3, help="3 (red, green, blue) or 1 (grey)")
    add("--processor", default="", metavar="DIR",
        help="folder whose preprocessor_config.json has the mean and deviation of images")
    add("--bad-rows", choices=("error", "skip"), default="error",
        help="what to do with a record that cannot be read")
    add("--processes", type=int, default=0,
        help="processes (default: one for each processor); the result does not depend on them")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def options_of(found: argparse.Namespace) -> Options:
    """Returns the options of `make` with their defaults by kind. Errors: USAGE for what the kind
    needs and lacks."""
    fields = {name: value for name, value in vars(found).items() if name != "command"}
    fields["fields"], fields["classes"] = _words(found.fields), _words(found.classes)
    fields["processes"] = found.processes or parallel.usable_processors()
    kind = found.kind
    if not found.field:
        fields["field"] = {"chat": "messages", "jsonl": "text", "csv": "text",
                           "parquet": "text"}.get(kind, "")
    if kind != "images" and not found.tokenizer:
        raise errors.usage("--tokenizer is missing: give the folder of the model that the data is "
                           "for, or bytes for a vocabulary of 256 bytes")
    if kind in ("chat", "pairs") and found.seq_len < 1:
        raise errors.usage(f"--seq-len is missing: {kind} makes rows of so many tokens")
    if kind == "pairs" and len(fields["fields"]) not in (1, 2):
        raise errors.usage("--fields is missing: give the fields of one or two texts, such as "
                           "--fields=sentence1,sentence2")
    if kind == "images" and not found.size:
        raise errors.usage("--size is missing: give the height and width that the model reads, "
                           "such as --size=224x224")
    if found.seq_len < 0 or found.processes < 0:
        raise errors.usage("--seq-len and --processes are 0 or more")
    return Options(**fields)


def run(arguments: list[str]) -> None:
    """Runs one command. Errors: a DataError or OSError."""
    found = _parser().parse_args(arguments)
    if found.command == "make":
        options = options_of(found)
        make(options)
        print(f"{options.out}: {check.summary(epsd.Reader(options.out))}")
    elif found.command == "show":
        reader = epsd.Reader(found.file)
        vocabulary = show.vocabulary_of(reader, found.tokenizer)
        print(f"{found.file}: {check.summary(reader)}", file=sys.stderr)
        if vocabulary is None and reader.header.find("tokens"):
            print("its tokenizer is not at hand, so these are ids; give --tokenizer=DIR",
                  file=sys.stderr)
        print(show.sample_text(reader, found.sample, vocabulary, sys.stdout.isatty()))
    elif found.command == "verify":
        print(f"verified: {found.file}: {check.summary(check.verify(found.file))}")
    else:
        for path in split.split(found.file, found.eval, found.overwrite):
            print(f"{path}: {check.summary(epsd.Reader(path))}")


def _terminate(*_: object) -> None:
    sys.exit(_TERMINATED)


def main() -> int:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        run(sys.argv[1:])
    except errors.DataError as error:
        print(f"eps data: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"eps data: {error}", file=sys.stderr)
        return _DOES_NOT_FIT if error.errno == errno.ENOSPC else _IO
    except KeyboardInterrupt:
        print("eps data: interrupted; nothing is written", file=sys.stderr)
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
