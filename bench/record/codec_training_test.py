"""Tests the records and the conclusions of the codec tally, without training anything."""

import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
import chart
import codec_training
import codec_training_picture as picture
import codec_training_tally as tally
import source_tree


def a_run(setting, seed=1, final=2.0, steps=100, **changes):
    run = {"setting": setting, "seed": seed, "steps": steps, "data": "d", "arguments": [],
           "eval_samples": 64, "curve": [[steps // 2, 3.0], [steps, final]], "seconds": 36.0,
           "step_seconds": 0.3, "fetched_bytes_per_step": 2.0**20,
           "pushed_bytes_per_step": 2.0**19, "codec_share": 0.97, "machine": "M", "cores": 2,
           "commit": "abc"}
    return dict(run, **changes)


def pairs(setting, differences, steps=100):
    """Returns runs of the baseline and of a setting with the given relative differences."""
    runs = []
    for seed, difference in enumerate(differences, start=1):
        base = 2.0 + 0.5 * seed
        runs.append(a_run("fp32", seed, base, steps))
        runs.append(a_run(setting, seed, base * (1 + difference), steps))
    return runs


class Settings(unittest.TestCase):
    def test_each_has_its_arguments(self):
        prefix = "--quantization."
        for setting, expected in [
                ("fp32", ["weights=fp32"]),
                ("mx6", ["weights=mx6"]),
                ("topk:0.1", ["gradients=topk:0.1", "error_feedback=true", "warmup_steps=62"]),
                ("topk:0.01-no-feedback",
                 ["gradients=topk:0.01", "error_feedback=false", "warmup_steps=62"]),
                ("mx6+topk:0.01", ["weights=mx6", "gradients=topk:0.01", "error_feedback=true",
                                   "warmup_steps=62"])]:
            self.assertEqual(tally.quantization(setting, 1250), [prefix + e for e in expected])

    def test_refuses_two_codecs_of_one_kind(self):
        for setting in ("mx6+mx4", "topk:0.1+topk:0.01", "", "mx6+"):
            with self.assertRaises(ValueError, msg=setting):
                tally.quantization(setting, 100)
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            codec_training.parse_arguments(["--settings", "mx6+mx4"])

    def test_warm_up_is_at_most_its_share(self):
        for steps in (1, 19, 20, 39, 1250):
            value = tally.quantization("topk:0.1", steps)[-1].rpartition("=")[2]
            self.assertLessEqual(int(value), 0.05 * steps)


class TallyFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "below", "tally.jsonl")
        self.book = tally.Tally(self.path)

    def test_holds_added_runs_and_replaces_repeated_ones(self):
        self.assertEqual(self.book.runs(), [])
        self.book.add(a_run("fp32"))
        self.book.add(a_run("mx6"))
        self.book.add(a_run("fp32", final=1.0))
        self.assertEqual([(r["setting"], tally.final_loss(r)) for r in self.book.runs()],
                         [("fp32", 1.0), ("mx6", 2.0)])

    def test_a_truncated_line_is_replaced_by_the_next_run(self):
        self.book.add(a_run("fp32"))
        with open(self.path, "a", encoding="utf-8") as file:
            file.write('{"setting": "mx6", "se')
        self.assertEqual(len(self.book.runs()), 1)
        self.book.add(a_run("mx9"))
        self.assertEqual([r["setting"] for r in self.book.runs()], ["fp32", "mx9"])

    def test_refuses_a_file_that_is_no_tally(self):
        os.makedirs(os.path.dirname(self.path))
        for text in ("hello\n", "{}\n", "[1]\n"):
            pathlib.Path(self.path).write_text(text, encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "tally.jsonl:1 is not a run"):
                self.book.runs()

    def test_a_key_omits_the_commit_and_the_measurements(self):
        run = a_run("mx6")
        same = a_run("mx6", final=9.0, commit="def", machine="N", seconds=1.0)
        self.assertEqual(tally.missing([run], [tally.key_of(same)]), [])
        for other in (a_run("mx9"), a_run("mx6", 2), a_run("mx6", steps=200),
                      a_run("mx6", data="e"), a_run("mx6", arguments=["--servers=1"])):
            self.assertEqual(tally.missing([run], [tally.key_of(other)]), [tally.key_of(other)])


class FakeRunner:
    """Trains nothing. Runs of `failing` settings fail; the run `stop_at` is interrupted."""

    def __init__(self, failing=(), stop_at=None):
        self.failing, self.stop_at, self.ran = failing, stop_at, []

    def wanted(self):
        return [tally.key_of(a_run(s, seed)) for seed in (1, 2) for s in ("fp32", "mx6")]

    def run(self, setting, seed):
        if (setting, seed) == self.stop_at:
            raise KeyboardInterrupt
        if setting in self.failing:
            raise codec_training.RunFailed("planned")
        self.ran.append((setting, seed))
        return a_run(setting, seed)


class Resume(unittest.TestCase):
    def run_missing(self, runner, book):
        options = codec_training.parse_arguments(["--steps=100"])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return codec_training.run_missing(options, runner, book)

    def test_an_interrupted_tally_continues(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            book = tally.Tally(os.path.join(folder, "tally.jsonl"))
            with self.assertRaises(KeyboardInterrupt):
                self.run_missing(FakeRunner(stop_at=("fp32", 2)), book)
            self.assertEqual(len(book.runs()), 2)
            runner = FakeRunner()
            self.assertEqual(self.run_missing(runner, book), 0)
            self.assertEqual(runner.ran, [("fp32", 2), ("mx6", 2)])
            runner = FakeRunner()
            self.assertEqual(self.run_missing(runner, book), 0)
            self.assertEqual(runner.ran, [])

    def test_a_failed_run_is_counted_but_not_recorded(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            book = tally.Tally(os.path.join(folder, "tally.jsonl"))
            self.assertEqual(self.run_missing(FakeRunner(failing=("fp32",)), book), 2)
            self.assertEqual({r["setting"] for r in book.runs()}, {"mx6"})

    def test_a_program_that_stops_early_or_fails_is_refused(self):
        script = """#!/bin/sh
for a; do case $a in --out=*) out=${a#--out=};; esac; done
mkdir -p "$out"
echo 'wire per step: fetch 1.0 MiB (fp32), push 512.0 KiB (fp32)'
echo '{"step":1,"loss":5,"step_seconds":0.1}' > "$out/metrics.jsonl"
echo '{"step":1,"eval_loss":5}' >> "$out/metrics.jsonl"
exit %d
"""
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            eps = pathlib.Path(folder, "eps")
            data = codec_training.Data("train", "held-out", "digest")
            for code, says in ((0, "1 of 2 steps"), (3, "exit code 3")):
                eps.write_text(script % code, encoding="utf-8")
                eps.chmod(0o755)
                options = codec_training.parse_arguments(["--steps=2", f"--eps={eps}"])
                with contextlib.redirect_stdout(io.StringIO()), \
                     self.assertRaisesRegex(codec_training.RunFailed, says):
                    codec_training.Runner(options, data).run("fp32", 1)

    def test_reads_the_output_of_eps(self):
        self.assertEqual(codec_training.wire_bytes(
            "x\nwire per step: fetch 1.5 MiB (mx6), push 89.5 KiB (topk:0.05)\ny"),
            (1.5 * 2**20, 89.5 * 2**10))
        with self.assertRaises(codec_training.RunFailed):
            codec_training.wire_bytes("nothing")


class HeldOut(unittest.TestCase):
    def test_the_end_of_the_texts_is_held_out(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            text = os.urandom(1000)
            paths = [os.path.join(folder, name) for name in "ab"]
            pathlib.Path(paths[0]).write_bytes(text[:300])
            pathlib.Path(paths[1]).write_bytes(text[300:])
            data = codec_training.split_data(paths, 4, folder)
            self.assertEqual(pathlib.Path(data.train).read_bytes(), text[:1000 - 257])
            self.assertEqual(pathlib.Path(data.held_out).read_bytes(), text[1000 - 257:])
            self.assertNotEqual(codec_training.split_data(paths, 5, folder).digest, data.digest)
            with self.assertRaisesRegex(codec_training.RunFailed, "too few to train on"):
                codec_training.split_data(paths, 8, folder)


class Verdicts(unittest.TestCase):
    def verdict(self, runs, setting):
        return next(row.verdict for row in tally.rows(runs) if row.setting == setting)

    def test_differences_are_those_of_the_same_seed(self):
        runs = pairs("mx6", [0.01, -0.02]) + [a_run("mx6", 9), a_run("fp32", 8)]
        found = tally.paired(runs, "mx6")
        self.assertEqual(list(found), [1, 2])
        self.assertAlmostEqual(found[1], 0.01)
        self.assertAlmostEqual(found[2], -0.02)

    def test_the_mean_over_seeds_decides(self):
        self.assertEqual(self.verdict(pairs("mx6", [0.03, 0.01, 0.0]), "mx6"), "met")
        self.assertEqual(self.verdict(pairs("mx6", [0.03, 0.01, 0.01]), "mx6"), "MISSED")
        self.assertEqual(self.verdict(pairs("mx9", [0.006] * 3), "mx9"), "MISSED")
        self.assertEqual(self.verdict(pairs("mx9", [-0.5] * 3), "mx9"), "met")

    def test_two_seeds_are_too_few(self):
        self.assertEqual(self.verdict(pairs("mx6", [0.5] * 2), "mx6"), "2 of 3 seeds")

    def test_settings_without_a_goal_are_reported(self):
        self.assertEqual(self.verdict(pairs("mx4", [0.5] * 3), "mx4"), "")
        self.assertEqual(self.verdict(pairs("topk:0.01", [0.5] * 3, 1250), "topk:0.01"),
                         "not judged")
        self.assertEqual(self.verdict(pairs("topk:0.01", [0.5] * 3, 2000), "topk:0.01"), "MISSED")

    def test_without_feedback_every_seed_must_be_worse(self):
        name = "topk:0.1-no-feedback"
        runs = pairs("topk:0.1", [0.0] * 3)
        base = {run["seed"]: run["curve"][-1][1] for run in runs}
        for worse, verdict in (([0.02] * 3, "met"), ([0.2, 0.2, -0.001], "MISSED"),
                               ([0.005] * 3, "MISSED")):
            more = [a_run(name, seed, base[seed] * (1 + w)) for seed, w in zip((1, 2, 3), worse)]
            self.assertEqual(self.verdict(runs + more, name), verdict)

    def test_a_loss_that_is_not_finite_misses(self):
        runs = pairs("mx6", [0.0] * 3)
        runs[-1]["curve"][-1][1] = None
        self.assertEqual(self.verdict(runs, "mx6"), "MISSED")
        self.assertIn("diverged", tally.format_table(tally.rows(runs)))

    def test_a_table_holds_only_comparable_runs(self):
        runs = [a_run("fp32", data="old"), a_run("fp32"), a_run("mx6"), a_run("mx6", steps=7),
                a_run("mx6", arguments=["--optimizer.name=sgd"])]
        self.assertEqual(tally.latest_group(runs, 100), runs[1:3])
        self.assertEqual(tally.latest_group(runs, 100, ["--optimizer.name=sgd"]), runs[4:])
        self.assertEqual(tally.latest_group(runs, 8), [])


class Pictures(unittest.TestCase):
    def elements(self, svg, name):
        return ElementTree.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{name}")

    def test_draws_and_names_every_setting(self):
        runs = [a_run(s, seed, 2.0 + 0.01 * i) for i, s in enumerate(tally.SETTINGS)
                for seed in (1, 2)]
        svg = picture.draw(runs)
        texts = [t.text for t in self.elements(svg, "text")]
        for setting in tally.SETTINGS:
            self.assertTrue(any(t.startswith(tally.label(setting)) for t in texts), setting)
        # Each setting has a line in the upper panel; all but the baseline also in the lower one.
        self.assertEqual(len(self.elements(svg, "polyline")), 2 * len(tally.SETTINGS) - 1)
        looks = {(p.get("stroke"), p.get("stroke-dasharray"))
                 for p in self.elements(svg, "polyline")}
        self.assertEqual(len(looks), len(tally.SETTINGS))
        for title in ("Held-out loss (nats per token)", "step", "100"):
            self.assertIn(title, texts)

    def test_curves_stay_inside_their_panels(self):
        runs = pairs("mx6", [0.5, 8.0]) + pairs("mx4", [-0.4, -0.4])
        for line in self.elements(picture.draw(runs), "polyline"):
            for x, y in (map(float, p.split(",")) for p in line.get("points").split()):
                self.assertTrue(picture.LEFT <= x <= picture.RIGHT, x)
                self.assertTrue(64.9 <= y <= 330.1 or 424.9 <= y <= 700.1, y)

    def test_a_lower_loss_is_drawn_lower(self):
        runs = pairs("mx6", [0.1])
        drawn = self.elements(picture.draw(runs), "polyline")
        first, last = (float(p.split(",")[1]) for p in drawn[0].get("points").split())
        self.assertEqual(last, 330.0 if runs[0]["curve"][-1][1] == 2.5 else None)
        self.assertLess(first, last)

    def test_values_are_means_over_seeds_of_pairs(self):
        curves = picture.difference_curves(pairs("mx6", [0.01, 0.03]), ["fp32", "mx6"])
        self.assertEqual(list(curves), ["mx6"])
        self.assertAlmostEqual(dict(curves["mx6"])[100], 0.02)

    def test_non_finite_values_are_gaps(self):
        runs = pairs("mx6", [0.0])
        runs[1]["curve"] = [[25, 3.0], [50, None], [100, 2.5]]
        runs[0]["curve"] = [[25, 3.0], [50, 2.7], [100, 2.5]]
        self.assertEqual(picture.loss_curves(runs, ["mx6"])["mx6"],
                         [(25, 3.0), (50, None), (100, 2.5)])
        self.assertEqual(len(self.elements(picture.draw(runs), "polyline")), 1 + 2 + 2)

    def test_one_run_alone_can_be_drawn(self):
        self.assertEqual(len(self.elements(picture.draw([a_run("a<b")]), "polyline")), 1)

    def test_ticks_are_round_and_enclose(self):
        self.assertEqual(chart.nice_ticks(0, 1250), [0, 500, 1000, 1500])
        for low, high in ((1.31, 4.2), (2.0, 2.0), (-3, 0.1)):
            ticks = chart.nice_ticks(low, high)
            self.assertLessEqual(ticks[0], low + 1e-9)
            self.assertGreaterEqual(ticks[-1], high - 1e-9)
            self.assertLess(len(ticks), 10)


class Pages(unittest.TestCase):
    def test_a_report_writes_page_and_picture_and_runs_nothing(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            book = tally.Tally(os.path.join(folder, "tally.jsonl"))
            for run in pairs("mx6", [0.001, 0.002, 0.006]):
                book.add(run)
            page, svg = os.path.join(folder, "page.md"), os.path.join(folder, "images", "p.svg")
            sys.argv = ["codec_training.py", "--report", "--steps=100", f"--tally={book.path}",
                        f"--page={page}", f"--picture={svg}", "--eps=/nowhere"]
            for _ in range(2):
                with contextlib.redirect_stdout(io.StringIO()):
                    self.assertEqual(codec_training.main(), 0)
            text = pathlib.Path(page).read_text(encoding="utf-8")
            for part in ("+0.30 % [+0.10..+0.60]", "| met |", "images/p.svg", "commit abc",
                         "seeds 1, 2, 3", "1.00 MiB, 0.50 MiB", "97% of the parameters"):
                self.assertIn(part, text)
            self.assertEqual(text.count("## The effect of codecs on training"), 1)
            ElementTree.parse(svg)

    def test_every_row_has_the_columns_of_the_head(self):
        table = tally.format_table(tally.rows(pairs("mx6", [0.1] * 3)))
        self.assertEqual({len(re.findall(r"\|", line)) for line in table.splitlines()}, {8})

    def test_reports_a_missed_goal(self):
        self.assertIn("A goal was missed", tally.section_body(pairs("mx6", [0.5] * 3), "p.svg"))
        self.assertNotIn("A goal was missed", tally.section_body(pairs("mx6", [0.0] * 3), "p.svg"))

    def test_another_section_names_its_title_and_settings(self):
        body = tally.section_body([a_run("fp32", arguments=["--optimizer.name=sgd"])], "p.svg",
                                  "With SGD", " --section=sgd")
        self.assertIn("## With SGD\n", body)
        self.assertIn("--eps-arg=--optimizer.name=sgd --section=sgd --report`", body)
        self.assertIn("of the small GPT-2 with `optimizer.name=sgd`, 100 steps", body)


if __name__ == "__main__":
    source_tree.main()
