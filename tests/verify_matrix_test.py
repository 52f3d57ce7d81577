"""Checks the main claim setting by setting: weights, optimizer state and loss log of a run through
servers and wire are equal, bit for bit, to those of a plain training loop in one process.

Argument: the path of eps."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

import processes

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600

MODEL = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 32,
    "vocab_size": 256, "tie_word_embeddings": True,
    "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
}
BASE = {
    "training.steps": 3, "training.micro_batch_size": 2, "training.micro_batches": 2,
    "training.clip": "lagged", "training.max_grad_norm": 0.5, "training.loss_block_tokens": 48,
    "training.chunk_elements": 4096, "optimizer.weight_decay": 0.1,
    "lr_scheduler.name": "cosine", "lr_scheduler.warmup_steps": 1, "worker.threads": 1,
}


def write_inputs():
    model = os.path.join(TMP, "model.json")
    untied = os.path.join(TMP, "untied.json")
    text = os.path.join(TMP, "text.txt")
    with open(model, "w") as f:
        json.dump(MODEL, f)
    with open(untied, "w") as f:
        json.dump(dict(MODEL, tie_word_embeddings=False), f)
    with open(text, "w") as f:
        for i in range(400):
            f.write("%d bottles of beer on the wall, take %d down.\n" % (i, i * i))
    return model, untied, text


class VerifyMatrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.untied, cls.text = write_inputs()

    def eps(self, command, model=None, flags=(), **settings):
        arguments = [EPS, command, "--model=" + (model or self.model), "--data=" + self.text]
        merged = dict(BASE)
        merged.update({k.replace("__", "."): v for k, v in settings.items()})
        arguments += ["--%s=%s" % item for item in merged.items()]
        return subprocess.run(arguments + list(flags), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_SECONDS)

    def verify(self, **kwargs):
        result = self.eps("verify", **kwargs)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:])
        self.assertIn("equal bit for bit", result.stdout)

    def test_micro_batches(self):
        for g in (1, 3, 4, 8):
            with self.subTest(micro_batches=g):
                self.verify(training__micro_batches=g)

    def test_two_servers(self):
        self.verify(flags=["--servers=2"])

    def test_server_threads(self):
        for threads in (2, 8):
            with self.subTest(threads=threads):
                self.verify(flags=["--servers=2"], servers__threads=threads)

    def test_prefetch(self):
        for prefetch in (0, 2):
            with self.subTest(prefetch=prefetch):
                self.verify(worker__prefetch=prefetch)

    def test_untied_head(self):
        self.verify(model=self.untied, flags=["--servers=2"])

    def test_no_clipping_and_sequential_data(self):
        self.verify(training__clip="none", data__order="sequential")

    def test_sealed_with_exact_lagged_and_no_clipping(self):
        for clip in ("exact", "lagged", "none"):
            for servers in (1, 2):
                with self.subTest(clip=clip, servers=servers):
                    self.verify(training__clip=clip, training__mode="sealed", training__parts=2,
                                flags=["--servers=%d" % servers, "--workers=2"])

    def test_sgd_with_and_without_momentum(self):
        for momentum in (0.9, 0):
            for clip in ("lagged", "exact"):
                with self.subTest(momentum=momentum, clip=clip):
                    self.verify(optimizer__name="sgd", optimizer__momentum=momentum,
                                optimizer__lr=0.1, training__clip=clip, training__parts=2,
                                flags=["--servers=2", "--workers=2"])

    def test_every_other_optimizer(self):
        for name, settings in (
                ("sgd", {"optimizer__momentum": 0.9, "optimizer__nesterov": "true"}),
                ("sgd", {"optimizer__momentum": 0.9, "optimizer__dampening": 0.5}),
                ("sgd_smartinfinity", {"optimizer__momentum": 0.9}),
                ("adam", {}), ("adamw_sqrtv", {}), ("lion", {"optimizer__lr": 1e-4}),
                ("lamb", {"optimizer__lr": 0.01}),
                ("lamb", {"optimizer__lr": 0.01, "optimizer__always_adapt": "true"}),
                ("adagrad", {"optimizer__lr_decay": 0.1}), ("adagrad_smartinfinity", {})):
            with self.subTest(name=name, **settings):
                self.verify(optimizer__name=name, training__clip="exact", training__parts=2,
                            flags=["--servers=2", "--workers=2"], **settings)

    def quantized(self, weights, backward_weights, gradients, stash, warmup_steps, servers, parts,
                  model=None, more_flags=(), **more):
        settings = {
            "quantization__weights": weights, "quantization__gradients": gradients,
            "quantization__backward_weights": backward_weights,
            "quantization__warmup_steps": warmup_steps,
            "worker__stash_codec": stash, "training__parts": parts,
        }
        settings.update(more)
        with self.subTest(**settings):
            flags = ["--servers=%d" % servers, "--workers=%d" % parts, *more_flags]
            self.verify(model=model, flags=flags, **settings)

    def test_a_stash_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            self.verify(worker__stash_path=folder, worker__stash_host=1, training__parts=2,
                        flags=["--servers=2", "--workers=2"])
            self.quantized("fp32", "recompute_axis", "fp32", "bf16", 0, 1, 2,
                           worker__stash_path=folder, worker__stash_host="40KiB")
            self.assertEqual(os.listdir(folder), [])
        result = self.eps("verify", worker__stash_host=1)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("worker.stash_path", result.stdout)

    def test_stage_programs_in_a_plain_loop(self):
        self.verify(flags=["--servers=2", "--workers=2", "--stage-programs"], training__parts=2)
        self.quantized("mx6", "both_axes", "bf16", "fp8_e4m3", 0, 2, 1, training__precision="bf16",
                       more_flags=["--stage-programs"])
        result = self.eps("verify", flags=["--stage-programs", "--plant=dropped_use"])
        self.assertEqual(result.returncode, 1, result.stdout[-2000:])

    def test_16_bits(self):
        self.verify(training__precision="bf16", flags=["--servers=2"])
        self.quantized("mx6", "both_axes", "bf16", "fp8_e4m3", 0, 2, 2, training__precision="bf16")
        self.quantized("bf16", "decode_once", "mx6", "fp32", 0, 1, 2, training__precision="cmp",
                       model=self.untied)

    def test_gradients_in_one_sum(self):
        fused = {"training__gradient_sum": "fused", "training__micro_batches": 5}
        self.verify(training__parts=2, flags=["--servers=2", "--workers=2"], **fused)
        self.quantized("mx6", "both_axes", "bf16", "fp8_e4m3", 0, 2, 1, training__precision="bf16",
                       **fused)
        result = self.eps("verify", flags=["--plant=sequential_tree"], **fused)
        self.assertEqual(result.returncode, 1, result.stdout[-2000:])

    def test_kept_passes(self):
        kept = {"worker__keep": "auto", "worker__device_memory": "1GiB"}
        self.verify(training__parts=2, flags=["--servers=2", "--workers=2"], **kept)
        self.quantized("mx6", "both_axes", "bf16", "fp8_e4m3", 0, 2, 1, training__precision="bf16",
                       training__gradient_sum="fused", **kept)

    # The combinations below cover every pair of a weights codec family and a backward_weights, and
    # most pairs of the other settings.
    def test_weights_along_both_axes(self):
        self.quantized("mx9", "both_axes", "bf16", "bf16", 0, 2, 2,
                       quantization__embedding_weights="mx9")
        self.quantized("mx6", "both_axes", "fp8_e5m2", "fp32", 1, 1, 2)
        self.quantized("mx4:truncate", "both_axes", "fp8_e5m2", "fp32", 0, 1, 1, model=self.untied,
                       quantization__head_weights="mxint8", quantization__norm_weights="mx9")

    def test_weights_along_both_axes_in_ocp_and_scalar_formats(self):
        self.quantized("mxfp8_e4m3", "both_axes", "topk:0.05", "fp8_e4m3", 2, 2, 2,
                       quantization__error_feedback="false")
        self.quantized("mxfp4_e2m1", "both_axes", "bf16", "fp32", 0, 2, 1, worker__prefetch=2)
        self.quantized("fp8_e4m3", "both_axes", "mx9", "fp8_e5m2", 1, 2, 1)

    def test_weights_along_the_forward_axis(self):
        self.quantized("bf16", "recompute_axis", "bf16", "fp32", 0, 1, 1)
        self.quantized("mx4:truncate", "recompute_axis", "mx9", "fp8_e4m3", 0, 2, 1)
        self.quantized("mx6", "recompute_axis", "topk:0.1:sampled", "bf16", 2, 1, 2,
                       quantization__norm_gradients="bf16", quantization__norm_weights="fp16")

    def test_weights_that_are_decoded_once(self):
        self.quantized("fp32", "decode_once", "fp32", "fp16", 0, 1, 1)
        self.quantized("mxfp4_e2m1", "decode_once", "topk:0.1:sampled", "bf16", 0, 1, 1)
        self.quantized("mx9", "decode_once", "topk:0.05", "fp32", 1, 2, 2,
                       quantization__embedding_gradients="topk:0.05", servers__threads=2)

    def test_residuals_at_the_servers_and_at_the_workers(self):
        self.quantized("bf16", "recompute_axis", "topk:0.05", "fp32", 1, 2, 2)
        self.quantized("mx9", "both_axes", "topk:0.1:sampled", "bf16", 0, 1, 2,
                       quantization__residual="mx9", quantization__residual_home="worker",
                       quantization__embedding_gradients="topk:0.02")
        self.quantized("mx6", "recompute_axis", "topk:0.02", "fp32", 0, 2, 1,
                       quantization__residual="mx4:truncate", training__clip="exact",
                       training__mode="sealed")

    def test_sparse_gradients_chosen_among_whole_tensors(self):
        self.quantized("mx6", "both_axes", "topk:0.03", "fp32", 1, 2, 2,
                       quantization__scope="tensor", training__chunk_elements=2048,
                       quantization__embedding_gradients="topk:0.02")
        self.quantized("bf16", "recompute_axis", "topk:0.05", "fp32", 0, 2, 1,
                       quantization__scope="tensor", training__chunk_elements=4096,
                       quantization__residual_home="worker",
                       quantization__norm_gradients="topk:0.1")
        self.quantized("fp8_e4m3", "decode_once", "topk:0.02", "bf16", 0, 1, 2,
                       quantization__scope="tensor", training__chunk_elements=2048,
                       quantization__error_feedback="false")

    def test_stash_codecs_on_host_and_device(self):
        self.quantized("fp32", "recompute_axis", "fp32", "bf16", 0, 1, 1, worker__stash="device",
                       training__micro_batches=3)
        self.quantized("fp32", "recompute_axis", "fp32", "fp8_e4m3", 0, 1, 2,
                       training__micro_batches=3)

    def test_quantized_runs_that_skip_steps(self):
        self.quantized("mx9", "both_axes", "topk:0.1", "fp32", 0, 2, 2, training__clip="exact",
                       training__nonfinite="skip", **self.DIVERGES)

    def test_an_invalid_stash_codec_lists_the_valid_ones(self):
        result = self.eps("train", worker__stash_codec="mx9")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("worker.stash_codec", result.stdout)
        self.assertIn("fp32, bf16, fp16, fp8_e4m3 or fp8_e5m2", result.stdout)

    # With this rate, every gradient is NaN once the first update was made.
    DIVERGES = {"optimizer__lr": 1e6, "training__steps": 5, "training__parts": 2,
                "lr_scheduler__name": "constant_with_warmup"}

    def test_skips_steps_with_non_finite_gradients(self):
        for clip in ("none", "lagged", "exact"):
            with self.subTest(clip=clip):
                out = os.path.join(TMP, "skips-" + clip)
                self.verify(training__nonfinite="skip", training__clip=clip, **self.DIVERGES,
                            flags=["--out=" + out, "--servers=2", "--workers=2"])
                with open(os.path.join(out, "metrics.jsonl")) as f:
                    lines = [json.loads(line) for line in f]
                self.assertEqual([line.get("skipped", False) for line in lines],
                                 [False, False, True, True, True])
                self.assertEqual([line["version"] for line in lines], [1, 2, 2, 2, 2])
                self.assertIsNone(lines[-1]["grad_norm"])

    def test_halts_on_a_non_finite_gradient_naming_its_place(self):
        for mode in ("eager", "sealed"):
            with self.subTest(mode=mode):
                result = self.eps("train", training__mode=mode, **self.DIVERGES,
                                  flags=["--servers=2", "--workers=2"])
                self.assertEqual(result.returncode, 65, result.stdout[-3000:])
                for text in ("step 3: the gradient of transformer.", "(stage head, part ",
                             "is not finite", "lower optimizer.lr", "training.nonfinite=skip"):
                    self.assertIn(text, result.stdout)

    def test_three_parts_on_two_workers(self):
        self.verify(training__parts=3, flags=["--servers=2", "--workers=2"])

    def test_four_parts_are_equal_on_any_number_of_workers(self):
        digests = set()
        for workers in (1, 2, 4):
            out = os.path.join(TMP, "workers-%d" % workers)
            result = self.eps("train", training__parts=4,
                              flags=["--out=" + out, "--servers=2", "--workers=%d" % workers])
            self.assertEqual(result.returncode, 0, result.stdout[-3000:])
            sha = hashlib.sha256()
            names = ["model.safetensors", "eps/exp_avg.safetensors", "eps/exp_avg_sq.safetensors"]
            for name in names:
                with open(os.path.join(out, "checkpoint-3", name), "rb") as f:
                    sha.update(f.read())
            digests.add(sha.hexdigest())
        self.assertEqual(len(digests), 1, "1x4, 2x2 and 4x1 differ")

    def compare(self, out, *flags):
        return subprocess.run([EPS, "verify", "--run=" + out, *flags], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)

    def test_a_run_of_another_device_within_bounds(self):
        for precision in ("fp32", "bf16"):
            out = os.path.join(TMP, "other-" + precision)
            # Other instructions of the CPU stand for another device.
            os.environ["ATEN_CPU_CAPABILITY"] = "default"
            result = self.eps("train", training__precision=precision, training__parts=2,
                              checkpoint__save_steps=1, checkpoint__save_total_limit=0,
                              flags=["--out=" + out, "--servers=2", "--workers=2"])
            del os.environ["ATEN_CPU_CAPABILITY"]
            self.assertEqual(result.returncode, 0, result.stdout[-3000:])
            self.assertEqual(self.compare(out).returncode, 1)
            result = self.compare(out, "--relaxed")
            self.assertEqual(result.returncode, 0, result.stdout[-3000:])
            self.assertIn("within the bounds, not bit for bit", result.stdout)
            for plant in ("dropped_use", "doubled_part", "wrong_sample", "wrong_mask_key",
                          "wrong_loss_scale"):
                with self.subTest(precision=precision, plant=plant):
                    result = self.compare(out, "--relaxed", "--plant=" + plant)
                    self.assertEqual(result.returncode, 1, result.stdout[-3000:])
                    self.assertIn("relative error", result.stdout)

    def test_every_planted_bug_is_noticed(self):
        out = os.path.join(TMP, "planted")
        flags = ["--out=" + out, "--servers=2", "--workers=2"]
        result = self.eps("verify", training__parts=2, training__micro_batches=4, flags=flags)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:])
        plants = subprocess.run([EPS, "verify", "--plant=list"], stdout=subprocess.PIPE, text=True,
                                timeout=TIMEOUT_SECONDS).stdout.split("\n")[1:]
        plants = [line.split()[0] for line in plants if line.strip()]
        self.assertGreater(len(plants), 5)
        for plant in plants:
            with self.subTest(plant=plant):
                result = self.compare(out, "--plant=" + plant)
                self.assertEqual(result.returncode, 1, plant + "\n" + result.stdout[-3000:])
                self.assertIn("different", result.stdout)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    tests = processes.tests_of_shard(VerifyMatrix) if len(sys.argv) == 1 else []
    unittest.main(verbosity=2, argv=sys.argv + tests)
