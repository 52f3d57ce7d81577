"""Trains a small BERT to tell praise from criticism, by `eps train` and by transformers.Trainer,
and compares their accuracy on sentences that neither was trained on.

Both sides start from the same weights and see the same batches. With dropout their random numbers
differ; without it their results must be the same. By default it trains in FP32 with AdamW and with
LAMB, with one seed and without dropout. EPS_LONG=1 trains every setting with dropout and three
seeds, and prints the rows of docs/accuracy.md (./.ci/long oracles).

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import unittest

import eps_run
import oracle  # noqa: F401 - turns the network off before transformers is imported
import reviews
import small_tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "python"))
import source_tree  # noqa: E402
from eps_models import build, export  # noqa: E402

EPS = None
IS_LONG = os.environ.get("EPS_LONG") == "1"
FOLDERS = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
SEEDS = (1, 2, 3) if IS_LONG else (1,)
LENGTH = 48
VOCABULARY = 8000
PARTS, MICRO_BATCH = 2, 32
BATCH = PARTS * MICRO_BATCH
# Dropout alone moves an accuracy by half a point, which one seed does not even out.
DROPOUT, EPOCHS = (0.1 if IS_LONG else 0.0), 4
PEAKS = {"adamw": 1.5e-3, "lamb": 1e-2}  # learning rates, by optimizer
DECAY, WARM_UP = 0.1, 0.1
POINT = 0.01
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "cmp": torch.float16}
# Without dropout and after one pass; a sentence is 0.024 points. The two were equal when measured.
SAME = 0.1 * POINT

MISTAKES = [{"optimizer.lr": 0.9 * PEAKS["adamw"]}, {"training.max_grad_norm": 0.5},
            {"lr_scheduler.warmup_ratio": 0.05}]
MX6 = {f"quantization.{kind}weights": "mx6" for kind in ("", "embedding_", "head_")}
TOPK = {f"quantization.{kind}gradients": "topk:0.1" for kind in ("", "embedding_", "head_")}
SETTINGS = {
    "fp32": {},
    "bf16": {"training.precision": "bf16"},
    "cmp": {"training.precision": "cmp"},
    "mx6 weights": MX6,
    "topk 10 % gradients": TOPK,
    "lamb": {"optimizer.name": "lamb"},
    **{f"examples/{name}": {"config": ROOT / "examples" / name, "training.epochs": 0,
                            "training.precision": "bf16"}
       for name in ("jitq_mx6.yaml", "smart_infinity_sst2.yaml")},
    "examples/l2l_bert_large.yaml": {
        "config": ROOT / "examples" / "l2l_bert_large.yaml", "training.epochs": 0,
        "training.precision": "cmp", "optimizer.name": "lamb"},
}


def optimizer_of(changes):
    return changes.get("optimizer.name", "adamw")


@functools.lru_cache(maxsize=None)
def rows():
    """Returns (training, held-out) rows. Whole batches, so that each pass takes the same ones."""
    training, held_out = reviews.labelled()
    return training[:len(training) // BATCH * BATCH], held_out


def steps(epochs):
    return len(rows()[0]) // BATCH * epochs


@functools.lru_cache(maxsize=None)
def tokenizer_folder():
    pieces = small_tokenizers.frequent_pieces([text for text, _ in rows()[0]], VOCABULARY - 5)
    return small_tokenizers.word_piece(os.path.join(FOLDERS.name, "tokenizer"), pieces)


@functools.lru_cache(maxsize=None)
def model_folder(seed, dropout):
    """Returns a folder with a new BERT, whose weights the seed draws, and the tokenizer."""
    folder = os.path.join(FOLDERS.name, f"bert-{seed}-{dropout}")
    torch.manual_seed(seed)
    transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=2,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        initializer_range=0.05)).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tokenizer_folder()).save_pretrained(folder)
    return folder


@functools.lru_cache(maxsize=None)
def exported(seed, dropout, dtype):
    """Returns a folder with the model and its program."""
    folder = pathlib.Path(f"{model_folder(seed, dropout)}-{dtype}")
    shutil.copytree(model_folder(seed, dropout), folder)
    export.write(export.export(build.Request(str(folder), "classify", "encoder", dtype)), folder)
    return str(folder)


def call(*arguments):
    eps_run.call(EPS, *arguments, timeout=900)


def data_file(name, labelled):
    """Makes a data file by `eps data`; returns its path."""
    path = os.path.join(FOLDERS.name, name)
    with open(path + ".jsonl", "w", encoding="utf-8") as file:
        for text, label in labelled:
            file.write(json.dumps({"text": text, "label": label}) + "\n")
    call("data", "make", "pairs", path + ".jsonl", "--fields=text", "--label=label",
         f"--seq-len={LENGTH}", "--truncate", "--processes=1",
         "--tokenizer=" + tokenizer_folder(), "--out=" + path + ".epsd")
    return path + ".epsd"


@functools.lru_cache(maxsize=None)
def data_files():
    return data_file("training", rows()[0]), data_file("held_out", rows()[1])


def trained_by_eps(seed, changes, epochs=EPOCHS, dropout=DROPOUT):
    """Trains through two servers and two workers; returns the accuracy on the held-out rows."""
    out = os.path.join(tempfile.mkdtemp(dir=FOLDERS.name), "out")
    dtype = DTYPES[changes.get("training.precision", "fp32")]
    settings = {
        "data.eval_path": data_files()[1], "data.order": "sequential",
        "training.steps": steps(epochs), "training.eval_steps": steps(epochs),
        "training.seq_len": LENGTH,
        "training.micro_batch_size": MICRO_BATCH, "training.parts": PARTS, "training.seed": seed,
        "training.max_grad_norm": 1.0, "optimizer.lr": PEAKS[optimizer_of(changes)],
        "optimizer.weight_decay": DECAY,
        "lr_scheduler.name": "linear", "lr_scheduler.warmup_ratio": WARM_UP,
        "servers.addresses": 2, "worker.count": 2, "worker.threads": 1,
        "checkpoint.save_steps": 0, "storage.kind": "dram", **changes}
    call("train", "--model=" + exported(seed, dropout, dtype), "--data=" + data_files()[0],
         "--out=" + out, *["--%s=%s" % item for item in settings.items()])
    return eps_run.records(out)[-1]["eval_accuracy"]


class InOrder(transformers.Trainer):
    """Reads the rows as `data.order=sequential` does."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class WithLamb(InOrder):
    """Has LAMB in place of AdamW, with the same groups of parameters."""

    def create_optimizer(self, *arguments):
        groups = super().create_optimizer(*arguments).param_groups
        self.optimizer = oracle.Lamb(
            [{key: group[key] for key in ("params", "weight_decay")} for group in groups],
            lr=self.args.learning_rate, betas=(0.9, 0.999), eps=1e-6)
        return self.optimizer


