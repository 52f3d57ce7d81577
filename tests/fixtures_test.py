"""Checks that this tree's programs read state folders, checkpoints and backups of older commits.

Training must continue from them with the same bits. tests/fixtures/COMMIT/README.md says how each
of them was made.

Arguments: the path of eps."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import unittest

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures", "68a36b0")


class FixturesTest(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(TMP, self.id().rpartition(".")[2])
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        with open(os.path.join(FIXTURES, "digests.json"), encoding="utf-8") as f:
            self.expected = json.load(f)

    def path(self, name):
        return os.path.join(self.folder, name)

    def unpack(self, name, member):
        with tarfile.open(os.path.join(FIXTURES, name)) as tar:
            tar.extractall(self.folder)
        return self.path(member)

    def eps(self, *arguments):
        """Runs eps and returns its output on both streams."""
        done = subprocess.run([EPS] + list(arguments), stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def expect_digest(self, checkpoint, name):
        said = self.eps("checkpoint", "digest", checkpoint).splitlines()
        self.assertEqual([line for line in said if "sha256" in line], self.expected[name])

    def train_to_the_end(self, *arguments):
        with open(os.path.join(FIXTURES, "settings"), encoding="utf-8") as f:
            settings = f.read().split()
        out = self.path("out")
        model = os.path.join(FIXTURES, "model.json")
        said = self.eps("train", "--model=" + model, "--out=" + out, *settings, *arguments)
        self.assertIn(", step 3", said)
        self.assertIn("done: 2 steps", said)
        self.expect_digest(os.path.join(out, "checkpoint-5"), "step 5")

    def test_a_checkpoint_is_verified_and_digested(self):
        for archive, member, name in (("checkpoint.tar", "checkpoint-3", "step 3"),
                                      ("gpt2_checkpoint.tar", "checkpoint-2", "gpt2 step 2")):
            checkpoint = self.unpack(archive, member)
            self.assertIn("\nok: step ", self.eps("checkpoint", "verify", checkpoint))
            self.expect_digest(checkpoint, name)

    def test_a_state_folder_is_saved_as_a_checkpoint(self):
        state = self.unpack("state.tar", "state")
        self.assertIn("youngest common cut: step 3 (term 1)", self.eps("checkpoint", "ls", state))
        self.eps("checkpoint", "save", state, "--out=" + self.path("saved"))
        self.expect_digest(self.path("saved/checkpoint-3"), "step 3")

    def test_a_backup_is_restored(self):
        state = self.path("restored")
        self.eps("restore", os.path.join(FIXTURES, "backup.tar"), "--out=" + state)
        self.eps("checkpoint", "save", state, "--out=" + self.path("saved"))
        self.expect_digest(self.path("saved/checkpoint-3"), "step 3")

    def test_training_continues_from_the_state(self):
        state = self.unpack("state.tar", "state")
        self.train_to_the_end("--storage.path=" + state, "--resume=latest")

    def test_training_continues_from_the_checkpoint(self):
        checkpoint = self.unpack("checkpoint.tar", "checkpoint-3")
        self.train_to_the_end("--storage.kind=dram", "--resume=" + checkpoint)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
