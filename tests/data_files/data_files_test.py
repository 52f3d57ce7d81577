"""Trains from .epsd files that `eps data` made, with bytes as the vocabulary: no package is needed.

Argument: the path of eps."""

import json
import os
import struct
import subprocess
import sys
import unittest

sys.path[:0] = ["python", "tests"]  # of the source tree, or of the runfiles
import small_job  # noqa: E402
from eps_models.data import epsd  # noqa: E402

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 4
WIDE = dict(small_job.MODELS["gpt2"], vocab_size=70_000, n_embd=8, n_head=2, n_layer=1)


def run(*words, expected=0):
    """Runs eps; returns both of its outputs as one text."""
    environment = {**os.environ, "EPS_PYTHON": "python3"}
    done = subprocess.run([EPS, *words], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=TIMEOUT_SECONDS, check=False)
    output = done.stdout.decode(errors="replace")
    if done.returncode != expected:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{output[-3000:]}")
    return output


def path(name):
    return os.path.join(TMP, name)


class DataFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP, "gpt2")
        cls.wide = path("wide.json")
        with open(cls.wide, "w", encoding="utf-8") as file:
            json.dump(WIDE, file)

    def make(self, name, *words):
        run("data", "make", "text", self.text, "--tokenizer=bytes", f"--out={path(name)}", *words)
        return path(name)

    def train(self, name, data, *words, steps=STEPS, expected=0, model="", **changes):
        """Trains and returns the outcome."""
        settings = {**small_job.SETTINGS, "training.steps": STEPS, "checkpoint.save_steps": 2,
                    **changes}
        out = path(name)
        run("train", f"--model={model or self.model}", f"--data={data}", f"--out={out}",
            *[f"--{key}={value}" for key, value in settings.items()], *words, expected=expected)
        return small_job.outcome(EPS, out, steps) if expected == 0 else None

    def test_a_stream_trains_as_its_ids_do(self):
        stream = self.make("text.epsd")
        with open(self.text, "rb") as file:
            ids = file.read()
        with open(path("text.bin"), "wb") as file:
            file.write(struct.pack("<%dH" % len(ids), *ids))
        by_stream = self.train("by_stream", stream)
        self.assertEqual(by_stream, self.train("by_bin", path("text.bin")))
        self.assertEqual(by_stream, self.train("by_text", self.text))

    def test_a_resume_continues_a_wide_vocabulary(self):
        # 400 ids above and below 65,536, in documents of 100.
        data = path("wide.epsd")
        with epsd.Writer(data, "stream", {"tokens": "u32", "document_ends": "u64"}) as writer:
            for document in range(4):
                writer.append("tokens", [65_400 + (document * 100 + i) * 7919 % 4_000
                                         for i in range(100)])
                writer.append("document_ends", [100 * (document + 1)])
            writer.finish(samples=4, seq_len=0, vocab_size=70_000, tokenizer="", provenance={})
        schedule = {"lr_scheduler.name": "constant_with_warmup"}  # the steps do not affect it
        whole = self.train("whole", data, model=self.wide, **schedule)
        for steps in (2, 3):
            name = f"interrupted-{steps}"
            self.train(name, data, model=self.wide, steps=steps,
                       **{**schedule, "training.steps": steps})
            again = self.train(name, data, "--resume=latest", model=self.wide, **schedule)
            self.assertEqual(again.digests, whole.digests)

    def test_packed_rows_equal_the_reference(self):
        rows = self.make("rows.epsd", "--documents=line", "--seq-len=16")
        for parts, workers in ((1, 1), (2, 2)):
            out = f"rows-{workers}"
            self.train(out, rows, **{"training.parts": parts, "worker.count": workers,
                                     "training.seq_len": 0, "checkpoint.save_steps": 1,
                                     "servers.addresses": workers})
            self.assertIn("verified: 4 steps", run("verify", "--run", path(out)))

    def test_reports_count_learned_tokens(self):
        rows = path("counted.epsd")
        with open(path("short.txt"), "w", encoding="utf-8") as file:
            file.write("ab\nabcd\nabcdefgh\nabcdefghijkl\n" * 40)
        run("data", "make", "text", path("short.txt"), "--documents=line", "--tokenizer=bytes",
            "--seq-len=16", "--no-pack", f"--out={rows}")
        log = self.train("counted", rows, **{"data.order": "sequential"}).log
        # Four rows in a step, each without a label for its first token.
        self.assertEqual([line[small_job.COLUMNS.index("tokens")] for line in log],
                         [1 + 3 + 7 + 11] * STEPS)

    def test_held_out_rows_are_evaluated(self):
        rows = self.make("all.epsd", "--documents=line", "--seq-len=16")
        run("data", "split", rows, "--eval=0.2")
        self.train("held_out", path("all.train.epsd"),
                   **{"data.eval_path": path("all.eval.epsd"), "training.eval_steps": 2})
        with open(path("held_out/metrics.jsonl"), encoding="utf-8") as file:
            losses = [line for line in map(json.loads, file) if "eval_loss" in line]
        self.assertEqual([line["step"] for line in losses], [2, 4])

    def test_damaged_files_are_refused_before_writing(self):
        stream = self.make("damaged.epsd")
        for at, text in ((100, "header: damaged"), (5000, "column tokens (bytes 4096 to")):
            with open(stream, "r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 16]))
            out = path("of_damaged")
            output = run("train", f"--model={self.model}", f"--data={stream}", f"--out={out}",
                         expected=65)
            self.assertIn(text, output)
            self.assertIn(stream, output)
            self.assertFalse(os.path.exists(out))
            self.assertIn("damaged", run("data", "verify", stream, expected=65))
            stream = self.make("damaged.epsd", "--overwrite")

    def test_the_tool_is_run_with_its_exit_codes(self):
        self.assertIn("eps data make", run("data", "make", "--help"))
        self.assertIn("/nonexistent", run("data", "verify", "/nonexistent", expected=66))
        self.assertIn("--tokenizer", run("data", "make", "text", self.text, "--out=x.epsd",
                                         expected=64))
        stream = self.make("shown.epsd", "--documents=line")
        self.assertIn("3 bottles of beer on the wall, take 9 down.",
                      run("data", "show", stream, "--sample=3"))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
