"""A job whose state is updated by OpenCL devices (pocl, storage.csd.driver=opencl) ends with the
digest of one in memory, although a server is killed; its media can be read without a runtime.

Argument: the path of eps."""

import os
import shutil
import signal

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP

STEPS = 100
# Exact clipping means mode sealed, whose gradients wait in the devices.
SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.clip": "exact",
                                       "servers.addresses": 2, "storage.cut_steps": 2})


class OpenClTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def setUp(self):
        self.out, self.state = os.path.join(TMP, "out"), os.path.join(TMP, "state")
        for folder in (self.out, self.state):
            shutil.rmtree(folder, ignore_errors=True)

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text, "--out=" + out]
        return runs.with_settings(train, SETTINGS, settings)

    def in_devices(self, **settings):
        devices = dict(storage__kind="csd", storage__path=self.state, storage__csd__devices=2,
                       storage__csd__dram="4MiB", storage__csd__driver="opencl")
        return self.command(self.out, **{**devices, **settings})

    def check_links(self, log):
        """Checks that devices of two servers update, and that weights come up in FP32."""
        for of in self.links_of(log):
            for device in ("csd-0", "csd-1"):
                self.assertGreater(of[device, "internal", "read", "state"], 0)
                self.assertGreater(of[device, "internal", "written", "state"], 0)
                self.assertGreater(of[device, "host", "written", "gradient"], 0)
                self.assertNotIn((device, "internal", "read", "weights"), of)

    def test_trains_through_a_kill_with_the_bits_of_memory(self):
        memory = os.path.join(TMP, "memory")
        self.eps(*self.command(memory, storage__kind="dram"))
        log = os.path.join(TMP, "run.log")
        with open(log, "w", encoding="utf-8") as f:
            process = self.begin(self.in_devices(), f)
        self.wait_for_step(process, self.out, 4)
        os.kill(processes.servers_of(process.pid)[1], signal.SIGKILL)
        self.wait_for_step(process, self.out, 12)
        self.assertEqual(processes.devices_of(process.pid), {}, "devices are in their servers")
        self.check_links(log)
        self.assertEqual(process.wait(timeout=runs.TIMEOUT_SECONDS), 0)
        with open(log, encoding="utf-8") as f:
            self.assertEqual(f.read().count("note: restarting server"), 1)
        self.assertEqual(self.outcome(self.out, STEPS), self.outcome(memory, STEPS))
        with open(os.path.join(self.out, "logs", "server-0.log"), encoding="utf-8") as f:
            self.assertRegex(f.read(), r"device csd-0 has no codecs: gradients and weights cross")
        said = self.eps("state", "verify", self.state)
        self.assertEqual(said.count("ok: "), len(said.splitlines()), said)

    def test_rates_are_those_of_emulated_devices(self):
        said = self.eps(*self.in_devices(storage__csd__rates="a5000_smartssd_1"), code=64)
        self.assertIn("storage.csd.rates=a5000_smartssd_1 slows emulated devices down", said)

    def test_a_runtime_without_devices_is_named(self):
        os.environ["OCL_ICD_VENDORS"] = TMP
        try:
            said = self.eps(*self.in_devices(), code=65)
        finally:
            del os.environ["OCL_ICD_VENDORS"]
        self.assertIn("storage.csd.driver=opencl finds no device on 0 platforms", said)


if __name__ == "__main__":
    runs.main()
