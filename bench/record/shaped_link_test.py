"""Tests the figures that the link benchmark computes. Nothing is timed or shaped."""

import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import record
import shaped_link
import source_tree


def a_run(seconds, job="a", losses=(5.0, 4.0), down=50e6, up=25e6):
    return shaped_link.Run(job, list(losses), seconds, down, up)


class Figures(unittest.TestCase):
    def test_counts_the_parameters_of_the_model(self):
        tiny = {"n_layer": 1, "n_embd": 2, "n_positions": 3, "vocab_size": 5}
        # Embeddings 16, one block: norms 8, attention 12 + 6 + 4 + 2, mlp 16 + 8 + 16 + 2; norm 4.
        self.assertEqual(shaped_link.parameters(tiny), 16 + 8 + 24 + 42 + 4)

    def test_rate_is_of_the_median_step(self):
        self.assertAlmostEqual(shaped_link.rate_of(a_run([0.5, 9.0, 0.4]), 10), 20)

    def test_the_busier_direction_counts(self):
        raw = shaped_link.Raw(down=100e6, up=100e6)
        self.assertAlmostEqual(shaped_link.share_of_limit(a_run([1.0]), raw), 0.5)
        self.assertAlmostEqual(shaped_link.share_of_limit(a_run([1.0], up=90e6), raw), 0.9)

    def test_bytes_between_two_samples(self):
        begin = shaped_link.LinkSample(10.0, 1000, 100)
        self.assertEqual(shaped_link.between(begin, shaped_link.LinkSample(12.0, 1600, 300)),
                         (300, 100))

    def test_every_setting_begins_one_round(self):
        names = ["a", "b", "c"]
        self.assertEqual({shaped_link.rotated(names, i)[0] for i in range(3)}, set(names))
        self.assertEqual(sorted(shaped_link.rotated(names, 4)), names)

    def test_ratios_are_of_one_round(self):
        rounds = [{"fp32": a_run([1.0]), "bf16": a_run([0.5], job="b")},
                  {"fp32": a_run([3.0]), "bf16": a_run([1.0], job="b")}]
        raws = [shaped_link.Raw(100e6, 100e6)] * 2
        lines = shaped_link.result_lines(rounds, raws, 6_000_000)
        self.assertEqual(lines[1].split()[:5], ["fp32", "4.00", "[2.00..6.00]", "1.00",
                                                "[1.00..1.00]"])
        self.assertEqual(lines[2].split()[:5], ["bf16", "9.00", "[6.00..12.00]", "2.50",
                                                "[2.00..3.00]"])
        self.assertIn("down 0.800 [0.800..0.800] Gbit/s", lines[3])


class SameTraining(unittest.TestCase):
    def rounds(self, **change):
        rounds = [{"fp32": a_run([1.0]), "bf16": a_run([1.0], job="b")} for _ in range(2)]
        rounds[1]["bf16"] = rounds[1]["bf16"]._replace(**change)
        return rounds

    def test_rounds_agree(self):
        self.assertIsNone(shaped_link.problem_of(self.rounds()))

    def test_names_the_difference(self):
        for change, text in [({"job": "c"}, "jobs b, c"), ({"job": None}, "jobs b, None"),
                             ({"losses": [5.0, math.nan]}, "finite"), ({"losses": []}, "finite"),
                             ({"losses": [5.0, 4.5]}, "in round 1")]:
            self.assertIn(text, shaped_link.problem_of(self.rounds(**change)), change)

    def test_refuses_two_settings_with_one_job(self):
        rounds = [{"fp32": a_run([1.0]), "bf16": a_run([1.0])}]
        self.assertIn("same job", shaped_link.problem_of(rounds))

    def test_fp32_is_the_baseline(self):
        self.assertIn(shaped_link.BASE, shaped_link.SETTINGS)
        for name in ("shaped_link.py", "shaped-link"):
            self.assertIn(name, str(record.BENCHMARKS))


if __name__ == "__main__":
    source_tree.main()
