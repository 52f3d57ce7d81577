"""Exports a small model of each architecture and compares its program with transformers.

Scores must equal those of transformers bit for bit, and gradients those of the exported graph as a
whole. One row of each kind is tested; EPS_LONG=1 tests all (./.ci/long oracles).

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles). If the first
argument is run_program, the worker's evaluator runs each row's folder and must find the same bits,
or refuse a program that does not compute in FP32.
"""

import copy
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "python"))
import source_tree  # noqa: E402
from eps_models import check, errors, export, program, staged  # noqa: E402
from eps_models.testing import families, further, gradients  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402

IS_LONG = os.environ.get("EPS_LONG") == "1"
BATCHES = (1, 3)
LENGTHS = (1, 17, 33)
ROOT_OF_FOLDERS = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))


RUN_PROGRAM = None  # a program of the worker that compares its results with the cases in a folder


class Exported:
    """A family's folder, its program of one variant, and the model of transformers."""

    def __init__(self, family, variant, folder):
        self.request = family.request(folder, variant)
        self.text = export.export(self.request)
        self.model = check.load(folder, self.request)
        self.weights = staged.StagedModel(self.text).gather(check.stored_weights(folder))

    def columns(self):
        """Yields (batch, tokens, columns) of all sizes that the program accepts."""
        shape = staged.StagedModel(self.text).text["shape"]
        lengths = LENGTHS[:1] if shape["tokens"] else {
            min(length, shape["max_seq_len"] or length) for length in LENGTHS}
        for batch in BATCHES:
            for tokens in sorted(lengths):
                yield batch, tokens, check.columns_of(self.model, self.request,
                                                      staged.StagedModel(self.text).text, batch,
                                                      tokens, seed=100 * batch + tokens)

    def wrong_scores(self, changed_text=None):
        """Returns the sizes whose scores are not those of transformers."""
        ours = staged.StagedModel(changed_text or self.text)
        return [(batch, tokens) for batch, tokens, columns in self.columns() if not torch.equal(
            ours.forward(self.weights, columns)[-1], check.scores(self.model, columns))]

    def wrong_gradients(self, changed_text=None):
        """Returns (batch, tokens, tensor) whose gradients are not those of the uncut graph."""
        ours = staged.StagedModel(changed_text or self.text)
        uncut = gradients.Uncut(self.model, self.request)
        wrong = []
        for batch, tokens, columns in self.columns():
            d_scores = torch.randn(check.scores(self.model, columns).shape,
                                   generator=torch.Generator().manual_seed(tokens)).to(
                                       self.request.dtype)
            expected = uncut.gradients(columns, d_scores)
            found = gradients.staged_gradients(ours, self.weights, columns, d_scores)
            wrong += [(batch, tokens, name) for name, value in found.items()
                      if name in expected and not torch.equal(value, expected[name])]
        return wrong

    def write_cases(self, folder):
        """Writes the text, and what transformers and the uncut graph compute for each size."""
        uncut = gradients.Uncut(self.model, self.request)
        cases = {}
        for batch, tokens, columns in self.columns():
            scores = check.scores(self.model, columns)
            d_scores = torch.randn(scores.shape, generator=torch.Generator().manual_seed(
                tokens)).to(scores.dtype)
            values = {"columns/" + name: value for name, value in columns.items()}
            values.update({"scores": scores, "d_scores": d_scores})
            values.update({"gradients/" + name: value for name, value in
                           uncut.gradients(columns, d_scores).items()})
            cases.update({f"b{batch}_t{tokens}/{name}": value.contiguous().clone()
                          for name, value in values.items()})
        (folder / "program.json").write_text(self.text, encoding="utf-8")
        safetensors.torch.save_file(cases, folder / "cases.safetensors")

    def run_by_the_worker(self):
        """Returns what the worker's evaluator finds wrong; nothing if its bits are the same."""
        if not RUN_PROGRAM:
            return ""
        folder = pathlib.Path(self.request.source)
        self.write_cases(folder)
        result = subprocess.run([RUN_PROGRAM, str(folder)], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=600)
        return "" if result.returncode == 0 else result.stdout

    def wrong_weights(self, changed_text=None):
        """Returns the tensors that are not read from the files as transformers reads them."""
        ours = staged.StagedModel(changed_text or self.text)
        weights = ours.gather(check.stored_weights(pathlib.Path(self.request.source)))
        return [name for name, value in weights.items()
                if not torch.equal(value, self.model.module.get_parameter(name))]


