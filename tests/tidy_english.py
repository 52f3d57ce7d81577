"""English: words to avoid, comments, citations and the names of tests (CONTRIBUTING.md, Writing).

Each rule yields ((kind, path, name), size, message); the key and the size are those of
tests/tidy_ratchet.txt.
"""

import ast
import re

import source_tree
import tidy_sizes

MAX_CPP_TEST_WORDS = 7
MAX_PYTHON_TEST_WORDS = 9

# (name, pattern, advice), counted in the text of sources and pages. Words in quotation marks or
# backticks are quoted, not used.
_QUOTED = r"(?i)(?<![\"\x60])\b%s\b(?![\"\x60])"
WORDS = [
    ("behind", r"behind", "\"after\" for time"),
    ("anew", r"anew", "\"again\""),
    ("of_now", r"(?<!as )of now", "\"current\""),
    ("is_to_be", r"is to be", "an imperative for the caller, or the present tense"),
    ("is_to_call", r"is to call", "\"Call ...\""),
    ("zero_it_is_not", r"0: it is not", "\"0 disables\""),
]
_WHAT = re.compile(r"(?:^|[.:] )(What\b[^.?!]*(?:[.](?! |$)[^.?!]*)*)(?![^.?!]*[?])(?=[.!]|$)")
_LINE_COMMENT = re.compile(r"^\s*(?://+|#)(?!!) ?(.*)$")
_CITED = re.compile(r"(?<![\w./-])((?:docs/[\w./-]+|[A-Z_]{4,})\.md)\b")
_CPP_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*\w+,\s*(\w+)\)")


def comments(text):
    """Yields (first line, text) of each paragraph of whole-line comments."""
    lines = text.split("\n")
    paragraph = []
    for number, line in enumerate([*lines, ""], start=1):
        match = _LINE_COMMENT.match(line)
        if match and match.group(1).strip():
            paragraph.append(match.group(1).strip())
        elif paragraph:
            yield number - len(paragraph), " ".join(paragraph)
            paragraph = []


def _count(kind, path, name, places, what):
    """Yields one entry for all places of a file."""
    if places:
        lines = ", ".join(str(place) for place in places)
        yield (kind, path, name), len(places), f"{path}:{lines}: {what}"


def avoided_words(path, text):
    for name, pattern, advice in WORDS:
        found = [n for n, _ in source_tree.matches(re.compile(_QUOTED % pattern), text)]
        yield from _count("english", path, name, found, f"\"{name}\": {advice}")


def headless_comments(path, text):
    """Finds sentences of comments that are a clause with "What" and no question."""
    if path.endswith(".md"):
        return
    found = [line for line, comment in comments(text) for _ in _WHAT.findall(comment)]
    yield from _count("english", path, "what", found,
                      "a sentence that begins with \"What\"; name the noun")


def uncommented_classes(path, text):
    if not path.endswith((".h", ".cuh")):
        return
    lines = text.split("\n")
    found = []
    for _, _, line, _ in tidy_sizes.cpp_classes(text):
        above = line - 2
        while above >= 0 and re.match(r"\s*(?:template\b|EPS_\w+$)", lines[above]):
            above -= 1
        if not re.match(r"\s*//|.*\*/\s*$", lines[above]) and not re.search(
                r"[;}] +// ", lines[line - 1]):
            found.append(line)
    yield from _count("comment", path, "class", found, "a class without a comment")


def missing_pages(path, text, paths):
    """Finds pages that a source names and the tree lacks."""
    names = {p.rpartition("/")[2] for p in paths}
    found = [f"{number} ({match.group(1)})"
             for number, match in source_tree.matches(_CITED, text)
             if match.group(1) not in (paths if "/" in match.group(1) else names)]
    yield from _count("page", path, "-", found, "pages that are not in the tree")


def cpp_words(name):
    """Returns the words of a name in camel case; capitals in a row are one word."""
    return re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", name)


def _test_names(path, text):
    """Yields (line, name, number of words, limit) of each test."""
    if source_tree.is_cpp(path):
        for number, match in source_tree.matches(_CPP_TEST, source_tree.cpp_code(text)):
            name = match.group(1)
            yield number, name, len(cpp_words(name)), MAX_CPP_TEST_WORDS
    elif path.endswith("_test.py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.lineno, node.name, node.name.count("_"), MAX_PYTHON_TEST_WORDS


def long_test_names(path, text):
    limit = MAX_CPP_TEST_WORDS if source_tree.is_cpp(path) else MAX_PYTHON_TEST_WORDS
    found = [f"{line} ({name})" for line, name, words, most in _test_names(path, text)
             if words > most]
    yield from _count("test_name", path, "-", found, f"test names of more than {limit} words")
