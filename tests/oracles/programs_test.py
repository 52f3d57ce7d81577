"""Trains a small model of each architecture as an exported program, through two servers and
two workers, and compares it with transformers' model trained by PyTorch.

One row of each kind is trained; EPS_LONG=1 trains all (./.ci/long oracles). Runs in the environment
of third_party/install/setup_oracles.sh (./test --oracles).
Arguments: the paths of eps and print_logits.
"""

import functools
import json
import math
import os
import pathlib
import sys
import tempfile
import unittest

import compare
import eps_run
import jobs
import oracle
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "python"))
import source_tree  # noqa: E402
from eps_models import export, program  # noqa: E402
from eps_models.data import epsd, layout  # noqa: E402
from eps_models.testing import families  # noqa: E402

EPS = None
PRINT_LOGITS = None
IS_LONG = os.environ.get("EPS_LONG") == "1"
FOLDERS = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
LONGEST = 24


def rows():
    """Yields the rows (name, variant) whose programs a worker trains."""
    for family in families.FAMILIES:
        if family.task != "causal_lm" or family.dtype != torch.float32:
            continue
        if IS_LONG or family.is_ordinary:
            variants = family.variants if IS_LONG or family.name == "llama" else ["causal"]
            for variant in variants:
                yield family.name, variant


def make_comparable(folder):
    """Turns dropout off: the two sides would draw different random numbers. Replaces ReLU, whose
    gradient jumps: PyTorch itself, from weights that are moved by 1e-7 of their size, leaves the
    tolerances in the 11th step of OPT."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update({key: 0.0 for key in config if "drop" in key and config[key] is not None})
    config.update({key: "gelu" for key in config if config[key] == "relu"})
    path.write_text(json.dumps(config))


@functools.lru_cache(maxsize=None)
def exported(name, variant):
    """Returns (folder with weights and program, program)."""
    family = families.named(name)
    folder = pathlib.Path(FOLDERS.name) / f"{name}-{variant}"
    families.write_folder(family, folder)
    make_comparable(folder)
    text = export.export(family.request(folder, variant))
    export.write(text, folder)
    return folder, json.loads(text)


def job_of(name, text):
    """Returns a job with rows as long as every layer of the program sees, or the patches of an
    image."""
    longest = text["shape"]["tokens"] or min(LONGEST, text["shape"]["max_seq_len"] or LONGEST)
    return jobs.Job(name=name, tie_word_embeddings=False, clip="exact", max_grad_norm=2.0,
                    vocab_size=text["shape"]["vocab_size"], seq_len=longest, n_positions=longest,
                    tokens=50 * longest + 7, micro_batch_size=2, micro_batches=2, parts=2,
                    workers=2, servers=2, loss_block_tokens=20, schedule="linear", warmup_steps=2)


def inputs_of(job, folder):
    data = folder / "data.bin"
    data.write_bytes(b"".join(token.to_bytes(2, "little") for token in jobs.tokens(job)))
    return jobs.Inputs(str(folder), str(data), "")


@functools.lru_cache(maxsize=None)
def trained_by_torch(name, variant):
    folder, text = exported(name, variant)
    job = job_of(name, text)
    return oracle.train(job, inputs_of(job, folder))


def train(name, variant, text=None):
    """Trains a row, perhaps with another program; returns a run with the tensors of transformers'
    model."""
    folder, original = exported(name, variant)
    if text is not None:
        export.write(program.canonical(text), folder)
    try:
        job = job_of(name, original)
        run = eps_run.train(EPS, job, inputs_of(job, folder), str(folder) + "-out")
    finally:
        export.write(program.canonical(original), folder)
    model, report = oracle.load_with_report(run.folder)
    problems = {kind: names for kind, names in report.items() if names}
    if problems:
        raise AssertionError(f"transformers loads {run.folder} with {problems}")
    run.weights = oracle.to_arrays(model.named_parameters())
    return run


def encoders():
    """Yields the names of the encoders whose rows or images have labels."""
    for family in families.FAMILIES:
        if family.task not in ("classify", "regress", "image"):
            continue
        if IS_LONG or family.is_ordinary or family.name.startswith("bert"):
            yield family.name


def labelled(job, task):
    """Returns rows (ids, label) of different lengths."""
    rows = []
    for row in range(50):
        length = 3 + row * 7 % (job.seq_len - 2)
        ids = [(row * row * 31 + place * 17) % job.vocab_size for place in range(length)]
        rows.append((ids, sum(ids) % 3 if task == "classify" else sum(ids) % 7 / 3 - 1))
    return rows


def write_rows(job, task, folder):
    """Writes the rows as a data file; returns its path."""
    path = folder / "rows.epsd"
    labels = "f32" if task == "regress" else "i32"
    with epsd.Writer(path, "rows", {"tokens": "u16", "lengths": "u32", "labels": labels}) as file:
        rows = labelled(job, task)
        for ids, label in rows:
            file.append("tokens", ids + [0] * (job.seq_len - len(ids)))
            file.append("lengths", [len(ids)])
            file.append("labels", [label])
        file.finish(samples=len(rows), seq_len=job.seq_len, vocab_size=job.vocab_size,
                    tokenizer="", provenance={})
    return path


def images(shape):
    """Returns images (bytes, class) of the shape [channels, height, width]."""
    return [(bytes(row * 37 + place * (row % 5 + 1) & 255 for place in range(math.prod(shape))),
             row % 10) for row in range(50)]


def write_images(shape, folder):
    """Writes the images as a data file; returns its path."""
    path = folder / "images.epsd"
    with epsd.Writer(path, "rows", {"labels": "i32", "pixels": "u8"}) as file:
        for pixels, label in images(shape):
            file.append("labels", [label])
            file.append("pixels", pixels)
        file.finish(samples=50, seq_len=0, vocab_size=0, tokenizer="", provenance={},
                    image=layout.Image(*shape, (0.25,) * shape[0], (0.5,) * shape[0]))
    return path


def batches(job, task, shape):
    """Yields the arguments of transformers' model, and the labels, for each step."""
    rows = images(shape) if task == "image" else labelled(job, task)
    for first in range(0, jobs.STEPS * job.batch_size, job.batch_size):
        taken = [rows[i % len(rows)] for i in range(first, first + job.batch_size)]
        labels = torch.tensor([label for _, label in taken])
        if task == "image":
            pixels = torch.tensor([list(pixels) for pixels, _ in taken]).view(-1, *shape)
            yield {"pixel_values": (pixels / 255 - 0.25) / 0.5}, labels
            continue
        ids = torch.tensor([ids + [0] * (job.seq_len - len(ids)) for ids, _ in taken])
        mask = torch.tensor([[int(i < len(ids)) for i in range(job.seq_len)] for ids, _ in taken])
        yield {"input_ids": ids, "attention_mask": mask}, labels


