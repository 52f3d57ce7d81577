"""A job whose tensors are spread over drives ends with the bits of one in memory, also after
a kill; tools find the drives by themselves, and a server refuses drives that were exchanged.

Argument: the path of eps."""

import glob
import os
import re
import shutil
import signal
import subprocess
import time

import runs  # finds the modules of tests/
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 24

# Exact clipping means mode sealed, whose gradients wait on the drives, too.
SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.clip": "exact",
                                       "servers.addresses": 2, "storage.cut_steps": 1})


class DrivesTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        cls.out, cls.state = os.path.join(TMP, "out"), os.path.join(TMP, "state")
        cls.drives = [os.path.join(TMP, "drive-" + name) for name in "abc"]

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text, "--out=" + out]
        return runs.with_settings(train, SETTINGS, settings)

    def on_drives(self, drives, resume="none"):
        return self.command(self.out, storage__kind="nvme", storage__path=self.state,
                            storage__drives=",".join(drives), checkpoint__resume=resume)

    def kill_in_the_middle(self):
        for _ in range(10):
            for folder in [self.out, self.state, *self.drives]:
                shutil.rmtree(folder, ignore_errors=True)
            process = self.begin(self.on_drives(self.drives), subprocess.DEVNULL)
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while runs.lines_of(self.out + "/metrics.jsonl") < 5 and process.poll() is None:
                self.assertLess(time.monotonic(), deadline, "no five steps")
                time.sleep(0.002)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=TIMEOUT_SECONDS)
            table = self.eps("state", "ls", self.state)
            if 0 < int(re.search(r"youngest common cut: step (\d+) ", table).group(1)) < STEPS:
                return table
            # On a busy machine the run may end before the kill; try again.
        self.fail("no run was killed before its end")

    def slots(self):
        return [glob.glob(drive + "/server-?/job-*/slot-?.eps") for drive in self.drives]

    def test_trains_through_a_kill_with_the_bits_of_memory(self):
        memory = os.path.join(TMP, "memory")
        self.eps(*self.command(memory, storage__kind="dram"))
        table = self.kill_in_the_middle()
        self.assertEqual(table.count(" on 3 drives"), 2, table)
        self.assertEqual([len(files) for files in self.slots()], [4, 4, 4])
        self.assertEqual(glob.glob(self.state + "/server-?/job-*/slot-?.eps"), [])
        self.assertEqual(len(glob.glob(TMP + "/drive-?/server-?/job-*/gradients.eps")), 6)

        # Tools find the drives by the catalogue.
        said = self.eps("state", "verify", self.state)
        self.assertEqual(len(re.findall(r"^ok: ", said, re.MULTILINE)), len(said.splitlines()))
        moved = os.path.join(TMP, "moved")
        self.eps("checkpoint", "reshard", self.state, "--servers=1", "--out=" + moved)
        self.eps("state", "verify", moved)
        config, = glob.glob(os.path.join(moved, "job-*.yaml"))
        with open(config, encoding="utf-8") as f:
            self.assertNotIn(self.drives[0], f.read())

        # Both drives of the exchange are named; nothing is lost.
        exchanged = [self.drives[1], self.drives[0], self.drives[2]]
        said = self.eps(*self.on_drives(exchanged, "latest"), code=65)
        self.assertIn("drive 0 expected, 1 found", said)
        said = self.eps(*self.on_drives(self.drives[:2], "latest"), code=65)
        self.assertIn("made for 3 drives, and the server has 2", said)
        self.eps("state", "verify", self.state)

        self.eps(*self.on_drives(self.drives, "latest"))
        self.assertEqual(self.outcome(self.out, STEPS), self.outcome(memory, STEPS))

        job = re.search(r"job ([0-9a-f]{16})", self.eps("state", "ls", self.state)).group(1)
        self.eps("state", "rm", self.state, job, "--force")
        self.assertEqual(self.slots(), [[], [], []])

    def test_needs_a_folder_for_the_catalogue(self):
        said = self.eps(*self.command(os.path.join(TMP, "never"), storage__kind="nvme",
                                      storage__drives=self.drives[0]), code=64)
        self.assertIn("storage.drives needs storage.path", said)


if __name__ == "__main__":
    runs.main()
