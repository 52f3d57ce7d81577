"""Checks that the pages name only things that exist.

These are tests (`Suite.Name`), links, build targets (`//package:target` or `package:target`), paths
of the tree (`docs/...`) and commands (`eps COMMAND`). Also checks that README.md is short, that its
results are those of docs/benchmarks.md, and that the pages that visitors look for exist.
"""

import fnmatch
import os
import re
import unittest

import source_tree

PAGES = [p for p in source_tree.files() if p.endswith(".md")]
PAGES_OF_TESTS = ["docs/reference/refusals.md", "tests/README.md"] + [
    f"tests/planted/{topic}.md" for topic in ("numbers", "protocol", "storage", "tools", "verify")]
COMMANDS_PAGE = "docs/reference/cli.md"
EXPECTED_PAGES = [
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "docs/PROGRESS.md",
    "docs/architecture.md", "docs/guides/first_training.md", "docs/guides/troubleshooting.md",
    COMMANDS_PAGE,
]
MAX_README_LINES = 150
BENCHMARKS_PAGE = "docs/benchmarks.md"
# The results of README.md: the beginning of the row, and the records of its figures as (section of
# BENCHMARKS_PAGE, pattern, digits after the point).
FIGURES = [
    ("step of 8,192 tokens", [("step-ratio", r"\*\*ratio ([\d.]+)", 2),
                              ("step-ratio-sealed", r"\*\*ratio ([\d.]+)", 2)]),
    ("device memory", [("depth", r"device flat .* ratio ([\d.]+)\)", 4)]),
    ("planned stash", [("plans", r"worker memory: stash +\d+ +\d+ +([\d.]+)", 3)]),
    ("AdamW: time of the memory", [("rules", r"limit / adamw, 1 thread +([\d.]+)", 2)]),
    ("AdamW: time of torch", [("adamw-torch", r"time of torch, fused / ours +([\d.]+)", 2)]),
    ("chunk stream", [("transport", r"throughput / TCP socket +([\d.]+)", 2),
                      ("transport", r"throughput / protobuf stream +([\d.]+)", 2),
                      ("transport", r"throughput / protobuf calls +([\d.]+)", 2)]),
    ("held-out loss", [("codec-training", r"\| mx6 \|[^|]*\|[^|]*\| \+([\d.]+) %", 2)]),
]

GTEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
DEFINED = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
LABEL = re.compile(r"(?<![\w@:/])//([\w./-]*):([\w.+-]+)")
SHORT_LABEL = re.compile(r"([a-z]\w*(?:/[\w-]+)*):([a-z][\w.-]*)")
GRPC_LIBRARY = re.compile(r'^cc_grpc_library\(\s*name = "([^"]+)"', re.MULTILINE)
TARGET = re.compile(r'^\s*name = "([^"]+)"', re.MULTILINE)
PATH = re.compile(r"([\w.-]+(?:/[\w.*<>{},-]+)*/?)(?::\d[\d,-]*)?")
COMMAND = re.compile(r"(?<![\w/.-])eps ([a-z][a-z-]*)\b")
COMMAND_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)


def defined_tests():
    return {match.groups() for path in source_tree.files() if path.endswith("_test.cc")
            for match in DEFINED.finditer(source_tree.read(path))}


def top_folders():
    return {path.split("/", 1)[0] for path in source_tree.files() if "/" in path}


def parents(folder):
    while folder:
        folder = os.path.dirname(folder)
        yield folder


def defined_targets():
    """Returns {package: names of its targets and of the files in its folder}."""
    targets = {}
    for path in source_tree.files():
        if os.path.basename(path) == "BUILD":
            text = source_tree.read(path)
            # cc_grpc_library makes a second library of the messages only.
            messages = [f"{name}_messages" for name in GRPC_LIBRARY.findall(text)]
            targets[os.path.dirname(path)] = set(TARGET.findall(text) + messages)
    for path in source_tree.files():
        folder, name = os.path.split(path)
        if folder in targets:
            targets[folder].add(name)
        elif name.endswith("_test.cc"):  # codecs/mx/a_test.cc is mx_a_test: compression/BUILD
            package = next((p for p in parents(folder) if p in targets), None)
            if package is not None:
                targets[package].add(f"{os.path.basename(folder)}_{name.removesuffix('.cc')}")
    return targets


