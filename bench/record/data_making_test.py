"""Tests the figures that the benchmark of making data computes. Nothing is made or timed."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import data_making
import record
import source_tree
import summary


class Figures(unittest.TestCase):
    def test_the_median_decides(self):
        self.assertTrue(data_making.speed_line([0.5, 1.0, 2.0]).endswith("goal >= 1: reached"))
        self.assertTrue(data_making.speed_line([0.99]).endswith("MISSED"))
        self.assertTrue(data_making.padding_line(0.03).endswith("goal at most 0.03: reached"))
        self.assertTrue(data_making.padding_line(0.031).endswith("MISSED"))

    def test_the_summary_finds_each_line(self):
        body = "## T\n\n`c`\n\n" + "\n".join(
            (data_making.speed_line([1.5, 1.6]), data_making.padding_line(0.012)))
        wanted = [f for f in summary.FIGURES if f.section == "data-making"]
        self.assertEqual(2, len(wanted))
        for figure in wanted:
            self.assertTrue(summary.figure_rows(figure, body)[0].met, figure.what)
        self.assertIn("data-making", record.BENCHMARKS)


if __name__ == "__main__":
    source_tree.main()