TRAINERS = {"adamw": InOrder, "lamb": WithLamb}


@functools.lru_cache(maxsize=None)
def trained_by_transformers(seed, epochs=EPOCHS, dropout=DROPOUT, optimizer="adamw"):
    """Trains the same job; returns the accuracy on the held-out rows."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder())

    def encoded(labelled):
        return [{**tokenizer(text, truncation=True, max_length=LENGTH), "labels": label}
                for text, label in labelled]

    trainer = TRAINERS[optimizer](
        model=transformers.AutoModelForSequenceClassification.from_pretrained(
            model_folder(seed, dropout)),
        args=transformers.TrainingArguments(
            output_dir=os.path.join(FOLDERS.name, "trainer"), seed=seed,
            max_steps=steps(epochs),
            per_device_train_batch_size=BATCH, per_device_eval_batch_size=128,
            learning_rate=PEAKS[optimizer], weight_decay=DECAY, lr_scheduler_type="linear",
            warmup_steps=math.ceil(WARM_UP * steps(epochs)), max_grad_norm=1.0, use_cpu=True,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
            dataloader_pin_memory=False),
        train_dataset=encoded(rows()[0]), eval_dataset=encoded(rows()[1]),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())})
    trainer.train()
    return trainer.evaluate()["eval_accuracy"]


@dataclasses.dataclass(frozen=True)
class Row:
    """The accuracies of a setting, for each seed."""
    setting: str
    ours: list
    theirs: list

    @property
    def difference(self):
        return statistics.mean(self.ours) - statistics.mean(self.theirs)

    def __str__(self):
        def percent(values):
            spread = f" ({100 * min(values):.2f} to {100 * max(values):.2f})"
            return f"{100 * statistics.mean(values):.2f}" + (spread if len(values) > 1 else "")
        return (f"| {self.setting} | {percent(self.ours)} | {percent(self.theirs)} "
                f"| {100 * self.difference:+.2f} |")


@functools.lru_cache(maxsize=None)
def row_of(setting):
    row = Row(setting, [trained_by_eps(seed, SETTINGS[setting]) for seed in SEEDS],
              [trained_by_transformers(seed, optimizer=optimizer_of(SETTINGS[setting]))
               for seed in SEEDS])
    print(row, flush=True)
    return row


def settings():
    return SETTINGS if IS_LONG else ["fp32", "lamb"]


class Accuracy(unittest.TestCase):
    def test_without_dropout_both_end_alike(self):
        for optimizer in TRAINERS:
            with self.subTest(optimizer=optimizer):
                ours = trained_by_eps(1, {"optimizer.name": optimizer}, 1, 0.0)
                theirs = trained_by_transformers(1, 1, 0.0, optimizer)
                self.assertLessEqual(abs(ours - theirs), SAME)

    def test_mistakes_show(self):
        theirs = trained_by_transformers(1, 1, 0.0)
        mistakes = MISTAKES if IS_LONG else MISTAKES[:1]
        for mistake in mistakes:
            with self.subTest(mistake=mistake):
                self.assertGreater(abs(trained_by_eps(1, mistake, 1, 0.0) - theirs), SAME)

    def test_each_setting_is_within_a_point_of_the_trainer(self):
        for setting in settings():
            with self.subTest(setting=setting):
                self.assertLessEqual(abs(row_of(setting).difference), POINT)

    def test_the_task_is_learned(self):
        training, held_out = rows()
        guess = reviews.share_of_the_larger_class(held_out)
        words = reviews.accuracy_of_bag_of_words(training, held_out)
        print(f"larger class {100 * guess:.2f}, bag of words {100 * words:.2f}", flush=True)
        for setting in settings():
            with self.subTest(setting=setting):
                ours = statistics.mean(row_of(setting).ours)
                self.assertGreater(ours, guess + 20 * POINT)
                self.assertGreater(ours, words - 2 * POINT)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    torch.set_num_threads(1)
    source_tree.main()
