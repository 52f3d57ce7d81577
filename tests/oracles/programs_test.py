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
import masked_tokens
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
SEED = 42  # the default of training.seed
MASKING = layout.Masking(4, (1, 2, 4))  # of the masked language models
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


@functools.lru_cache(maxsize=None)
def exported(name, variant):
    """Returns (folder with weights and program, program)."""
    family = families.named(name)
    folder = pathlib.Path(FOLDERS.name) / f"{name}-{variant}"
    families.write_folder(family, folder)
    oracle.make_comparable(folder)
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
    """Yields the names of the encoders, whose rows or images have labels or are masked."""
    for family in families.FAMILIES:
        if family.task == "causal_lm" or family.dtype != torch.float32:
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
    labels = {"classify": {"labels": "i32"}, "regress": {"labels": "f32"}}.get(task, {})
    with epsd.Writer(path, "rows", {"tokens": "u16", "lengths": "u32", **labels}) as file:
        rows = labelled(job, task)
        for ids, label in rows:
            file.append("tokens", ids + [0] * (job.seq_len - len(ids)))
            file.append("lengths", [len(ids)])
            if labels:
                file.append("labels", [label])
        file.finish(samples=len(rows), seq_len=job.seq_len, vocab_size=job.vocab_size,
                    tokenizer="", provenance={}, masking=MASKING if task == "mlm" else None)
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
    for step in range(1, jobs.STEPS + 1):
        numbers = [i % len(rows) for i in range((step - 1) * job.batch_size, step * job.batch_size)]
        taken = [rows[i] for i in numbers]
        if task == "mlm":
            yield masked_batch(job, step, [(i, rows[i][0]) for i in numbers])
            continue
        labels = torch.tensor([label for _, label in taken])
        if task == "image":
            pixels = torch.tensor([list(pixels) for pixels, _ in taken]).view(-1, *shape)
            yield {"pixel_values": (pixels / 255 - 0.25) / 0.5}, labels
            continue
        yield padded(job, [ids for ids, _ in taken]), labels


def padded(job, rows):
    """Returns transformers' arguments for rows of ids, padded to one length."""
    return {"input_ids": torch.tensor([ids + [0] * (job.seq_len - len(ids)) for ids in rows]),
            "attention_mask": torch.tensor([[int(i < len(ids)) for i in range(job.seq_len)]
                                            for ids in rows])}


def masked_batch(job, step, samples):
    """Returns the arguments for samples (number, ids) of a step as the model reads them, and their
    labels."""
    pairs = [masked_tokens.masked(ids, SEED, step, i, job.vocab_size, MASKING.mask_token,
                                  MASKING.special_tokens) for i, ids in samples]
    labels = [row + [masked_tokens.IGNORED] * (job.seq_len - len(row)) for _, row in pairs]
    return padded(job, [ids for ids, _ in pairs]), torch.tensor(labels)


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
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        run.losses.append(loss.item())
        run.grad_norms.append(oracle.clip(job, model, None))
        run.lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    run.weights = oracle.to_arrays(model.named_parameters())
    return run


def load_encoder(folder, task, dtype=torch.float32):
    kind = {"image": "ImageClassification", "mlm": "MaskedLM"}.get(task, "SequenceClassification")
    return getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder, dtype=dtype)


def load_trainable(folder, task, dtype):
    if task != "causal_lm":
        return load_encoder(folder, task, dtype).train()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()


def micro_batches(job, task):
    """Yields for each step a list of (arguments of transformers' model, labels)."""
    if task == "causal_lm":
        data = jobs.tokens(job)
        pairs = (torch.tensor(jobs.batch(job, data, step)).unbind(1) for step in range(jobs.STEPS))
        steps = (({"input_ids": ids}, labels) for ids, labels in pairs)
    else:
        steps = batches(job, task, [])
    for inputs, labels in steps:
        yield [({key: value[i:i + job.micro_batch_size] for key, value in inputs.items()},
                labels[i:i + job.micro_batch_size])
               for i in range(0, job.batch_size, job.micro_batch_size)]


FIXED_SCALE = 15  # log2; no gradient of the rows overflows with it
SCALED = {"training.loss_scale_initial": 20, "training.loss_scale_window": 3,
          "training.loss_scale_hysteresis": 1}


class LossScale:
    """The scale of a job with SCALED, written from docs/models.md alone."""

    def __init__(self):
        self.log2, self.good = 20, 0

    def after(self, overflow):
        self.good = 0 if overflow else self.good + 1
        self.log2 -= overflow
        if self.good == 3:
            self.log2, self.good = self.log2 + 1, 0


def trained_by_torch_in(dtype, job, folder, task):
    """Trains a copy of the weights in `dtype`, made again in each step; weights, their moments and
    sums of gradients are FP32. In FP16 the loss has a scale."""
    factor = 1.0
    if dtype == torch.float16:  # multiplies the sum as 2^FIXED_SCALE multiplies the mean, at most
        rows = job.micro_batch_size * job.seq_len
        factor = 2.0 ** (FIXED_SCALE - math.ceil(math.log2(rows)))
    masters = load_trainable(folder, task, torch.float32)
    model = load_trainable(folder, task, dtype)
    optimizer = oracle.new_optimizer(job, masters, None)
    scheduler = oracle.new_scheduler(job.schedule, optimizer, job.warmup_steps, jobs.STEPS)
    run = eps_run.Run(losses=[], grad_norms=[], lrs=[], weights={}, moments={}, folder="")
    for step in micro_batches(job, task):
        pairs = list(zip(masters.parameters(), model.parameters()))
        count = sum(labels.numel() for _, labels in step)
        total = 0
        for master, copy in pairs:
            copy.data.copy_(master.data)
            master.grad = torch.zeros_like(master)
        for inputs, labels in step:
            scores = model(**inputs).logits.float()
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten(),
                                                     reduction="sum")
            total += loss.item()
            model.zero_grad()
            (loss * factor).backward()
            for master, copy in pairs:
                master.grad += copy.grad.float() / (factor * count)
        run.losses.append(total / count)
        run.grad_norms.append(oracle.clip(job, masters, None))
        run.lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    run.weights = oracle.to_arrays(masters.named_parameters())
    return run


