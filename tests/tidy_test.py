"""Checks the style of the source text. Each rule is a function of one file; planted violations
prove it below, and then it is applied to the tree.

The rules in this file hold everywhere. Old code breaks those of tidy_sizes.py and tidy_english.py:
tests/tidy_ratchet.txt lists its violations with their sizes. A size may only shrink: the test fails
if one grows, and also if it shrinks without its entry.
"""

import ast
import re
import shutil
import subprocess
import sys
import unittest

import source_tree
import tidy_english
import tidy_ratchet
import tidy_sizes

MAX_COLUMNS = 100
# (pattern, reason), matched against C++ code without comments and strings.
BANNED_CODE = [
    (r"\busing\s+namespace\b", "name the namespace at each use"),
    (r"\bthrow\b(?!\s+std::bad_alloc\b)", "absl::Status carries our errors"),
    (r"\babsl::(?:Mutex|CondVar|Notification)\b",
     "base/mutex.h: the packaged one makes the thread sanitizer report false races"),
    (r"\bstd::(?:random_)?shuffle\b", "its result depends on the library; see base/numerics/rng.h"),
    (r"\bstd::normal_distribution\b", "its result depends on the library; see base/numerics/rng.h"),
    (r"\b(?:GTEST_SKIP|DISABLED_\w+)\b", "a test runs or is removed"),
    (r"(?<![\w:])D?(?:CHECK|LOG)\(", "LibTorch defines it; ours begin with EPS_"),
    (r"#pragma\s+once\b", "include guards carry the path"),
    (r"\breinterpret_cast<u?int\w*_t>\(\s*this\b", "an address is no identity"),
]

# The same for tests only.
BANNED_IN_TESTS = [
    (r"\b(?:sleep_for|sleep_until|SleepFor|usleep|nanosleep|sleep)\s*\(",
     "a test waits for a condition, with a deadline"),
]

# (pattern, reason), matched against the whole text of every source file.
BANNED_TEXT = [
    (r"\b(?:TODO|FIXME|XXX)\b", "do it, or leave it out"),
    (r"(?i)betta(?!\w)|warpper|duplidate|streamnig|recieve|seperat|occured", "misspelt"),
    (r"(?<![\w.$}/])/(?:root|home/\w+|work)/", "a path of one machine"),
    (r"\bNOCOMMIT\b|<<<<<<<|>>>>>>>", "left over"),
]

# They name words and pages in order to find them.
NAMES_PLANTED_WORDS = ("tests/docs_test.py", "tests/tidy_english.py", "tests/tidy_test.py")

LABEL_ORDER = {":": 0, "/": 1, "@": 2}


def is_script(path):
    with open(source_tree.ROOT / path, "rb") as text:
        return "." not in path.rsplit("/", 1)[-1] and text.read(2) == b"#!"


def is_source(path):
    name = path.rsplit("/", 1)[-1]
    return (source_tree.is_cpp(path) or name in ("BUILD", "WORKSPACE") or
            path.endswith((".py", ".sh", ".bzl", ".proto")) or is_script(path))


def long_lines(path, text):
    """Finds lines over the limit, except lines that are nothing but one URL."""
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
        # Highway includes the file once per instruction set.
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
    """Finds label lists of BUILD files that repeat a label or are not sorted: :, then //, @."""
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


