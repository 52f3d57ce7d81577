"""Tests the figures that the benchmark of rolling restarts prints. Nothing is started or timed."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import operations
import record
import rolling_restart
import source_tree
import summary


class Figures(unittest.TestCase):
    def test_a_step_that_is_computed_twice_is_lost(self):
        lines = ['{"step": %d}\n' % step for step in (1, 2, 3, 2, 3, 4)]
        self.assertEqual(2, rolling_restart.lost_steps(lines))
        self.assertEqual(0, rolling_restart.lost_steps(lines[:3]))

    def test_the_summary_finds_each_line(self):
        body = "## T\n\n`c`\n\n" + "\n".join(
            (operations.line(rolling_restart.LOST, [0], rolling_restart.LOST_GOAL, 0),
             operations.line(rolling_restart.STOP, [0.5, 26.9], 27.0, 2)))
        wanted = [f for f in summary.FIGURES if f.section == "rolling-restart"]
        self.assertEqual(2, len(wanted))
        for figure in wanted:
            self.assertTrue(summary.figure_rows(figure, body)[0].met, figure.what)
        self.assertIn("rolling-restart", record.BENCHMARKS)


if __name__ == "__main__":
    source_tree.main()
