"""Runs the codec tally on a tiny model with one seed: codecs must move training in the right way.

Trains with real processes, started by the tally's own program. Argument: the path of eps."""

import json
import math
import os
import random
import subprocess
import sys
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)  # not the folder of a link's target
import codec_training_tally as tally

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS, SEED, SEQ_LEN = 320, 1, 32

# So wide that most parameters are inner matrices.
MODEL = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": SEQ_LEN,
    "vocab_size": 256, "tie_word_embeddings": True, "initializer_range": 0.06,
    "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
}
EPS_ARGUMENTS = [
    "--training.micro_batch_size=8", "--training.clip=lagged", "--optimizer.lr=4e-3",
    "--optimizer.betas=0.9,0.95", "--lr_scheduler.name=cosine", "--lr_scheduler.warmup_steps=16",
    "--worker.threads=1",
]
WITH, WITHOUT = "topk:0.05", "topk:0.05-no-feedback"
SETTINGS = ["fp32", "mx6", WITH, WITHOUT]

# So few that runs of seconds learn most of them: what remains are the differences of the codecs.
WORDS = [part.split("|") for part in (
    "the old cat|my sister|every sailor|a grey horse", "sees|carries|forgets|paints",
    "seven apples|the red boat|a silver key|three letters",
    "at dawn|in the garden|beside the mill|after supper")]


def write_inputs():
    model, text = os.path.join(TMP, "model.json"), os.path.join(TMP, "text.txt")
    with open(model, "w", encoding="utf-8") as file:
        json.dump(MODEL, file)
    numbers = random.Random(7)
    with open(text, "w", encoding="utf-8") as file:
        for _ in range(1200):
            file.write(" ".join(numbers.choice(words) for words in WORDS) + ".\n")
    return model, text


def run_tally(book):
    model, text = write_inputs()
    command = [sys.executable, os.path.join(FOLDER, "codec_training.py"), f"--eps={EPS}",
               f"--tally={book}", f"--steps={STEPS}", f"--seeds={SEED}", f"--seq-len={SEQ_LEN}",
               f"--data={text}", "--settings", *SETTINGS,
               *(f"--eps-arg={a}" for a in [f"--model={model}", *EPS_ARGUMENTS])]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS, check=False)


class Direction(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.book = os.path.join(TMP, "tally.jsonl")
        cls.result = run_tally(cls.book)
        cls.runs = {run["setting"]: run for run in tally.Tally(cls.book).runs()}

    def setUp(self):
        # Exit code 1, a missed goal, is accepted: the goals are those of the long runs.
        self.assertIn(self.result.returncode, (0, 1), self.result.stdout[-3000:])
        self.assertEqual(sorted(self.runs), sorted(SETTINGS))

    def loss(self, setting):
        return tally.final_loss(self.runs[setting])

    def test_training_in_full_precision_learns(self):
        self.assertLess(self.loss("fp32"), 0.1 * math.log(256))

    def test_weights_in_mx6_train_nearly_as_well(self):
        difference = self.loss("mx6") / self.loss("fp32") - 1
        self.assertLess(abs(difference), 0.15)
        self.assertNotEqual(difference, 0)

    def test_feedback_helps_and_its_absence_hurts(self):
        self.assertLess(self.loss(WITH), 0.88 * self.loss(WITHOUT), self.result.stdout[-3000:])
        self.assertLess(self.loss("fp32"), 0.75 * self.loss(WITHOUT))

    def test_codecs_carry_most_parameters_and_save_bytes(self):
        dense = self.runs["fp32"]
        self.assertGreaterEqual(dense["codec_share"], tally.MIN_SHARE)
        self.assertLess(self.runs["mx6"]["fetched_bytes_per_step"],
                        0.4 * dense["fetched_bytes_per_step"])
        self.assertLess(self.runs[WITH]["pushed_bytes_per_step"],
                        0.3 * dense["pushed_bytes_per_step"])

    def test_finished_runs_are_not_repeated(self):
        with open(self.book, "rb") as file:
            before = file.read()
        again = run_tally(self.book)
        self.assertIn(f"{len(SETTINGS)} of {len(SETTINGS)} runs are in", again.stdout)
        with open(self.book, "rb") as file:
            self.assertEqual(file.read(), before)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
