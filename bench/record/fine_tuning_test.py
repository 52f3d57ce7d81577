"""Tests the figures that the fine-tuning benchmark computes. Nothing is trained or timed."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import fine_tuning
import record
import source_tree
import summary


class Figures(unittest.TestCase):
    def test_a_ratio_is_that_of_one_field(self):
        full = fine_tuning.Run(seconds=2.0, fetched=100, pushed=400, stash=8, state=1200)
        lora = fine_tuning.Run(seconds=1.0, fetched=101, pushed=4, stash=8, state=408)
        ratios = {goal.what: fine_tuning.ratio_of(goal, {"fp32": full, "bf16": full, "lora": lora})
                  for goal in fine_tuning.GOALS}
        self.assertEqual(0.01, ratios["bytes pushed, LoRA r=16 / all weights"])
        self.assertEqual(0.34, ratios["server state, LoRA r=16 / all weights"])
        self.assertEqual(0.5, ratios["step time, LoRA r=16 / all weights"])

    def test_the_median_decides(self):
        met, line = fine_tuning.verdict("a", [0.4, 0.5, 9.0], 0.5)
        self.assertTrue(met)
        self.assertIn("0.500 [0.400..9.000] goal at most 0.5: reached", line)
        met, line = fine_tuning.verdict("a", [0.51], 0.5)
        self.assertFalse(met)
        self.assertTrue(line.endswith("MISSED"))

    def test_the_summary_finds_each_line(self):
        lines = [fine_tuning.verdict(goal.what, [goal.limit / 2], goal.limit)[1]
                 for goal in fine_tuning.GOALS]
        lines.append(fine_tuning.verdict("whole job, EPS / transformers.Trainer", [1.0], 1.1)[1])
        lines.append(fine_tuning.verdict("error of the planned stash, 5 families", [0.0], 0.05)[1])
        body = "## T\n\n`c`\n\n" + "\n".join(lines)
        wanted = [f for f in summary.FIGURES if f.section == "fine-tuning"]
        self.assertEqual(len(lines), len(wanted))
        for figure in wanted:
            self.assertTrue(summary.figure_rows(figure, body)[0].met, figure.what)
        self.assertIn("fine-tuning", record.BENCHMARKS)


if __name__ == "__main__":
    source_tree.main()
