"""Exchanges folders of weights between EPS and transformers: every dtype, one file or shards.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import unittest

import compare
import eps_run
import jobs
import oracle
import safetensors.torch
import tensors
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import source_tree  # noqa: E402

EPS = None
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
STEPS = 2


class Folders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)

    def inputs(self, job):
        folder = self.root / ("inputs-" + job.name)
        if not folder.exists():
            return jobs.write_inputs(job, str(folder))
        return jobs.Inputs(str(folder), str(folder / "data.bin"), "")

    def train(self, job, inputs, name, steps=STEPS):
        return eps_run.train(EPS, job, inputs, str(self.root / name), {"training.steps": steps})

    def digest(self, folder):
        """Returns {array: hexadecimal digest} as EPS computes it."""
        lines = eps_run.call(EPS, "checkpoint", "digest", folder).decode().split("\n")
        return dict(line.split(" sha256:") for line in lines if line)


def sha256_of(files, order):
    """Implements the definition in docs/formats/checkpoint.md."""
    digest = hashlib.sha256()
    for path in files:
        stored = tensors.read_safetensors(path)
        for name in order:
            digest.update(stored[name][1].tobytes())
    return digest.hexdigest()


def order_of(checkpoint):
    """Returns the names in the order of our files, which is that of the job spec."""
    with open(os.path.join(checkpoint, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


class FromTransformers(Folders):
    """EPS trains from folders that transformers saved."""

    def check(self, job, save):
        """`save(model, folder)` writes the folder; EPS must read what transformers reads."""
        inputs = self.inputs(job)
        folder = self.root / (self.id().rsplit(".", 1)[-1] + "-" + job.name)
        save(oracle.load(inputs.folder), str(folder))
        plain = self.root / (folder.name + "-plain")
        plain.mkdir()
        (plain / "config.json").write_text((folder / "config.json").read_text())
        tensors.write_safetensors(plain / "model.safetensors", oracle.to_arrays(
            oracle.load(str(folder)).named_parameters()))
        self.assertEqual(self.digest(plain), self.digest(folder))
        runs = [self.train(job, dataclasses.replace(inputs, folder=str(f)), f.name + "-out")
                for f in (folder, plain)]
        self.assertEqual(*[self.digest(run.folder) for run in runs])
        self.assertEqual(runs[0].losses, runs[1].losses)
        return folder

    def test_bfloat16(self):
        self.check(jobs.named("untied_exact"),
                   lambda model, folder: model.to(torch.bfloat16).save_pretrained(folder))

    def test_float16_in_shards(self):
        folder = self.check(jobs.named("tied_exact"), lambda model, folder: model.to(
            torch.float16).save_pretrained(folder, max_shard_size="40KB"))
        self.assertTrue((folder / "model.safetensors.index.json").exists())
        self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 3)

    def test_shards_of_an_untied_model(self):
        folder = self.check(jobs.named("untied_none"), lambda model, folder: model.save_pretrained(
            folder, max_shard_size="100KB"))
        self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 3)

    def test_names_without_prefix_masks_and_a_stored_tied_head(self):
        def save(model, folder):
            model.save_pretrained(folder)
            stored = {name.removeprefix("transformer."): value.detach().clone()
                      for name, value in model.named_parameters()}
            stored["lm_head.weight"] = stored["wte.weight"].clone()
            size = model.config.n_positions
            for i in range(model.config.n_layer):
                stored[f"h.{i}.attn.bias"] = torch.ones(1, 1, size, size, dtype=torch.bool).tril()
                stored[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
            safetensors.torch.save_file(stored, os.path.join(folder, "model.safetensors"),
                                        metadata={"format": "pt"})
        self.check(jobs.named("tied_exact"), save)

    def test_training_continues_as_in_torch(self):
        job = jobs.named("tied_exact")
        inputs = self.inputs(job)
        folder = str(self.root / "half")
        oracle.load(inputs.folder).to(torch.bfloat16).save_pretrained(folder, max_shard_size="40KB")
        inputs = dataclasses.replace(inputs, folder=folder)
        ours = self.train(job, inputs, "half-out", jobs.STEPS)
        self.assertEqual([], compare.runs(ours, oracle.train(job, inputs)))


class ToTransformers(Folders):
    """transformers loads what `eps checkpoint export` writes."""

    def test_every_dtype_in_one_file_and_in_shards(self):
        for name in ("tied_exact", "untied_exact"):
            job = jobs.named(name)
            checkpoint = self.train(job, self.inputs(job), "export-" + name).folder
            exact = oracle.load(checkpoint).state_dict()
            for dtype, size in (("f32", "5GB"), ("f32", "60KB"), ("bf16", "30KB"), ("f16", "5GB")):
                with self.subTest(job=name, dtype=dtype, size=size):
                    self.check_export(checkpoint, exact, dtype, size)

    def check_export(self, checkpoint, exact, dtype, size):
        out = pathlib.Path(checkpoint + "-%s-%s" % (dtype, size))
        eps_run.call(EPS, "checkpoint", "export", checkpoint, "--out=%s" % out,
                     "--dtype=" + dtype, "--max-shard-size=" + size)
        self.assertFalse((out / "eps").exists())
        self.assertEqual(size == "5GB", (out / "model.safetensors").exists())
        for wanted in (None, "auto"):
            options = {"dtype": wanted} if wanted else {}
            model, info = transformers.GPT2LMHeadModel.from_pretrained(
                out, output_loading_info=True, **options)
            self.assertEqual([], [kind for kind, names in info.items() if names])
        self.assertEqual(DTYPES[dtype], model.dtype)
        for name, tensor in model.state_dict().items():
            # PyTorch rounds to the same bits.
            self.assertTrue(torch.equal(tensor, exact[name].to(DTYPES[dtype])), name)
        if dtype == "f32":
            self.assertEqual(self.digest(checkpoint)["weights"], self.digest(out)["weights"])

    def test_the_digest_matches_its_documentation(self):
        job = jobs.named("tied_none")
        checkpoint = self.train(job, self.inputs(job), "digest").folder
        order = order_of(checkpoint)
        files = [os.path.join(checkpoint, name) for name in
                 ("model.safetensors", "eps/exp_avg.safetensors", "eps/exp_avg_sq.safetensors")]
        self.assertEqual({"weights": sha256_of(files[:1], order),
                          "state": sha256_of(files[1:], order)}, self.digest(checkpoint))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv[1])
    del sys.argv[1]
    source_tree.main()