def inline_code(text):
    """Yields the texts in single backticks outside of code blocks, without line breaks."""
    for match in CODE.finditer(FENCE.sub("", text)):
        yield " ".join(match.group(1).split())


def labels(text, folders):
    """Yields (package, target) of each label: `//a:b` anywhere, `a:b` only as a whole code span."""
    for match in LABEL.finditer(text):
        yield match.groups()
    for code in inline_code(text):
        match = SHORT_LABEL.fullmatch(code)
        if match and ("/" in match.group(1) or match.group(1) in folders):
            yield match.groups()


def wrong_labels(page, text, targets, folders):
    for package, target in labels(text, folders):
        if package not in targets:
            yield f"{page} names //{package}:{target}, and {package} has no BUILD file"
        elif target not in targets[package] | {"all"}:
            yield f"{page} names //{package}:{target}, which its BUILD file does not have"


def paths(text, folders):
    """Yields paths of the tree in backticks: words whose first part is a folder at the root."""
    for code in inline_code(text):
        for word in code.split():
            match = PATH.fullmatch(word.rstrip(",;"))
            if match and "/" in match.group(1) and match.group(1).split("/", 1)[0] in folders:
                yield match.group(1).rstrip("/")


def alternatives(path):
    """Expands `a/{b,c}.h` to a/b.h and a/c.h."""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [other for part in match.group(1).split(",")
            for other in alternatives(path[:match.start()] + part + path[match.end():])]


def exists(path, files):
    """Returns whether `path` is a file, a folder, a name without its ending, a number of docs/adr,
    or a pattern that matches one.

    NAME and a word in angle brackets match any name."""
    if path.startswith("third_party/."):
        return True  # installed, and ignored by git
    pattern = re.sub(r"<[^<>]*>|\bNAME\b", "*", path)
    if "*" in pattern:
        return any(fnmatch.fnmatch(f, pattern) or fnmatch.fnmatch(f, pattern + "/*")
                   for f in files)
    return any(f == path or f.startswith((path + "/", path + ".")) or
               (path.startswith("docs/adr/") and f.startswith(path + "-")) for f in files)


def wrong_paths(page, text, files, folders):
    for path in paths(text, folders):
        for each in alternatives(path):
            if not exists(each, files):
                yield f"{page} names {each}, which does not exist"


def commands_of(text):
    """Returns the commands that have a section on the page of commands."""
    return {name for heading in COMMAND_HEADING.findall(text) for name in COMMAND.findall(heading)}


def unknown_commands(page, text, known):
    code = "\n".join([*FENCE.findall(text), *inline_code(text)])
    for name in COMMAND.findall(code):
        if name not in known:
            yield f"{page} names eps {name}, which {COMMANDS_PAGE} does not list"


def recorded(benchmarks, section, pattern, digits):
    """Returns the first figure that the pattern finds in a section, rounded; None if none."""
    _, _, rest = benchmarks.partition(f"<!-- {section}: begin -->")
    match = re.search(pattern, rest.partition(f"<!-- {section}: end -->")[0])
    return match and f"{float(match.group(1)):.{digits}f}"


def wrong_figures(readme, benchmarks, expected):
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    for start, sources in expected:
        figures = [recorded(benchmarks, *source) for source in sources]
        row = next((row for row in rows if row.startswith(f"| {start}")), None)
        if row is None:
            yield f"README.md has no result that begins with {start!r}"
        elif re.findall(r"\d+\.\d+", row.split(" | ")[1]) != figures:
            yield f"README.md: {start!r}: {BENCHMARKS_PAGE} has {figures}"


