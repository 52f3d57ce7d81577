"""Saves the durable state of a killed run as a checkpoint, moves it to another number of servers,
backs it up and restores it; each time the run then ends with the bits of an undisturbed run.

Argument: the path of eps."""

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import small_job

EPS = None
TMP = os.environ.get("TEST_TMPDIR", "/tmp")
TIMEOUT_SECONDS = 600
STEPS = 24

SETTINGS = dict(small_job.SETTINGS, **{"training.steps": STEPS, "training.clip": "lagged",
                                       "quantization.gradients": "topk:0.2"})
DURABLE = {"storage.kind": "nvme", "storage.cut_steps": 1, "servers.addresses": 2}


def sums_below(folder):
    sums = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as f:
                sums[os.path.relpath(path, folder)] = hashlib.sha256(f.read()).hexdigest()
    return sums


class StateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.text = small_job.write_inputs(TMP)
        cls.killed = cls.fresh("killed")
        cls.state = os.path.join(cls.killed, "state")
        cls.kill_in_the_middle()
        cls.undisturbed = {}

    @staticmethod
    def fresh(name):
        path = os.path.join(TMP, name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    @classmethod
    def command(cls, out, settings):
        merged = dict(SETTINGS, **settings)
        return [EPS, "train", "--model=" + cls.model, "--data=" + cls.text, "--out=" + out] + [
            "--%s=%s" % item for item in sorted(merged.items())]

    @classmethod
    def start(cls, command):
        with open(os.path.join(TMP, "run.log"), "w", encoding="utf-8") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    @staticmethod
    def steps_of(out):
        try:
            with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
                return sum(line.endswith("\n") for line in f)
        except OSError:
            return 0

    @classmethod
    def kill_in_the_middle(cls):
        """Kills all processes of a run on two servers once it has made some steps."""
        for _ in range(10):
            shutil.rmtree(cls.killed, ignore_errors=True)
            process = cls.start(cls.command(cls.killed, DURABLE))
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while cls.steps_of(cls.killed) < 5 and process.poll() is None:
                if time.monotonic() > deadline:
                    raise AssertionError("no step within %d s" % TIMEOUT_SECONDS)
                time.sleep(0.002)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=TIMEOUT_SECONDS)
            table = subprocess.run([EPS, "checkpoint", "ls", cls.state], stdout=subprocess.PIPE,
                                   text=True, timeout=TIMEOUT_SECONDS, check=True).stdout
            step = int(re.search(r"youngest common cut: step (\d+) ", table).group(1))
            if 0 < step < STEPS:
                return
            # On a busy machine the run may end before the kill; try again.
        raise AssertionError("no run was killed before its end")

    def eps(self, *arguments, code=0):
        """Runs eps and returns its output on both streams."""
        done = subprocess.run([EPS] + list(arguments), stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def train(self, command, code=0):
        process = self.start(command)
        found = process.wait(timeout=TIMEOUT_SECONDS)
        with open(os.path.join(TMP, "run.log"), encoding="utf-8", errors="replace") as f:
            said = f.read()
        self.assertEqual(found, code, said[-2000:])
        return said

    def digests(self, checkpoint):
        return [line for line in self.eps("checkpoint", "digest", checkpoint).splitlines()
                if "sha256" in line]

    def rows(self, out):
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            return [[json.loads(line).get(column) for column in small_job.COLUMNS] for line in f]

    def expected(self, save_step=0):
        """Returns the output folder of an undisturbed run with a checkpoint of `save_step`."""
        if save_step not in self.undisturbed:
            out = self.fresh("undisturbed-%d" % save_step)
            self.train(self.command(out, {"checkpoint.save_steps": save_step}))
            self.undisturbed[save_step] = out
        return self.undisturbed[save_step]

    def expect_end(self, out, save_step=0):
        expected = self.expected(save_step)
        last = "checkpoint-%d" % STEPS
        self.assertEqual(self.digests(os.path.join(out, last)),
                         self.digests(os.path.join(expected, last)))
        self.assertEqual(self.rows(out), self.rows(expected))

    def saved(self):
        """Saves a checkpoint of the killed run's state; returns its path and its step."""
        out = self.fresh("saved")
        self.eps("checkpoint", "save", self.state, "--out=" + out)
        checkpoint, = glob.glob(os.path.join(out, "checkpoint-*"))
        return checkpoint, int(checkpoint.rpartition("-")[2])

    def test_1_a_saved_checkpoint_equals_the_exported_one(self):
        before = sums_below(self.state)
        checkpoint, step = self.saved()
        self.assertEqual(sums_below(self.state), before, "reading changed the state")
        self.assertIn("step %d (term 1)" % step, self.eps("checkpoint", "ls", self.state))
        expected = os.path.join(self.expected(step), "checkpoint-%d" % step)
        self.assertEqual(self.digests(checkpoint), self.digests(expected))
        self.assertEqual(len(self.digests(checkpoint)), 3)
        ours, theirs = sums_below(checkpoint), sums_below(expected)
        for name in theirs:
            if name.endswith(".safetensors") or name in ("config.json", "eps/job_spec.txt",
                                                         "trainer_state.json"):
                self.assertEqual(ours.get(name), theirs[name], name)
        self.assertEqual(set(ours) - set(theirs), {"eps/step_records.bin"})
        self.eps("checkpoint", "verify", checkpoint)
        # It resumes like any checkpoint: with its own configuration, on one server in memory.
        out = self.fresh("from-saved")
        os.makedirs(out)
        shutil.copy(os.path.join(self.killed, "metrics.jsonl"), out)
        self.train([EPS, "train", "--resume=" + checkpoint, "--out=" + out,
                    "--storage.kind=dram", "--servers=1"])
        self.assertEqual(self.digests(os.path.join(out, "checkpoint-%d" % STEPS)),
                         self.digests(os.path.join(self.expected(step), "checkpoint-%d" % STEPS)))

    def test_2_resumes_bit_for_bit_on_other_server_counts(self):
        _, step = self.saved()
        state = self.fresh("tried-with-3")
        shutil.copytree(self.state, state)
        said = self.train(self.command(self.fresh("refused"), dict(DURABLE, **{
            "servers.addresses": 3, "storage.path": state, "checkpoint.resume": "latest"})),
            code=65)
        self.assertIn("made for 2 servers, and the job has 3", said)
        self.assertIn("eps checkpoint reshard", said)
        # The failed attempt leaves a third folder without a job, which does no harm.
        self.assertTrue(os.path.isdir(os.path.join(state, "server-2")))
        before = sums_below(state)
        for servers in (3, 1):
            moved = self.fresh("state-of-%d" % servers)
            self.eps("checkpoint", "reshard", state, "--servers=%d" % servers, "--out=" + moved)
            said = self.eps("checkpoint", "reshard", state, "--servers=2", "--out=" + moved,
                            code=64)
            self.assertIn("is there already", said)
            self.assertEqual(glob.glob(os.path.join(TMP, ".*.tmp")), [])
            out = self.fresh("run-on-%d" % servers)
            copy = self.fresh("run-on-%d-state" % servers)
            shutil.copytree(moved, copy)
            said = self.train(self.command(out, dict(DURABLE, **{
                # Both kinds of storage leave the same files.
                "storage.kind": "nvme" if servers == 3 else "dram",
                "servers.addresses": servers, "storage.path": copy,
                "checkpoint.resume": "latest"})))
            term = re.search(r", step %d, term (\d+)\n" % step, said)
            self.assertIsNotNone(term, said)
            # The cut's term is 1; on a busy machine recovery may need more than one new term.
            self.assertGreater(int(term.group(1)), 1)
            self.expect_end(out)
            if servers == 3:
                self.assertEqual(sums_below(state), before, "reading changed the state")
            # The next round starts from this state.
            state = moved

    def test_3_a_backup_is_restored(self):
        backup = self.fresh("backup")
        self.eps("backup", self.state, "--out=" + backup)
        restored = self.fresh("restored")
        said = self.eps("restore", backup, "--out=" + restored, "--dry-run")
        self.assertIn("would write", said)
        self.assertIn("2 servers", said)
        self.assertFalse(os.path.exists(restored))
        said = self.eps("restore", backup, "--out=" + restored, "--servers=1000", code=64)
        self.assertIn("would hold nothing", said)
        # The default is the old number of servers and the backup's own configuration.
        said = self.eps("restore", backup, "--out=" + restored)
        config, = glob.glob(os.path.join(restored, "job-*.yaml"))
        self.assertIn("--config=" + config, said)
        self.assertEqual(len(glob.glob(os.path.join(restored, "server-*"))), 2)
        out = self.fresh("run-on-restored")
        self.train([EPS, "train", "--config=" + config, "--out=" + out, "--resume=latest"])
        self.expect_end(out)
        name, = glob.glob(os.path.join(backup, "checkpoint-*/eps/exp_avg.safetensors"))
        flip(name, os.path.getsize(name) - 100)
        said = self.eps("restore", backup, "--out=" + self.fresh("never"), "--dry-run", code=65)
        self.assertIn(name, said)

    def test_4_names_damaged_and_missing_files(self):
        state = self.fresh("damaged")
        shutil.copytree(self.state, state)
        said = self.eps("state", "verify", state)
        self.assertEqual(len(re.findall(r"^ok: \S+/server-[01]: job ", said, re.MULTILINE)),
                         len(said.splitlines()), said)
        for slot in (0, 1):
            # Damages the first chunk on server 1 in both slots, as either may hold the cut.
            path, = glob.glob(os.path.join(state, "server-1/job-*/slot-%d.eps" % slot))
            flip(path, 4096 + 8)
        out = self.fresh("never")
        said = self.eps("state", "verify", state, code=65)
        self.assertRegex(said, r"damaged: .*server-1/job-[0-9a-f]+/slot-[01].eps: chunk ")
        self.assertRegex(said, r"ok: \S+/server-0: job ")
        said = self.eps("checkpoint", "save", state, "--out=" + out, code=65)
        self.assertRegex(said, r"server-1/job-[0-9a-f]+/slot-[01].eps: chunk \d+: \d+ bytes at "
                               r"offset 4096: CRC32C [0-9a-f]+ expected, [0-9a-f]+ found")
        self.assertEqual(os.listdir(out), [".lock"])
        moved = self.fresh("never-state")
        self.eps("checkpoint", "reshard", state, "--servers=1", "--out=" + moved, code=65)
        self.assertEqual(glob.glob(os.path.join(TMP, ".never-state.tmp")), [])
        self.assertFalse(os.path.exists(moved))
        shutil.rmtree(os.path.join(state, "server-1"))
        said = self.eps("checkpoint", "save", state, "--out=" + out, code=65)
        self.assertIn("shard 1 of 2", said)
        said = self.eps("checkpoint", "save", self.killed, "--out=" + out, code=66)
        self.assertIn(self.state + " is", said)
        said = self.eps("checkpoint", "save", self.state, "--out=" + out, "--job=1", code=66)
        self.assertIn("holds no job 0000000000000001", said)

    def test_5_refuses_the_state_of_a_running_job(self):
        out = self.fresh("running")
        process = self.start(self.command(out, dict(DURABLE, **{"training.steps": 100000})))
        try:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self.steps_of(out) < 2:
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), deadline, "no step")
                time.sleep(0.01)
            said = self.eps("checkpoint", "save", out + "/state", "--out=" + out + "/no", code=65)
            self.assertIn("a server is using this folder", said)
            self.assertFalse(os.path.exists(out + "/no"))
            job, = glob.glob(out + "/state/server-0/job-*")
            said = self.eps("state", "rm", out + "/state", job[-16:], "--force", code=65)
            self.assertIn("a server is using this folder", said)
            self.assertIsNone(process.poll())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=TIMEOUT_SECONDS)


    def test_6_a_backup_may_be_one_file(self):
        folder, tar = self.fresh("backup-folder"), self.fresh("backup.tar")
        self.eps("backup", self.state, "--out=" + folder)
        before = sums_below(self.state)
        said = self.eps("backup", self.state, "--out=" + tar)
        self.assertEqual(sums_below(self.state), before, "reading changed the state")
        self.assertIn("backup: " + tar, said)
        self.assertEqual(glob.glob(os.path.join(TMP, ".*.tmp")), [])
        self.assertIn("is there already", self.eps("backup", self.state, "--out=" + tar, code=64))

        # The system's tar lists it and unpacks it to the contents of the folder.
        checkpoint, = glob.glob(os.path.join(folder, "checkpoint-*"))
        names = subprocess.run(["tar", "tf", tar], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, check=True).stdout.splitlines()
        step = os.path.basename(checkpoint)
        self.assertEqual(names[0], step + "/eps/manifest.json")
        self.assertEqual(set(names), {os.path.join(step, name) for name in sums_below(checkpoint)})
        unpacked = self.fresh("unpacked")
        os.makedirs(unpacked)
        subprocess.run(["tar", "xf", tar, "-C", unpacked], check=True)
        self.assertEqual(sums_below(os.path.join(unpacked, step)), sums_below(checkpoint))
        self.eps("restore", os.path.join(unpacked, step), "--out=" + self.fresh("restored-by-tar"))

        said = self.eps("restore", tar, "--out=" + self.fresh("restored-file"), "--dry-run")
        self.assertIn("would write", said)
        self.assertIn("2 servers", said)
        restored = self.fresh("restored-file")
        self.eps("restore", tar, "--out=" + restored)
        self.assertEqual(glob.glob(os.path.join(TMP, ".*")), [], "nothing is left behind")
        config, = glob.glob(os.path.join(restored, "job-*.yaml"))
        out = self.fresh("run-on-restored-file")
        self.train([EPS, "train", "--config=" + config, "--out=" + out, "--resume=latest"])
        self.expect_end(out)

    def test_7_a_backup_goes_through_pipes(self):
        tar, restored = self.fresh("piped.tar"), self.fresh("restored-pipe")
        with open(tar, "wb") as f:
            done = subprocess.run([EPS, "backup", self.state, "--out=-"], stdout=f,
                                  stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("backup: -: job ", done.stderr)
        for extra, there in ((["--dry-run"], False), ([], True)):
            with subprocess.Popen(["cat", tar], stdout=subprocess.PIPE) as cat:
                done = subprocess.run([EPS, "restore", "-", "--out=" + restored] + extra,
                                      stdin=cat.stdout, stdout=subprocess.PIPE, text=True,
                                      stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("verified: -", done.stdout)
            self.assertEqual(os.path.exists(restored), there)
        again = self.fresh("saved-again")
        self.eps("checkpoint", "save", restored, "--out=" + again)
        checkpoint, = glob.glob(os.path.join(again, "checkpoint-*"))
        self.assertEqual(self.digests(checkpoint), self.digests(self.saved()[0]))
        # If the reader ends early, the command fails and leaves nothing in TMPDIR.
        scratch = self.fresh("scratch")
        os.makedirs(scratch)
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "wb") as gone:
            done = subprocess.run([EPS, "backup", self.state, "--out=-"], stdout=gone,
                                  stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS,
                                  env=dict(os.environ, TMPDIR=scratch))
        self.assertEqual(done.returncode, 74, done.stderr)
        self.assertEqual(os.listdir(scratch), [])
        # A damaged backup is refused, and nothing is written.
        flip(tar, os.path.getsize(tar) // 2)
        never = self.fresh("never-restored")
        for extra in (["--dry-run"], []):
            said = self.eps("restore", tar, "--out=" + never, *extra, code=65)
            self.assertIn("the manifest has", said)
            self.assertFalse(os.path.exists(never))
        self.assertEqual(glob.glob(os.path.join(TMP, ".*")), [])

    def test_8_old_jobs_are_listed_and_removed(self):
        state = self.fresh("with-two-jobs")
        shutil.copytree(self.state, state)
        old, = [re.search("job-([0-9a-f]{16})$", path).group(1)
                for path in glob.glob(os.path.join(state, "server-0/job-*"))]
        # Another job, trained to its end in the same folders.
        self.train(self.command(self.fresh("second-job"), dict(DURABLE, **{
            "storage.path": state, "training.seed": 5, "checkpoint.save_steps": 0})))
        said = self.eps("state", "ls", state)
        jobs = re.findall("^job ([0-9a-f]{16}), .*2 servers, youngest common cut: ", said, re.M)
        self.assertEqual(len(jobs), 2, said)
        new, = set(jobs) - {old}
        self.assertEqual(said, self.eps("checkpoint", "ls", state))
        self.assertEqual(said.count(", served\n"), 2, said)
        said = self.eps("state", "rm", state, new, code=65)
        self.assertIn("--force", said)
        self.assertIn("no job", self.eps("state", "rm", state, "1", code=66))
        self.eps("state", "rm", state, "job", code=64)
        folders = glob.glob(os.path.join(state, "server-*/job-" + old))
        self.assertEqual(len(folders), 2)
        held = sum(os.path.getsize(name) for name in
                   glob.glob(os.path.join(state, "server-*/job-%s/*" % old)))
        said = self.eps("state", "rm", state, old)
        self.assertIn("removed: job %s, %s bytes" % (old, format(held, ",")), said)
        self.assertEqual(glob.glob(os.path.join(state, "**", "*%s*" % old), recursive=True), [])
        said = self.eps("state", "ls", state)
        self.assertNotIn(old, said)
        self.assertIn(new, said)
        # The other job stays intact, and --force removes it.
        self.eps("backup", state, "--out=" + self.fresh("of-the-second"))
        self.eps("state", "rm", state, new, "--force")
        self.assertIn("no jobs in", self.eps("state", "ls", state))


def flip(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1]))


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
