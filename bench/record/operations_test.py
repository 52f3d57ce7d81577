"""Tests the figures that the benchmark of operations prints. Nothing is started or timed."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import operations
import record
import source_tree
import summary


class Figures(unittest.TestCase):
    def test_the_median_decides(self):
        self.assertTrue(operations.line("x", [0.9, 1.02, 3.0], 1.02).endswith(": reached"))
        self.assertTrue(operations.line("x", [1.021], 1.02).endswith(": MISSED"))

    def test_the_summary_finds_each_line(self):
        body = "## T\n\n`c`\n\n" + "\n".join(
            (operations.line(operations.LOOKED_AT, [1.0, 1.01], operations.LOOKED_AT_GOAL),
             operations.line(operations.UNDRIVEN, [1.0], operations.UNDRIVEN_GOAL),
             operations.line(operations.FAILOVER, [31.5, 32.0], operations.FAILOVER_GOAL, 1)))
        wanted = [f for f in summary.FIGURES if f.section == "operations"]
        self.assertEqual(3, len(wanted))
        for figure in wanted:
            self.assertTrue(summary.figure_rows(figure, body)[0].met, figure.what)
        self.assertIn("operations", record.BENCHMARKS)


if __name__ == "__main__":
    source_tree.main()
