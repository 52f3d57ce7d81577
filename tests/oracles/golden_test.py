"""Compares EPS with the golden files, which hold results of PyTorch and transformers.

Needs neither of the two. Arguments: the paths of eps and print_logits.
"""

import os
import pathlib
import sys
import tempfile
import unittest

import compare
import eps_run
import golden
import jobs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import source_tree  # noqa: E402

EPS = None
PRINT_LOGITS = None

# Jobs, and settings with which they must not match the golden run.
WRONG = [
    ("tied_exact", {"lr_scheduler.warmup_steps": 4}),
    ("tied_exact", {"training.clip": "none"}),
    ("tied_exact", {"training.clip": "lagged", "training.mode": "sealed"}),
    ("tied_exact", {"optimizer.betas": "0.9,0.999"}),
    ("untied_exact", {"optimizer.weight_decay": 0.0}),
    ("untied_exact", {"optimizer.eps": 1e-8}),
    ("untied_none", {"data.order": "shuffled"}),
    ("untied_none", {"training.micro_batch_size": 2}),
    ("untied_none", {"training.seq_len": 31}),
]


class Golden(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def inputs(self, job):
        return jobs.write_inputs(job, os.path.join(self.folder, "inputs"))

    def train(self, job, settings=None):
        return eps_run.train(EPS, job, self.inputs(job), os.path.join(self.folder, "out"),
                             settings)

    def check(self, name):
        job = jobs.named(name)
        content = golden.read(job)
        self.assertEqual([], golden.same_inputs(self.inputs(job), content))
        self.assertEqual([], golden.run(self.train(job), content))

    def test_a_tied_model_with_exact_clipping(self):
        self.check("tied_exact")

    def test_a_tied_model_in_two_parts_without_clipping(self):
        self.check("tied_none")

    def test_an_untied_model_with_exact_clipping(self):
        self.check("untied_exact")

    def test_an_untied_model_without_clipping(self):
        self.check("untied_none")

    def test_the_scores_of_the_initial_weights(self):
        for job in jobs.JOBS:
            with self.subTest(job=job.name):
                content = golden.read(job)
                ours = eps_run.logits(PRINT_LOGITS, self.inputs(job).folder, content["prompt"])
                self.assertEqual([], compare.scores(ours[-job.vocab_size:], content["logits"]))

    def test_notices_another_setting(self):
        for name, settings in WRONG:
            with self.subTest(job=name, settings=settings):
                job = jobs.named(name)
                self.assertNotEqual([], golden.run(self.train(job, settings), golden.read(job)))

    def test_notices_another_model(self):
        job = jobs.named("tied_exact")
        content = golden.read(job)
        inputs = self.inputs(jobs.named("tied_none"))
        ours = eps_run.logits(PRINT_LOGITS, inputs.folder, content["prompt"])
        self.assertNotEqual([], compare.scores(ours[-job.vocab_size:], content["logits"]))
        self.assertNotEqual([], golden.same_inputs(inputs, content))


if __name__ == "__main__":
    EPS, PRINT_LOGITS = map(os.path.abspath, sys.argv[1:3])
    del sys.argv[1:3]
    source_tree.main()
