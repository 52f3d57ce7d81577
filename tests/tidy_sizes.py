"""Sizes: functions, files, classes, folders and the README of each room.

Each rule yields ((kind, path, name), size, message) for everything over its limit; the key and the
size are those of tests/tidy_ratchet.txt.
"""

import ast
import collections
import re

import source_tree

MAX_FUNCTION_LINES = 70
MAX_HEADER_LINES = 300
MAX_SOURCE_LINES = 500
MAX_CLASS_MEMBERS = 20
MAX_FOLDER_SOURCES = 30
MAX_README_LINES = 20

SOURCES = source_tree.CPP_SUFFIXES + (".py", ".sh", ".proto")
ROOMS_BELOW = ("eps_server/core",)  # of a size that asks for a README of its own


def _opens_scope(head):
    """Returns whether the text before a brace opens a namespace or a type."""
    while "<" in head:
        shorter = re.sub(r"<[^<>]*>", "", head)
        if shorter == head:
            break
        head = shorter
    return bool(re.search(r"\b(?:namespace|class|struct|union|enum|extern)\b[^()=]*$", head)) or (
        bool(re.search(r"\b(?:class|struct)\b\s+\w+\([^()]*\)", head)))


def cpp_functions(text):
    """Yields (name, first line, number of lines) of a C++ file's functions, by their braces."""
    code = re.sub(r"(?m)^\s*#(?:.*\\\n)*.*$", lambda m: re.sub(r"[^\n]", " ", m.group()),
                  source_tree.cpp_code(text))
    depth = 0           # braces open inside the current function or initializer
    start = 0           # where the text before the next brace begins
    opened = None       # (name, position) of the function that is open
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group() == "{":
            head = code[start:at]
            if depth == 0 and _opens_scope(head):
                start = at + 1
                continue
            if depth == 0:
                called = re.search(r"([~\w:]+|operator\S+)\s*(?:=\s*\[.*\])?"
                                   r"\(([^,()]*(?:, *\w+)?)", head)
                name = called.group(1) if called else None
                if name in ("TEST", "TEST_F", "TEST_P"):
                    name = re.sub(r"\s", "", called.group(2)).replace(",", ".")
                opened = (name, start + len(head) - len(head.lstrip()))
            depth += 1
        elif match.group() == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                name, begin = opened
                if name is not None:
                    line = code.count("\n", 0, begin) + 1
                    yield name, line, code.count("\n", begin, at) + 1
                start = at + 1
        elif depth == 0:
            start = at + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def large_functions(path, text):
    functions = cpp_functions(text) if source_tree.is_cpp(path) else (
        python_functions(text) if path.endswith(".py") else ())
    for name, line, size in functions:
        if size > MAX_FUNCTION_LINES:
            yield ("function", path, name), size, (
                f"{path}:{line}: {name} has {size} lines; the limit is {MAX_FUNCTION_LINES}")


def large_files(path, text):
    if source_tree.is_cpp(path) or path.endswith((".py", ".sh", ".bzl")):
        limit = MAX_HEADER_LINES if path.endswith((".h", ".cuh")) else MAX_SOURCE_LINES
        size = text.count("\n")
        if size > limit:
            yield ("file", path, "-"), size, f"{path}: {size} lines; the limit is {limit}"


_CLASS = re.compile(r"(?<![<,] )(?<![<,\w])(?<!enum )(class|struct)\s+"
                    r"(?:EPS_\w+(?:\([^()]*\))?\s+)?(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)"
                    r"(?:<[^;{}()]*>)?(?:\s+final)?\s*(?::[^;{}]*)?\{")
_PREPROCESSOR = re.compile(r"(?m)^\s*#(?:.*\\\n)*.*$")
_NO_FIELD = re.compile(r"\s*(?:using|typedef|friend|static|enum|class|struct|template|explicit)\b")
_ANNOTATION = re.compile(r"\bEPS_\w+\([^()]*\)")


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def _closing_brace(code, at):
    """Returns the position of the brace that closes the one at `at`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, at):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def cpp_classes(text):
    """Yields (kind, name, line, body) of each class; braces inside the body are left out."""
    code = _PREPROCESSOR.sub(lambda m: _blank(m.group()), source_tree.cpp_code(text))
    for match in _CLASS.finditer(code):
        body = code[match.end():_closing_brace(code, match.end() - 1)]
        while "{" in body:
            begin = body.index("{")
            end = _closing_brace(body, begin)
            # A function ends without a semicolon; an initializer or a nested type has its own.
            body = body[:begin] + "\1" + body[end + 1:]
        yield match.group(1), match.group(2), code.count("\n", 0, match.start(1)) + 1, body


def _statements(body):
    """Yields the declarations of a class body and whether each is a function."""
    body = re.sub(r"\b(?:public|private|protected)\s*:", ";", body)
    # A body of a function ends its declaration: ") {...}", ") const {...}", ") : a_(a) {...}".
    body = re.sub(r"(\)[^;=\1]*)\1(?!\s*[;,])", r"\1\1;", body)
    for statement in body.split(";"):
        plain = _ANNOTATION.sub("", statement)
        while "<" in plain:  # std::function<void(int)> is not a function
            shorter = re.sub(r"<[^<>]*>", "", plain)
            if shorter == plain:
                break
            plain = shorter
        plain = plain.split("=")[0].split("\1")[0].strip()
        if plain and not (_NO_FIELD.match(plain) and "(" not in plain):
            yield plain, "(" in plain or "operator" in plain


def large_classes(path, text):
    """Finds classes with too many data members. A struct without functions is plain data and has no
    limit."""
    if not source_tree.is_cpp(path):
        return
    for kind, name, line, body in cpp_classes(text):
        declared = list(_statements(body))
        if kind == "struct" and not any(is_function for _, is_function in declared):
            continue
        members = sum(1 + plain.count(",") for plain, is_function in declared if not is_function)
        if members > MAX_CLASS_MEMBERS:
            yield ("members", path, name), members, (
                f"{path}:{line}: {name} has {members} data members; the limit is "
                f"{MAX_CLASS_MEMBERS}")


def large_folders(paths):
    sources = collections.Counter(p.rpartition("/")[0] for p in paths if p.endswith(SOURCES))
    for folder, size in sources.items():
        if size > MAX_FOLDER_SOURCES:
            yield ("folder", folder, "-"), size, (
                f"{folder}/: {size} sources; the limit is {MAX_FOLDER_SOURCES}")


def rooms(paths):
    """Returns the first-level folders that hold sources, and the large rooms below them."""
    tops = {p.split("/")[0] for p in paths if p.endswith(SOURCES) and "/" in p}
    return sorted(r for r in tops | set(ROOMS_BELOW) if not r.startswith("."))


def readmes(paths, read):
    """Finds rooms whose README.md is missing (size 1) or too long. `read` returns a file's text."""
    for room in rooms(paths):
        readme = room + "/README.md"
        if readme not in paths:
            yield ("no_readme", readme, "-"), 1, f"{room}/: has no README.md"
            continue
        size = read(readme).count("\n")
        if size > MAX_README_LINES:
            yield ("readme", readme, "-"), size, (
                f"{readme}: {size} lines; the limit is {MAX_README_LINES}")
