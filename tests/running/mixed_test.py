"""A job of which a part is in memory and the rest on drives, in storage devices, or on both
(storage.dram, storage.csd.devices) ends with the bits of one in memory, also after kills that
change how much is in memory.

Argument: the path of eps."""

import glob
import json
import os
import re
import shutil
import signal

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 24
# Exact clipping means mode sealed, whose gradients wait where their chunks are.
SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.clip": "exact",
                                       "servers.addresses": 2, "storage.cut_steps": 2})
DEVICES = {"storage__kind": "csd", "storage__csd__devices": 2, "storage__csd__dram": "2MiB"}
# By the name of the run: settings, and how many drives storage.drives names.
PLACES = {"nvme": ({"storage__kind": "nvme"}, 0), "csd": (DEVICES, 0), "both": (DEVICES, 3)}
SOME = 64 << 10  # bytes; the state of a server has more


def drives_of(place):
    _, drives = PLACES[place]
    return [os.path.join(TMP, f"{place}-drive-{i}") for i in range(drives)]


class MixedTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text,
                 "--out=" + os.path.join(TMP, out)]
        return runs.with_settings(train, SETTINGS, settings)

    def mixed(self, place, dram, **settings):
        where, _ = PLACES[place]
        return self.command(place, storage__dram=dram, storage__drives=",".join(drives_of(place)),
                            storage__path=os.path.join(TMP, place + "-state"), **where, **settings)

    def check_memory(self, log, place):
        """Checks that a part of the state is in the memory of each server, and not too much."""
        # Devices are emulated: their memory is the server's.
        of_devices = 0 if place == "nvme" else 2 * (2 << 20)
        with open(log, encoding="utf-8") as f:
            servers = re.search(r"eps status (--servers=[^)\s]+)", f.read()).group(1)
        for line in self.eps("status", servers, "--json").splitlines():
            held = json.loads(line)["memory"]["state"]["live_bytes"] - of_devices
            self.assertGreater(held, SOME // 2)
            self.assertLessEqual(held, SOME)

    def test_kills_and_other_shares_change_no_bit(self):
        self.eps(*self.command("memory", storage__kind="dram"))
        expected = self.outcome(os.path.join(TMP, "memory"), STEPS)
        for place in PLACES:
            with self.subTest(place=place), \
                    open(os.path.join(TMP, place + ".log"), "w+", encoding="utf-8") as log:
                for folder in (place, place + "-state", *drives_of(place)):
                    shutil.rmtree(os.path.join(TMP, folder), ignore_errors=True)
                process = self.begin(self.mixed(place, SOME), log)
                self.wait_for_step(process, os.path.join(TMP, place), 5)
                self.check_memory(log.name, place)
                os.kill(processes.servers_of(process.pid)[1], signal.SIGKILL)
                self.wait_for_step(process, os.path.join(TMP, place), 10)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=TIMEOUT_SECONDS)
                self.eps(*self.mixed(place, "16KiB", checkpoint__resume="latest"))
                self.assertEqual(self.outcome(os.path.join(TMP, place), STEPS), expected)
                said = self.eps("state", "verify", os.path.join(TMP, place + "-state"))
                self.assertEqual(said.count("ok: "), len(said.splitlines()), said)
        self.check_files(drives_of("both"))

    def check_files(self, drives):
        """Checks that the first two drives are devices, and that the third holds slots."""
        for i, drive in enumerate(drives):
            for server in (0, 1):
                found = {os.path.basename(path) for path in
                         glob.glob(f"{drive}/server-{server}/job-*/*")}
                self.assertEqual("medium" in found, i < 2, found)
                self.assertEqual({"slot-0.eps", "slot-1.eps"} <= found, i == 2, found)

    def test_memory_needs_another_kind_for_the_rest(self):
        said = self.eps(*self.command("refused", storage__kind="dram", storage__dram=SOME), code=64)
        self.assertIn("set storage.kind=nvme or csd", said)


if __name__ == "__main__":
    runs.main()
