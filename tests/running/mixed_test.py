"""A job of which a part is in memory and the rest on drives or in storage devices (storage.dram)
ends with the bits of one in memory, also after kills that change how much is in memory.

Argument: the path of eps."""

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
KINDS = {"nvme": {}, "csd": {"storage__csd__devices": 2, "storage__csd__dram": "2MiB"}}
OF_DEVICES = {"nvme": 0, "csd": 2 * (2 << 20)}  # bytes of a server's memory: they are emulated
SOME = 64 << 10  # bytes; the state of a server has more


class MixedTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def command(self, out, **settings):
        train = ["train", "--model=" + self.model, "--data=" + self.text,
                 "--out=" + os.path.join(TMP, out)]
        return runs.with_settings(train, SETTINGS, settings)

    def mixed(self, kind, dram, **settings):
        return self.command(kind, storage__kind=kind, storage__dram=dram,
                            storage__path=os.path.join(TMP, kind + "-state"), **KINDS[kind],
                            **settings)

    def check_memory(self, log, of_devices):
        """Checks that a part of the state is in the memory of each server, and not too much."""
        with open(log, encoding="utf-8") as f:
            servers = re.search(r"eps status (--servers=[^)\s]+)", f.read()).group(1)
        for line in self.eps("status", servers, "--json").splitlines():
            held = json.loads(line)["memory"]["state"]["live_bytes"] - of_devices
            self.assertGreater(held, SOME // 2)
            self.assertLessEqual(held, SOME)

    def test_kills_and_other_shares_change_no_bit(self):
        self.eps(*self.command("memory", storage__kind="dram"))
        expected = self.outcome(os.path.join(TMP, "memory"), STEPS)
        for kind in KINDS:
            with self.subTest(kind=kind), \
                    open(os.path.join(TMP, kind + ".log"), "w+", encoding="utf-8") as log:
                for folder in (kind, kind + "-state"):
                    shutil.rmtree(os.path.join(TMP, folder), ignore_errors=True)
                process = self.begin(self.mixed(kind, SOME), log)
                self.wait_for_step(process, os.path.join(TMP, kind), 5)
                self.check_memory(log.name, OF_DEVICES[kind])
                os.kill(processes.servers_of(process.pid)[1], signal.SIGKILL)
                self.wait_for_step(process, os.path.join(TMP, kind), 10)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=TIMEOUT_SECONDS)
                self.eps(*self.mixed(kind, "16KiB", checkpoint__resume="latest"))
                self.assertEqual(self.outcome(os.path.join(TMP, kind), STEPS), expected)
                said = self.eps("state", "verify", os.path.join(TMP, kind + "-state"))
                self.assertEqual(said.count("ok: "), len(said.splitlines()), said)

    def test_memory_needs_another_kind_for_the_rest(self):
        said = self.eps(*self.command("refused", storage__kind="dram", storage__dram=SOME), code=64)
        self.assertIn("set storage.kind=nvme or csd", said)


if __name__ == "__main__":
    runs.main()
