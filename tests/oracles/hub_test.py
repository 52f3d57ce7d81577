"""Names models by what the cache of the Hugging Face hub holds, and compares with huggingface_hub.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import safetensors.torch
import small_tokenizers
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import source_tree  # noqa: E402
from eps_models import hub  # noqa: E402
from eps_models.testing import hub as caches  # noqa: E402

EPS = None
TIMEOUT_SECONDS = 600
GPT2, LLAMA = "an-org/small-gpt2", "small.llama"
# Prints the folder in which huggingface_hub finds a model.
FIND = """
import sys
import huggingface_hub
print(huggingface_hub.snapshot_download(*sys.argv[1:2], revision=sys.argv[2],
                                        local_files_only=True))
"""
SHORT = ["--training.steps=2", "--training.seq_len=16", "--training.micro_batch_size=2",
         "--optimizer.lr=1e-3", "--worker.threads=1", "--servers=1", "--storage.kind=dram",
         "--metrics.tensorboard=false"]


def environment(**variables):
    """Returns the environment of a process, with no other variables of the hub than these."""
    kept = {key: value for key, value in os.environ.items()
            if not key.startswith(("HF_", "HUGGINGFACE_", "XDG_"))}
    kept.update({"EPS_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "python")})
    return {**kept, **{key: str(value) for key, value in variables.items()}}


class Hub(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.cache = cls.root / "home" / "hub"
        sizes = {"vocab_size": small_tokenizers.VOCABULARY}
        configs = {
            GPT2: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, **sizes),
            LLAMA: transformers.LlamaConfig(
                hidden_size=32, intermediate_size=48, num_attention_heads=2, num_hidden_layers=2,
                max_position_embeddings=32, **sizes)}
        cls.snapshots = {}
        for name, config in configs.items():
            model = cls.root / "models" / name
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model)
            small_tokenizers.bpe(model)
            cls.snapshots[name] = caches.write(cls.cache, name, model)
        cls.text = cls.root / "text.txt"
        cls.text.write_text("the program is free, and you may copy it\n" * 60)
        caches.make_read_only(cls.cache)
        cls.addClassCleanup(caches.make_writable, cls.cache)
        cls.whole = caches.contents(cls.cache)

    def setUp(self):
        self.out = self.root / self.id().rpartition(".")[2]
        self.out.mkdir()

    def tearDown(self):
        self.assertEqual(self.whole, caches.contents(self.cache), "the cache was written to")

    def eps(self, *arguments, code=0, cache=None):
        """Runs eps; returns what it prints."""
        ended = subprocess.run(
            [EPS, *map(str, arguments)], env=environment(HF_HUB_CACHE=cache or self.cache),
            cwd=self.out, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS, check=False)
        self.assertEqual(code, ended.returncode, ended.stdout[-3000:])
        return ended.stdout

    def data(self):
        path = self.out / "text.epsd"
        self.eps("data", "make", "text", self.text, f"--tokenizer={GPT2}", f"--out={path}")
        return path

    def train(self, model, out, *more, **how):
        return self.eps("train", f"--model={model}", f"--data={self.out}/text.epsd",
                        f"--out={out}", *SHORT, *more, **how)

    def test_huggingface_hub_finds_the_same_folder(self):
        home = self.cache.parent
        shutil.copytree(home, self.out / "user/.cache/huggingface", symlinks=True)
        for variables, name, revision in (
                ({"HF_HUB_CACHE": self.cache}, GPT2, "main"),
                ({"HF_HUB_CACHE": self.cache}, LLAMA, caches.COMMIT),
                ({"HUGGINGFACE_HUB_CACHE": self.cache, "HF_HOME": "/gone"}, GPT2, "main"),
                ({"HF_HOME": home, "XDG_CACHE_HOME": "/gone"}, GPT2, "main"),
                ({"XDG_CACHE_HOME": self.out / "user/.cache", "HOME": "/gone"}, GPT2, "main"),
                ({"HF_HOME": "~/.cache/huggingface", "HOME": self.out / "user"}, GPT2, "main"),
                ({"HOME": self.out / "user"}, GPT2, "main")):
            with self.subTest(variables=variables, name=name):
                theirs = subprocess.run(
                    [sys.executable, "-c", FIND, name, revision], env=environment(**variables),
                    stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True
                ).stdout.strip()
                with unittest.mock.patch.dict(os.environ, environment(**variables), clear=True):
                    ours = hub.folder_of(f"{name}@{revision}", needs_weights=True)
                self.assertEqual(theirs, str(ours))
                if name != GPT2:
                    continue
                said = subprocess.run(
                    [EPS, "generate", f"--model={name}@{revision}", "--prompt-ids=1,2",
                     "--tokens=1", "--threads=1"], env=environment(**variables),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    timeout=TIMEOUT_SECONDS, check=False)
                self.assertEqual(0, said.returncode, said.stdout)

    def test_runs_do_not_depend_on_the_cache(self):
        self.data()
        said = self.train(GPT2, "one")
        self.assertIn(f"weights: from {self.snapshots[GPT2]}/model.safetensors", said)
        other = self.out / "elsewhere"
        shutil.copytree(self.cache, other, symlinks=True)
        self.train(GPT2, "two", cache=other)
        self.train(self.root / "models" / GPT2, "by_folder")
        digests = [self.eps("checkpoint", "digest", f"{run}/checkpoint-2")
                   for run in ("one", "two", "by_folder")]
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(digests[0], digests[2])
        for file in (self.out / "one/checkpoint-2").rglob("*"):
            if file.is_file():
                self.assertNotIn(str(self.cache).encode(), file.read_bytes(), file)
        self.assertIn("step: 3/3", self.eps(
            "train", "--out=two", "--resume=latest", "--training.steps=3", cache=self.cache))

    def test_a_model_that_is_not_built_in(self):
        self.data()
        said = self.train(LLAMA, "run")
        self.assertIn(f"model: exporting {LLAMA}@{caches.COMMIT}", said)
        self.assertIn(f"weights: from {self.out}/run/model/model.safetensors", said)
        self.assertTrue((self.out / "run/model/eps/program.json").is_file())
        again = self.train(LLAMA, "run", "--resume=latest", "--training.steps=3")
        self.assertNotIn("exporting", again)
        self.assertIn("step: 3/3", again)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.out / "run/checkpoint-2")
        self.assertEqual("llama", loaded.config.model_type)

    def test_export_and_check_by_name(self):
        self.assertIn('"logits_equal": true', self.eps("model", "check", LLAMA, "--json"))
        self.assertIn("--out", self.eps("model", "export", LLAMA, code=64))
        self.eps("model", "export", LLAMA, "--out=exported")
        self.data()
        said = self.train("exported", "run")
        self.assertIn(f"weights: from {self.out}/exported/model.safetensors", said)
        weights = [safetensors.torch.load_file(p / "model.safetensors")
                   for p in (self.out / "exported", self.root / "models" / LLAMA)]
        self.assertEqual(weights[0].keys(), weights[1].keys())
        # Exporting again replaces links, and no file of the folder itself.
        (self.out / "exported/config.json").unlink()
        shutil.copy(self.root / "models" / LLAMA / "config.json", self.out / "exported")
        self.eps("model", "export", LLAMA, "--out=exported")
        self.assertFalse((self.out / "exported/config.json").is_symlink())
        self.assertTrue((self.out / "exported/tokenizer.json").is_symlink())

    def test_data_are_shown_by_the_tokenizer_of_a_name(self):
        path = self.data()
        self.assertIn("the program is free", self.eps("data", "show", path))
        self.assertIn("these are ids", self.eps("data", "show", path, cache="/gone"))
        self.assertIn("hf download", self.eps("data", "show", path, f"--tokenizer={GPT2}",
                                              cache="/gone", code=66))

    def broken(self, name, change):
        """Returns a cache in which a function has changed the model's folder."""
        cache = self.out / "broken"
        shutil.rmtree(cache, ignore_errors=True)
        shutil.copytree(self.cache, cache, symlinks=True)
        caches.make_writable(cache)
        change(cache / ("models--" + name.replace("/", "--")))
        return cache

    def test_a_download_that_did_not_end(self):
        def lose(file):
            return lambda model: (model / "snapshots" / caches.COMMIT / file).unlink()

        def dangle(file):
            return lambda model: (model / "snapshots" / caches.COMMIT / file).resolve().unlink()

        def shards(model):
            snapshot = model / "snapshots" / caches.COMMIT
            (snapshot / "model.safetensors").unlink()
            (snapshot / "model.safetensors.index.json").write_text(json.dumps(
                {"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
        self.data()
        for change, file, reads_weights in (
                (lose("model.safetensors"), "model.safetensors", True),
                (dangle("model.safetensors"), "model.safetensors", False),
                (shards, "model-00001-of-00002.safetensors", True),
                (lose("config.json"), "config.json", True),
                (dangle("tokenizer.json"), "tokenizer.json", False)):
            with self.subTest(file=file):
                cache = self.broken(GPT2, change)
                calls = [["train", f"--model={GPT2}", "--data=text.epsd", "--out=run"],
                         ["plan", f"--model={GPT2}", "--hardware=two_core_box"],
                         ["generate", f"--model={GPT2}", "--prompt=a"],
                         ["model", "export", GPT2, "--out=exported"]]
                if not reads_weights:
                    calls.append(["data", "make", "text", self.text, f"--tokenizer={GPT2}",
                                  "--out=other.epsd"])
                for call in calls:
                    said = self.eps(*call, code=66, cache=cache)
                    self.assertIn(f"{caches.COMMIT}/{file} is missing", said)
                    self.assertIn(f"hf download {GPT2}", said)
                self.assertEqual(["broken", "text.epsd"], sorted(os.listdir(self.out)))

    def test_a_model_that_is_not_there(self):
        for call in (["train", "--model=an-org/gone", "--out=run"],
                     ["plan", "--model=an-org/gone", "--hardware=two_core_box"],
                     ["generate", "--model=an-org/gone", "--prompt=a"],
                     ["model", "export", "an-org/gone", "--out=run"],
                     ["model", "check", "an-org/gone"],
                     ["data", "make", "text", self.text, "--tokenizer=an-org/gone",
                      "--out=a.epsd"]):
            said = self.eps(*call, code=66)
            self.assertIn("hf download an-org/gone", said)
            self.assertIn(str(self.cache), said)
            self.assertEqual([], os.listdir(self.out))
        for call in (["train", f"--model={GPT2}@v2"], ["model", "check", f"{GPT2}@v2"]):
            self.assertIn(f"hf download {GPT2} --revision v2", self.eps(*call, code=66))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    source_tree.main()
