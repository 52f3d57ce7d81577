"""Trains an exported model (docs/formats/model_program.md): a small Llama, through two servers and
two workers. The run ends with the same bits if processes are killed, if it continues from a
checkpoint, and in a plain training loop.

Argument: the path of eps."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import processes  # noqa: E402
import small_job  # noqa: E402

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 12

SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "training.clip": "lagged", "training.parts": 2, "worker.count": 2,
    "servers.addresses": 2, "training.loss_block_tokens": 24})


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return json.load(f)


class ExportedModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP, "tiny_llama")
        with open(os.path.join(cls.model, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write('{"version": "of the model"}')
        with open(os.path.join(cls.model, "notes.txt"), "w", encoding="utf-8") as f:
            f.write("no file of a model")
        cls.undisturbed = cls.fresh("undisturbed")
        cls.train(cls.undisturbed, {"checkpoint.save_steps": 5})
        cls.expected = small_job.outcome(EPS, cls.undisturbed, STEPS)

    @staticmethod
    def fresh(name):
        path = os.path.join(TMP, name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    @classmethod
    def command(cls, out, settings, model=None, flags=()):
        merged = dict(SETTINGS, **settings)
        command = [EPS, "train", "--data=" + cls.text, "--out=" + out] + list(flags)
        command += ["--model=" + (model or cls.model)]
        return command + ["--%s=%s" % item for item in sorted(merged.items())]

    @staticmethod
    def run_eps(command, code=0):
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
        if result.returncode != code:
            raise AssertionError("exit code %d of %s: %s" % (result.returncode, command,
                                                             result.stdout[-3000:]))
        return result.stdout

    @classmethod
    def train(cls, out, settings, **kwargs):
        return cls.run_eps(cls.command(out, settings, **kwargs))

    def test_it_learns(self):
        losses = [row[1] for row in self.expected.log]
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], losses[0] - 0.2)

    def test_kills_change_no_bit(self):
        out = self.fresh("killed")
        self.train_with_kills(out, ("worker 0", "serve 1"), {})
        self.assertEqual(small_job.outcome(EPS, out, STEPS), self.expected)

    def train_with_kills(self, out, victims, settings, **kwargs):
        """Trains with durable servers; kills a process after each further step."""
        log = out + ".log"
        settings = dict(settings, **{"storage.kind": "nvme", "storage.cut_steps": 2})
        with open(log, "w", encoding="utf-8") as f:
            process = subprocess.Popen(self.command(out, settings, **kwargs),
                                       stdin=subprocess.DEVNULL, stdout=f,
                                       stderr=subprocess.STDOUT)
        for victim in victims:
            self.wait_for_another_step(out, process)
            alive = processes.children_of(process.pid)
            if victim in alive:
                os.kill(alive[victim], signal.SIGKILL)
        code = process.wait(timeout=TIMEOUT_SECONDS)
        with open(log, encoding="utf-8") as f:
            self.assertEqual(code, 0, f.read()[-3000:])

    def wait_for_another_step(self, out, process):
        def steps():
            try:
                with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
                    return len(f.readlines())
            except FileNotFoundError:
                return 0
        end = time.monotonic() + TIMEOUT_SECONDS
        before = steps()
        while steps() <= before and process.poll() is None:
            self.assertLess(time.monotonic(), end, "no step")
            time.sleep(0.01)

    def test_checkpoints_hold_program_and_files(self):
        checkpoint = os.path.join(self.undisturbed, "checkpoint-%d" % STEPS)
        self.assertEqual(read_json(checkpoint, "eps", "program.json"),
                         read_json(self.model, "eps", "program.json"))
        self.assertEqual(read_json(checkpoint, "config.json")["model_type"], "llama")
        self.assertEqual(read_json(checkpoint, "tokenizer.json"), {"version": "of the model"})
        self.assertNotIn("notes.txt", os.listdir(checkpoint))
        self.run_eps([EPS, "checkpoint", "verify", checkpoint])
        exported = self.fresh("exported")
        self.run_eps([EPS, "checkpoint", "export", checkpoint, "--out=" + exported])
        self.assertIn("config.json", os.listdir(exported))
        self.assertIn("tokenizer.json", os.listdir(exported))

    def resume(self, name, model, settings):
        """Continues from the checkpoint of step 5 in a folder of its own."""
        out = self.fresh(name)
        shutil.copytree(os.path.join(self.undisturbed, "checkpoint-5"),
                        os.path.join(out, "checkpoint-5"))
        self.train(out, settings, model=model,
                   flags=["--resume=" + os.path.join(out, "checkpoint-5")])
        self.assertEqual(small_job.outcome(EPS, out, STEPS).digests, self.expected.digests)

    def test_a_resume_keeps_the_checkpoints_program(self):
        again = self.fresh("exported-again")
        shutil.copytree(self.model, again)
        path = os.path.join(again, "eps", "program.json")
        program = read_json(path)
        program["made_by"] = "another version"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(program, f, indent=1)
        self.resume("resumed", again, {})

    def test_a_resume_needs_no_model_folder(self):
        removed = os.path.join(TMP, "removed")
        self.resume("resumed-alone", removed, {"optimizer.lr": 1e-3})
        # The default rate depends on whether the folder had weights.
        checkpoint = os.path.join(self.undisturbed, "checkpoint-5")
        said = self.run_eps(self.command(self.fresh("refused"), {}, model=removed,
                                         flags=["--resume=" + checkpoint]), code=64)
        self.assertIn("set optimizer.lr, or omit --model", said)

    def test_a_resume_refuses_another_model(self):
        other = self.fresh("other")
        shutil.copytree(self.model, other)
        path = os.path.join(other, "eps", "program.json")
        program = read_json(path)
        program["tensors"][0]["name"] = "model.other.weight"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(program, f)
        checkpoint = os.path.join(self.undisturbed, "checkpoint-5")
        said = self.run_eps(self.command(self.fresh("refused"), {}, model=other,
                                         flags=["--resume=" + checkpoint]), code=65)
        self.assertIn("holds another model or optimizer", said)

    def test_weights_come_from_the_folder(self):
        folder = self.fresh("with-weights")
        checkpoint = os.path.join(self.undisturbed, "checkpoint-%d" % STEPS)
        self.run_eps([EPS, "checkpoint", "export", checkpoint, "--out=" + folder])
        shutil.copytree(os.path.join(self.model, "eps"), os.path.join(folder, "eps"))
        out = self.fresh("from-weights")
        said = self.train(out, {"training.steps": 1, "optimizer.lr": 0}, model=folder)
        self.assertIn("weights: from " + folder, said)
        digests = small_job.outcome(EPS, out, 1).digests
        self.assertEqual([line for line in digests if line.startswith("weights")],
                         [line for line in self.expected.digests if line.startswith("weights")])

    def verify(self, settings, flags=(), model=None):
        merged = dict(SETTINGS, **dict({"training.steps": 2, "worker.threads": 1}, **settings))
        del merged["metrics.tensorboard"]
        said = self.run_eps([EPS, "verify", "--model=" + (model or self.model),
                             "--data=" + self.text] +
                            ["--%s=%s" % item for item in sorted(merged.items())] + list(flags))
        self.assertIn("equal bit for bit", said)

    def test_it_equals_a_plain_loop(self):
        self.verify({})

    def test_it_equals_a_plain_loop_with_codecs(self):
        self.verify({"quantization.weights": "mx6", "quantization.head_weights": "mx6",
                     "quantization.embedding_weights": "mx9", "quantization.gradients": "bf16",
                     "quantization.backward_weights": "both_axes", "worker.stash_codec": "bf16"})

    @staticmethod
    def bf16_model():
        return small_job.write_inputs(TMP, "tiny_llama_bfloat16")[0]

    def test_bf16_equals_a_plain_loop(self):
        self.verify({"training.precision": "bf16"}, model=self.bf16_model())
        self.verify({"training.precision": "bf16", "quantization.weights": "mx6",
                     "quantization.head_weights": "mx6", "quantization.embedding_weights": "mx9",
                     "quantization.gradients": "bf16", "worker.stash_codec": "fp8_e4m3",
                     "quantization.backward_weights": "both_axes"}, model=self.bf16_model())

    def test_bf16_weights_on_the_wire_change_no_bit(self):
        runs = []
        for name, codec in (("bf16", "fp32"), ("bf16-wire", "bf16")):
            out = self.fresh(name)
            self.train(out, {"training.precision": "bf16", "quantization.weights": codec},
                       model=self.bf16_model())
            runs.append(small_job.outcome(EPS, out, STEPS))
        self.assertEqual(runs[0].log, runs[1].log)
        weights = [[line for line in run.digests if line.startswith("weights")] for run in runs]
        self.assertEqual(weights[0], weights[1])
        losses = [row[1] for row in runs[0].log]
        self.assertLess(losses[-1], losses[0] - 0.2)
        self.assertNotEqual(runs[0].log, self.expected.log)
        self.assertTrue(self.run_eps([EPS, "generate", "--model=" + os.path.join(TMP, "bf16"),
                                      "--prompt-ids=66,67", "--tokens=5", "--temperature=0"]))

    # The scale is too high at first, and again after each window of three good steps.
    CMP = {"training.precision": "cmp", "training.loss_scale_initial": 19,
           "training.loss_scale_window": 3, "training.loss_scale_hysteresis": 1}

    @staticmethod
    def cmp_model():
        return small_job.write_inputs(TMP, "tiny_llama_float16")[0]

    def test_cmp_equals_a_plain_loop(self):
        self.verify(dict(self.CMP, **{"training.steps": 8}), model=self.cmp_model())
        self.verify(dict(self.CMP, **{
            "training.steps": 8, "quantization.weights": "mx6", "worker.stash_codec": "fp8_e5m2",
            "quantization.gradients": "fp8_e4m3"}), model=self.cmp_model())
        self.verify(dict(self.CMP, **{
            "training.steps": 8, "quantization.gradients": "topk:0.1",
            "quantization.warmup_steps": 1}), model=self.cmp_model())

    def test_kills_change_no_loss_scale(self):
        runs = []
        for name, victims in (("cmp", ()), ("cmp-killed", ("serve 0", "worker 0", "serve 1"))):
            out = self.fresh(name)
            self.train_with_kills(out, victims, dict(self.CMP), model=self.cmp_model())
            with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
            scales = [(line["loss_scale"], line.get("skipped", False)) for line in lines]
            runs.append((small_job.outcome(EPS, out, STEPS), scales))
        self.assertEqual(runs[0], runs[1])
        skipped = [was_skipped for _, was_skipped in runs[0][1]]
        self.assertTrue(2 <= sum(skipped) <= STEPS // 2, runs[0][1])
        losses = [row[1] for row in runs[0][0].log]
        self.assertLess(losses[-1], losses[0] - 0.05)

    def test_precision_and_program_must_agree(self):
        said = self.run_eps(self.command(self.fresh("no-run"), {"training.precision": "bf16"}),
                            code=64)
        self.assertIn("eps model export FOLDER --dtype=bfloat16", said)
        said = self.run_eps(self.command(self.fresh("no-run"), {}, model=self.bf16_model()),
                            code=64)
        self.assertIn("set training.precision=bf16", said)

    def test_it_generates_tokens(self):
        said = self.run_eps([EPS, "generate", "--model=" + self.undisturbed, "--prompt-ids=66,67",
                             "--tokens=5", "--temperature=0"])
        self.assertTrue(said.strip(), said)
        self.assertEqual(said, self.run_eps([
            EPS, "generate", "--model=" + self.undisturbed, "--prompt-ids=66,67", "--tokens=5",
            "--temperature=0"]))

    def test_the_export_command_is_named(self):
        folder = self.fresh("not-exported")
        os.makedirs(folder)
        shutil.copy(os.path.join(self.model, "config.json"), folder)
        # With --out, the run would export it.
        said = self.run_eps([EPS, "train", "--data=" + self.text, "--model=" + folder], code=64)
        self.assertIn('has the model_type "llama"', said)
        self.assertIn("eps model export", said)

    def test_a_damaged_program_is_refused(self):
        folder = self.fresh("damaged")
        shutil.copytree(self.model, folder)
        path = os.path.join(folder, "eps", "program.json")
        program = read_json(path)
        program["programs"][1]["calls"][0][0] = "aten::normal_"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(program, f)
        said = self.run_eps(self.command(self.fresh("no-run"), {}, model=folder), code=64)
        self.assertIn("call 0 (\"aten::normal_\"): is not among the operators", said)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    os.chdir(TMP)
    unittest.main()
