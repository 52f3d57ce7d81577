"""Exports models that are hard to cut, or that must be refused with the reason.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "python"))
import source_tree  # noqa: E402
from eps_models import build, check, errors, export, program, staged  # noqa: E402
from eps_models.testing import families, gradients  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

EPS = None
# A file of a user. KIND chooses what its model does.
OWN_MODEL = '''
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared = shared
        self.norm = nn.LayerNorm(8)
    def forward(self, x, other=None):
        y = x + self.shared(self.norm(x))
        return y if other is None else y + other

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.table = nn.Embedding(17, 8)
        shared = nn.Linear(8, 8)
        one = Layer(shared)
        self.layers = nn.ModuleList(
            [one, Layer(shared), Layer(shared if kind != "apart" else nn.Linear(8, 8))])
        if kind == "no_list":
            self.layers = nn.Sequential(*self.layers)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(8, 17)
        if kind == "uniform":
            nn.init.uniform_(self.head.weight, -0.5, 0.25)
        if kind == "strange":
            with torch.no_grad():
                self.head.weight.copy_(torch.eye(17, 8))

    def forward(self, input_ids):
        x = self.table(input_ids)
        other = x * 2 if self.kind == "crossing" else None
        for i, layer in enumerate(self.layers):
            if self.kind == "random":
                x = x + torch.rand_like(x)
            if self.kind == "data" and x.sum() > 0:
                x = -x
            if self.kind == "short" and x.shape[1] > 20:
                x = -x
            x = layer(x, other)
            if self.kind == "twice" and i == 0:
                x = layer(x)
            if self.kind == "write" and i == 1:
                x[:, 0] = 0
        if self.kind == "mixing":
            x = x.cumsum(1)
        if self.kind == "modulo":
            x = x[:, x.shape[1] % 2:]
        return self.head(x)
'''
KINDS = ("plain", "apart", "no_list", "uniform", "strange", "crossing", "random", "data", "short",
         "twice", "write", "modulo", "mixing")


class Folders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        file = cls.root / "my_model.py"
        file.write_text(OWN_MODEL + "".join(
            f"\ndef {kind}():\n    return Model('{kind}')\n" for kind in KINDS))
        cls.own = str(file)

    def assert_refused(self, request, *words, code=errors.UNSUPPORTED):
        with self.assertRaises(errors.ExportError) as caught:
            json.loads(export.export(request))
        self.assertEqual(code, caught.exception.code, caught.exception)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def own_request(self, kind):
        return build.Request(f"{self.own}:{kind}", "causal_lm", "causal", torch.float32)

    def folder(self, name, config, weights=True):
        """Writes a folder of a model of transformers; returns its path."""
        path = self.root / name
        config.save_pretrained(path)
        if weights:
            auto = transformers.AutoModelForCausalLM
            auto.from_config(config).save_pretrained(path)
        return path

    def request(self, path, task="causal_lm", variant="causal", **more):
        return build.Request(str(path), task, variant, torch.float32, **more)


class Cutting(Folders):
    """Modules written by hand."""

    def check_own(self, kind, tensors):
        """Compares scores and gradients of a module with those of its text."""
        request = self.own_request(kind)
        model = build.build(request)
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in model.module.parameters():
                parameter.copy_(torch.randn(parameter.shape))
        ours = staged.StagedModel(export.export(request))
        weights = {t["name"]: model.module.get_parameter(t["name"]).detach()
                   for t in ours.text["tensors"]}
        self.assertEqual(tensors, len(weights))
        columns = {"input_ids": torch.arange(10).reshape(2, 5)}
        scores = model.module(**columns)
        self.assertTrue(torch.equal(scores, ours.forward(weights, columns)[-1]))
        d_scores = torch.randn(scores.shape)
        found = gradients.staged_gradients(ours, weights, columns, d_scores)
        expected = dict(zip(weights, torch.autograd.grad(
            scores, [model.module.get_parameter(name) for name in weights], d_scores)))
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)
        return ours.text

    def test_the_config_names_the_task(self):
        cases = (("BertForMaskedLM", {}, "mlm"), ("BertForSequenceClassification", {}, "classify"),
                 ("BertForSequenceClassification", {"id2label": {"0": "y"}}, "regress"),
                 ("BertForSequenceClassification", {"problem_type": "regression"}, "regress"),
                 ("ViTForImageClassification", {}, "image"), ("LlamaForCausalLM", {}, "causal_lm"),
                 ("GPT2LMHeadModel", {}, "causal_lm"), (None, {}, "causal_lm"))
        for name, more, task in cases:
            with self.subTest(name=name, more=more):
                folder = self.root / "task"
                folder.mkdir(exist_ok=True)
                (folder / "config.json").write_text(json.dumps(
                    {"architectures": name and [name], **more}))
                self.assertEqual(build.task_of(str(folder)), task)
        self.assertEqual(build.task_of(self.own + ":plain"), "causal_lm")

    def test_a_weight_shared_by_three_layers(self):
        text = self.check_own("plain", 11)
        self.assertEqual(["embedding", "layers.0", "layers.1", "layers.2", "head"],
                         [stage["name"] for stage in text["stages"]])
        shared = {use["tensor"] for use in text["stages"][1]["uses"]}
        self.assertEqual(2, len(shared & {use["tensor"] for use in text["stages"][3]["uses"]}))
        self.assertEqual([], [t for t in text["tensors"] if "unused" in t["name"]])

    def test_a_layer_used_twice(self):
        text = self.check_own("twice", 11)
        self.assertNotEqual(text["stages"][1]["program"], text["stages"][2]["program"])

    def test_a_crossing_value_is_named(self):
        self.assert_refused(self.own_request("crossing"), "2 values cross", "aten::embedding",
                            "aten::mul")

    def test_no_list_of_layers(self):
        self.assert_refused(self.own_request("no_list"), "no ModuleList")
        self.assert_refused(build.Request(f"{self.own}:plain", "causal_lm", "causal",
                                          torch.float32, layers="blocks"), "--layers=blocks",
                            code=errors.USAGE)

    def test_what_a_program_cannot_hold(self):
        self.assert_refused(self.own_request("random"), "aten::rand_like", "random numbers")
        self.assert_refused(self.own_request("data"), "branches on data", "my_model.py")
        self.assert_refused(self.own_request("write"), "shares its memory")
        self.assert_refused(self.own_request("modulo"), "mod", "+ - * //")

    def test_a_branch_on_a_length_bounds_rows(self):
        text = json.loads(export.export(self.own_request("short")))
        self.assertEqual(20, text["shape"]["max_seq_len"])

    def test_a_head_that_mixes_rows(self):
        for kind, is_rowwise in (("plain", True), ("mixing", False)):
            text = json.loads(export.export(self.own_request(kind)))
            self.assertEqual({"kind": "tokens", "rowwise": is_rowwise}, text["head"])

    def test_initial_values(self):
        text = json.loads(export.export(self.own_request("uniform")))
        inits = {t["name"]: t["init"] for t in text["tensors"]}
        self.assertEqual({"kind": "uniform", "a": -0.5, "b": 0.25}, inits["head.weight"])
        self.assertEqual({"kind": "normal", "a": 1.0, "b": 0.0}, inits["table.weight"])
        self.assertEqual("ones", inits["layers.0.norm.weight"]["kind"])
        self.assert_refused(self.own_request("strange"), "head.weight", "copy_")
        path = families.write_config(families.named("vit").config(), self.root / "vit_init")
        text = json.loads(export.export(self.request(path, "image", "encoder")))
        inits = {t["name"]: t["init"] for t in text["tensors"]}
        # ViT draws these with trunc_normal_, a longer computation.
        self.assertEqual({"kind": "normal", "a": 0.02, "b": 0.0}, inits["vit.embeddings.cls_token"])

    def test_missing_files_and_functions(self):
        self.assert_refused(build.Request(f"{self.own}:gone", "causal_lm", "causal",
                                          torch.float32), "gone", code=errors.MISSING)
        self.assert_refused(build.Request("/gone.py:build", "causal_lm", "causal",
                                          torch.float32), "/gone.py", code=errors.MISSING)


class Refusals(Folders):
    """Models of transformers that are refused, with the reason."""

    def test_t5_names_the_values_that_cross(self):
        config = transformers.T5Config(d_model=48, d_ff=80, num_heads=6, d_kv=8, num_layers=3,
                                       vocab_size=113)
        self.assert_refused(self.request(self.folder("t5", config, weights=False)),
                            "2 values cross", "decoder.dropout")

    def test_models_that_mix_packed_documents(self):
        for name, reason in (("opt", "it reads the tokens of the first"),
                             ("bloom", "position_ids")):
            path = families.write_config(families.named(name).config(), self.root / name)
            self.assert_refused(self.request(path, variant="packed"), reason, "--variant=causal")

    def test_random_branches_and_noise(self):
        config = families.named("opt").config()
        config.layerdrop = 0.1
        self.assert_refused(self.request(self.folder("drop", config, weights=False)),
                            "branches on data", "modeling_opt.py")
        config = families.named("mixtral").config()
        config.router_jitter_noise = 0.1
        self.assert_refused(self.request(self.folder("jitter", config, weights=False)),
                            "random numbers", "mlp")

    def test_folders_that_cannot_be_read(self):
        self.assert_refused(self.request(self.root), "config.json", "hf download",
                            code=errors.MISSING)
        path = self.root / "broken"
        path.mkdir()
        (path / "config.json").write_text('{"model_type": "gone"}')
        self.assert_refused(self.request(path), "gone")
        path = families.write_config(families.named("vit").config(), self.root / "vit")
        self.assert_refused(self.request(path), "model_type vit", "--task")

    def test_code_in_the_folder_is_not_run(self):
        path = self.root / "code"
        path.mkdir()
        (path / "config.json").write_text(json.dumps({
            "model_type": "own", "auto_map": {"AutoConfig": "own.Config",
                                              "AutoModelForCausalLM": "own.Model"}}))
        (path / "own.py").write_text(f"open({str(path / 'ran')!r}, 'w').close()\n")
        self.assert_refused(self.request(path), "--trust-remote-code")
        self.assertFalse((path / "ran").exists())

    def test_long_lists_of_calls(self):
        text = program.canonical({"b": 1.0, "a": [None, True, "é"]})
        self.assertEqual('{"a":[null,true,"é"],"b":1.0}', text)


class Files(Folders):
    """Weights under other names, in pieces, or missing."""

    def changed(self, name, family, change):
        """Returns the request of a folder whose tensors `change` has changed."""
        path = families.write_folder(families.named(family), self.root / name)
        stored = safetensors.torch.load_file(path / "model.safetensors")
        safetensors.torch.save_file(change(stored), path / "model.safetensors",
                                    metadata={"format": "pt"})
        return families.named(family).request(path, families.named(family).variants[0])

    def check_changed(self, request):
        result = check.check(request)
        self.assertTrue(result.logits_equal, result)

    def test_names_without_prefix(self):
        self.check_changed(self.changed("prefix", "gpt2", lambda stored: {
            name.removeprefix("transformer."): value for name, value in stored.items()}))

    def test_old_names_of_norms(self):
        request = self.changed("gamma", "bert_mlm", lambda stored: {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"): v for name, v in stored.items()})
        self.check_changed(request)
        names = [t["files"]["names"][0] for t in json.loads(export.export(request))["tensors"]]
        self.assertIn("bert.embeddings.LayerNorm.gamma", names)

    def test_a_stored_tied_head(self):
        request = self.changed("tied", "gpt2", lambda stored: {
            **stored, "lm_head.weight": stored["transformer.wte.weight"].clone()})
        self.check_changed(request)
        tensor = json.loads(export.export(request))["tensors"][0]
        self.assertEqual(["lm_head.weight"], tensor["aliases"])
        self.assertEqual(["transformer.wte.weight"], tensor["files"]["names"])

    def test_experts_one_by_one(self):
        path = families.write_folder(families.named("mixtral"), self.root / "experts")
        stored = check.stored_weights(path)
        tensor = next(t for t in json.loads(export.export(self.request(path)))["tensors"]
                      if t["name"].endswith("gate_up_proj"))
        self.assertEqual("stack", tensor["files"]["kind"])
        self.assertEqual(24, len(tensor["files"]["names"]))
        self.assertLessEqual(set(tensor["files"]["names"]), set(stored))

    def test_a_new_head_and_a_missing_layer(self):
        path = families.write_folder(families.named("bert_mlm"), self.root / "encoder")
        text = json.loads(export.export(self.request(path, "classify", "encoder")))
        new = {t["name"] for t in text["tensors"] if t["files"]["kind"] == "new"}
        self.assertEqual({"bert.pooler.dense.weight", "bert.pooler.dense.bias",
                          "classifier.weight", "classifier.bias"}, new)
        request = self.changed("lost", "gpt2", lambda stored: {
            name: value for name, value in stored.items() if "h.1.ln_1" not in name})
        self.assert_refused(request, "transformer.h.1.ln_1.weight", code=errors.MISSING)

    def test_weights_that_cannot_be_read(self):
        for name, content in (("model.safetensors", b"x"), ("model.safetensors", b"\xff" * 20),
                              ("pytorch_model.bin", b"")):
            path = families.write_config(families.named("gpt2").config(), self.root / "unread")
            (path / name).write_bytes(content)
            self.assert_refused(self.request(path), name)
            (path / name).unlink()

    def test_shards(self):
        config = families.named("llama").config()
        path = self.root / "shards"
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(
            path, max_shard_size="60KB")
        self.check_changed(self.request(path))
        next(path.glob("model-00002*")).unlink()
        self.assert_refused(self.request(path), "model-00002", code=errors.MISSING)


class CommandLine(Folders):
    """The programs, as processes."""

    def call(self, module, *arguments, options=()):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        return subprocess.run(
            [sys.executable, *options, "-m", "eps_models." + module, *arguments],
            env=environment, capture_output=True, text=True, timeout=600)

    def test_export_and_check(self):
        path = families.write_folder(families.named("gpt2"), self.root / "gpt2")
        result = self.call("export", str(path), "--variant=packed", f"--out={self.root}/out")
        self.assertEqual(0, result.returncode, result.stderr)
        text = (self.root / "out" / "eps" / "program.json").read_text()
        self.assertEqual(text, program.canonical(json.loads(text)))
        self.assertEqual("packed", json.loads(text)["variant"])
        result = self.call("check", str(path), "--json")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual({"architecture": "GPT2LMHeadModel", "stages": 5, "programs": 3,
                          "logits_equal": True}, json.loads(result.stdout))

    def test_eps_model_runs_the_tool(self):
        path = families.write_folder(families.named("gpt2"), self.root / "by_eps")
        environment = {key: value for key, value in os.environ.items() if key != "EPS_PYTHON"}
        for settings, code, word in (
                ({}, 0, '"logits_equal": true'), ({"EPS_PYTHON": sys.executable}, 0, "true"),
                ({"EPS_PYTHON": "/gone/python"}, 66, "/gone/python")):
            result = subprocess.run([EPS, "model", "check", str(path), "--json"], timeout=600,
                                    env={**environment, **settings}, capture_output=True,
                                    text=True)
            self.assertEqual(code, result.returncode, result.stderr)
            self.assertIn(word, result.stdout + result.stderr)
        result = subprocess.run([EPS, "model", "exprt"], capture_output=True, text=True)
        self.assertEqual(64, result.returncode)
        self.assertIn("did you mean model export?", result.stderr)

    def test_a_check_notices_other_bits(self):
        path = families.write_folder(families.named("llama"), self.root / "llama")
        text = export.export(self.request(path))
        changed = text.replace(",1e-06]", ",1e-05]")  # epsilon of its norms
        self.assertNotEqual(text, changed)
        with unittest.mock.patch.object(export, "export", lambda request: changed):
            result = check.check(self.request(path))
        self.assertFalse(result.logits_equal)
        self.assertLess(0, result.largest_difference)

    def test_exit_codes(self):
        no_type = self.root / "no_type"
        no_type.mkdir()
        (no_type / "config.json").write_text("{}")
        for arguments, code, word in (
                (["/gone"], 66, "/gone"), ([str(no_type)], 65, "config.json"),
                (["/gone", "--task=image", "--variant=packed"], 64, "no variant packed"),
                (["--task=x"], 64, "--task")):
            result = self.call("export", *arguments)
            self.assertEqual(code, result.returncode, result.stderr)
            self.assertIn(word, result.stderr)

    def test_a_python_without_packages(self):
        for module in ("export", "check"):
            result = self.call(module, "/gone", options=["-S"])  # without site-packages
            self.assertEqual(66, result.returncode, result.stderr)
            self.assertIn("third_party/install/setup_models.sh", result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_eight_billion_parameters_take_no_memory(self):
        path = self.root / "large"
        transformers.LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
            num_key_value_heads=8, num_hidden_layers=32, vocab_size=128256,
            max_position_embeddings=8192).save_pretrained(path)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        result = self.call("export", str(path), "--dtype=bfloat16")
        self.assertEqual(0, result.returncode, result.stderr)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertGreaterEqual(peak, before)
        self.assertLess(peak, 3 * 2**20, "in KiB; its weights have 15 GiB")
        text = json.loads((path / "eps" / "program.json").read_text())
        self.assertEqual((34, 3), (len(text["stages"]), len(text["programs"])))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    torch.set_num_threads(1)
    source_tree.main()
