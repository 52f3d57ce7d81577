"""Checks that every edit of tests/planted_bugs.py still matches the sources."""

import pathlib
import unittest

import planted_bugs
import source_tree


class PlantedBugs(unittest.TestCase):
    def test_every_edit_matches_its_source_once(self):
        gone = []
        for bug in planted_bugs.BUGS:
            for edit in bug.edits:
                text = pathlib.Path(source_tree.ROOT, edit.path).read_text(encoding="utf-8")
                if text.count(edit.before) != 1:
                    gone.append(f"{bug.name}: {edit.path} has {text.count(edit.before)} times: "
                                f"{edit.before!r}")
        self.assertEqual(gone, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
