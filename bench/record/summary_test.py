"""Tests the summary table of docs/benchmarks.md: its figures are those of the sections below it."""

import pathlib
import unittest

import report
import summary

PAGE = pathlib.Path(report.ROOT) / "docs/benchmarks.md"

ONE_PASS = """## One pass

`bench one`

```
1 thread
  update / with encoding      0.83 [0.80..0.85]  goal >= 0.91: MISSED
2 threads
  update / with encoding      0.95 [0.74..0.97]  goal >= 0.91: reached
```"""

CODECS = """## Codecs

`bench codecs`

```
mx6 row encode, 1 thr, 1.61 G/s     0.75 [0.72..0.78]  goal >= 0.80: MISSED
mx6:truncate row encode, 2 thr, 2 G/s  0.70 [0.61..0.78]  goal >= 0.80: MISSED
  against the scalar reference: encode 92.1x, decode 60.0x
mx6 column encode, 1 thr, 1.9 G/s   0.85 [0.82..0.88]  goal >= 0.80: reached
fp32 decode, 2 thr, 2.43 G/s        0.98 [0.81..1.12]  goal >= 0.90: reached
```"""


class Rows(unittest.TestCase):
    def test_shows_each_number_of_threads(self):
        wanted = summary.judged("one-pass", "update", "alone", "update / with encoding")
        rows = summary.figure_rows(wanted, ONE_PASS)
        self.assertEqual([(row.what, row.goal, row.ours, row.met) for row in rows],
                         [("update, 1 thread", "≥ 0.91", "0.83 [0.80..0.85]", False),
                          ("update, 2 threads", "≥ 0.91", "0.95 [0.74..0.97]", True)])
        self.assertEqual(rows[0].command, "bench one")

    def test_an_upper_limit_is_met_from_below(self):
        wanted = summary.figure("s", "a", "b", r"ratio (?P<ours>[\d.]+)", 1.1, at_most=True)
        body = "## T\n\n`c`\n\nratio {}"
        self.assertTrue(summary.figure_rows(wanted, body.format("1.1"))[0].met)
        self.assertFalse(summary.figure_rows(wanted, body.format("1.11"))[0].met)

    def test_a_rounded_figure_keeps_its_verdict(self):
        wanted = summary.judged("one-pass", "update", "alone", "update / with encoding")
        rounded = ONE_PASS.replace("0.83 [", "0.91 [")
        self.assertEqual([row.met for row in summary.figure_rows(wanted, rounded)], [False, True])

    def test_a_group_shows_its_worst_line(self):
        rows = summary.grouped_rows("codecs", CODECS, "memory", summary.codec_group)
        self.assertEqual([(row.what, row.ours, row.met) for row in rows],
                         [("mx6 encode, worst of 3", "0.70 [0.61..0.78]; 1 of 3 met", False),
                          ("fp32 decode", "0.98 [0.81..1.12]", True)])

    def test_a_figure_without_a_line_is_an_error(self):
        wanted = summary.judged("one-pass", "update", "alone", "no such line")
        with self.assertRaisesRegex(ValueError, "one-pass has no line for 'update'"):
            summary.figure_rows(wanted, ONE_PASS)

    def test_equal_titles_have_links_of_their_own(self):
        links = summary.heading_links({"a": "## It's one", "b": "## It's one"})
        self.assertEqual(links, {"a": "[It's one](#its-one)", "b": "[It's one](#its-one-1)"})


class Page(unittest.TestCase):
    def test_the_table_shows_the_recorded_figures(self):
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(report.replace_section(text, summary.SECTION, summary.table(text)), text,
                         "run bench/record/summary.py")

    def test_verdicts_agree_with_those_of_the_programs(self):
        there = summary.sections(PAGE.read_text(encoding="utf-8"))
        missed = [line for line in there["codecs"].splitlines() if line.endswith("MISSED")]
        rows = summary.grouped_rows("codecs", there["codecs"], "memory", summary.codec_group)
        self.assertEqual(bool(missed), not all(row.met for row in rows))
        for line in missed:
            label = summary.JUDGED.match(line)["label"]
            self.assertIsNotNone(summary.codec_group(label), line)


if __name__ == "__main__":
    unittest.main()
