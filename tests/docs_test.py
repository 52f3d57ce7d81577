"""The documents name things that are there: tests, files and folders.

A page may name a test as `Suite.Name` (gtest) or `file_test.py`'s methods; a link may lead to a
file of the tree.
"""

import os
import re
import unittest

import source_tree

PAGES = [p for p in source_tree.files() if p.endswith(".md")]
PAGES_OF_TESTS = ["docs/reference/refusals.md", "tests/README.md"]
GTEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
DEFINED = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def defined_tests():
    return {match.groups() for path in source_tree.files() if path.endswith("_test.cc")
            for match in DEFINED.finditer(source_tree.read(path))}


class Docs(unittest.TestCase):
    def test_every_named_test_is_there(self):
        defined = defined_tests()
        self.assertGreater(len(defined), 300)
        named = 0
        for page in PAGES_OF_TESTS:
            for match in GTEST.finditer(source_tree.read(page)):
                named += 1
                self.assertIn(match.groups(), defined, f"{page} names a test that is not there")
        self.assertGreater(named, 40)

    def test_every_link_leads_to_a_file(self):
        for page in PAGES:
            for target in LINK.findall(source_tree.read(page)):
                if "://" in target or target.startswith("mailto:"):
                    continue
                path = os.path.normpath(os.path.join(os.path.dirname(page), target))
                self.assertTrue((source_tree.ROOT / path).exists(),
                                f"{page} links to {target}, which is not there")


if __name__ == "__main__":
    source_tree.main()
