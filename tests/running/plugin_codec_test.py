"""Jobs whose gradients are encoded by a plug-in codec that `eps codec new` wrote and `make` built:
memory, drives and storage devices give the same bits, through kills, and every process refuses
another file, or one that it does not trust.

Argument: the path of eps."""

import os
import shutil
import signal
import subprocess

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 80
SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "servers.addresses": 2, "storage.cut_steps": 2,
    "quantization.gradients": "plugin", "servers.trust_plugins": "true"})


class PluginCodecTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        cls.codecs = {name: runs.build_plugin(cls.program, "codec", name)
                      for name in ("one", "two")}

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text, "--overwrite",
                 "--out=" + os.path.join(TMP, out)]
        return runs.with_settings(train, SETTINGS,
                                  {"quantization.plugin": self.codecs["one"], **settings})

    def stored(self, out, kind, **settings):
        state = os.path.join(TMP, out + "-state")
        shutil.rmtree(state, ignore_errors=True)
        return self.command(out, **{"storage.kind": kind, "storage.path": state,
                                    "storage.csd.devices": 2, "storage.csd.dram": "4MiB",
                                    **settings})

    def test_devices_give_the_bits_of_memory_through_kills(self):
        memory, out = os.path.join(TMP, "memory"), os.path.join(TMP, "devices")
        self.eps(*self.command("memory", **{"storage.kind": "dram"}))
        with open(os.path.join(TMP, "run.log"), "w+", encoding="utf-8") as log:
            process = self.begin(self.stored("devices", "csd"), log)
            self.wait_for_step(process, out, 8)
            os.kill(processes.devices_of(process.pid)["device 1"], signal.SIGKILL)
            self.wait_for_restarts(process, log.name, 1)
            self.wait_for_step(process, out, 18)
            os.kill(processes.servers_of(process.pid)[1], signal.SIGKILL)
            code = process.wait(timeout=TIMEOUT_SECONDS)
            log.seek(0)
            said = log.read()
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("note: restarting server"), 2, said)
        self.assertEqual(self.outcome(out, STEPS), self.outcome(memory, STEPS))
        # The tools that read the state and the checkpoints of a job run no code of its codec.
        said = self.eps("state", "verify", os.path.join(TMP, "devices-state"))
        self.assertEqual(said.count("ok: "), len(said.splitlines()), said)
        self.eps("checkpoint", "verify", os.path.join(out, "checkpoint-%d" % STEPS))

    def test_drives_and_resumed_runs_give_the_same_bits(self):
        """A run that ends half-way and continues keeps the elements that the codec omitted."""
        self.eps(*self.command("whole", **{"storage.kind": "dram", "training.steps": 12}))
        self.eps(*self.stored("drives", "nvme", **{"training.steps": 12}))
        self.assertEqual(self.outcome(os.path.join(TMP, "drives"), 12),
                         self.outcome(os.path.join(TMP, "whole"), 12))
        half = {"storage.kind": "dram", "training.steps": 12, "checkpoint.save_steps": 6}
        self.eps(*self.command("half", **half))
        half["checkpoint.resume"] = os.path.join(TMP, "half", "checkpoint-6")
        self.eps(*self.command("resumed", **half))
        self.assertEqual(self.outcome(os.path.join(TMP, "resumed"), 12).digests,
                         self.outcome(os.path.join(TMP, "whole"), 12).digests)

    def test_verify_trains_with_the_codec(self):
        folder = os.path.join(TMP, "gpt2-inputs")
        os.makedirs(folder, exist_ok=True)
        model, text = small_job.write_inputs(folder, "gpt2")
        out = os.path.join(TMP, "verified")
        command = self.command("verified", **{"storage.kind": "dram", "training.steps": 3,
                                              "checkpoint.save_steps": 1})
        command[1:3] = ["--model=" + model, "--data=" + text]
        self.eps(*command)
        self.eps("verify", "--run=" + out, "--data=" + text)

    def test_servers_refuse_what_they_do_not_trust(self):
        said = self.eps(*self.command("refused", **{
            "storage.kind": "dram", "servers.trust_plugins": "false"}), code=65)
        self.assertRegex(said, "quantization.plugin: the codec one with SHA-256 [0-9a-f]{64} is "
                               "not loaded here; none is loaded")
        self.assertIn("servers.trust_plugins=true", said)
        # They say so when the job is created, before a worker has joined it.
        logs = os.path.join(TMP, "refused", "logs")
        for name in os.listdir(logs):
            with open(os.path.join(logs, name), encoding="utf-8") as f:
                self.assertNotIn("joined the job", f.read(), name)

    def test_keys_must_fit_together(self):
        def refused(code=64, **settings):
            return self.eps(*self.command("refused", **settings), code=code)
        self.assertIn("set quantization.gradients=plugin",
                      refused(**{"quantization.gradients": "bf16"}))
        self.assertIn("quantization.plugin: expected the file of a codec",
                      refused(**{"quantization.plugin": ""}))
        self.assertIn("for gradients only", refused(**{"quantization.weights": "plugin"}))
        self.assertIn("cannot be loaded", refused(**{"quantization.plugin": self.text}))
        missing = os.path.join(TMP, "missing.so")
        self.assertIn(missing, refused(code=66, **{"quantization.plugin": missing}))

    def test_a_submitted_job_trains_with_the_drivers_codec(self):
        """The job names no file: driver, server and worker have one. A worker with another file
        says both digests, and takes no part."""
        self.eps(*self.command("undisturbed", **{"storage.kind": "dram", "training.steps": 8}))
        state, jobs = os.path.join(TMP, "board-state"), os.path.join(TMP, "jobs")
        for folder in (state, jobs):
            shutil.rmtree(folder, ignore_errors=True)
        plugin = "--quantization.plugin=" + self.codecs["one"]
        started = []
        with open(os.path.join(TMP, "board.log"), "w+", encoding="utf-8") as log:
            try:
                started.append(self.begin(
                    ["serve", "--storage.kind=dram", "--storage.path=" + state, plugin,
                     "--servers.trust_plugins=true"], log))
                address = "--servers=" + self.wait_for_address(started[0], log.name)
                job = os.path.join(TMP, "plugin.yaml")
                with open(job, "w", encoding="utf-8") as f:
                    f.write(runs.job_text(self.model, self.text,
                                          {**SETTINGS, "training.steps": 8}))
                self.eps("submit", "-f", job, address)
                started.append(self.begin(["driver", "--once", address, "--out=" + jobs,
                                           "--data-root=" + TMP, plugin], log))
                worker = ["worker", address, "--data=" + self.text, "--worker.threads=1"]
                other = "--quantization.plugin=" + self.codecs["two"]
                said = self.eps(*worker, other, code=65)
                self.eps(*worker, plugin)
                self.assertEqual(started[1].wait(timeout=TIMEOUT_SECONDS), 0)
            finally:
                for process in started:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait(timeout=TIMEOUT_SECONDS)
        digests = [subprocess.run(["sha256sum", self.codecs[name]], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout.split()[0]
                   for name in ("one", "two")]
        self.assertIn(self.codecs["two"] + ": the job needs the codec with SHA-256 %s, and this "
                      "file has %s" % tuple(digests), said)
        self.assertEqual(self.outcome(os.path.join(jobs, "plugin"), 8),
                         self.outcome(os.path.join(TMP, "undisturbed"), 8))


if __name__ == "__main__":
    runs.main()