def encoder_by_torch(job, task, folder, shape):
    """Trains transformers' model on the same rows, padded to one length, or images."""
    model = load_encoder(folder, task).train()
    optimizer = oracle.new_optimizer(job, model, None)
    scheduler = oracle.new_scheduler(job.schedule, optimizer, job.warmup_steps, jobs.STEPS)
    run = eps_run.Run(losses=[], grad_norms=[], lrs=[], weights={}, moments={}, folder="")
    for inputs, labels in batches(job, task, shape):
        scores = model(**inputs).logits
        if task == "regress":
            loss = torch.nn.functional.mse_loss(scores.squeeze(1), labels)
        else:
            loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        run.losses.append(loss.item())
        run.grad_norms.append(oracle.clip(job, model, None))
        run.lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    run.weights = oracle.to_arrays(model.named_parameters())
    return run


def load_encoder(folder, task):
    kind = "ImageClassification" if task == "image" else "SequenceClassification"
    return getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder,
                                                                        dtype=torch.float32)


class Programs(unittest.TestCase):
    def test_encoders_learn_labels_as_torch_does(self):
        for name in encoders():
            with self.subTest(family=name):
                folder, text = exported(name, "encoder")
                job, task = job_of(name, text), families.named(name).task
                shape = text["shape"]["image"]
                data = write_images(shape, folder) if task == "image" else write_rows(
                    job, task, folder)
                inputs = jobs.Inputs(str(folder), str(data), "")
                out = str(folder) + "-out"
                ours = eps_run.train(EPS, job, inputs, out, {"checkpoint.save_steps": 1})
                self.assertIn(b"verified: %d steps" % jobs.STEPS,
                              eps_run.call(EPS, "verify", "--run", out))
                model = load_encoder(ours.folder, task)
                ours.weights = oracle.to_arrays(model.named_parameters())
                self.assertEqual([], compare.runs(
                    ours, encoder_by_torch(job, task, folder, shape)))

    def test_training_matches_torch(self):
        for name, variant in rows():
            with self.subTest(family=name, variant=variant):
                ours, theirs = train(name, variant), trained_by_torch(name, variant)
                self.assertEqual([], compare.runs(ours, theirs))
                self.assert_scores(job_of(name, exported(name, variant)[1]), ours)

    def assert_scores(self, job, run):
        """Compares the scores of a checkpoint, which both sides load."""
        ids, _ = jobs.sample(job, jobs.tokens(job), 0)
        self.assertEqual([], compare.scores(
            eps_run.logits(PRINT_LOGITS, run.folder, ids),
            oracle.logits(oracle.load(run.folder).eval(), ids)))

    def test_mistakes_in_the_text_are_noticed(self):
        for name, mistake in (("another epsilon", change_epsilon),
                              ("matrices that do not decay", keep_matrices),
                              ("an embedding that is not trained", detach_embedding)):
            with self.subTest(mistake=name):
                text = json.loads(json.dumps(exported("llama", "causal")[1]))
                mistake(text)
                self.assertNotEqual([], compare.runs(train("llama", "causal", text),
                                                     trained_by_torch("llama", "causal")))


def change_epsilon(text):
    for calls in (p["calls"] for p in text["programs"]):
        for call in calls:
            if call[0] == "aten::add.Tensor" and call[1][1] == 1e-6:
                call[1][1] = 1e-4


def keep_matrices(text):
    for use in (use for stage in text["stages"] for use in stage["uses"]):
        if use["role"] in ("linear_out_in", "linear_in_out"):
            use["role"] = "norm"


def detach_embedding(text):
    first = text["programs"][text["stages"][0]["program"]]
    first["calls"].append(["aten::detach", [{"slot": first["output"]}]])
    first["output"] = int(first["activation"]) + first["weights"] + first["constants"] + len(
        first["inputs"]) + len(first["calls"]) - 1


if __name__ == "__main__":
    EPS, PRINT_LOGITS = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    torch.set_num_threads(1)
    source_tree.main()