class Rows(unittest.TestCase):
    """Exports each family and variant once, for all tests."""

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def exported(name, variant):
        family = families.named(name)
        folder = pathlib.Path(ROOT_OF_FOLDERS.name) / name
        if not folder.exists():
            families.write_folder(family, folder)
        return Exported(family, variant, folder)


class Families(Rows):
    """The rows, compared with transformers."""

    def rows(self):
        for family in families.FAMILIES:
            if family.is_ordinary or IS_LONG:
                for variant in family.variants:
                    yield family, variant

    def test_scores_and_gradients_equal_those_of_transformers(self):
        for family, variant in self.rows():
            with self.subTest(family=family.name, variant=variant):
                row = self.exported(family.name, variant)
                self.assertEqual([], row.wrong_weights())
                self.assertEqual([], row.wrong_scores())
                self.assertEqual([], row.wrong_gradients())
                self.assertEqual("", row.run_by_the_worker())

    def test_dropout_is_drawn_in_the_same_order(self):
        for name in ("gpt2", "bert_classify") + (("opt", "gpt_neox", "bloom") if IS_LONG else ()):
            with self.subTest(family=name):
                self.assertEqual([], wrong_in_training(self.exported(name, "encoder" if "bert" in
                                                                     name else "causal")))

    def test_equal_layers_share_a_short_program(self):
        for name, programs in (("gpt2", 3), ("llama", 3), ("gemma2", 4), ("bloom", 3),
                               ("bert_classify", 3)):
            row = self.exported(name, families.named(name).variants[0])
            text = staged.StagedModel(row.text).text
            self.assertEqual(programs, len(text["programs"]), name)
            self.assertLess(max(len(program.canonical(p)) for p in text["programs"]), 18_000)

    def test_the_longest_row(self):
        for name, longest in (("gpt2", 64), ("roberta", 62)):
            row = self.exported(name, families.named(name).variants[0])
            ours = staged.StagedModel(row.text)
            self.assertEqual(longest, ours.text["shape"]["max_seq_len"])
            columns = check.columns_of(row.model, row.request, ours.text, 1, longest, seed=3)
            self.assertTrue(torch.equal(check.scores(row.model, columns),
                                        ours.forward(row.weights, columns)[-1]))

    def test_programs_build_no_needless_mask(self):
        vit = self.exported("vit", "encoder")
        for call in calls_with(staged.StagedModel(vit.text).text,
                               "aten::scaled_dot_product_attention"):
            self.assertIsNone(call[1][3])
        for name in ("gpt2", "llama", "mixtral"):
            row = self.exported(name, "causal")
            for call in calls_with(staged.StagedModel(row.text).text,
                                   "aten::scaled_dot_product_attention"):
                self.assertEqual([None, True], [call[1][3], call[1][5]], name)
            self.assertNotIn("aten::le.", row.text)

    def test_an_export_is_repeatable(self):
        row = self.exported("llama", "packed")
        self.assertEqual(row.text, export.export(row.request))

    def test_stages_that_need_no_weights(self):
        expected = {"gpt2": [0], "llama": [0], "gemma2": [0], "bloom": [], "bert_classify": [],
                    "vit": [0]}
        for name, without in expected.items():
            with self.subTest(family=name):
                row = self.exported(name, families.named(name).variants[0])
                stages = staged.StagedModel(row.text).text["stages"]
                found = [i for i, stage in enumerate(stages) if not stage["needs_weights"]]
                self.assertEqual(without, found)
                self.assertEqual(set(without), independent_stages(row) & {0})

    def test_packed_documents_get_their_own_scores(self):
        for name in ("gpt2", "llama", "gemma2", "mixtral"):
            row = self.exported(name, "packed")
            ours = staged.StagedModel(row.text)
            columns = check.columns_of(row.model, row.request, ours.text, 1, 33, seed=5)
            second = int((columns["position_ids"][0] == 0).nonzero()[1])
            alone = {key: value[:, second:].contiguous() for key, value in columns.items()}
            packed = ours.forward(row.weights, columns)[-1][:, second:]
            torch.testing.assert_close(ours.forward(row.weights, alone)[-1], packed,
                                       rtol=1e-4, atol=1e-5)

    def test_costs_of_a_llama_layer(self):
        """Compares with a count by hand, and with what autograd really keeps."""
        row = self.exported("llama", "causal")
        ours = staged.StagedModel(row.text)
        layer = ours.text["programs"][ours.text["stages"][1]["program"]]
        products = 2 * (48 * 48 * 2 + 48 * 16 * 2 + 3 * 48 * 80)
        self.assertAlmostEqual(products, layer["flops"][0], delta=1)
        self.assertAlmostEqual(4 * 48, layer["flops"][1], delta=1)
        for batch, tokens in ((1, 64), (3, 40)):
            estimate = sum(c * batch * tokens**(i + 1) for i, c in enumerate(layer["saved"]))
            self.assertAlmostEqual(1, estimate / bytes_kept(row, batch, tokens), delta=0.05)


