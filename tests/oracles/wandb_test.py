"""Reads the offline runs that `eps wandb` writes with the reader of the package wandb.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal import datastore

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

import source_tree  # noqa: E402

EPS = None
TIMEOUT_SECONDS = 600
SMALL = ["--training.steps=6", "--training.seq_len=16", "--training.micro_batch_size=2",
         "--training.micro_batches=1", "--model.path=", "--training.eval_steps=3",
         "--worker.threads=1", "--servers=1", "--storage.kind=dram", "--metrics.wandb=true"]
NAMES = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate",
         "tokens": "train/tokens", "eval_loss": "eval/loss", "eval_perplexity": "eval/perplexity"}


def run(*command, **options):
    environment = {**os.environ, "EPS_PYTHON": sys.executable}
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=TIMEOUT_SECONDS, env=environment, **options)


def records(folder):
    """Returns the records of the only offline run in `folder`."""
    [path] = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    store = datastore.DataStore()
    store.open_for_scan(str(path))
    found = []
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        found.append(record)
    return found


def history(found):
    """Returns {step: {name: value}}."""
    by_step = {}
    for record in found:
        if record.WhichOneof("record_type") != "history":
            continue
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
               for item in record.history.item}
        step = row.pop("_step")
        if step in by_step:
            raise AssertionError(f"step {step} is there twice")
        by_step[step] = row
    return by_step


def expected(folder):
    """Returns the same of metrics.jsonl."""
    by_step = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        row = by_step.setdefault(line["step"], {})
        row.update({NAMES[key]: value for key, value in line.items() if key in NAMES})
    return by_step


class Wandb(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out = self.root / "out"
        self.data = self.root / "data.txt"
        self.data.write_text("The quick brown fox jumps over the lazy dog.\n" * 200)

    def train(self, *flags):
        return run(EPS, "train", *SMALL, f"--data={self.data}", f"--data.eval_path={self.data}",
                   f"--out={self.out}", *flags)

    def check_history(self, steps):
        by_step = history(records(self.out))
        self.assertEqual(list(range(1, steps + 1)), sorted(by_step))
        for step, row in expected(self.out).items():
            self.assertEqual(row, {key: by_step[step][key] for key in row}, step)
        self.assertIn("eval/perplexity", by_step[3])
        self.assertNotIn("eval/loss", by_step[1])

    def test_a_run_and_its_continuation(self):
        ended = self.train()
        self.assertEqual(0, ended.returncode, ended.stderr)
        self.assertRegex(ended.stdout, r"(?m)^wandb: .*/wandb/offline-run-\S+ \(send it with")
        self.check_history(6)
        [first] = [r.run for r in records(self.out) if r.WhichOneof("record_type") == "run"]
        self.assertEqual(("eps", "out"), (first.project, first.display_name))
        config = {item.key: json.loads(item.value_json) for item in first.config.update}
        self.assertEqual(6, config["training"]["steps"])
        ended = self.train("--resume=latest", "--training.steps=9")
        self.assertEqual(0, ended.returncode, ended.stderr)
        self.check_history(9)
        [second] = [r.run for r in records(self.out) if r.WhichOneof("record_type") == "run"]
        self.assertEqual(first.run_id, second.run_id)

    def test_a_run_by_hand(self):
        self.assertEqual(0, self.train("--metrics.wandb=false").returncode)
        self.assertFalse((self.out / "wandb").exists())
        ended = run(EPS, "wandb", self.out, "--project=mine", "--name=first")
        self.assertEqual(0, ended.returncode, ended.stderr)
        self.check_history(6)
        [found] = [r.run for r in records(self.out) if r.WhichOneof("record_type") == "run"]
        self.assertEqual(("mine", "first"), (found.project, found.display_name))

    def test_figures_that_are_not_finite_are_left_out(self):
        self.out.mkdir()
        (self.out / "metrics.jsonl").write_text(
            '{"step":1,"loss":null,"grad_norm":2.5,"lr":0.1,"tokens":20,"term":1,"version":1}\n'
            '{"step":2,"loss":1.5,"gra')
        self.assertEqual(0, run(EPS, "wandb", self.out).returncode)
        [row] = history(records(self.out)).values()
        self.assertNotIn("train/loss", row)
        self.assertEqual(2.5, row["train/grad_norm"])

    def test_refusals(self):
        ended = run(EPS, "wandb", self.root)
        self.assertEqual(66, ended.returncode)
        self.assertIn("metrics.jsonl: no such file", ended.stderr)
        self.out.mkdir()
        (self.out / "metrics.jsonl").write_text('{"loss":1}\n')
        ended = run(EPS, "wandb", self.out)
        self.assertEqual(65, ended.returncode)
        self.assertIn("line 1: expected an object with a step", ended.stderr)
        self.assertEqual(64, run(EPS, "wandb").returncode)

    def test_an_interrupted_run_is_written(self):
        environment = {**os.environ, "EPS_PYTHON": sys.executable}
        with subprocess.Popen(
                [EPS, "train", *SMALL, "--training.steps=100000", f"--data={self.data}",
                 f"--data.eval_path={self.data}", f"--out={self.out}"], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True) as process:
            for line in process.stdout:
                if line.startswith("step: 3/"):
                    process.send_signal(signal.SIGINT)
                    break
            rest = process.stdout.read()
            self.assertEqual(130, process.wait(timeout=TIMEOUT_SECONDS))
        self.assertIn("wandb: ", rest)
        self.check_history(max(expected(self.out)))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    source_tree.main()
