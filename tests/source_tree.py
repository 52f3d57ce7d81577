"""Shared by the tests of the source text: the file list, C++ without comments, a unittest runner.

These tests read the source tree itself, not copies in bazel's sandbox, so that a new file is
checked without being listed anywhere.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP_SUFFIXES = (".h", ".cc", ".cu", ".cuh")


@functools.lru_cache(maxsize=None)
def files():
    """Returns the root-relative paths of all files that are tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z", "--cached",
         "--others", "--exclude-standard"],
        check=True, stdout=subprocess.PIPE, timeout=600).stdout.decode()
    return tuple(sorted(p for p in set(listed.split("\0")) if p and (ROOT / p).is_file()))


@functools.lru_cache(maxsize=None)
def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def is_cpp(path):
    return path.endswith(CPP_SUFFIXES)


def is_third_party(path):
    return path.startswith("third_party/")


def _is_build_file(path):
    return os.path.basename(path) in ("BUILD", "BUILD.bazel")


def build_files():
    """Returns the paths of the BUILD files of our own packages."""
    return [p for p in files() if _is_build_file(p) and not is_third_party(p)]


_NOT_CODE = re.compile(
    r"""//(?:[^\n\\]|\\.|\\\n)*          # a line comment
      | /\*.*?\*/                        # a block comment
      | R"(?P<end>[^()\\\s]{0,16})\(.*?\)(?P=end)"   # a raw string
      | "(?:[^"\\\n]|\\.)*"              # a string
      | (?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)*'          # a character, not a digit separator
    """, re.DOTALL | re.VERBOSE)


def cpp_code(text, keep_strings=False):
    """Returns `text` with comments and, unless kept, strings blanked; lines and columns stay."""
    def blank(match):
        piece = match.group()
        if keep_strings and not piece.startswith("/"):
            return piece
        return re.sub(r"[^\n]", " ", piece)
    return _NOT_CODE.sub(blank, text)


def matches(pattern, text):
    """Yields (line number, match) for each match of a compiled pattern."""
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match


class _Timed(unittest.TextTestResult):
    """Records the time and failure of each test for the XML that bazel reads."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []
        self.started = time.monotonic()

    def startTest(self, test):
        self.started = time.monotonic()
        super().startTest(test)

    def _record(self, test, failure):
        class_name, name = test.id().rsplit(".", 1)
        self.cases.append((class_name, name, time.monotonic() - self.started, failure))

    def addSuccess(self, test):
        super().addSuccess(test)
        self._record(test, None)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._record(test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self._record(test, self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._record(test, self._exc_info_to_string(err, test))


def _write_xml(cases, path):
    suite = ElementTree.Element("testsuite", name=os.path.basename(sys.argv[0]),
                                tests=str(len(cases)))
    for class_name, name, seconds, failure in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=class_name, name=name,
                                      time=f"{seconds:.3f}")
        if failure is not None:
            ElementTree.SubElement(case, "failure", message="failed").text = failure
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def main():
    """Runs the unittest cases of the calling script and reports each of them to bazel."""
    runner = unittest.TextTestRunner(resultclass=_Timed, verbosity=2)
    program = unittest.main(module="__main__", testRunner=runner, exit=False)
    if "XML_OUTPUT_FILE" in os.environ:
        _write_xml(program.result.cases, os.environ["XML_OUTPUT_FILE"])
    sys.exit(0 if program.result.wasSuccessful() and program.result.testsRun else 1)
