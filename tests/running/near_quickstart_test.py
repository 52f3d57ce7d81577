"""The job of ./quickstart, with its state in four storage devices of each of two servers, ends with
the digests and the log of one in memory, although devices and servers are killed.

Argument: the path of eps. EPS_LONG=1: the whole job and ten kills (default: its first steps, three
kills)."""

import os
import random
import shutil
import signal
import time

import runs  # finds the modules of tests/
import processes
from runs import TMP, TIMEOUT_SECONDS

STEPS, KILLS = (2000, 10) if os.environ.get("EPS_LONG") else (60, 3)


class NearQuickstartTest(runs.RunTest):
    def train(self, out, **settings):
        return runs.with_settings(["train", "--out=" + out],
                                  {"training.steps": STEPS, "metrics.tensorboard": "false"},
                                  settings)

    def victim(self, process):
        """Waits until all devices and servers of the run are there. Returns one of them."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            devices = list(processes.devices_of(process.pid).values())
            servers = list(processes.servers_of(process.pid).values())
            if len(devices) == 8 and len(servers) == 2:
                return random.choice([random.choice(devices), random.choice(servers)])
            self.assertIsNone(process.poll(), "the run has ended before a kill")
            self.assertLess(time.monotonic(), deadline, "%d devices" % len(devices))
            time.sleep(0.01)

    def test_ends_with_the_bits_of_memory(self):
        memory, out, state = (os.path.join(TMP, name) for name in ("memory", "out", "state"))
        for folder in (memory, out, state):
            shutil.rmtree(folder, ignore_errors=True)
        self.eps(*self.train(memory, storage__kind="dram"))
        with open(os.path.join(TMP, "run.log"), "w+", encoding="utf-8") as log:
            process = self.begin(
                self.train(out, storage__kind="csd", storage__path=state, storage__csd__devices=4,
                           storage__cut_steps=5, storage__max_restarts=100), log)
            for kill in range(KILLS):
                self.wait_for_step(process, out, (kill + 1) * STEPS // (KILLS + 2))
                os.kill(self.victim(process), signal.SIGKILL)
            code = process.wait(timeout=10 * TIMEOUT_SECONDS)
            log.seek(0)
            said = log.read()
        self.assertEqual(code, 0, said)
        self.assertGreaterEqual(said.count("note: restarting server"), KILLS, said)
        self.assertEqual(self.outcome(out, STEPS), self.outcome(memory, STEPS))


if __name__ == "__main__":
    runs.main()
