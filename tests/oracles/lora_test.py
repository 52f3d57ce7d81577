"""Trains LoRA adapters through two servers and two workers, and compares them with peft's, trained
by PyTorch. Loads what EPS exports with peft and with transformers.

Runs the commands of docs/guides/lora.md.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Arguments: the paths of eps and print_logits.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import compare
import eps_run
import jobs
import oracle
import peft
import safetensors.torch
import tensors
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "python"))
import source_tree  # noqa: E402
from eps_models import lora  # noqa: E402
from eps_models.testing import families  # noqa: E402

EPS = None
PRINT_LOGITS = None
FOLDERS = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
R, ALPHA = 4, 12.0
LENGTH = 24
# GPT-2's layers are [in, out], Llama's [out, in].
TARGETS = {"llama": ("q_proj", "v_proj", "down_proj"), "gpt2": ("c_attn", "c_proj")}
PAGE = (ROOT / "docs/guides/lora.md").read_text(encoding="utf-8")
ATOL = 1e-6  # of a merged weight: peft adds in FP32


def injected(folder, name):
    """Returns transformers' model of the folder with peft's adapters."""
    model = oracle.load(folder)
    lora.add(model, lora.Lora(R, ALPHA, 0, TARGETS[name]))
    return model


@functools.lru_cache(maxsize=None)
def folder_of(name):
    """Returns a folder with random weights, and with random adapters in the same file: EPS reads
    them instead of drawing initial values, under which half of the first gradients are zero."""
    folder = pathlib.Path(FOLDERS.name) / name
    families.write_folder(families.named(name), folder)
    oracle.make_comparable(folder)
    generator = torch.Generator().manual_seed(11)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    for key, value in injected(folder, name).named_parameters():
        if lora.is_adapter(key):
            weights[key] = 0.1 * torch.empty(value.shape).normal_(generator=generator)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def job_of(name):
    vocab_size = json.loads((folder_of(name) / "config.json").read_text())["vocab_size"]
    return jobs.Job(name=name, tie_word_embeddings=False, clip="exact", max_grad_norm=0.5,
                    vocab_size=vocab_size, seq_len=LENGTH, n_positions=LENGTH,
                    tokens=50 * LENGTH + 7, micro_batch_size=2, micro_batches=2, parts=2,
                    workers=2, servers=2, loss_block_tokens=20, schedule="linear", warmup_steps=2)


def inputs_of(name):
    data = pathlib.Path(FOLDERS.name) / f"{name}.bin"
    data.write_bytes(b"".join(token.to_bytes(2, "little") for token in jobs.tokens(job_of(name))))
    return jobs.Inputs(str(folder_of(name)), str(data), "")


def settings(name):
    return {"lora.r": R, "lora.alpha": ALPHA, "lora.targets": ",".join(TARGETS[name]),
            "checkpoint.save_steps": 1}


@functools.lru_cache(maxsize=None)
def trained(name):
    """Trains with EPS, which exports the model itself, and verifies the run."""
    out = os.path.join(FOLDERS.name, name + "-out")
    run = eps_run.train(EPS, job_of(name), inputs_of(name), out, settings(name))
    verified = eps_run.call(EPS, "verify", "--run", out)
    if b"verified: %d steps" % jobs.STEPS not in verified:
        raise AssertionError(verified)
    return run


def with_adapters(name, weights):
    """Returns transformers' model with the folder's weights, and with adapters by their names."""
    model = injected(folder_of(name), name)
    for key, parameter in model.named_parameters():
        if lora.is_adapter(key):
            parameter.data.copy_(weights[key])
    return model


@functools.lru_cache(maxsize=None)
def trained_by_torch(name):
    weights = safetensors.torch.load_file(folder_of(name) / "model.safetensors")
    run = oracle.train(job_of(name), inputs_of(name), model=with_adapters(name, weights))
    run.weights = {lora.plain(key): value for key, value in run.weights.items()}
    return run


def export(name, *flags):
    """Exports the last checkpoint; returns the new folder."""
    out = os.path.join(tempfile.mkdtemp(dir=FOLDERS.name), "exported")
    eps_run.call(EPS, "checkpoint", "export", trained(name).folder, "--out=" + out, *flags)
    return pathlib.Path(out)


def adapters_of(weights):
    return {key: value for key, value in weights.items() if lora.is_adapter(key)}


class Lora(unittest.TestCase):
    def ids(self, name):
        return jobs.sample(job_of(name), jobs.tokens(job_of(name)), 0)[0]

    def test_training_matches_peft(self):
        for name in TARGETS:
            with self.subTest(family=name):
                ours, theirs = trained(name), trained_by_torch(name)
                self.assertEqual([], compare.runs(
                    dataclasses.replace(ours, weights=adapters_of(ours.weights)),
                    dataclasses.replace(theirs, weights=adapters_of(theirs.weights))))
                for field in job_of(name).state_fields:
                    self.assertEqual(set(adapters_of(ours.weights)), set(ours.moments[field]),
                                     "only the adapters have moments")
                    self.assertEqual([], compare.moments(ours.moments[field],
                                                         theirs.moments[field]))

    def test_frozen_weights_keep_every_bit(self):
        for name in TARGETS:
            with self.subTest(family=name):
                before = tensors.read_safetensors(str(folder_of(name) / "model.safetensors"))
                after = trained(name).weights
                frozen = {key for key in after if not lora.is_adapter(key)}
                self.assertGreater(len(frozen), 10)
                for key in frozen:
                    self.assertEqual(bytes(before[key][1]), bytes(after[key][1]), key)

    def test_peft_loads_the_adapters(self):
        for name in TARGETS:
            with self.subTest(family=name):
                folder = export(name)
                self.assertFalse((folder / "config.json").exists())
                model = peft.PeftModel.from_pretrained(oracle.load(folder_of(name)), folder).eval()
                loaded = {key.removeprefix("base_model.model."): value
                          for key, value in model.named_parameters() if lora.is_adapter(key)}
                for key, (_, values) in adapters_of(trained(name).weights).items():
                    self.assertEqual(list(values), loaded[key].flatten().tolist(), key)
                self.assertEqual([], compare.scores(
                    eps_run.logits(PRINT_LOGITS, trained(name).folder, self.ids(name)),
                    oracle.logits(model, self.ids(name))))

    def test_merged_weights_are_those_of_peft(self):
        for name in TARGETS:
            with self.subTest(family=name):
                merged, report = oracle.load_with_report(export(name, "--merge"))
                self.assertEqual({}, {kind: names for kind, names in report.items() if names})
                theirs = peft.PeftModel.from_pretrained(
                    oracle.load(folder_of(name)), export(name)).merge_and_unload()
                changed = 0
                base = oracle.load(folder_of(name)).state_dict()
                for key, value in theirs.state_dict().items():
                    torch.testing.assert_close(merged.state_dict()[key], value, rtol=0, atol=ATOL)
                    changed += not torch.equal(base[key], value)
                self.assertEqual(len(adapters_of(trained(name).weights)), 2 * changed)
                self.assertEqual([], compare.scores(
                    oracle.logits(merged.eval(), self.ids(name)),
                    oracle.logits(theirs.eval(), self.ids(name))))

    def test_new_adapters_change_nothing(self):
        """Without adapters in the folder, B is zero: the first loss is that of the base."""
        folder = pathlib.Path(FOLDERS.name) / "plain"
        oracle.load(folder_of("llama")).save_pretrained(folder)
        job = job_of("llama")
        inputs = dataclasses.replace(inputs_of("llama"), folder=str(folder))
        out = os.path.join(FOLDERS.name, "plain-out")
        run = eps_run.train(EPS, job, inputs, out, {**settings("llama"), "lora.dropout": 0.5})
        loss = oracle.mean_loss(job, oracle.load(folder).train(),
                                jobs.batch(job, jobs.tokens(job), 0), None).item()
        self.assertEqual([], compare.series("loss", run.losses[:1], [loss], 1e-5))
        self.assertLess(run.losses[-1], run.losses[0])
        self.assertIn(b"verified: %d steps" % jobs.STEPS,
                      eps_run.call(EPS, "verify", "--run", out))


    def test_commands_of_the_guide(self):
        folder = pathlib.Path(FOLDERS.name) / "guide"
        config = families.named("llama").config()
        config.vocab_size = 256  # bytes, so that a text needs no tokenizer
        transformers.LlamaForCausalLM(config).save_pretrained(folder / "base")
        (folder / "corpus.txt").write_text("A line of the corpus.\n" * 200)
        environment = {**os.environ, "EPS_PYTHON": sys.executable,
                       "PATH": os.pathsep.join([os.path.dirname(EPS),
                                                os.path.dirname(sys.executable),
                                                os.environ["PATH"]])}
        printed = [subprocess.run(["bash", "-ec", block], cwd=folder, env=environment, check=True,
                                  stdout=subprocess.PIPE, timeout=600).stdout
                   for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
        self.assertEqual(b"4\nllama\n", printed[-1])


if __name__ == "__main__":
    EPS, PRINT_LOGITS = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    torch.set_num_threads(1)
    source_tree.main()
