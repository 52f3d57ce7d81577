"""A job whose state is updated in storage devices ends with the bits of one in memory, although a
device and a server are killed; tools read its media without a server, and status and metrics count
what the links of the devices carry.

Argument: the path of eps."""

import glob
import os
import re
import shutil
import signal

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 200

# Exact clipping means mode sealed, whose gradients wait in the devices, too.
SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.clip": "exact",
                                       "servers.addresses": 2, "storage.cut_steps": 2})


class NearStorageTest(runs.RunTest):
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
                       storage__csd__dram="4MiB")
        return self.command(self.out, **{**devices, **settings})

    def check_links(self, log):
        """Compares what status says of one moment with what it said a moment before."""
        for of in self.links_of(log):
            self.assertEqual({device for device, *_ in of}, {"csd-0", "csd-1"})
            for device in ("csd-0", "csd-1"):
                # Moments stay inside: the state is read and written there. Gradients arrive in the
                # memory of the device, and wait there.
                self.assertGreater(of[device, "internal", "read", "state"], 0)
                self.assertGreater(of[device, "internal", "written", "state"], 0)
                self.assertNotIn((device, "internal", "read", "gradient"), of)
                self.assertGreater(of[device, "host", "written", "gradient"], 0)
                self.assertLess(of[device, "host", "written", "gradient"],
                                of[device, "internal", "written", "state"])
        text = self.status(log)
        self.assertRegex(text, r"device csd-1: host [\d.]+ \w+ read, .*; internal .*; media .*")

    def test_trains_through_kills_with_the_bits_of_memory(self):
        memory = os.path.join(TMP, "memory")
        self.eps(*self.command(memory, storage__kind="dram"))
        log = os.path.join(TMP, "run.log")
        with open(log, "w", encoding="utf-8") as f:
            process = self.begin(self.in_devices(), f)
        self.wait_for_step(process, self.out, 4)
        self.check_links(log)
        devices = processes.devices_of(process.pid)
        self.assertEqual(len(devices), 4)
        os.kill(devices["device 1"], signal.SIGKILL)
        self.wait_for_restarts(process, log, 1)
        self.wait_for_step(process, self.out, 12)
        os.kill(processes.servers_of(process.pid)[1], signal.SIGKILL)
        self.wait_for_restarts(process, log, 2)
        self.wait_for_step(process, self.out, 24)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=TIMEOUT_SECONDS)
        with open(log, encoding="utf-8") as f:
            said = f.read()
        self.assertEqual(said.count("note: restarting server"), 2, said)
        with open(os.path.join(self.out, "logs", "server-0.log"), encoding="utf-8") as f:
            logs = f.read()
        with open(os.path.join(self.out, "logs", "server-1.log"), encoding="utf-8") as f:
            logs += f.read()
        self.assertRegex(logs, r"eps serve: device csd-\d [(]\S+/medium[)] was ended by signal 9 ")
        self.check_refusals()
        # A restart may let gradients wait elsewhere.
        self.eps(*self.in_devices(checkpoint__resume="latest", storage__csd__gradients="media"))
        self.assertEqual(self.outcome(self.out, STEPS), self.outcome(memory, STEPS))
        self.check_tools(memory)

    def check_refusals(self):
        """A job in devices is not continued anywhere else."""
        def refused(**settings):
            return self.eps(*self.in_devices(checkpoint__resume="latest", **settings), code=65)
        self.assertRegex(refused(storage__kind="nvme"),
                         "/medium: the state of this job lies in storage devices: set "
                         "storage.kind=csd, and not nvme")
        self.assertIn("made for 2 drives, and the server has 3", refused(storage__csd__devices=3))

    def check_tools(self, memory):
        media = glob.glob(self.state + "/server-?/csd-?/job-*/medium")
        self.assertEqual(len(media), 4)
        self.assertEqual(glob.glob(self.state + "/**/slot-?.eps", recursive=True), [])
        self.assertEqual(self.eps("state", "ls", self.state).count(" on 2 drives"), 2)
        said = self.eps("state", "verify", self.state)
        self.assertEqual(len(re.findall(r"^ok: ", said, re.MULTILINE)), len(said.splitlines()))
        saved = os.path.join(TMP, "saved")
        self.eps("checkpoint", "save", self.state, "--out=" + saved)
        weights = [glob.glob(folder + "/**/model.safetensors", recursive=True)[0]
                   for folder in (saved, memory)]
        contents = []
        for path in weights:
            with open(path, "rb") as f:
                contents.append(f.read())
        self.assertEqual(*contents)
        resharded = os.path.join(TMP, "resharded")
        self.eps("checkpoint", "reshard", self.state, "--servers=1", "--out=" + resharded)
        self.eps("state", "verify", resharded)
        config, = glob.glob(os.path.join(resharded, "job-*.yaml"))
        with open(config, encoding="utf-8") as f:
            self.assertRegex(f.read(), r"(?m)^  kind: nvme$")
        # The folders may move, like those of other kinds.
        moved = self.state + "-moved"
        os.rename(self.state, moved)
        self.eps("state", "verify", moved)
        os.rename(moved, self.state)

        job = re.search(r"job ([0-9a-f]{16})", self.eps("state", "ls", self.state)).group(1)
        self.eps("state", "rm", self.state, job, "--force")
        self.assertEqual(glob.glob(self.state + "/server-?/csd-?/job-*"), [])

    def test_ways_of_the_paper_give_the_bits_of_memory(self):
        memory = os.path.join(TMP, "short")
        self.eps(*self.command(memory, storage__kind="dram", training__steps=8))
        for handler in ("naive", "handover"):
            shutil.rmtree(self.state, ignore_errors=True)
            self.eps(*self.in_devices(
                training__steps=8, storage__csd__handler=handler, storage__csd__gradients="media",
                storage__csd__weights_up="fp32", storage__csd__rates="a5000_smartssd_1",
                storage__csd__rate_scale=100), "--overwrite")
            self.assertEqual(self.outcome(self.out, 8), self.outcome(memory, 8), handler)

    def test_rates_need_devices_that_update(self):
        said = self.eps(*self.in_devices(storage__csd__rates="two_core_box"), code=64)
        self.assertIn("two_core_box has no storage of kind csd, which storage.csd.rates", said)

    def test_needs_memory_for_a_chunk(self):
        said = self.eps(*self.in_devices(storage__csd__dram="4KiB"), code=71)
        self.assertIn("raise storage.csd.dram", said)
        self.assertEqual(glob.glob(self.state + "/**/lost+found", recursive=True), [])

    def test_needs_a_folder_for_each_device(self):
        said = self.eps(*self.in_devices(storage__drives=os.path.join(TMP, "drive")), code=64)
        self.assertIn("storage.csd.devices: 2 devices, and 1 folders in storage.drives", said)


if __name__ == "__main__":
    runs.main()
