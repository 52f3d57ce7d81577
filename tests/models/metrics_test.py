"""Trains small programs that predict classes or numbers, and judges what `eps train` says of its
evaluations: the figures, for any number of workers and servers; the early stop, also where
processes are killed; and the best checkpoint.

Argument: the path of eps."""

import array
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

sys.path[:0] = ["python", "tests"]  # of the source tree, or of the runfiles
import processes  # noqa: E402
import small_job  # noqa: E402
from eps_models.data import epsd  # noqa: E402

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
VOCABULARY, WIDTH, LENGTH, CLASSES = 32, 8, 16, 3
STEPS = 60
SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": 6, "training.parts": 2, "training.eval_steps": 2, "optimizer.lr": 0.02,
    "training.max_grad_norm": 1.0, "lr_scheduler.name": "constant", "lr_scheduler.warmup_steps": 0,
    "checkpoint.save_steps": 2})
# The labels of the held-out data are others than those of the training data: every evaluation after
# the first is worse.
STOPS = {"training.steps": STEPS, "training.early_stop_patience": 2}
STOP_STEP = 7  # evaluations after steps 2, 4 and 6; the last one ends the run at the next border


def write_program(folder, task):
    """Writes a model: the mean of the embeddings, and a linear map."""
    outputs = CLASSES if task == "classify" else 1

    def tensor(name, rows):
        return {"aliases": [], "files": {"kind": "name", "names": [name]},
                "init": {"a": 0.1, "b": 0.0, "kind": "normal"}, "name": name,
                "shape": [rows, WIDTH]}

    def program(activation, inputs, calls):
        return {"activation": activation, "calls": calls, "constants": 0, "flops": [0.0, 0.0],
                "inputs": inputs, "output": 1 + len(inputs) + activation + len(calls) - 1,
                "saved": [0.0, 0.0], "weights": 1}

    def slot(number):
        return {"slot": number}

    def stage(name, number, role):
        return {"constants": [], "name": name, "needs_weights": number > 0, "program": number,
                "uses": [{"role": role, "tensor": number}]}

    text = {
        "architecture": "MeanOfTokens", "constants": [], "dtype": "float32", "format": 1,
        "head": {"kind": "classes" if task == "classify" else "mse", "rowwise": False},
        "made_by": "a test", "model_type": "", "task": task, "variant": "encoder",
        "programs": [
            program(False, ["input_ids"], [["aten::embedding", [slot(0), slot(1)]]]),
            program(True, [], [["aten::mean.dim", [slot(0), [1]]],
                               ["aten::linear", [slot(2), slot(1)]]])],
        "shape": {"classes": outputs if task == "classify" else 0, "image": [], "max_seq_len": 0,
                  "tokens": 0, "vocab_size": VOCABULARY, "width": WIDTH},
        "stages": [stage("embedding", 0, "embedding"), stage("head", 1, "linear_out_in")],
        "tensors": [tensor("embedding.weight", VOCABULARY), tensor("head.weight", outputs)]}
    os.makedirs(os.path.join(folder, "eps"), exist_ok=True)
    with open(os.path.join(folder, "eps", "program.json"), "w", encoding="utf-8") as f:
        json.dump(text, f)


