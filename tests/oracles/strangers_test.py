"""Compares EPS with independent programs: PyTorch trains the same jobs, and transformers loads the
checkpoints of EPS.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Arguments: the paths of eps and print_logits.
"""

import dataclasses
import json
import math
import os
import pathlib
import random
import sys
import tempfile
import unittest

import compare
import eps_run
import golden
import jobs
import oracle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import source_tree  # noqa: E402

EPS = None
PRINT_LOGITS = None

# Mistakes that have no effect in a job: those of clipping without clipping, those of a tied head
# without one.
INVISIBLE = {
    "tied_exact": set(),
    "tied_none": {"no_clipping"},
    "untied_exact": {"untied_head"},
    "untied_none": {"no_clipping", "untied_head"},
}

# Schedules by name, with settings of EPS and the same as arguments of transformers.get_scheduler.
SCHEDULE_STEPS = 40
SCHEDULES = [
    ("constant", {}, {}),
    ("constant_with_warmup", {}, {}),
    ("linear", {}, {}),
    ("cosine", {}, {}),
    ("cosine", {"num_cycles": 1.25}, {"num_cycles": 1.25}),
    ("cosine_with_restarts", {"num_cycles": 3}, {"num_cycles": 3}),
    ("polynomial", {"power": 2.5, "min_lr_ratio": 0.1}, {"power": 2.5, "lr_end": 2e-4}),
    ("inverse_sqrt", {}, {}),
    ("cosine_with_min_lr", {"min_lr_ratio": 0.2}, {"min_lr_rate": 0.2}),
    ("warmup_stable_decay", {"min_lr_ratio": 0.25},
     {"min_lr_ratio": 0.25, "num_decay_steps": SCHEDULE_STEPS // 10}),
]


class Folders(unittest.TestCase):
    """Caches one run of each job on both sides."""
    runs = {}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.addClassCleanup(Folders.runs.clear)
        cls.folder = folder.name

    def both(self, job):
        """Returns (inputs, EPS's run, PyTorch's run)."""
        if job.name not in Folders.runs:
            inputs = jobs.write_inputs(job, os.path.join(self.folder, job.name))
            ours = eps_run.train(EPS, job, inputs, os.path.join(self.folder, job.name + "-out"))
            Folders.runs[job.name] = (inputs, ours, oracle.train(job, inputs))
        return Folders.runs[job.name]


class Training(Folders):
    def check(self, name):
        _, ours, theirs = self.both(jobs.named(name))
        self.assertEqual([], compare.runs(ours, theirs))
        self.assertTrue(all(math.isfinite(value) for _, values in ours.weights.values()
                            for value in values))

    def test_a_tied_model_with_exact_clipping(self):
        self.check("tied_exact")

    def test_a_tied_model_in_two_parts_without_clipping(self):
        self.check("tied_none")

    def test_an_untied_model_with_exact_clipping(self):
        self.check("untied_exact")

    def test_an_untied_model_without_clipping(self):
        self.check("untied_none")

    def test_the_optimizer_state_matches_torch(self):
        for job in jobs.JOBS:
            _, ours, theirs = self.both(job)
            for field in ("exp_avg", "exp_avg_sq"):
                with self.subTest(job=job.name, field=field):
                    self.assertEqual([], compare.moments(ours.moments[field],
                                                         theirs.moments[field]))

    def test_sgd_matches_torch_with_and_without_momentum(self):
        for job in jobs.SGD_JOBS:
            inputs, ours, theirs = self.both(job)
            with self.subTest(job=job.name):
                self.assertEqual([], compare.runs(ours, theirs))
            for field in job.state_fields:
                with self.subTest(job=job.name, field=field):
                    self.assertEqual([], compare.moments(ours.moments[field],
                                                         theirs.moments[field]))
            for change in ({"momentum": job.momentum * 0.98 + 0.01}, {"weight_decay": 0.45}):
                with self.subTest(job=job.name, change=change):
                    other = oracle.train(dataclasses.replace(job, **change), inputs)
                    self.assertNotEqual([], compare.runs(ours, other))

    def test_the_other_optimizers_match_torch(self):
        for job, changes in jobs.OTHER_JOBS:
            inputs, ours, theirs = self.both(job)
            with self.subTest(job=job.name):
                self.assertEqual([], compare.runs(ours, theirs))
            # Rounding decides some of Lion's signs, which moves a few weights by two steps. PyTorch
            # itself, from weights that are moved by 1e-7 of their size, then leaves the tolerance
            # of the moments.
            for field in job.state_fields if job.optimizer != "lion" else ():
                with self.subTest(job=job.name, field=field):
                    self.assertEqual([], compare.moments(ours.moments[field],
                                                         theirs.moments[field]))
            for change in changes:
                with self.subTest(job=job.name, change=change):
                    other = oracle.train(dataclasses.replace(job, **change), inputs)
                    self.assertNotEqual([], compare.runs(ours, other))

    def test_groups_and_label_smoothing_match_torch(self):
        (job,) = jobs.LATER_JOBS
        inputs, ours, theirs = self.both(job)
        self.assertEqual([], compare.runs(ours, theirs))
        first, second = job.groups
        for change in ({"label_smoothing": 0.19}, {"groups": (second, first)},
                       {"groups": ((first[0], 0.26, None), second)},
                       {"groups": (first, (second[0], 2.0, None))}):
            with self.subTest(change=change):
                other = oracle.train(dataclasses.replace(job, **change), inputs)
                self.assertNotEqual([], compare.runs(ours, other))

    def test_clipping_applies_in_some_steps_only(self):
        job = jobs.named("untied_exact")
        norms = self.both(job)[2].grad_norms
        self.assertLess(min(norms), job.max_grad_norm)
        self.assertGreater(max(norms), job.max_grad_norm)

    def test_every_planted_mistake_is_noticed(self):
        for job in jobs.JOBS:
            inputs, ours, _ = self.both(job)
            for mistake in set(oracle.MISTAKES) - INVISIBLE[job.name]:
                with self.subTest(job=job.name, mistake=mistake):
                    wrong = oracle.train(job, inputs, mistake)
                    self.assertNotEqual([], compare.runs(ours, wrong))


class Schedules(Folders):
    def test_learning_rates_match_transformers(self):
        model = os.path.join(self.folder, "synthetic.json")
        with open(model, "w", encoding="utf-8") as file:
            json.dump({"model_type": "eps-synthetic", "n_layer": 1, "n_embd": 8}, file)
        for number, (name, ours, theirs) in enumerate(SCHEDULES):
            with self.subTest(schedule=name, settings=ours):
                out = os.path.join(self.folder, "schedule-%d" % number)
                warmup = 0 if name == "constant" else 7
                eps_run.call(EPS, "train", "--model=" + model, "--out=" + out,
                             "--training.steps=%d" % SCHEDULE_STEPS, "--optimizer.lr=2e-3",
                             "--lr_scheduler.name=" + name,
                             "--lr_scheduler.warmup_steps=%d" % warmup,
                             *["--lr_scheduler.%s=%s" % item for item in ours.items()])
                found = [record["lr"] for record in eps_run.records(out)]
                expected = oracle.learning_rates(name, 2e-3, warmup, SCHEDULE_STEPS, theirs)
                self.assertEqual([], compare.series("lr", found, expected, compare.LR_TOLERANCE))


class Checkpoints(Folders):
    def prompts(self, job):
        """Returns sequences of several lengths: parts of the data, and random tokens."""
        bits = random.Random(job.seed)
        data = jobs.tokens(job)
        strange = [bits.getrandbits(16) % job.vocab_size for _ in range(job.n_positions)]
        return [data[:job.n_positions], data[100:117], data[5:6], strange]

    def test_transformers_finds_every_tensor_and_setting(self):
        for job in jobs.JOBS:
            with self.subTest(job=job.name):
                model, info = oracle.load_with_report(self.both(job)[1].folder)
                self.assertEqual([], [kind for kind, names in info.items() if names])
                for key, value in jobs.config_json(job).items():
                    if value is not None:  # EPS omits settings without a value
                        self.assertEqual(value, getattr(model.config, key), key)
                tied = model.lm_head.weight is model.transformer.wte.weight
                self.assertEqual(job.tie_word_embeddings, tied)

    def test_scores_match_transformers(self):
        for job in jobs.JOBS:
            folder = self.both(job)[1].folder
            model = oracle.load(folder).eval()
            for prompt in self.prompts(job):
                with self.subTest(job=job.name, tokens=len(prompt)):
                    ours = eps_run.logits(PRINT_LOGITS, folder, prompt)
                    self.assertEqual(len(prompt) * job.vocab_size, len(ours))
                    self.assertEqual([], compare.scores(ours, oracle.logits(model, prompt)))

    def test_notices_scores_of_another_checkpoint(self):
        job = jobs.named("tied_exact")
        inputs, ours, _ = self.both(job)
        prompt = self.prompts(job)[0]
        model = oracle.load(inputs.folder).eval()
        self.assertNotEqual([], compare.scores(eps_run.logits(PRINT_LOGITS, ours.folder, prompt),
                                               oracle.logits(model, prompt)))

    def test_the_likeliest_continuation_matches_transformers(self):
        for name in ("untied_exact", "untied_none"):  # these vocabularies are printed as ids
            job = jobs.named(name)
            folder = self.both(job)[1].folder
            model = oracle.load(folder).eval()
            for prompt in (self.prompts(job)[1], self.prompts(job)[2]):
                with self.subTest(job=name, tokens=len(prompt)):
                    count = job.n_positions - len(prompt)
                    self.assertEqual(oracle.generate(model, prompt, count),
                                     eps_run.generate(EPS, folder, prompt, count))

    def test_the_tokenizer_returns_bytes(self):
        folder = self.both(jobs.named("tied_exact"))[1].folder
        tokenizer = oracle.load_tokenizer(folder)
        for text in ("The quick brown fox.\n", "  two  spaces\tand\r\n", "naïve Ωμέγα 漢字 🙂", ""):
            with self.subTest(text=text):
                ids = tokenizer(text)["input_ids"]
                self.assertEqual(list(text.encode()), list(ids))
                self.assertEqual(text, tokenizer.decode(ids))

    def test_transformers_reads_the_trainer_state(self):
        job = jobs.named("tied_exact")
        _, ours, _ = self.both(job)
        state = oracle.load_trainer_state(ours.folder)
        self.assertEqual(jobs.STEPS, state.global_step)
        self.assertEqual(ours.losses, [entry["loss"] for entry in state.log_history])


class GoldenFiles(Folders):
    def test_golden_files_match_the_oracle(self):
        for job in jobs.JOBS:
            with self.subTest(job=job.name):
                inputs, _, theirs = self.both(job)
                kept = golden.read(job)
                now = oracle.summary(job, inputs, theirs)
                self.assertEqual(kept["made_by"], now["made_by"])
                self.assertEqual(kept["prompt"], now["prompt"])
                self.assertEqual([], golden.same_inputs(inputs, kept))
                self.assertEqual([], golden.run(theirs, kept))
                self.assertEqual([], compare.scores(now["logits"], kept["logits"]))

    def test_golden_files_reveal_every_planted_mistake(self):
        for job in jobs.JOBS:
            inputs = self.both(job)[0]
            for mistake in set(oracle.MISTAKES) - INVISIBLE[job.name]:
                with self.subTest(job=job.name, mistake=mistake):
                    wrong = oracle.train(job, inputs, mistake)
                    self.assertNotEqual([], golden.run(wrong, golden.read(job)))


if __name__ == "__main__":
    EPS, PRINT_LOGITS = map(os.path.abspath, sys.argv[1:3])
    del sys.argv[1:3]
    source_tree.main()
