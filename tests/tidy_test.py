"""Holds the style of the source text. Each rule is a function over one file, proven below by
planted violations, and then applied to the tree.

Functions over 70 lines and files over their limit that are there already stand in
tests/tidy_ratchet.txt with their size. An entry may only shrink: a larger one fails, and so does
one that is no longer as large as the entry says.
"""

import ast
import collections
import re
import shutil
import subprocess
import unittest

import source_tree

MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 70
MAX_HEADER_LINES = 300
MAX_SOURCE_LINES = 800
RATCHET = "tests/tidy_ratchet.txt"

# Pattern over code without comments and strings, reason. In C++ only.
BANNED_CODE = [
    (r"\busing\s+namespace\b", "names the namespace where it is used"),
    (r"\bthrow\b(?!\s+std::bad_alloc\b)", "absl::Status carries our errors"),
    (r"\babsl::(?:Mutex|CondVar|Notification)\b",
     "base/mutex.h: the packaged one makes the thread sanitizer report false races"),
    (r"\bstd::(?:random_)?shuffle\b", "its result depends on the library; see base/job/rng.h"),
    (r"\bstd::normal_distribution\b", "its result depends on the library; see base/job/rng.h"),
    (r"\b(?:GTEST_SKIP|DISABLED_\w+)\b", "a test runs or is removed"),
    (r"(?<![\w:])D?(?:CHECK|LOG)\(", "LibTorch defines it; ours begin with EPS_"),
    (r"#pragma\s+once\b", "include guards carry the path"),
    (r"\breinterpret_cast<u?int\w*_t>\(\s*this\b", "an address is no identity"),
]

# The same, in the tests only.
BANNED_IN_TESTS = [
    (r"\b(?:sleep_for|sleep_until|SleepFor|usleep|nanosleep|sleep)\s*\(",
     "a test waits for a condition, with a deadline"),
]

# Pattern over the whole text of every source file, reason.
BANNED_TEXT = [
    (r"\b(?:TODO|FIXME|XXX)\b", "do it, or write it into docs/PROGRESS.md"),
    (r"(?i)betta(?!\w)|warpper|duplidate|streamnig|recieve|seperat|occured", "misspelt"),
    (r"(?<![\w.$}/])/(?:root|home/\w+|work)/", "a path of one machine"),
    (r"\bNOCOMMIT\b|<<<<<<<|>>>>>>>", "left over"),
]

LABEL_ORDER = {":": 0, "/": 1, "@": 2}


def is_script(path):
    with open(source_tree.ROOT / path, "rb") as text:
        return "." not in path.rsplit("/", 1)[-1] and text.read(2) == b"#!"


def is_source(path):
    name = path.rsplit("/", 1)[-1]
    return (source_tree.is_cpp(path) or name in ("BUILD", "WORKSPACE") or
            path.endswith((".py", ".sh", ".bzl", ".proto")) or is_script(path))


def long_lines(path, text):
    """Lines over the limit; a line that is one URL and nothing else cannot be broken."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_COLUMNS and not re.fullmatch(r"\W*https?://\S+", line):
            yield f"{path}:{number}: {len(line)} columns; the limit is {MAX_COLUMNS}"


def odd_whitespace(path, text):
    for number, line in enumerate(text.split("\n"), start=1):
        if "\t" in line:
            yield f"{path}:{number}: a tab; indent with spaces"
        if line != line.rstrip():
            yield f"{path}:{number}: white space or a carriage return at the end of the line"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"
    if text.endswith("\n\n"):
        yield f"{path}: an empty line at the end"


def wrong_guard(path, text):
    if not path.endswith((".h", ".cuh")):
        return
    guard = "EPS_" + re.sub(r"\W", "_", path.removeprefix("eps_")).upper() + "_"
    first = [line for line in source_tree.cpp_code(text).split("\n") if line.strip()][:2]
    if path.endswith("-inl.h"):
        # Highway's: the file is included once per instruction set.
        if f"#if defined({guard}) == defined(HWY_TARGET_TOGGLE)" not in text:
            yield f"{path}: does not toggle the include guard {guard}"
        return
    if first != [f"#ifndef {guard}", f"#define {guard}"]:
        yield f"{path}: does not begin with the include guard {guard}"
    elif not text.rstrip().endswith(f"#endif  // {guard}"):
        yield f"{path}: does not end with \"#endif  // {guard}\""


def banned_words(path, text):
    for pattern, reason in BANNED_TEXT:
        for number, match in source_tree.matches(re.compile(pattern), text):
            yield f"{path}:{number}: \"{match.group()}\": {reason}"
    if not source_tree.is_cpp(path):
        return
    code = source_tree.cpp_code(text)
    is_test = path.startswith("tests/") or re.search(r"_test\.\w+$", path)
    for pattern, reason in BANNED_CODE + (BANNED_IN_TESTS if is_test else []):
        for number, match in source_tree.matches(re.compile(pattern), code):
            yield f"{path}:{number}: \"{match.group()}\": {reason}"


def unsorted_deps(path, text):
    """Lists of labels in BUILD files: each once, those of this package first, then //, then @."""
    if path.rsplit("/", 1)[-1] != "BUILD":
        return
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.keyword) and node.arg in ("deps", "data", "srcs", "hdrs")
                and isinstance(node.value, ast.List)):
            continue
        labels = [e.value for e in node.value.elts if isinstance(e, ast.Constant)]
        if labels != sorted(set(labels), key=lambda l: (LABEL_ORDER.get(l[0], -1),
                                                        l.replace(":", "!"))):
            yield f"{path}:{node.value.lineno}: {node.arg} are not sorted, or name one twice"


