"""Runs the commands of docs/guides/own_model.md as they are, and compares what they print with the
page: a module written by hand is exported, checked, trained, and loaded again.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import safetensors.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

import source_tree  # noqa: E402

EPS = None
TIMEOUT_SECONDS = 600
PAGE = (ROOT / "docs/guides/own_model.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IS_COMMAND = re.compile(r"(?:cat >|eps|python3) ")
NUMBER = re.compile(r"\d+(?:\.\d+)?")

# For each row of the page's table a change (old text, new text) of its module that is refused so.
LAYER = "x = layer(x)"
CHANGES = {
    "no ModuleList of equal layers": (
        "nn.ModuleList(Layer() for _ in range(LAYERS))",
        "nn.Sequential(*[Layer() for _ in range(LAYERS)])"),
    "2 values cross the cut before layers.1": (
        "for layer in self.layers:\n            x = layer(x)",
        "first = x\n        for layer in self.layers:\n            x = layer(x) + first"),
    "it branches on data": (LAYER, "x = layer(x) if x.sum() > 0 else x"),
    "computes a size with": (LAYER, "x = layer(x)[:, x.shape[1] % 2:]"),
    "draws random numbers": (LAYER, "x = layer(x) + torch.rand_like(x)"),
    "shares its memory with another value": (LAYER, "x = layer(x)\n            x[:, 0] = 0"),
    "is initialized by": ("nn.init.normal_(embedding.weight, std=0.02)",
                          "nn.init.orthogonal_(embedding.weight)"),
    "the buffer … has": (
        "def forward(self, input_ids):\n        x = self.words(input_ids)",
        "def forward(self, input_ids):\n        x = self.words(input_ids) + self.big[:1, :1]"),
    "forward of Model returns a tuple": ("return self.head(x)", "return self.head(x), x"),
}
# Where the wrong code has a line, the message names it.
HAS_LINE = {"2 values cross the cut before layers.1", "it branches on data",
            "computes a size with", "draws random numbers", "shares its memory with another value"}
BIG = ("self.head.weight = self.words.weight  # tied",
       "self.register_buffer('big', torch.ones(300, WIDTH), persistent=False)")


def blocks():
    """Returns the blocks of the page as (text, whether it is commands)."""
    return [(text, bool(IS_COMMAND.match(text))) for text in BLOCK.findall(PAGE)]


def pattern(line):
    """Returns a pattern for a line of output: ... stands for any text, a number for any number."""
    parts = [r"[\d.e+-]+".join(map(re.escape, NUMBER.split(part))) for part in line.split("...")]
    return re.compile("^" + ".*".join(parts), re.MULTILINE)


class OwnModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        programs = cls.root / "bin"
        programs.mkdir()
        (programs / "eps").symlink_to(EPS)
        cls.environment = {
            **os.environ, "EPS_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT / "python"), "PATH": os.pathsep.join(
                [str(programs), os.path.dirname(sys.executable), os.environ["PATH"]])}
        cls.work = cls.root / "work"
        cls.work.mkdir()
        cls.printed = [cls.shell(text, cls.work) if is_command else None
                       for text, is_command in blocks()]

    @classmethod
    def shell(cls, commands, folder, code=0):
        """Runs commands of the page; returns what they print."""
        ended = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=folder,
                               env=cls.environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=TIMEOUT_SECONDS, check=False)
        if ended.returncode != code:
            raise AssertionError(f"exit code {ended.returncode} of {commands}:\n"
                                 f"{ended.stdout[-3000:]}")
        return ended.stdout

    def test_the_page_shows_what_the_commands_print(self):
        shown = 0
        for number, (text, is_command) in enumerate(blocks()):
            for line in [] if is_command else text.splitlines():
                self.assertRegex(self.printed[number - 1], pattern(line))
                shown += 1
        self.assertGreater(shown, 4)

    def test_the_loss_falls(self):
        records = [json.loads(line) for line in
                   (self.work / "run/metrics.jsonl").read_text().splitlines()]
        losses = [record["loss"] for record in records]
        self.assertEqual(300, len(losses))
        self.assertLess(losses[-1], losses[0] - 2)
        shown = {int(step): float(loss) for step, loss in
                 re.findall(r"^step: (\d+)/300 loss: ([\d.]+)$", PAGE, re.MULTILINE)}
        for step in (1, 300):
            self.assertAlmostEqual(shown[step], losses[step - 1], delta=0.02)

    def test_a_checkpoint_holds_the_weights_of_the_module(self):
        stored = safetensors.torch.load_file(self.work / "run/checkpoint-300/model.safetensors")
        names = self.shell("python3 -c 'import my_model\n"
                           "print(*(n for n, _ in my_model.build().named_parameters()))'",
                           self.work).split()
        self.assertEqual(sorted(names), sorted(stored))

    def test_the_tool_says_each_message(self):
        table = PAGE.partition("## What cannot be exported")[2]
        rows = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
        self.assertEqual(sorted(CHANGES), sorted(rows))
        module = re.search(r"<<'PY'\n(.*?)\nPY\n", PAGE, re.DOTALL)[1]
        for row, (old, new) in CHANGES.items():
            with self.subTest(message=row):
                changed = module.replace(*BIG) if "buffer" in row else module
                self.assertIn(old, changed)
                folder = self.root / str(len(os.listdir(self.root)))
                folder.mkdir()
                (folder / "my_model.py").write_text(changed.replace(old, new))
                said = self.shell("eps model export my_model.py:build --out=mine", folder, code=65)
                self.assertRegex(said, ".*".join(map(re.escape, row.split("…"))))
                self.assertEqual(1, said.strip().count("\n") + 1, said)
                if row in HAS_LINE:
                    self.assertRegex(said, r"my_model\.py:\d+")
                self.assertFalse((folder / "mine").exists())


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    source_tree.main()