class PlantedViolations(unittest.TestCase):
    """Checks that each rule finds its violation and accepts the nearest legal text."""

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

    def assert_measures(self, rule, path, bad, good, size=1):
        self.assertEqual([found[1] for found in rule(path, bad)], [size])
        self.assertEqual(list(rule(path, good)), [])

    def test_function_sizes(self):
        def function(head, lines):
            return head + " {\n" + "  if (x) { f({1}); }\n" * lines + "}\n"
        for head in ["void F(int a)", "int A::B() const", "A::A(int b) : b_(b)",
                     "template <class T>\nT F(T t)", "TEST(A, B)", "auto f = [](int a)"]:
            lines = 69 - head.count("\n")
            text = "namespace eps {\nclass C;\nint k[] = {1, 2};\n%s}  // namespace eps\n"
            self.assert_measures(tidy_sizes.large_functions, "a.cc", text % function(head, lines),
                                 text % function(head, lines - 1), 71)
        names = [name for name, _, _ in tidy_sizes.cpp_functions(
            "class A : public B<int (x)> {\n public:\n  A() { f(); }\n"
            "  int g() const { return 1; }\n"
            "  int c_ = '{';\n  int d_ = 1'000;\n};\n#define M(x) {\n"
            "// void No() {\nTEST(Room, Opens) { }\nR\"(})\";\nvoid eps::H::i() {}\n")]
        self.assertEqual(names, ["A", "g", "Room.Opens", "eps::H::i"])
        head = "def f():\n"
        self.assert_measures(tidy_sizes.large_functions, "a.py", head + "  x\n" * 70,
                             head + "  x\n" * 69, 71)

    def test_file_sizes(self):
        rule = tidy_sizes.large_files
        self.assert_measures(rule, "a.h", "int x;\n" * 301, "int x;\n" * 300, 301)
        self.assert_measures(rule, "a.cc", "int x;\n" * 501, "int x;\n" * 500, 501)

    def test_class_sizes(self):
        def class_of(head, members):
            functions = ("  A(int x) : x_{x} { f(); }\n  int g() const { return x_; }\n"
                         "  static constexpr int kOne = 1;\n  using B = int;\n  ~A() = default;\n"
                         "  struct Inner { int i = 0; };\n  void h(int a, int b) const;\n")
            fields = ["int m_ EPS_GUARDED_BY(mu_) = 0;", "std::vector<int> m_{1, 2};",
                      "std::function<void(int, int)> m_;", "const Foo* const m_ = f(1, 2);"]
            return head + " {\n" + functions + " private:\n" + "".join(
                f"  {fields[i % 4]}\n" for i in range(members)) + "};\n"
        for head in ("class A", "class EPS_SCOPED A final : public B<int>", "struct A",
                     "template <class T, class U>\nclass A::B"):
            self.assert_measures(tidy_sizes.large_classes, "a.cc", class_of(head, 21),
                                 class_of(head, 20), 21)
        plain = "struct A {\n" + "  int x = 0;\n  B b{1};\n" * 15 + "};\nenum class E { kA };\n"
        self.assertEqual(list(tidy_sizes.large_classes("a.h", plain)), [])

    def test_folder_sizes(self):
        def found(sources):
            return list(tidy_sizes.large_folders(
                [f"a/b/{i}.cc" for i in range(sources)] + ["a/b/BUILD", "a/b/c/x.cc"]))
        self.assertEqual([size for _, size, _ in found(31)], [31])
        self.assertEqual(found(30), [])

    def test_readmes(self):
        def found(lines, *paths):
            every = {"a/x.cc", "eps_server/core/x.cc", "eps_server/README.md", ".ci/x.sh",
                     "docs/x.md", *paths}
            text = "\n" * lines
            return [(key[:2], size)
                    for key, size, _ in tidy_sizes.readmes(every, lambda path: text)]
        both = ("a/README.md", "eps_server/core/README.md")
        self.assertEqual(found(20, *both), [])
        self.assertEqual(found(20, both[1]), [(("no_readme", both[0]), 1)])
        self.assertEqual(found(20, both[0]), [(("no_readme", both[1]), 1)])
        self.assertEqual(len(found(21, *both)), 3)

    def test_avoided_words(self):
        rule = tidy_english.avoided_words
        for bad, good in [("// Behind step 1.", "// After step 1; \"behind\" is quoted."),
                          ("begin anew", "begin again; canewer"),
                          ("# the step of now", "# as of now"),
                          ("is to be called", "will be; his to be"),
                          ("// Is to call f.", "// Call f."),
                          ("0: it is not kept", "10: it is not kept; 0 disables")]:
            self.assert_measures(rule, "a.cc", bad, good)
        self.assert_measures(rule, "a.md", "behind\nbehind behind", "`behind`", 3)

    def test_headless_comments(self):
        rule = tidy_english.headless_comments
        for bad, good in [
                ("// What stands at the end.\n", "// The bytes at the end. What for?\n"),
                ("  // Reads. What follows\n  // it.\n", "  // Reads what follows.\n"),
                ("# What it holds\n", "x = 1  # what it holds\n"),
                ("// A.\n// What is left.\n", "// What is that? A file.\n")]:
            self.assert_measures(rule, "a.cc", bad, good)

    def test_uncommented_classes(self):
        rule = tidy_english.uncommented_classes
        for bad, good in [
                ("int x;\nclass A {\n};\n", "// Text.\nclass A {\n};\nclass B;\n"),
                ("\nstruct A : B {\n};\n", "/* Text. */\nstruct A : B {\n};\n"),
                ("template <class T>\nclass A {\n};\n",
                 "// x\ntemplate <class T>\nclass A {\n};\n"),
                ("// x\n\nclass A {};\n", "class A {};  // x\nenum class E {\n kA };\n")]:
            self.assert_measures(rule, "a.h", bad, good)
        self.assertEqual(list(rule("a.cc", "class A {\n};\n")), [])

    def test_cited_pages(self):
        def rule(path, text):
            return tidy_english.missing_pages(path, text, {"docs/a.md", "b/README.md"})
        self.assert_measures(rule, "a.cc", "// See docs/b.md.\n", "// See docs/a.md.\n")
        self.assert_measures(rule, "a.cc", "// NOWHERE.md\n", "// README.md, FOO_NOWHERE.mdx\n")

    def test_test_names(self):
        rule = tidy_english.long_test_names
        for macro in ("TEST", "TEST_F", "TEST_P", "TYPED_TEST"):
            self.assert_measures(rule, "a_test.cc",
                                 macro + "(A,\n  OneTwoThreeFourFiveSixSevenEight) {}",
                                 macro + "(A, AB2TwoThreeFourFiveSixSeven) {}")
        body = "(self):\n    pass\n"
        self.assert_measures(rule, "a_test.py", "def test_a_b_c_d_e_f_g_h_i_j" + body,
                             "def test_a_b_c_d_e_f_g_h_i" + body)

    def test_the_ratchet_only_tightens(self):
        key = ("function", "a.cc", "F")
        found = [(key, 80, "a.cc:1: F has 80 lines")]
        self.assertEqual(list(tidy_ratchet.violations(
            found, tidy_ratchet.read("# x\nfunction a.cc F 80"))), [])
        for ratchet in ({}, {key: 79}, {key: 81}):
            self.assertEqual(len(list(tidy_ratchet.violations(found, ratchet))), 1, ratchet)
        self.assertEqual(len(list(tidy_ratchet.violations([], {key: 80}))), 1)

    def test_a_written_ratchet_allows_what_it_saw(self):
        found = [(("file", "b.cc", "-"), 9, "m"), (("file", "a.cc", "-"), 7, "m"),
                 (("file", "a.cc", "-"), 8, "m")]
        text = tidy_ratchet.text_of(found)
        self.assertEqual(text, tidy_ratchet.HEAD + "file a.cc - 8\nfile b.cc - 9\n")
        self.assertEqual(list(tidy_ratchet.violations(found, tidy_ratchet.read(text))), [])