class FurtherArchitectures(unittest.TestCase):
    """Architectures that no code of ours knows."""

    def exported(self, row, variant):
        folder = pathlib.Path(ROOT_OF_FOLDERS.name) / row.family.name
        if not folder.exists():
            families.write_folder(row.family, folder)
        return Exported(row.family, variant, folder)

    def test_they_equal_transformers_or_are_refused(self):
        for row in further.FURTHER:
            for variant, refusal in row.refusals.items():
                if not (row.is_ordinary or IS_LONG):
                    continue
                with self.subTest(architecture=row.title, variant=variant):
                    is_by_worker = refusal.startswith(further.WORKER)
                    if refusal and not is_by_worker:
                        with self.assertRaises(errors.ExportError) as caught:
                            self.exported(row, variant)
                        self.assertIn(refusal, str(caught.exception))
                        continue
                    exported = self.exported(row, variant)
                    self.assertEqual([], exported.wrong_weights())
                    self.assertEqual([], exported.wrong_scores())
                    self.assertEqual([], exported.wrong_gradients())
                    said = exported.run_by_the_worker()
                    if is_by_worker and RUN_PROGRAM:
                        self.assertIn(f'("{refusal.removeprefix(further.WORKER)}"): is not among',
                                      said)
                    else:
                        self.assertEqual("", said)

    def test_no_other_file_names_them(self):
        names = {type(row.family.config()).__name__.removesuffix("Config").lower()
                 for row in further.FURTHER}
        self.assertGreater(len(names), 15)
        for path in source_tree.files():
            if path.startswith("python/eps_models/") and "/testing/" not in path or (
                    source_tree.is_cpp(path)):
                text = source_tree.read(path).lower()
                self.assertEqual([], [name for name in names if re.search(
                    rf"\b{name}(?:for|config|model)?\b", text)], path)

    def test_the_page_lists_them(self):
        page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
        section = page.partition("## Further architectures")[2].partition("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| ")]
        self.assertEqual([row.page_row() for row in further.FURTHER], rows[2:])


def wrong_in_training(row, changed_text=None):
    """Returns the sizes whose scores with dropout are not those of transformers and equal seeds."""
    ours = staged.StagedModel(changed_text or row.text)
    wrong = []
    for batch, tokens, columns in row.columns():
        torch.manual_seed(batch)
        mine = ours.forward(row.weights, columns, dropout=True)[-1]
        torch.manual_seed(batch)
        with torch.no_grad():
            theirs = check.trace.Scores(row.model.module.train(), tuple(columns))(
                *columns.values())
        if not torch.equal(mine, theirs):
            wrong.append((batch, tokens))
    return wrong


def independent_stages(row):
    """Returns the stages whose gradients are the same with other weights, by trying it."""
    ours = staged.StagedModel(row.text)
    batch, tokens, columns = list(row.columns())[-1]
    outputs = ours.forward(row.weights, columns)
    found = set()
    for number in range(len(outputs)):
        results = []
        for scale in (1.0, 1.5):
            leaves = [(row.weights[n] * scale).requires_grad_() for n in ours.names(number)]
            activation = outputs[number - 1].clone().requires_grad_() if number else None
            result = ours.stage(number, activation, leaves, columns)
            inputs = ([activation] if number else []) + leaves
            results.append(torch.autograd.grad(result, inputs, torch.ones_like(result)))
        if all(torch.equal(a, b) for a, b in zip(*results)):
            found.add(number)
    return found


def bytes_kept(row, batch, tokens):
    """Returns the bytes that autograd keeps for a layer, counted in a run of it."""
    ours = staged.StagedModel(row.text)
    activation = torch.randn(batch, tokens, 48).requires_grad_()
    leaves = [row.weights[n].clone().requires_grad_() for n in ours.names(1)]
    given = {t.untyped_storage().data_ptr() for t in (activation, *leaves)}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ours.stage(1, activation, leaves, {})
    return sum(size for size, _ in kept.values())


