"""Runs `eps train` as a new user sees it: on a real pseudo-terminal and through a pipe. Compares
the figures of report.html with metrics.jsonl.

Argument: the path of eps."""

import fcntl
import html.parser
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

EPS = None
TIMEOUT_SECONDS = 600
STEPS = 6
ERASE = "\r\x1b[K"
# Half a pixel of a chart, as a share of its height.
PIXEL = 0.5 / 246


def arguments(out, steps=STEPS):
    return [EPS, "train", "--data=%s" % TEXT, "--out=%s" % out, "--training.steps=%d" % steps,
            "--training.micro_batch_size=2", "--training.seq_len=32", "--data.eval_path=%s" % TEXT,
            "--training.eval_steps=3", "--training.eval_samples=2", "--checkpoint.save_steps=4"]


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if name not in ("TERM", "NO_COLOR")}
    return {**kept, **variables}


def run_on_terminal(command, columns, **variables):
    """Runs a command whose stdout and stderr are a terminal; returns all that it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                               env=environment(**variables))
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    if process.wait(TIMEOUT_SECONDS) != 0:
        raise AssertionError(written.decode())
    return written.decode()


def screen(written, columns):
    """Returns the lines that a terminal of that width shows at the end, as far as `eps` uses it."""
    lines, cursor = [""], 0
    for token in re.findall(r"\x1b\[K|\x1b.|[^\x1b]", written.replace("\r\n", "\n")):
        if token == "\n":
            lines.append("")
            cursor = 0
        elif token == "\r":
            cursor = 0
        elif token == "\x1b[K":
            lines[-1] = lines[-1][:cursor]
        elif token.startswith("\x1b"):
            raise AssertionError("an escape that the page of the line does not name: %r" % token)
        else:
            if cursor == columns:
                lines.append("")
                cursor = 0
            lines[-1] = lines[-1][:cursor] + token + lines[-1][cursor + 1:]
            cursor += 1
    return lines


class Page(html.parser.HTMLParser):
    """The tables, tags and charts of a report. `charts`: by id, [(tag, attributes, text)]."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.charts = [], [], {}
        self.chart = None
        self.open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if tag == "div" and "id" in attrs:
            self.chart = self.charts.setdefault(attrs["id"], [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.open.append(tag)
        if self.chart is not None:
            self.chart.append([tag, attrs, ""])

    def handle_endtag(self, tag):
        if tag == "div":
            self.chart = None
        if tag in self.open:
            del self.open[len(self.open) - 1 - self.open[::-1].index(tag):]

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if self.chart:
            self.chart[-1][2] += data

    def row(self, name):
        return next(row[1:] for row in self.rows if row and row[0] == name)

    def lines(self, chart):
        """Returns {name: [(x, y)]} of a chart's lines, read with the labels of its axes."""
        def axis(data, position):
            labels = sorted((float(attrs[data]), float(attrs[position]))
                            for _, attrs, _ in self.charts[chart] if data in attrs)
            (low, first), (high, last) = labels[0], labels[-1]
            return lambda pixel: low + (pixel - first) / (last - first) * (high - low)
        x = axis("data-x", "x")
        # Labels stand 4 pixels below their lines.
        y = axis("data-y", "y")
        return {attrs["data-name"]: [(x(float(px)), y(float(py) + 4)) for px, py in
                                     (pair.split(",") for pair in attrs["points"].split())]
                for tag, attrs, _ in self.charts[chart] if tag == "polyline"}


def report(out):
    return Page(pathlib.Path(out, "report.html").read_text(encoding="utf-8"))


def records(out):
    lines = pathlib.Path(out, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    return ([r for r in read if "loss" in r], [r for r in read if "eval_loss" in r])


class TerminalTest(unittest.TestCase):
    def run_here(self, columns=80, **variables):
        with tempfile.TemporaryDirectory() as out:
            return run_on_terminal(arguments(out), columns, **variables)

    def test_one_line_updates_in_place(self):
        written = self.run_here(TERM="xterm")
        bars = re.findall(r"\r\x1b\[K(\[[=> ]+\] \d+/6 loss [\d.]+ [\d,]+ tokens/s \S+ left)",
                          written)
        self.assertGreaterEqual(len(bars), STEPS - 1)
        shown = screen(written, 80)
        # The last step, evaluations and checkpoints stay, the bar does not.
        self.assertEqual([line for line in shown if "tokens/s " in line and "left" in line], [])
        steps = [line for line in shown if line.startswith("step: ") and " loss: " in line]
        self.assertEqual([line.split()[1] for line in steps], ["6/6"])
        self.assertEqual(len([line for line in shown if " eval_loss: " in line]), 2)
        self.assertEqual(len([line for line in shown if line.startswith("checkpoint: ")]), 2)

    def test_other_lines_are_whole(self):
        shown = screen(self.run_here(columns=400, TERM="xterm"), 400)
        for line in filter(None, shown):
            self.assertRegex(line, r"^(  )?[a-z][a-z -]*(:| )", line)

    def test_a_narrow_terminal_never_wraps(self):
        for written in re.findall(r"\r\x1b\[K([^\r\n]+)(?=\r\x1b)",
                                  self.run_here(columns=30, TERM="xterm")):
            self.assertLess(len(written), 30)

    def test_plain_lines_where_nothing_is_replaced(self):
        for variables in ({"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}):
            written = self.run_here(**variables)
            self.assertNotIn("\x1b", written, variables)
            self.assertIn("step: 6/6 loss: ", written)
            self.assertIn("step: 5/6 loss: ", written)

    def test_a_pipe_gets_plain_lines(self):
        with tempfile.TemporaryDirectory() as out:
            ended = subprocess.run(arguments(out), stdin=subprocess.DEVNULL, check=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   timeout=TIMEOUT_SECONDS, env=environment(TERM="xterm"))
        self.assertNotIn("\x1b", ended.stdout)
        self.assertIn("step: 5/6 loss: ", ended.stdout)


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = cls.folder.name
        cls.printed = subprocess.run(arguments(cls.out), stdin=subprocess.DEVNULL, check=True,
                                     stdout=subprocess.PIPE, text=True,
                                     timeout=TIMEOUT_SECONDS).stdout
        cls.page = report(cls.out)
        cls.steps, cls.evaluations = records(cls.out)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def assert_line(self, line, expected):
        self.assertEqual(len(line), len(expected))
        height = max(y for _, y in expected) or 1
        for (x, y), (step, value) in zip(line, expected):
            self.assertAlmostEqual(x, step, delta=0.02)
            self.assertAlmostEqual(y, value, delta=height * PIXEL)

    def test_curves_are_the_records(self):
        lines = self.page.lines("loss")
        self.assert_line(lines["loss"], [(r["step"], r["loss"]) for r in self.steps])
        self.assert_line(lines["held-out loss"],
                         [(r["step"], r["eval_loss"]) for r in self.evaluations])
        self.assert_line(self.page.lines("speed")["tokens/s"],
                         [(r["step"], r["tokens_per_second"]) for r in self.steps])

    def test_the_summary_agrees_with_the_run(self):
        mean = sum(r["loss"] for r in self.steps) / STEPS
        self.assertEqual(self.page.row("outcome"), ["complete"])
        self.assertEqual(self.page.row("steps"), ["6 of 6"])
        self.assertIn("%.4f over the last 6 steps" % mean, self.page.row("loss")[0])
        self.assertIn("loss: %.4f over the last 6 steps" % mean, self.printed)
        self.assertEqual(self.page.row("held-out loss"),
                         ["%.4f after step 6" % self.evaluations[-1]["eval_loss"]])
        self.assertRegex(self.printed, r"held-out loss: %.4f, perplexity \d+\.\d{4} after step 6" %
                         self.evaluations[-1]["eval_loss"])
        self.assertEqual(self.page.row("tokens"), [str(sum(r["tokens"] for r in self.steps))])
        self.assertIn("report: %s/report.html\n" % self.out, self.printed)

    def numbers(self, name):
        """Returns a row of bytes, in which - means none."""
        return [0 if cell == "-" else int(cell.replace(",", "")) for cell in self.page.row(name)]

    def test_memory_is_beside_its_plan(self):
        names = self.page.row("bytes")
        state = names.index("state")
        planned = self.numbers("plan, all servers")
        peaks = [self.numbers(name)
                 for name in ("all servers, peak", "server 0, peak", "server 1, peak")]
        self.assertEqual([sum(pair) for pair in zip(*peaks[1:])], peaks[0])
        self.assertEqual(planned[state], peaks[0][state])
        fetch = names.index("fetch")
        self.assertLessEqual(peaks[0][fetch], planned[fetch])

    def test_stages_are_timed(self):
        self.assertGreater(float(self.page.row("h.0")[0]), 0)

    def test_needs_no_other_file(self):
        for tag, attrs in self.page.tags:
            self.assertNotIn(tag, ("script", "link", "img", "iframe"))
            self.assertFalse({"src", "href"} & set(attrs), tag)

    def test_a_failed_run_has_a_report(self):
        with tempfile.TemporaryDirectory() as out:
            # A rate after whose first update no gradient is finite.
            ended = subprocess.run(arguments(out, 200) + ["--optimizer.lr=1e3",
                                                          "--lr_scheduler.warmup_steps=0"],
                                   stdin=subprocess.DEVNULL, check=False, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
            self.assertNotEqual(ended.returncode, 0, ended.stdout)
            self.assertTrue(report(out).row("outcome")[0].startswith("failed: "))


class CommandAfterCheckpoints(unittest.TestCase):
    def train(self, out, command, *flags):
        ended = subprocess.run(arguments(out, 6) + ["--checkpoint.save_steps=2", *flags,
                                                    "--checkpoint.on_saved=" + command],
                               stdin=subprocess.DEVNULL, check=False, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def test_it_finds_every_checkpoint_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            out, kept = os.path.join(folder, "out"), os.path.join(folder, "kept")
            # While it waits, the next checkpoint would be written and this one removed.
            self.train(out, 'sleep 1; mkdir -p %s && cp -r "$EPS_CHECKPOINT" %s/"$EPS_STEP"' % (
                kept, kept), "--checkpoint.save_total_limit=1")
            self.assertEqual(sorted(os.listdir(kept)), ["2", "4", "6"])
            for name in os.listdir(kept):
                verified = subprocess.run([EPS, "checkpoint", "verify", os.path.join(kept, name)],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                          text=True, check=False, timeout=TIMEOUT_SECONDS)
                self.assertEqual(verified.returncode, 0, verified.stdout)
            # It may hold a password, so nobody reads it from the checkpoint.
            for path in pathlib.Path(kept).rglob("*"):
                if path.is_file():
                    self.assertNotIn(b"EPS_CHECKPOINT", path.read_bytes(), path)

    def test_its_failure_ends_nothing(self):
        with tempfile.TemporaryDirectory() as out:
            said = self.train(out, "echo no such bucket; exit 3")
            self.assertEqual(said.count("no such bucket"), 3, said)
            self.assertIn("note: the command after a checkpoint", said)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write("A quick brown fox jumps over the lazy dog. " * 40)
        text.flush()
        TEXT = text.name
        unittest.main(verbosity=2)