def all_sources():
    return [p for p in source_tree.files() if is_source(p)]


def measured():
    """Yields ((kind, path, name), size, message) for all that the ratchet allows or forbids."""
    paths = frozenset(source_tree.files())
    for path in all_sources():
        text = source_tree.read(path)
        yield from tidy_sizes.large_functions(path, text)
        yield from tidy_sizes.large_files(path, text)
        yield from tidy_sizes.large_classes(path, text)
        yield from tidy_english.headless_comments(path, text)
        yield from tidy_english.uncommented_classes(path, text)
        yield from tidy_english.long_test_names(path, text)
        if path not in NAMES_PLANTED_WORDS:
            yield from tidy_english.missing_pages(path, text, paths)
            yield from tidy_english.avoided_words(path, text)
    for path in source_tree.files():
        if path.endswith(".md"):
            yield from tidy_english.avoided_words(path, source_tree.read(path))
    yield from tidy_sizes.large_folders(paths)
    yield from tidy_sizes.readmes(paths, source_tree.read)


class Tree(unittest.TestCase):
    """Applies the rules to the tree."""

    def assert_clean(self, rule, paths):
        self.assertTrue(paths, "no files found")
        violations = [v for path in paths for v in rule(path, source_tree.read(path))]
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_lines_fit(self):
        self.assert_clean(long_lines, all_sources())

    def test_white_space_is_plain(self):
        self.assert_clean(odd_whitespace, all_sources())

    def test_include_guards_match_the_path(self):
        self.assert_clean(wrong_guard, [p for p in all_sources()
                                         if not source_tree.is_third_party(p)])

    def test_no_banned_words(self):
        # This file names them as patterns.
        self.assert_clean(banned_words, [p for p in all_sources() if p != "tests/tidy_test.py"])

    def test_label_lists_are_sorted(self):
        self.assert_clean(unsorted_deps, source_tree.build_files())

    def test_nothing_is_worse_than_the_ratchet(self):
        ratchet = tidy_ratchet.read(source_tree.read(tidy_ratchet.PATH))
        violations = list(tidy_ratchet.violations(measured(), ratchet))
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_clang_format_would_change_nothing(self):
        tool = shutil.which("clang-format-14")
        self.assertTrue(tool, "clang-format-14 is missing; "
                              "third_party/install/install_deps.sh installs it")
        paths = [p for p in source_tree.files() if p.endswith((".h", ".cc"))]
        done = subprocess.run([tool, "--dry-run", "-Werror", "--ferror-limit=1", *paths],
                              cwd=source_tree.ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, "run clang-format-14 -i on them:\n" +
                         "\n".join(l for l in done.stdout.decode().split("\n") if "error:" in l))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write-ratchet"]:
        (source_tree.ROOT / tidy_ratchet.PATH).write_text(tidy_ratchet.text_of(measured()))
    else:
        source_tree.main()