def rows_of(task, count, seed, turn=0):
    """Returns rows (ids, label). The class, or the number, says which ids are frequent."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        kind = draw.randrange(CLASSES)
        ids = [draw.randrange(VOCABULARY) if draw.random() < 0.4
               else kind + CLASSES * draw.randrange(VOCABULARY // CLASSES) for _ in range(LENGTH)]
        label = (kind + turn) % CLASSES
        rows.append((ids, label if task == "classify" else label - 1 + 0.25 * draw.random()))
    return rows


def write_rows(path, task, rows):
    column = "i32" if task == "classify" else "f32"
    with epsd.Writer(path, "rows", {"tokens": "u16", "lengths": "u32", "labels": column}) as file:
        for ids, label in rows:
            file.append("tokens", ids)
            file.append("lengths", [len(ids)])
            file.append("labels", [label])
        file.finish(samples=len(rows), seq_len=LENGTH, vocab_size=VOCABULARY, tokenizer="",
                    provenance={})


def tensors_of(checkpoint):
    """Returns {name: rows of numbers} of model.safetensors."""
    with open(os.path.join(checkpoint, "model.safetensors"), "rb") as f:
        content = f.read()
    size = struct.unpack("<Q", content[:8])[0]
    tensors = {}
    for name, entry in json.loads(content[8:8 + size]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        numbers = array.array("f", content[8 + size + first:8 + size + end])
        rows, columns = entry["shape"]
        tensors[name] = [numbers[r * columns:(r + 1) * columns] for r in range(rows)]
    return tensors


def scores_of(checkpoint, rows):
    tensors = tensors_of(checkpoint)
    embedding, head = tensors["embedding.weight"], tensors["head.weight"]
    for ids, _ in rows:
        mean = [sum(embedding[i][c] for i in ids) / len(ids) for c in range(WIDTH)]
        yield [sum(w * x for w, x in zip(row, mean)) for row in head]


def class_figures(labels, predicted):
    """Returns accuracy, macro F1 and Matthews' coefficient by their definitions over the rows."""
    count, kinds = len(labels), range(CLASSES)
    pairs = list(zip(labels, predicted))
    f1 = []
    for kind in kinds:
        both = sum(label == kind == guess for label, guess in pairs)
        either = labels.count(kind) + predicted.count(kind)
        if either:
            f1.append(2 * both / either)

    def covariance(left, right):
        return sum(sum((a == kind) * (b == kind) for a, b in zip(left, right)) / count -
                   left.count(kind) * right.count(kind) / count ** 2 for kind in kinds)
    spread = covariance(labels, labels) * covariance(predicted, predicted)
    matthews = covariance(labels, predicted) / math.sqrt(spread) if spread > 0 else 0
    return sum(a == b for a, b in pairs) / count, sum(f1) / len(f1), matthews