class Rules(unittest.TestCase):
    """Checks with planted violations that each rule can fail."""

    TARGETS = {"base": {"bytes", "BUILD"}, "base/job": {"rng_test"}}
    FILES = ["base/bytes.h", "docs/adr/0005-window.md", "docs/a.md"]
    FOLDERS = {"base", "docs"}

    def labels(self, text):
        return list(wrong_labels("page", text, self.TARGETS, self.FOLDERS))

    def paths(self, text):
        return list(wrong_paths("page", text, self.FILES, self.FOLDERS))

    def test_labels(self):
        self.assertEqual(self.labels("`//base:bytes` `base/job:rng_test` `base/job:all`"), [])
        self.assertEqual(self.labels("`host:port` and `1:2`, https://base:80/x"), [])
        self.assertEqual(len(self.labels("```\nbazel run //base:gone -- 1\n```\n")), 1)
        self.assertEqual(len(self.labels("`//gone:bytes`")), 1)
        self.assertEqual(len(self.labels("`base:gone`")), 1)
        self.assertEqual(len(self.labels("`gone/job:rng_test`")), 1)

    def test_paths(self):
        self.assertEqual(self.paths("`base/bytes.h` `base/bytes` `base/` `docs/adr/0005`"), [])
        self.assertEqual(self.paths("`docs/*.md` `base/NAME.h:12` `base/{bytes}.h`"), [])
        self.assertEqual(self.paths("`eps/manifest.json`, base/gone.h\n```\n`base/gone.h`\n```\n"),
                         [])
        self.assertEqual(len(self.paths("`base/gone.h`")), 1)
        self.assertEqual(len(self.paths("`base/gone.py --flag`")), 1)
        self.assertEqual(len(self.paths("`base/{bytes,gone}.h`")), 1)
        self.assertEqual(len(self.paths("`docs/*.txt`")), 1)

    def test_commands(self):
        known = commands_of("# All\n\n`eps gone`\n\n## `eps backup` and `eps restore`\n")
        self.assertEqual(known, {"backup", "restore"})
        self.assertEqual(list(unknown_commands("page", "eps gone, `eps backup X`", known)), [])
        self.assertEqual(len(list(unknown_commands("page", "`eps gone`", known))), 1)
        self.assertEqual(len(list(unknown_commands("page", "```\neps gone\n```\n", known))), 1)


    def test_figures(self):
        page = "<!-- a: begin -->\nratio 0.962\n<!-- a: end -->\n<!-- b: begin -->\nratio 2\n"
        expected = [("step", [("a", r"ratio ([\d.]+)", 2)])]
        self.assertEqual(list(wrong_figures("| step | 0.96 |", page, expected)), [])
        for readme in ("| step | 0.97 |", "| stop | 0.96 |", "| step | 0.96, 0.92 |"):
            self.assertEqual(len(list(wrong_figures(readme, page, expected))), 1, readme)
        self.assertIsNone(recorded(page, "a", r"loss ([\d.]+)", 2))


class Docs(unittest.TestCase):
    def assert_clean(self, violations):
        if violations:
            self.fail("\n" + "\n".join(violations))

    def test_every_named_test_is_there(self):
        defined = defined_tests()
        self.assertGreater(len(defined), 300)
        named = 0
        for page in PAGES_OF_TESTS:
            for match in GTEST.finditer(source_tree.read(page)):
                named += 1
                self.assertTrue(match.groups() in defined,
                                f"{page} names {match.group()}, which is not there")
        self.assertGreater(named, 40)

    def test_every_link_leads_to_a_file(self):
        for page in PAGES:
            for target in LINK.findall(source_tree.read(page)):
                if "://" in target or target.startswith("mailto:"):
                    continue
                path = os.path.normpath(os.path.join(os.path.dirname(page), target))
                self.assertTrue((source_tree.ROOT / path).exists(),
                                f"{page} links to {target}, which is not there")

    def test_every_named_target_is_there(self):
        targets, folders = defined_targets(), top_folders()
        self.assertGreater(len(targets), 20)
        self.assert_clean([v for page in PAGES for v in wrong_labels(
            page, source_tree.read(page), targets, folders)])

    def test_every_named_path_is_there(self):
        files, folders = source_tree.files(), top_folders()
        self.assert_clean([v for page in PAGES for v in wrong_paths(
            page, source_tree.read(page), files, folders)])

    def test_every_named_command_is_documented(self):
        known = commands_of(source_tree.read(COMMANDS_PAGE))
        self.assertGreater(len(known), 10)
        self.assert_clean([v for page in PAGES for v in unknown_commands(
            page, source_tree.read(page), known)])

    def test_the_readme_is_short(self):
        self.assertLessEqual(len(source_tree.read("README.md").splitlines()), MAX_README_LINES)

    def test_the_results_of_the_readme_are_recorded(self):
        self.assert_clean(list(wrong_figures(source_tree.read("README.md"),
                                             source_tree.read(BENCHMARKS_PAGE), FIGURES)))

    def test_the_expected_pages_are_there(self):
        self.assert_clean([f"{page} is not there" for page in EXPECTED_PAGES
                           if page not in source_tree.files()])


if __name__ == "__main__":
    source_tree.main()