def complaints_in_16_bits(ours, theirs):
    """Compares two BF16 runs, or two in FP16, whose values are more exact. The first forward
    pass has the same operators and so the same bits, up to the order in which losses are added;
    FP32 gives losses that are 3.6e-5 away. Gradients differ, because EPS sums those of lookups
    and norms in FP32, and Adam enlarges the differences of small ones: a weight that took other
    steps each time would be 2 * sum(lrs) away. A rounding to BF16 changes a value by up to 2^-9
    of it: losses may be two of them apart."""
    rms = math.sqrt(sum((a - b) ** 2 for name, (_, values) in ours.weights.items()
                        for a, b in zip(values, theirs.weights[name][1])) /
                    sum(len(values) for _, values in ours.weights.values()))
    far = rms > 0.1 * sum(theirs.lrs)
    return (compare.series("first loss", ours.losses[:1], theirs.losses[:1], 1e-6) +
            compare.series("loss", ours.losses, theirs.losses, 2 ** -8) +
            compare.series("first norm", ours.grad_norms[:1], theirs.grad_norms[:1], 0.01) +
            compare.series("grad_norm", ours.grad_norms, theirs.grad_norms, 0.05) +
            compare.series("lr", ours.lrs, theirs.lrs, compare.LR_TOLERANCE) +
            ([f"weights: {rms} apart, the rates sum up to {sum(theirs.lrs)}"] if far else []))


def train_in_16_bits(name, text=None, scaling=None):
    """Trains a row, perhaps with another program, and verifies the run; returns (run, what
    trained_by_torch_in needs)."""
    is_bf16 = families.named(name).dtype == torch.bfloat16
    precision = {"training.precision": "bf16"} if is_bf16 else dict(
        scaling or {"training.loss_scale_initial": FIXED_SCALE}, **{"training.precision": "cmp"})
    task = families.named(name).task
    folder, original = exported(name, families.named(name).variants[0])
    job = job_of(name, original)
    inputs = inputs_of(job, folder) if task == "causal_lm" else jobs.Inputs(
        str(folder), str(write_rows(job, task, folder)), "")
    out = str(folder) + "-out"
    export.write(program.canonical(text or original), folder)
    try:
        run = eps_run.train(EPS, job, inputs, out,
                            dict(precision, **{"checkpoint.save_steps": 1}))
        verified = eps_run.call(EPS, "verify", "--run", out)
    finally:
        export.write(program.canonical(original), folder)
    if b"verified: %d steps" % jobs.STEPS not in verified:
        raise AssertionError(verified)
    model = load_trainable(run.folder, task, torch.float32)
    run.weights = oracle.to_arrays(model.named_parameters())
    return run, (job, folder, task)


class Programs(unittest.TestCase):
    def test_encoders_learn_as_torch_does(self):
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

    def test_bf16_trains_as_torch_does(self):
        names = ("llama_bfloat16", "bert_classify_bfloat16")
        for name in names if IS_LONG else names[:1]:
            with self.subTest(family=name):
                ours, settings = train_in_16_bits(name)
                theirs = trained_by_torch_in(torch.bfloat16, *settings)
                self.assertEqual([], complaints_in_16_bits(ours, theirs))
                fp32 = trained_by_torch_in(torch.float32, *settings)
                self.assertNotEqual([], complaints_in_16_bits(fp32, theirs))

    def test_cmp_trains_as_torch_does(self):
        ours, settings = train_in_16_bits("llama_float16")
        theirs = trained_by_torch_in(torch.float16, *settings)
        self.assertEqual([], complaints_in_16_bits(ours, theirs))
        bf16 = trained_by_torch_in(torch.bfloat16, *settings)
        self.assertNotEqual([], complaints_in_16_bits(bf16, theirs))

    def test_the_loss_scale_follows_overflows(self):
        run = train_in_16_bits("llama_float16", scaling=SCALED)[0]
        scale = LossScale()
        skipped = 0
        for line in eps_run.records(os.path.dirname(run.folder)):
            self.assertEqual(2.0 ** scale.log2, line["loss_scale"], line["step"])
            scale.after(line.get("skipped", False))
            skipped += line.get("skipped", False)
        self.assertTrue(2 <= skipped <= jobs.STEPS // 2, skipped)

    def test_mistakes_in_bf16_are_noticed(self):
        settings = train_in_16_bits("llama_bfloat16")[1]
        theirs = trained_by_torch_in(torch.bfloat16, *settings)
        for mistake in (change_epsilon, detach_embedding):
            with self.subTest(mistake=mistake.__name__):
                text = json.loads(json.dumps(exported("llama_bfloat16", "causal")[1]))
                mistake(text)
                ours = train_in_16_bits("llama_bfloat16", text)[0]
                self.assertNotEqual([], complaints_in_16_bits(ours, theirs))

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