def correlation(xs, ys):
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    both = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys))
    return both / math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.held_out = {}
        for task in ("classify", "regress"):
            folder = os.path.join(TMP, task)
            write_program(folder, task)
            write_rows(folder + "/train.epsd", task, rows_of(task, 120, 1))
            # 41 rows: the last micro-batch has one, and the parts have different shares.
            cls.held_out[task] = rows_of(task, 41, 2)
            write_rows(folder + "/held_out.epsd", task, cls.held_out[task])
            write_rows(folder + "/turned.epsd", task, rows_of(task, 41, 2, turn=1))

    @staticmethod
    def fresh(name):
        path = os.path.join(TMP, name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    @staticmethod
    def command(out, task, held_out, settings, flags=()):
        folder = os.path.join(TMP, task)
        merged = dict(SETTINGS, **settings)
        return ([EPS, "train", "--model=" + folder, "--data=" + folder + "/train.epsd",
                 "--data.eval_path=%s/%s.epsd" % (folder, held_out), "--out=" + out] + list(flags) +
                ["--%s=%s" % item for item in sorted(merged.items())])

    @classmethod
    def train(cls, out, task="classify", held_out="held_out", settings=(), flags=(), code=0):
        return cls.run_eps(cls.command(out, task, held_out, dict(settings), flags), code)

    @staticmethod
    def run_eps(command, code=0):
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS,
                                check=False)
        if result.returncode != code:
            raise AssertionError("exit code %d of %s: %s" % (result.returncode, command,
                                                             result.stdout[-3000:]))
        return result.stdout

    @staticmethod
    def lines(out):
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    @classmethod
    def figures(cls, out):
        """Returns the figures of all evaluations, by step."""
        return {line["step"]: {key: value for key, value in line.items()
                               if key.startswith("eval_") and key != "eval_seconds"}
                for line in cls.lines(out) if "eval_loss" in line}

    @staticmethod
    def named_by(out, pointer):
        with open(os.path.join(out, pointer), encoding="utf-8") as f:
            return f.read().strip()

    # ---- figures

    def test_figures_of_classes_match_a_plain_loop(self):
        out = self.fresh("classes")
        said = self.train(out)
        self.assertIn("held-out samples; accuracy, f1, matthews", said)
        rows = self.held_out["classify"]
        for step in (2, 4, 6):
            scores = scores_of(os.path.join(out, "checkpoint-%d" % step), rows)
            predicted = [max(range(CLASSES), key=lambda c: (s[c], -c)) for s in scores]
            expected = class_figures([label for _, label in rows], predicted)
            found = self.figures(out)[step]
            for key, value in zip(("eval_accuracy", "eval_f1", "eval_matthews"), expected):
                self.assertAlmostEqual(found[key], value, places=12, msg=(step, key))
        self.assertGreater(found["eval_accuracy"], 0.5, "it does not learn")
        with open(out + "/report.html", encoding="utf-8") as f:
            self.assertIn("held-out matthews", f.read())
        self.assertIn(", accuracy %.4f" % found["eval_accuracy"], said)

    def test_pearson_matches_a_plain_loop(self):
        out = self.fresh("numbers")
        self.train(out, "regress")
        rows = self.held_out["regress"]
        predicted = [s[0] for s in scores_of(os.path.join(out, "checkpoint-6"), rows)]
        expected = correlation(predicted, [label for _, label in rows])
        self.assertAlmostEqual(self.figures(out)[6]["eval_pearson"], expected, places=5)
        self.assertNotIn("eval_accuracy", self.figures(out)[6])

    def test_workers_and_servers_change_no_bit(self):
        for task in ("classify", "regress"):
            seen = []
            for workers, servers in ((1, 1), (2, 1), (1, 2), (2, 2)):
                out = self.fresh("bits-%s-%d-%d" % (task, workers, servers))
                self.train(out, task, settings={"worker.count": workers,
                                                "servers.addresses": servers,
                                                "training.parts": 2})
                seen.append(self.figures(out))
                self.assertEqual(seen[-1], seen[0], (task, workers, servers))
            self.assertEqual(sorted(seen[0]), [2, 4, 6])

    def test_metrics_are_chosen_and_refused(self):
        out = self.fresh("chosen")
        self.train(out, settings={"eval.metrics": "[f1]"})
        self.assertEqual(set(self.figures(out)[6]), {"eval_loss", "eval_tokens", "eval_f1"})
        for settings, text in (
                ({"eval.metrics": "[pearson]"}, "has no pearson; it has loss, accuracy, f1"),
                ({"eval.metrics": "[speed]"}, "speed"),
                ({"eval.best_metric": "perplexity"}, "have no perplexity"),
                ({"eval.metrics": "[f1]", "eval.best_metric": "accuracy"}, "have no accuracy"),
                ({"checkpoint.save_best": "true", "checkpoint.save_steps": 3}, "no multiple of")):
            said = self.train(self.fresh("refused"), settings=settings, code=64)
            self.assertIn(text, said)

    # ---- early stop

    def assert_stopped(self, out, said, words="early stop"):
        steps = [line["step"] for line in self.lines(out)]
        self.assertEqual(steps, [1, 2, 2, 3, 4, 4, 5, 6, 6, 7], said[-3000:])
        self.assertEqual(self.named_by(out, "latest"), "checkpoint-%d" % STOP_STEP)
        self.assertEqual(self.named_by(out, "best"), "checkpoint-2")
        self.assertRegex(said, "(%s) after step %d: eval_loss of 2 evaluations was no better"
                         % (words, STOP_STEP))

    def test_an_early_stop_is_repeated(self):
        digests = []
        for servers, workers, mode in ((1, 1, "eager"), (2, 2, "sealed"), (2, 1, "eager")):
            out = self.fresh("stop-%d-%d" % (servers, workers))
            said = self.train(out, held_out="turned",
                              settings=dict(STOPS, **{"servers.addresses": servers,
                                                      "worker.count": workers,
                                                      "training.mode": mode,
                                                      "training.clip": "none"}))
            self.assert_stopped(out, said)
            self.assertIn("--training.early_stop_patience=0", said)
            with open(out + "/trainer_state.json", encoding="utf-8") as f:
                state = json.load(f)
            self.assertEqual(state["best_model_checkpoint"], out + "/checkpoint-2")
            self.assertEqual(state["best_metric"], self.figures(out)[2]["eval_loss"])
            digests.append(small_job.outcome(EPS, out, STOP_STEP).digests)
        self.assertEqual(digests[0], digests[2])
        # The run is over, unless somebody wants more of it.
        again = [EPS, "train", "--out=" + out, "--resume=latest"]
        said = self.run_eps(again)
        self.assertIn("has ended early after step 7", said)
        said = self.run_eps(again + ["--training.early_stop_patience=0", "--training.steps=9"])
        self.assertEqual(self.lines(out)[-1]["step"], 9, said)

    def kill_when(self, lines, out, process, role):
        """Kills a process of the run once metrics.jsonl has so many lines."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while process.poll() is None:
            try:
                if len(self.lines(out)) >= lines:
                    break
            except (FileNotFoundError, json.JSONDecodeError):
                pass
            self.assertLess(time.monotonic(), end, "no step")
            time.sleep(0.005)
        victim = processes.children_of(process.pid).get(role)
        if victim is not None:
            os.kill(victim, signal.SIGKILL)

    def test_killed_servers_do_not_move_the_stop(self):
        for log in ("none", "contributions"):
            for role, lines in (("serve 0", 3), ("serve 0", 8), ("serve 1", 5), ("worker 0", 6)):
                with self.subTest(log=log, role=role, lines=lines):
                    out = self.fresh("killed")
                    output = os.path.join(TMP, "killed.log")
                    settings = dict(STOPS, **{"servers.addresses": 2, "storage.kind": "nvme",
                                              "storage.cut_steps": 1, "storage.log": log})
                    with open(output, "w", encoding="utf-8") as f:
                        process = subprocess.Popen(
                            self.command(out, "classify", "turned", settings),
                            stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)
                    self.kill_when(lines, out, process, role)
                    code = process.wait(timeout=TIMEOUT_SECONDS)
                    with open(output, encoding="utf-8") as f:
                        said = f.read()
                    self.assertEqual(code, 0, said[-3000:])
                    self.assert_stopped(out, said)

    def test_a_killed_run_stops_at_the_same_step(self):
        for lines in (3, 6, 8):
            out = self.fresh("resumed")
            command = self.command(out, "classify", "turned",
                                   dict(STOPS, **{"storage.kind": "nvme"}))
            with open(os.path.join(TMP, "resumed.log"), "w", encoding="utf-8") as f:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f,
                                           stderr=subprocess.STDOUT)
            self.kill_when(lines, out, process, "supervisor")
            process.wait(timeout=TIMEOUT_SECONDS)
            said = self.run_eps(command + ["--resume=latest"])
            # The kill may come after the stop; the run then says that it has ended.
        self.assert_stopped(out, said, "early stop|has ended early")

    # ---- the best checkpoint

    def test_the_best_checkpoint_is_kept(self):
        out = self.fresh("best")
        said = self.train(out, held_out="turned", settings={"checkpoint.save_total_limit": 1,
                                                            "training.steps": 8})
        self.assertEqual(self.named_by(out, "best"), "checkpoint-2")
        kept = sorted(name for name in os.listdir(out) if name.startswith("checkpoint-"))
        self.assertEqual(kept, ["checkpoint-2", "checkpoint-8"])
        self.assertIn("best: %s/checkpoint-2 (eval_loss " % out, said)
        self.assertRegex(self.run_eps([EPS, "checkpoint", "ls", out]), r"2 .*complete, best")
        refused = self.run_eps([EPS, "checkpoint", "rm", out + "/checkpoint-2"], code=65)
        self.assertIn("/best names", refused)
        # By accuracy, an evaluation on the labels that are learned, the last one is the best.
        out = self.fresh("best-by-accuracy")
        self.train(out, settings={"eval.best_metric": "accuracy", "training.steps": 8})
        accuracy = {step: figures["eval_accuracy"] for step, figures in self.figures(out).items()}
        best = max(sorted(accuracy), key=accuracy.get)
        self.assertEqual(self.named_by(out, "best"), "checkpoint-%d" % best)

    def test_without_save_best_nothing_is_named(self):
        out = self.fresh("plain")
        self.train(out, settings={"checkpoint.save_best": "false"})
        self.assertFalse(os.path.exists(out + "/best"))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
