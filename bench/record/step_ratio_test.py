"""Tests the figures that the step benchmark computes. Nothing is timed."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import report
import source_tree
import step_ratio


def a_round(seconds, cpu=1.0, others=0.0, losses=(5.0, 4.0), job="a"):
    return step_ratio.Round(job, list(losses), seconds, cpu, others)


class Figures(unittest.TestCase):
    def test_spread_is_median_and_extremes(self):
        self.assertEqual(report.spread([3, 1, 10]), (3, 1, 10))
        self.assertEqual(report.format_spread([1.0, 2.0, 4.0], 1), "2.0 [1.0..4.0]")

    def test_ratio_is_of_the_medians_of_one_pair(self):
        pair = (a_round([2.2, 9.0, 2.0], cpu=3.0), a_round([2.0, 2.0, 1.0], cpu=2.0))
        self.assertAlmostEqual(step_ratio.step_ratio(pair), 1.1)
        self.assertAlmostEqual(step_ratio.cpu_ratio(pair), 1.5)

    def test_reads_processor_and_ticks(self):
        self.assertEqual(report.machine_name("processor : 0\nmodel name\t: A: B\n"), "A: B")
        self.assertEqual(report.machine_name(""), "unknown")
        self.assertEqual(report.busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 9\n"), 63)
        line = "7 (a (b) c) S 3 7 7 0 -1 4 1 2 3 4 50 6 0 0 20 0"
        self.assertEqual(report.parse_process(line), (3, 56))

    def test_a_family_holds_all_descendants(self):
        processes = {1: (0, 5), 2: (1, 5), 3: (2, 5), 4: (1, 5), 9: (8, 5)}
        self.assertEqual(sorted(report.family(processes, 2)), [2, 3])
        self.assertEqual(sorted(report.family(processes, 1)), [1, 2, 3, 4])
        self.assertEqual(report.family(processes, 77), [])

    def test_others_are_busy_ticks_that_are_not_ours(self):
        hz = report.TICKS_PER_SECOND
        begin = report.CpuSample(10.0, 100 * hz, 40 * hz)
        end = report.CpuSample(15.0, 109 * hz, 48 * hz)  # 9 s busy, 8 s ours, of 2 x 5 s
        self.assertAlmostEqual(report.others_share(begin, end, 2), 0.1)
        self.assertEqual(report.others_share(begin, end._replace(own=60 * hz), 2), 0.0)

    def test_waiting_for_a_quiet_machine_ends(self):
        now = [0.0]
        def sleep(seconds):
            now[0] += seconds
        self.assertTrue(report.wait_until_quiet(1e9, 1, 60, lambda: now[0], sleep))
        self.assertFalse(report.wait_until_quiet(-1.0, 1, 60, lambda: now[0], sleep))
        self.assertLess(now[0], 70)


class SameTraining(unittest.TestCase):
    def test_losses_may_differ_by_rounding(self):
        for ours, theirs in [([5.0, 4.0], [5.0, 4.0]), ([5.0, 4.0], [5.000001, 4.001])]:
            self.assertIsNone(step_ratio.loss_difference(ours, theirs))
        for ours, theirs in [([5.0, 4.0], [5.0001, 4.0]), ([5.0, 4.0], [5.0, 4.1]),
                             ([], []), ([5.0], [5.0, 4.0])]:
            self.assertIsNotNone(step_ratio.loss_difference(ours, theirs), (ours, theirs))

    def test_refuses_another_job(self):
        same = (a_round([1.0]), a_round([1.0]))
        self.assertIsNone(step_ratio.check_same_training(same))
        for job in ("b", None):
            pair = (same[0]._replace(job=job), same[1])
            self.assertIn("not the same job", step_ratio.check_same_training(pair))
        unknown = (same[0]._replace(job=None), same[1]._replace(job=None))
        self.assertIsNotNone(step_ratio.check_same_training(unknown))

    def test_reads_the_job_of_both_programs(self):
        self.assertEqual(step_ratio.job_of_output(["x", "job: 5cfb at step 0 (eps)"]), "5cfb")
        self.assertEqual(step_ratio.job_of_output(['{"job":"5cfb","threads":2}', "y"]), "5cfb")
        self.assertIsNone(step_ratio.job_of_output(["jobs: 1"]))


class Verdicts(unittest.TestCase):
    def pairs(self, ratio, others, count):
        return [(a_round([ratio], others=others), a_round([1.0])) for _ in range(count)]

    def test_enough_quiet_pairs_exclude_disturbed_ones(self):
        pairs = self.pairs(9.0, 0.5, 20) + self.pairs(1.05, 0.0, step_ratio.MIN_QUIET_PAIRS)
        verdict = step_ratio.judge(pairs, 0.1)
        self.assertTrue(verdict.reached)
        self.assertEqual(len(verdict.used), step_ratio.MIN_QUIET_PAIRS)
        self.assertIn("reached", verdict.text)

    def test_with_few_quiet_pairs_all_count(self):
        pairs = self.pairs(9.0, 0.5, 20) + self.pairs(1.05, 0.0, step_ratio.MIN_QUIET_PAIRS - 1)
        verdict = step_ratio.judge(pairs, 0.1)
        self.assertFalse(verdict.reached)
        self.assertEqual(len(verdict.used), len(pairs))
        self.assertIn("only 4 were undisturbed", verdict.text)

    def test_the_goal_is_inclusive(self):
        self.assertTrue(step_ratio.judge(self.pairs(1.10, 0.0, 5), 0.1).reached)
        self.assertFalse(step_ratio.judge(self.pairs(1.11, 0.0, 5), 0.1).reached)


class Pages(unittest.TestCase):
    def test_a_section_is_replaced_and_the_rest_stays(self):
        text = report.replace_section("# T\n\nold\n", "one", "first")
        text = report.replace_section(text, "two", "second")
        text = report.replace_section(text, "one", "third")
        self.assertEqual(text, "# T\n\nold\n\n<!-- one: begin -->\nthird\n<!-- one: end -->\n\n"
                               "<!-- two: begin -->\nsecond\n<!-- two: end -->\n")

    def test_a_section_without_an_end_is_refused(self):
        with self.assertRaises(ValueError):
            report.replace_section("<!-- one: begin -->\nx\n", "one", "y")

    def test_the_section_names_what_was_measured(self):
        options = step_ratio.parse_arguments(["--rounds=5", "--eps-arg=--servers=1"])
        pairs = [(a_round([1.0, 1.2, 1.1]), a_round([1.0]))] * 5
        body = step_ratio.section_body(options, pairs, step_ratio.judge(pairs, 0.1))
        for text in ("--rounds=5", "--eps-arg=--servers=1", report.machine(), "ratio 1.100",
                     "| 5 | 1.100 | 1.000 |"):
            self.assertIn(text, body)
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            page = os.path.join(folder, "page.md")
            report.write_section(page, "s", body)
            report.write_section(page, "s", body)
            with open(page, encoding="utf-8") as file:
                written = file.read()
        self.assertEqual(written.count("| 5 | 1.100"), 1)
        self.assertTrue(written.startswith("# Benchmarks\n"))


if __name__ == "__main__":
    source_tree.main()
