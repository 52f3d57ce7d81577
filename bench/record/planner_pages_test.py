"""Tests that the planner's pages hold what the program prints, and current pictures of it.

Argument: the path of eps."""

import os
import pathlib
import sys
import unittest
import xml.etree.ElementTree as ElementTree

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)  # not the folder of a link's target
import planner_pages as pages
import reproduction_pictures as pictures

EPS = None
REMEDY = "update it with bench/record/planner_pages.py bazel-bin/cli/eps"


def read(path):
    return (pathlib.Path(FOLDER).parents[1] / path).read_text(encoding="utf-8")


def points_of(svg):
    """Yields (x, y) of each mark that is drawn for a value."""
    for element in ElementTree.fromstring(svg).iter():
        tag = element.tag.rpartition("}")[2]
        if tag == "circle":
            yield float(element.get("cx")), float(element.get("cy"))
        if tag == "polyline":
            for point in element.get("points").split():
                yield tuple(map(float, point.split(",")))
        if tag == "rect" and element.get("stroke"):
            yield float(element.get("x")), float(element.get("y"))


class Pages(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.reproduction = read(pages.REPRODUCTION)
        cls.printed, cls.drawn = pages.reproduction_page(EPS, cls.reproduction)

    def test_plans_match_the_output(self):
        for name in pages.PLANS:
            page = read(name)
            self.assertEqual(page, pages.page_of_plans(EPS, name, page), REMEDY)

    def test_rows_match_the_output(self):
        self.assertEqual(self.reproduction, self.printed, REMEDY)

    def test_every_section_occurs_once(self):
        sections = {page: [plan.name for plan in plans] for page, plans in pages.PLANS.items()}
        sections[pages.PLANNING].append("models")
        sections[pages.REPRODUCTION] = ["counts", "compression", *pages.PAPERS]
        for page, names in sections.items():
            for name in names:
                self.assertEqual(read(page).count(f"<!-- {name}: begin -->"), 1, (page, name))

    def test_pictures_match_the_rows(self):
        for name, svg in self.drawn.items():
            self.assertTrue(read(f"{pages.IMAGES}/{name}") == svg, f"{name}: {REMEDY}")
            self.assertIn(f"](images/{name})", self.reproduction)

    def test_marks_stay_inside_their_panel(self):
        for name, svg in self.drawn.items():
            points = list(points_of(svg))
            self.assertGreater(len(points), 10, name)
            for x, y in points:
                self.assertTrue(pictures.LEFT_PANEL[0] <= x <= pictures.RIGHT_PANEL[1], (name, x))
                self.assertTrue(pictures.TOP <= y <= pictures.BOTTOM, (name, y))


class Judging(unittest.TestCase):
    ROWS = [{"id": "a", "tolerance": 0.1, "ok": True}, {"id": "b", "tolerance": 0.1, "ok": False},
            {"id": "c", "tolerance": None, "ok": None, "note": "no batch"},
            {"id": "d", "tolerance": None, "ok": None, "note": "not judged: no batch"}]

    def test_rows_are_counted_by_their_verdict(self):
        self.assertIn("| L2L | 4 | 1 | 1 | 2 |", pages.counts_body({"l2l": self.ROWS}))

    def test_each_reason_occurs_once(self):
        self.assertEqual(pages.group_lines(self.ROWS[:3] * 2, "shown"),
                         ["* `c` and 1 more: no batch."])
        self.assertEqual(pages.group_lines(self.ROWS[3:], "shown"), ["* `d`: no batch."])
        self.assertEqual(pages.group_lines(self.ROWS[:1], "missed"), ["None."])

    def test_gains_of_compression_are_quotients_of_times(self):
        rows = [{"id": f"{prefix}.{variant}{n}{suffix}", "paper": paper, "ours": 2.0}
                for _, prefix, suffix in pages.COMPRESSION for n in (6, 10)
                for variant, paper in (("su_o", 3.0), ("su_o_c", 2.0))]
        self.assertIn("| GPT-2 4.0B, update | 6 | 1.50 | 1.00 |", pages.compression_body(rows))

    def test_a_plan_shows_selected_lines(self):
        plan = pages.Plan("name", ["--a=b"], ("step",))
        self.assertEqual(pages.plan_body(plan, "x\nstep: 1 s\ny\n"),
                         "```\n$ eps plan --a=b\nstep: 1 s\n```")


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
