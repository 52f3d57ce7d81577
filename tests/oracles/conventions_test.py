"""Checks conventions of other programs: torchrun starts our workers, TensorBoard reads our event
files, and an evaluation's loss equals the one that transformers computes.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import eps_run
import jobs
import oracle

import torch
from tensorboard.backend.event_processing import event_accumulator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import source_tree  # noqa: E402

EPS = None
TIMEOUT_SECONDS = 600


class Conventions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def evaluations(self, out):
        return {line["step"]: line["eval_loss"] for line in eps_run.records(out)
                if "eval_loss" in line}

    def train(self, job, inputs, out, changes):
        settings = dict(eps_run.settings(job), **changes)
        eps_run.call(EPS, "train", "--model=" + inputs.folder, "--data=" + inputs.data,
                     "--out=" + out, *["--%s=%s" % item for item in settings.items()])


class Evaluation(Conventions):
    """Training applies dropout; an evaluation must not."""

    def transformers_loss(self, job, folder, data, samples):
        model = oracle.load(folder).eval()
        total = 0.0
        with torch.no_grad():
            for i in range(samples):
                ids = torch.tensor([data[i * job.seq_len:(i + 1) * job.seq_len + 1]])
                logits = model(ids[:, :-1]).logits
                total += torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).double(), ids[0, 1:], reduction="sum").item()
        return total / (samples * job.seq_len)

    def test_every_checkpoints_loss_matches_transformers(self):
        for name, samples in (("tied_exact", 0), ("untied_none", 13)):
            with self.subTest(job=name):
                job = jobs.named(name)
                inputs = jobs.write_inputs(job, self.path(name))
                config = os.path.join(inputs.folder, "config.json")
                with open(config, encoding="utf-8") as file:
                    text = file.read()
                with open(config, "w", encoding="utf-8") as file:
                    file.write(text.replace('_pdrop": 0.0', '_pdrop": 0.25'))
                out = self.path(name + "-out")
                self.train(job, inputs, out, {
                    "data.eval_path": inputs.data, "training.eval_steps": 10,
                    "training.eval_samples": samples, "checkpoint.save_steps": 10})
                data = jobs.tokens(job)
                losses = self.evaluations(out)
                self.assertEqual([10, 20], sorted(losses))
                for step, loss in losses.items():
                    expected = self.transformers_loss(
                        job, os.path.join(out, "checkpoint-%d" % step), data,
                        samples or (len(data) - 1) // job.seq_len)
                    self.assertAlmostEqual(expected, loss, delta=1e-5 * expected)
                history = oracle.load_trainer_state(out).log_history
                self.assertEqual(losses, {entry["step"]: entry["eval_loss"] for entry in history
                                          if "eval_loss" in entry})


class TensorBoard(Conventions):
    def scalars(self, out):
        reader = event_accumulator.EventAccumulator(os.path.join(out, "tensorboard"))
        reader.Reload()
        return {tag: [(event.step, event.value) for event in reader.Scalars(tag)]
                for tag in reader.Tags()["scalars"]}

    def test_reads_each_step_once_after_a_resume(self):
        job = jobs.named("tied_none")
        inputs = jobs.write_inputs(job, self.path("in"))
        out = self.path("out")
        changes = {"data.eval_path": inputs.data, "training.eval_samples": 3,
                   "training.eval_steps": 4, "checkpoint.save_steps": 4, "training.steps": 6}
        self.train(job, inputs, out, changes)
        with open(os.path.join(out, "latest"), "w", encoding="utf-8") as file:
            file.write("checkpoint-4\n")
        self.train(job, inputs, out, dict(changes, **{"training.steps": 9,
                                                      "checkpoint.resume": "latest"}))
        self.assertEqual(2, len(os.listdir(os.path.join(out, "tensorboard"))))
        read = self.scalars(out)
        records = eps_run.records(out)
        for tag, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"),
                         ("train/learning_rate", "lr"),
                         ("train/tokens_per_second", "tokens_per_second"),
                         ("eval/loss", "eval_loss"), ("eval/perplexity", "eval_perplexity")):
            with self.subTest(tag=tag):
                written = [(line["step"], torch.tensor(line[key]).item()) for line in records
                           if key in line]
                self.assertEqual(written, read.pop(tag))
        self.assertEqual({}, read)
        self.assertEqual([4, 8, 9], sorted(self.evaluations(out)))


class Launch(Conventions):
    def start(self, *command):
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def serve(self):
        server = self.start(EPS, "serve", "--listen=127.0.0.1:0")
        for line in server.stdout:
            if line.startswith("eps serve: listening on "):
                return line.split()[-1]
        self.fail("eps serve ended with %d" % server.wait())

    def torchrun(self, workers, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
             "--nproc-per-node=%d" % workers, EPS, "worker", "--worker.device=cpu", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=TIMEOUT_SECONDS)

    def test_workers_under_torchrun_match_eps_train(self):
        job = jobs.named("tied_none")  # two parts
        inputs = jobs.write_inputs(job, self.path("in"))
        ours = eps_run.train(EPS, job, inputs, self.path("ours"))
        servers = [self.serve(), self.serve()]
        settings = dict(eps_run.settings(job), **{"servers.addresses": ",".join(servers),
                                                  "worker.count": 0})
        supervisor = self.start(EPS, "train", "--model=" + inputs.folder, "--data=" + inputs.data,
                                "--out=" + self.path("out"),
                                *["--%s=%s" % item for item in settings.items()])
        # The lead's address is enough: the lead returns the other server's.
        workers = self.torchrun(2, "--servers=" + servers[0], "--data=" + inputs.data,
                                "--worker.threads=1")
        if workers.returncode != 0:
            supervisor.kill()
        output, _ = supervisor.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(0, workers.returncode, workers.stdout + output)
        self.assertEqual(0, supervisor.returncode, output)
        records = eps_run.records(self.path("out"))
        self.assertEqual(ours.losses, [line["loss"] for line in records])
        for file in ("model.safetensors", "eps/exp_avg.safetensors"):
            with open(os.path.join(ours.folder, file), "rb") as expected, \
                    open(os.path.join(self.path("out"), "checkpoint-%d" % jobs.STEPS, file),
                         "rb") as actual:
                self.assertEqual(expected.read(), actual.read(), file)

    def test_a_worker_names_the_inconsistent_variable(self):
        environment = dict(os.environ, RANK="7", WORLD_SIZE="2")
        result = subprocess.run([EPS, "worker", "--servers=127.0.0.1:1"], env=environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
        self.assertEqual(64, result.returncode)
        self.assertIn("RANK is 7", result.stdout)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv[1])
    del sys.argv[1]
    source_tree.main()
