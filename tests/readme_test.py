"""Runs the commands of README.md, with fewer steps and small files, and compares what it says about
sizes, defaults and refusals with the program.

Argument: the path of eps."""

import array
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

EPS = None
ROOT = pathlib.Path(__file__).absolute().parent.parent
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
DOES_NOT_FIT = 71
# In place of the steps of the page, in ascending order.
STEPS = ("2", "3")
SMALL_MODEL = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32,
               "vocab_size": 256}

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def run(*arguments, code=0):
    """Runs eps in the test's folder; returns what it prints."""
    ended = subprocess.run([EPS, *arguments], cwd=TMP, env={**os.environ, "EPS_PYTHON": "python3"},
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS,
                           check=False)
    if ended.returncode != code:
        raise AssertionError("eps %s ended with %d, not %d:\n%s" % (
            " ".join(arguments), ended.returncode, code, ended.stdout[-2000:]))
    return ended.stdout


def section(title):
    return README.partition("## %s\n" % title)[2].partition("\n## ")[0]


def commands_of(text):
    """Returns for each code block of a text its `eps` commands, each as a list of words."""
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # A prompt is the only argument with a space.
    return [[re.findall(r'(?:[^\s"]|"[^"]*")+', line.partition("#")[0])[1:]
             for line in block.splitlines() if line.startswith("eps ")] for block in blocks]


def number(text):
    return float(text.replace(",", ""))


class ReadmeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        def path(name):
            return pathlib.Path(TMP, name)
        path("FILE").write_text("A quick brown fox jumps over the lazy dog. " * 400,
                                encoding="utf-8")
        path("TEXTS.jsonl").write_text(json.dumps({"text": "Pack my box. " * 40}) + "\n",
                                       encoding="utf-8")
        path("config.json").write_text(json.dumps(SMALL_MODEL), encoding="utf-8")
        with open(path("tokens.bin"), "wb") as f:
            array.array("H", (i * i % 256 for i in range(4000))).tofile(f)
        cls.tuning, cls.listed = commands_of(section("Fine-tune the model that you have"))
        cls.first = cls.shortened(cls.listed[0], "DIR")
        for name in ("DIR", "own", "given", "tuned", "refused", "HF_FOLDER"):
            shutil.rmtree(path(name), ignore_errors=True)
        cls.printed = run(*cls.first)

    @staticmethod
    def shortened(words, out):
        """Returns a command of the page with few steps, and `out` in place of its folder."""
        steps = dict(zip(sorted(set(re.findall(r"(?:steps=|checkpoint-)(\d+)", README)), key=int),
                         STEPS))
        words = [re.sub(r"(steps=|checkpoint-)(\d+)", lambda m: m[1] + steps[m[2]], word)
                 for word in words]
        words = [word.replace("DIR", out).replace('"', "") for word in words]
        if words[0] == "generate":
            return words + ["--tokens=3"]
        has_steps = any(word.startswith("--training.steps=") for word in words)
        return words + ([] if has_steps else ["--training.steps=%s" % STEPS[0]])

    def test_commands_run_as_listed(self):
        self.assertEqual([words[0] for words in self.listed],
                         ["train", "train", "train", "generate"])
        config, resume, generate = self.listed[1:]
        self.assertIn("step: 2/2 ", run(*self.shortened(config, "own")))
        self.assertIn("step: 3/3 ", run(*self.shortened(resume, "DIR")))
        self.assertIn("The ", run(*self.shortened(generate, "DIR")))

    def test_fine_tuning_runs_as_listed(self):
        data, train = self.tuning
        run(*self.shortened(self.listed[1], "given"))
        run("checkpoint", "export", "given/checkpoint-2", "--out=HF_FOLDER")
        # The tokenizer of bytes needs no package.
        run(*[word.replace("--tokenizer=HF_FOLDER", "--tokenizer=bytes") for word in data])
        self.assertIn("HF_FOLDER/model.safetensors\n", run(*self.shortened(train, "tuned")))
        self.assertTrue(os.path.exists(os.path.join(TMP, "tuned/checkpoint-2/model.safetensors")))

    def test_the_sample_output_is_what_the_program_prints(self):
        sample = section("Start")
        for start in ("settings: ", "model: ", "servers: "):
            line = next(line for line in sample.splitlines() if line.startswith(start))
            self.assertIn(line + "\n", self.printed)
        for start in ("step: ", "done: ", "loss: "):
            shape = [re.sub(r"\d[\d.,ems]*", "N", line.split("; ")[0].replace("-", ""))
                     for text in (sample, self.printed) for line in text.splitlines()
                     if line.startswith(start)]
            self.assertGreater(len(shape), 1, start)
            self.assertEqual(set(shape), {shape[0]})

    def test_the_numbers_of_the_sample_agree(self):
        sample = section("Start")
        steps, tokens, speed = map(number, re.search(
            r"^done: (\d+) steps, ([\d,]+) tokens in .*?, ([\d,]+) tokens/s", sample,
            re.MULTILINE).groups())
        minutes, seconds = map(int, re.search(r"tokens in (\d+)m(\d+)s", sample).groups())
        per_step = number(re.search(r"^batch: .* = ([\d,]+) tokens", self.printed,
                                    re.MULTILINE)[1])
        self.assertEqual(tokens, steps * per_step)
        self.assertAlmostEqual(tokens / speed, 60 * minutes + seconds, delta=1)
        loss, guess, ratio = map(float, re.search(
            r"^loss: ([\d.]+) .* gives ([\d.]+) \(ratio ([\d.]+)\)", sample, re.MULTILINE).groups())
        self.assertAlmostEqual(loss / guess, ratio, delta=0.005)
        parameters = number(re.search(r"^model: gpt2, ([\d,]+) parameters", sample,
                                      re.MULTILINE)[1])
        self.assertIn("GPT-2 of %.1f million parameters" % (parameters / 1e6), sample)

    def test_a_finished_run_leaves_no_state(self):
        self.assertFalse(os.path.exists(os.path.join(TMP, "DIR", "state")))

    def test_a_state_above_the_limit_is_refused(self):
        printed = run(*self.shortened(self.listed[0], "refused"), "--servers.memory_limit=4MiB",
                      code=DOES_NOT_FIT)
        self.assertIn("servers.memory_limit", printed)
        self.assertNotIn("\nstep: ", printed)

    def test_the_machines_of_the_results_are_named(self):
        # The sections of docs/benchmarks.md that docs_test.py compares with the rows.
        machines = {name: re.search(r"<!-- %s: begin -->.*?^Machine: (AMD EPYC|Intel)" % name,
                                    BENCHMARKS, re.MULTILINE | re.DOTALL)[1]
                    for name in ("step-ratio", "step-ratio-sealed", "depth", "rules",
                                 "adamw-torch", "transport", "plans", "codec-training")}
        on_intel = {name for name, machine in machines.items() if machine == "Intel"}
        self.assertEqual(on_intel, {"codec-training", "transport"})
        self.assertIn("an Intel Xeon for the held-out loss and the chunk stream, an AMD EPYC for "
                      "the others",
                      " ".join(section("Results").split()))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