def _opens_scope(head):
    """Whether the text before a brace opens a namespace or a type, in which functions may be."""
    while "<" in head:
        shorter = re.sub(r"<[^<>]*>", "", head)
        if shorter == head:
            break
        head = shorter
    return bool(re.search(r"\b(?:namespace|class|struct|union|enum|extern)\b[^()=]*$", head)) or (
        bool(re.search(r"\b(?:class|struct)\b\s+\w+\([^()]*\)", head)))


def cpp_functions(text):
    """(name, first line, number of lines) of the functions of a C++ file, by their braces."""
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


def oversize(path, text):
    """((kind, path, name), size, message) of everything in the file that is over its limit."""
    functions = cpp_functions(text) if source_tree.is_cpp(path) else (
        python_functions(text) if path.endswith(".py") else ())
    for name, line, size in functions:
        if size > MAX_FUNCTION_LINES:
            yield ("function", path, name), size, (
                f"{path}:{line}: {name} has {size} lines; the limit is {MAX_FUNCTION_LINES}")
    if source_tree.is_cpp(path) or path.endswith((".py", ".sh", ".bzl")):
        limit = MAX_HEADER_LINES if path.endswith((".h", ".cuh")) else MAX_SOURCE_LINES
        size = text.count("\n")
        if size > limit:
            yield ("file", path, "-"), size, f"{path}: {size} lines; the limit is {limit}"


def read_ratchet(text):
    """{(kind, path, name): size} of lines "kind path name size"; # begins a comment."""
    entries = {}
    for line in text.split("\n"):
        words = line.split("#")[0].split()
        if words:
            kind, path, name, size = words
            entries[kind, path, name] = int(size)
    return entries


def ratchet_violations(found, ratchet):
    """`found`: (key, size, message); several of one name count as the largest."""
    largest = collections.defaultdict(int)
    for key, size, message in found:
        largest[key] = max(largest[key], size)
        if key not in ratchet:
            yield message
        elif size > ratchet[key]:
            yield f"{message}, and {RATCHET} allows {ratchet[key]}"
    for key, size in ratchet.items():
        if largest[key] < size:
            now = f"lower it to {largest[key]}" if key in largest and largest[key] else "remove it"
            yield f"{RATCHET}: \"{' '.join(key)} {size}\" has shrunk: {now}"