def calls_with(text, op):
    """Returns the calls of all programs whose operator begins with `op`; at least one."""
    found = [call for p in text["programs"] for call in p["calls"] if call[0].startswith(op)]
    if not found:
        raise AssertionError(f"no call of {op}")
    return found


def swap_halves_of_rope(text):
    for call in calls_with(text, "aten::cat"):
        if call[1][0][0] != call[1][0][1]:
            call[1][0].reverse()


def interleave_key_heads(text):
    for call in calls_with(text, "aten::expand"):
        if len(call[1][1]) == 5:
            call[1][1][1:3] = reversed(call[1][1][1:3])
    for p in text["programs"]:
        expanded = {call[1][0]["slot"] for call in p["calls"] if call[0] == "aten::expand"
                    and len(call[1][1]) == 5}
        first = int(p["activation"]) + p["weights"] + p["constants"] + len(p["inputs"])
        for slot in expanded:
            p["calls"][slot - first][1][1] = 1


def shift_mask(text):
    for call in calls_with(text, "aten::le."):
        call[0] = "aten::lt.Tensor"


def shorten_window(text):
    changed = [call for call in calls_with(text, "aten::sub") if call[1][1] == 8]
    for call in changed:
        call[1][1] = 7
    assert changed


def change_epsilon(text):
    for call in calls_with(text, "aten::add.Tensor"):
        if call[1][1] == 1e-6:
            call[1][1] = 1e-5


def ignore_types(text):
    for call in calls_with(text, "aten::to.dtype"):
        if call[1][1] == {"dtype": "float32"}:
            call[1][1] = {"dtype": "bfloat16"}


def untie_head(text):
    text["tensors"].append({**text["tensors"][0], "name": "copy"})
    for use in text["stages"][-1]["uses"]:
        if use["tensor"] == 0:
            use["tensor"] = len(text["tensors"]) - 1


def miss_positional_dropout(text):
    for call in calls_with(text, "aten::scaled_dot_product_attention"):
        call[1][4] = 0.0


def skip_first_dropout(text):
    calls_with(text, "aten::dropout")[0][1][1] = 0.0


def exchange_experts(text):
    for tensor in text["tensors"]:
        if tensor["files"]["kind"] == "stack":
            tensor["files"]["names"].reverse()


# name: (family, variant, what notices it, the mistake in the text)
MISTAKES = {
    "halves of RoPE swapped": ("llama", "causal", "scores", swap_halves_of_rope),
    "key heads interleaved": ("llama", "packed", "scores", interleave_key_heads),
    "mask one off": ("llama", "packed", "scores", shift_mask),
    "window one off": ("gemma2", "causal", "scores", shorten_window),
    "another epsilon": ("llama", "causal", "scores", change_epsilon),
    "types ignored": ("llama_bfloat16", "causal", "scores", ignore_types),
    "one use of a tie dropped": ("gpt2", "causal", "gradients", untie_head),
    "dropout of attention missed": ("gpt2", "causal", "training", miss_positional_dropout),
    "one dropout skipped": ("gpt2", "causal", "training", skip_first_dropout),
    "experts exchanged": ("mixtral", "causal", "weights", exchange_experts),
}


class Mistakes(Rows):
    """Each mistake in a text must be noticed."""

    def test_mistakes_in_the_text_are_noticed(self):
        for name, (family, variant, kind, mistake) in MISTAKES.items():
            with self.subTest(mistake=name):
                row = copy.copy(self.exported(family, variant))
                changed = staged.StagedModel(row.text).text
                mistake(changed)
                text = program.canonical(changed)
                self.assertNotEqual(row.text, text)
                row.weights = {**row.weights, "copy": next(iter(row.weights.values()))}
                notices = {"weights": row.wrong_weights, "scores": row.wrong_scores,
                           "gradients": row.wrong_gradients,
                           "training": functools.partial(wrong_in_training, row)}
                self.assertNotEqual([], notices[kind](text))

    def test_a_causal_program_mixes_packed_documents(self):
        packed = self.exported("llama", "packed")
        causal = staged.StagedModel(self.exported("llama", "causal").text)
        columns = list(packed.columns())[-1][2]
        self.assertFalse(torch.allclose(causal.forward(packed.weights, columns)[-1],
                                        check.scores(packed.model, columns), atol=1e-2))


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.access(sys.argv[1], os.X_OK):
        RUN_PROGRAM = os.path.abspath(sys.argv.pop(1))
    torch.set_num_threads(1)
    source_tree.main()
