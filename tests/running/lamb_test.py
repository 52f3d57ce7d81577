"""LAMB, whose update needs norms of whole tensors: tensors that span servers, devices and drives
give the bits of one server's memory, also after kills of servers between norms and updates.

Argument: the path of eps."""

import os
import random
import shutil
import signal

import runs  # finds the modules of tests/
import processes
import small_job
from runs import TMP, TIMEOUT_SECONDS

STEPS = 40
SETTINGS = dict(small_job.SETTINGS, **{
    "training.steps": STEPS, "training.clip": "none", "optimizer.name": "lamb",
    "optimizer.lr": 0.01, "training.chunk_elements": 4096})
KILLS = 6


class LambTest(runs.RunTest):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)

    def command(self, out, **settings):
        shutil.rmtree(os.path.join(TMP, out + "-state"), ignore_errors=True)
        train = ["train", "--model=" + self.model, "--data=" + self.text, "--overwrite",
                 "--out=" + os.path.join(TMP, out)]
        return runs.with_settings(train, SETTINGS, settings)

    def with_state(self, out, kind, **settings):
        return self.command(out, storage__kind=kind,
                            storage__path=os.path.join(TMP, out + "-state"), **settings)

    def memory(self):
        """Returns the outcome of one server without durable state."""
        self.eps(*self.command("memory"))
        return self.outcome(os.path.join(TMP, "memory"), STEPS)

    def test_every_tier_gives_the_same_bits(self):
        expected = self.memory()
        for kind, settings in (("dram", {}), ("nvme", {}),
                               ("csd", {"storage__csd__devices": 2, "storage__csd__dram": "4MiB"})):
            with self.subTest(kind=kind):
                self.eps(*self.with_state(kind, kind, servers__addresses=3, **settings))
                self.assertEqual(self.outcome(os.path.join(TMP, kind), STEPS), expected)

    def kill_servers(self, out, **settings):
        """Trains with two servers, of which some are killed. Returns what the run said."""
        dice = random.Random(out)
        with open(os.path.join(TMP, out + ".log"), "w+", encoding="utf-8") as log:
            process = self.begin(self.with_state(out, servers__addresses=2, storage__cut_steps=4,
                                                 storage__max_restarts=100, **settings), log)
            for kill in range(KILLS):
                self.wait_for_step(process, os.path.join(TMP, out),
                                   (kill + 1) * STEPS // (KILLS + 2))
                os.kill(dice.choice(self.servers(process)), signal.SIGKILL)
            code = process.wait(timeout=TIMEOUT_SECONDS)
            log.seek(0)
            said = log.read()
        self.assertEqual(code, 0, said)
        self.assertGreaterEqual(said.count("note: restarting server"), KILLS - 1, said)
        return said

    def servers(self, process):
        """Waits until both servers of the run are there, and returns them."""
        deadline = runs.time.monotonic() + TIMEOUT_SECONDS
        while True:
            servers = list(processes.servers_of(process.pid).values())
            if len(servers) == 2:
                return servers
            self.assertIsNone(process.poll(), "the run has ended before a kill")
            self.assertLess(runs.time.monotonic(), deadline, "%d servers" % len(servers))
            runs.time.sleep(0.01)

    def test_kills_change_no_bit(self):
        expected = self.memory()
        for out, settings in (("cuts", {"kind": "nvme"}),
                              ("logs", {"kind": "dram", "storage__log": "contributions"})):
            with self.subTest(out=out):
                self.kill_servers(out, **settings)
                self.assertEqual(self.outcome(os.path.join(TMP, out), STEPS), expected)

    def test_eager_mode_is_refused(self):
        said = self.eps(*self.command("refused", training__mode="eager"), code=64)
        self.assertIn("training.mode=eager and optimizer.name=lamb exclude each other", said)
        self.assertIn("set training.mode=sealed", said)


if __name__ == "__main__":
    runs.main()