class PlantedViolations(unittest.TestCase):
    """Each rule finds what it is for, and lets its neighbour pass."""

    def assert_finds(self, rule, path, bad, good):
        self.assertEqual(len(list(rule(path, bad))), 1, list(rule(path, bad)))
        self.assertEqual(list(rule(path, good)), [])

    def test_long_lines(self):
        self.assert_finds(long_lines, "a.cc", "x" * 101, "x" * 100)
        self.assert_finds(long_lines, "a.sh", "\n# b " + "x" * 100, "# https://" + "x" * 200)

    def test_white_space(self):
        self.assert_finds(odd_whitespace, "a.cc", "\tx\n", "  x\n")
        self.assert_finds(odd_whitespace, "a.cc", "x \n", "x\n")
        self.assert_finds(odd_whitespace, "a.cc", "x\r\n", "x\n")
        self.assert_finds(odd_whitespace, "a.cc", "x", "")
        self.assert_finds(odd_whitespace, "a.cc", "x\n\n", "x\n\ny\n")

    def test_include_guards(self):
        def guarded(guard, end):
            return f"#ifndef {guard}\n#define {guard}\nint x;\n#endif  // {end}\n"
        good = guarded("EPS_A_B_C_H_", "EPS_A_B_C_H_")
        self.assert_finds(wrong_guard, "a/b_c.h", guarded("EPS_B_C_H_", "EPS_B_C_H_"), good)
        self.assert_finds(wrong_guard, "a/b_c.h", guarded("EPS_A_B_C_H_", "EPS_B_H_"), good)
        self.assert_finds(wrong_guard, "a/b_c.h", "int x;\n", "// Copyright\n" + good)

    def test_banned_words(self):
        cases = [
            ("using namespace std;", "using std::string;  // using namespace"),
            ("throw 1;", "// throw\nauto s = \"throw\"; throw std::bad_alloc();"),
            ("std::shuffle(a, b, r);", "spec_shuffle(a);"),
            ("  CHECK(a);", "  EPS_CHECK(a);"),
            ("  LOG(a);", "  EPS_LOG(a); x.LOG_(b);"),
            ("TEST(A, DISABLED_B) {}", "TEST(A, B) {}"),
            ("// TO" "DO: x", "// to do: x"),
            ("#pragma once", "// #pragma once"),
            ("x = betta" ";", "x = beta; BettaFish();"),
            ("f(\"/root" "/x\");", "f(\"out/root/x\");"),
            ("absl::Mutex mu;", "Mutex mu;"),
        ]
        for bad, good in cases:
            self.assert_finds(banned_words, "a.cc", bad, good)
        self.assert_finds(banned_words, "a.py", "# FIX" "ME", "throw = 1")
        for path in ("a/b_test.cc", "tests/a.h"):
            self.assert_finds(banned_words, path, "std::this_thread::sleep_for(s);", "// sleep(1)")
        self.assertEqual(list(banned_words("a.cc", "std::this_thread::sleep_for(s);")), [])

    def test_unsorted_deps(self):
        def build(*labels):
            return f"cc_library(name = 'x', deps = {list(labels)})"
        good = build(":b", ":b_c", "//a:b", "//a/b:c", "@sys//:absl")
        self.assert_finds(unsorted_deps, "a/BUILD", build(":c", ":b"), good)
        self.assert_finds(unsorted_deps, "a/BUILD", build("//a:b", ":b"), good)
        self.assert_finds(unsorted_deps, "a/BUILD", build(":b", ":b"), good)

    def test_function_sizes(self):
        def function(head, lines):
            return head + " {\n" + "  if (x) { f({1}); }\n" * lines + "}\n"
        for head in ["void F(int a)", "int A::B() const", "A::A(int b) : b_(b)",
                     "template <class T>\nT F(T t)", "TEST(A, B)", "auto f = [](int a)"]:
            lines = 69 - head.count("\n")
            text = "namespace eps {\nclass C;\nint k[] = {1, 2};\n%s}  // namespace eps\n"
            self.assert_finds(oversize, "a.cc", text % function(head, lines),
                              text % function(head, lines - 1))
        names = [name for name, _, _ in cpp_functions(
            "class A : public B<int (x)> {\n public:\n  A() { f(); }\n"
            "  int g() const { return 1; }\n"
            "  int c_ = '{';\n  int d_ = 1'000;\n};\n#define M(x) {\n"
            "// void No() {\nTEST(Room, Opens) { }\nR\"(})\";\nvoid eps::H::i() {}\n")]
        self.assertEqual(names, ["A", "g", "Room.Opens", "eps::H::i"])
        head = "def f():\n"
        self.assert_finds(oversize, "a.py", head + "  x\n" * 70, head + "  x\n" * 69)

    def test_file_sizes(self):
        self.assert_finds(oversize, "a.h", "int x;\n" * 301, "int x;\n" * 300)
        self.assert_finds(oversize, "a.cc", "int x;\n" * 801, "int x;\n" * 800)

    def test_the_ratchet_only_tightens(self):
        key = ("function", "a.cc", "F")
        found = [(key, 80, "a.cc:1: F has 80 lines")]
        self.assertEqual(list(ratchet_violations(found, read_ratchet("# x\nfunction a.cc F 80"))),
                         [])
        for ratchet in ({}, {key: 79}, {key: 81}):
            self.assertEqual(len(list(ratchet_violations(found, ratchet))), 1, ratchet)
        self.assertEqual(len(list(ratchet_violations([], {key: 80}))), 1)


class Tree(unittest.TestCase):
    """The rules over the tree."""

    def assert_clean(self, rule, paths):
        self.assertTrue(paths, "no files found")
        violations = [v for path in paths for v in rule(path, source_tree.read(path))]
        if violations:
            self.fail("\n" + "\n".join(violations))

    def sources(self, third_party=True):
        return [p for p in source_tree.files()
                if is_source(p) and (third_party or not source_tree.is_third_party(p))]

    def test_lines_fit(self):
        self.assert_clean(long_lines, self.sources())

    def test_white_space_is_plain(self):
        self.assert_clean(odd_whitespace, self.sources())

    def test_include_guards_match_the_path(self):
        self.assert_clean(wrong_guard, self.sources(third_party=False))

    def test_no_banned_words(self):
        # This file has to name them.
        self.assert_clean(banned_words, [p for p in self.sources() if p != "tests/tidy_test.py"])

    def test_label_lists_are_sorted(self):
        self.assert_clean(unsorted_deps, source_tree.build_files())

    def test_functions_and_files_are_short(self):
        found = [o for path in self.sources() for o in oversize(path, source_tree.read(path))]
        violations = list(ratchet_violations(found, read_ratchet(source_tree.read(RATCHET))))
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_clang_format_would_change_nothing(self):
        tool = shutil.which("clang-format-14")
        self.assertTrue(tool, "clang-format-14 is missing; third_party/install/install_deps.sh installs it")
        paths = [p for p in source_tree.files() if p.endswith((".h", ".cc"))]
        done = subprocess.run([tool, "--dry-run", "-Werror", "--ferror-limit=1", *paths],
                              cwd=source_tree.ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=250, check=False)
        self.assertEqual(done.returncode, 0, "run clang-format-14 -i on them:\n" +
                         "\n".join(l for l in done.stdout.decode().split("\n") if "error:" in l))


if __name__ == "__main__":
    source_tree.main()
