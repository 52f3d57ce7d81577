"""Tests gpu_session.sh with real programs, on a CPU: what it packs, how it goes on after a run, and
how it reports a stage that fails. Nothing is timed.

Arguments: the paths of the programs, in the folders that a build gives them.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "peers")]
import figures
import shape

SCRIPT = os.path.join(HERE, "gpu_session.sh")
BUILD = os.getcwd()  # of a build, or the runfiles: folders with programs
TIMEOUT_S = 600


def session(script, *arguments, **environment):
    return subprocess.run(["bash", script, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, **environment}, text=True,
                          timeout=TIMEOUT_S, check=False)


class Machine:
    """A machine without a GPU: the folder of the script, a folder of work and one of results."""

    def __init__(self, folder, packed):
        self.packed = os.path.join(folder, "packed")
        shutil.copytree(packed, self.packed)
        self.work = os.path.join(folder, "work")
        self.results = os.path.join(folder, "results")

    def run(self, only, *arguments):
        return session(os.path.join(self.packed, "gpu_session.sh"), "run", f"--only={only}",
                       f"--results={self.results}", "--budget=100000", *arguments,
                       EPS_GPU_DRY="1", EPS_GPU_ROOT=self.work)

    def state(self):
        with open(os.path.join(self.results, "state.tsv"), encoding="utf-8") as file:
            return [tuple(line.rstrip("\n").split("\t")) for line in file]

    def stages(self):
        return [(stage, result) for _, stage, result, _ in self.state()]

    def lines(self, name):
        with tarfile.open(os.path.join(self.results, "lines.tar.gz")) as archive:
            return [json.loads(line) for line in archive.extractfile(f"lines/{name}.jsonl")]

    def replace_program(self, name, body):
        path = os.path.join(self.work, "bin", name)
        os.remove(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + body)
        os.chmod(path, 0o755)


class Session(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.packed = os.path.join(cls.temporary.name, "packed")
        cls.pack_run = session(SCRIPT, "pack", f"--out={cls.packed}", BUILD)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def setUp(self):
        self.assertEqual(self.pack_run.returncode, 0, self.pack_run.stdout)

    def machine(self, name):
        folder = os.path.join(self.temporary.name, name)
        os.mkdir(folder)
        return Machine(folder, self.packed)

    def assert_ends(self, run, code):
        self.assertEqual(run.returncode, code, run.stdout)

    def test_packs_programs_with_their_libraries(self):
        self.assertIn("no device_check in", self.pack_run.stdout)
        path = os.path.join(self.packed, "pack.tar.gz")
        self.assertLess(os.path.getsize(path), 48 << 20)
        with tarfile.open(path) as archive:
            files = [member.name for member in archive if member.isfile()]
        for program in ("eps", "eps-worker", "eps-verify"):
            self.assertIn(f"bin/{program}", files)
        libraries = [os.path.basename(f) for f in files if f.startswith("lib/")]
        self.assertTrue(any(f.startswith("libgrpc") for f in libraries), libraries)
        for other in ("libc.", "libstdc++.", "libgcc_s.", "libtorch", "libc10", "libcudart"):
            self.assertFalse([f for f in libraries if f.startswith(other)], libraries)

    def test_continues_on_another_machine(self):
        first = self.machine("first")
        self.assert_ends(first.run("loads,kernels,twice,depth"), 0)
        self.assertEqual(first.stages(), [("loads", "ok"), ("kernels", "absent"),
                                          ("twice", "ok"), ("depth", "ok")])
        self.assertTrue(all(seconds.isdigit() for *_, seconds in first.state()))
        for line in first.lines("depth"):
            model = shape.DEFAULTS._replace(layers=line["layers"], width=line["width"], seq=16,
                                            vocab=8192)
            self.assertEqual(line["parameters"], shape.parameters(model))
        # Only what passed is skipped: by itself here, by its state.tsv elsewhere.
        self.assertIn("twice: passed before", first.run("kernels,twice").stdout)
        self.assertEqual(first.stages()[4:], [("kernels", "absent")])
        second = self.machine("second")
        shutil.copy(os.path.join(first.results, "state.tsv"), second.packed)
        run = second.run("loads,kernels,twice")
        self.assert_ends(run, 0)
        self.assertEqual(run.stdout.count("passed before"), 2, run.stdout)
        self.assertEqual(second.stages(), [("loads", "ok"), ("twice", "ok"), ("depth", "ok"),
                                           ("kernels", "absent")])

    def test_other_programs_pass_again(self):
        machine = self.machine("other")
        with open(os.path.join(machine.packed, "state.tsv"), "w", encoding="utf-8") as file:
            file.write("0123456789abcdef-dry\tloads\tok\t1\n")
        self.assertNotIn("passed before", machine.run("loads").stdout)
        self.assertEqual(machine.stages(), [("loads", "ok")])

    def test_a_failed_stage_stops_no_other(self):
        machine = self.machine("failing")
        self.assert_ends(machine.run("loads"), 0)
        machine.replace_program("eps-worker",
                                "[[ $1 == step ]] || exit 0\necho planted >&2; exit 77\n")
        run = machine.run("depth,overlap,timeline")
        self.assert_ends(run, 3)
        self.assertIn("planted", run.stdout)
        self.assertEqual(machine.stages()[1:], [("depth", "failed"), ("overlap", "failed"),
                                                ("timeline", "failed")])

    def test_different_digests_fail(self):
        machine = self.machine("digests")
        self.assert_ends(machine.run("loads"), 0)
        machine.replace_program("eps", 'case "$1" in digest|checkpoint) echo $RANDOM$RANDOM ;;\n'
                                '*) mkdir -p "$EPS_GPU_ROOT"/twice_{1,2}\n'
                                'touch "$EPS_GPU_ROOT"/twice_{1,2}/latest ;; esac\n')
        self.assert_ends(machine.run("twice"), 1)

    def test_programs_that_do_not_start_end_it(self):
        machine = self.machine("broken")
        self.assert_ends(machine.run("loads", "--budget=0"), 0)
        machine.replace_program("eps-worker", "echo planted >&2; exit 1\n")
        run = machine.run("loads")
        self.assert_ends(run, 70)
        self.assertIn("planted", run.stdout)
        self.assertIn("TORCH_LIB", run.stdout)

    def test_leaves_what_exceeds_the_budget(self):
        machine = self.machine("budget")
        run = machine.run("loads,depth", "--budget=14")
        self.assert_ends(run, 0)
        self.assertEqual(machine.state(), [])
        self.assertIn("0 stages failed, 2 are left", run.stdout)

    def test_refuses_wrong_arguments(self):
        for arguments in (["run", "--only=loadss"], ["run", "--budget=1m"], ["run", "loads"],
                          ["pack", BUILD], ["pack", "--out=x"], ["pack", "--aut=x", BUILD], []):
            self.assert_ends(session(SCRIPT, *arguments), 64)
        with tempfile.TemporaryDirectory(dir=self.temporary.name) as empty:
            self.assert_ends(session(SCRIPT, "pack", f"--out={empty}", empty), 1)


class Figures(unittest.TestCase):
    def judge(self, judge, *files):
        """Returns the verdict on files with these lines, and what was printed."""
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            paths = []
            for lines in files:
                paths.append(os.path.join(folder, str(len(paths))))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                return judge(*paths), printed.getvalue()

    def test_limits(self):
        def peaks(*values):
            return self.judge(figures.flat, [{"device_peak_bytes": value} for value in values])[0]
        self.assertTrue(peaks(100, 101, 100, 100))
        self.assertFalse(peaks(100, 102, 100, 100))
        self.assertFalse(peaks(100, 100, 100))

        def overlaps(*values):
            return self.judge(figures.overlap, [{"over_slower_half": v} for v in values])[0]
        self.assertTrue(overlaps(1.0, 1.05))
        self.assertFalse(overlaps(1.06, 1.0))

    def test_losses_of_the_same_training(self):
        def equal(cpu, device):
            return self.judge(figures.losses, *([{"loss": loss, "step_seconds": 1} for loss in side]
                                                for side in (cpu, device)))[0]
        self.assertTrue(equal([5.0, 4.0], [5.0, 4.003]))
        self.assertFalse(equal([5.0, 4.0], [5.0, 4.005]))
        self.assertFalse(equal([5.0, 4.0], [5.0]))
        self.assertFalse(equal([], []))

    def test_a_step_of_ours_has_the_peers_tokens(self):
        def line(count):
            steps = [{"tokens": count, "step_seconds": s} for s in (9, 9, 1, 2, 3)]
            return self.judge(lambda path: figures.ours(path, "--seq=8", "--samples=2"), steps)
        verdict, printed = line(16)
        self.assertTrue(verdict)
        self.assertEqual(json.loads(printed)["step_s"], 2)
        self.assertEqual(json.loads(printed)["tokens"], 16)
        self.assertFalse(line(8)[0])

    def test_mfu_needs_a_known_peak(self):
        h200 = shape.mfu(10 ** 9, 989, 1.0, "libtorch 2.11.0 cuda NVIDIA H200 sm_90")
        self.assertAlmostEqual(h200, 6e-3)
        self.assertAlmostEqual(shape.mfu(10 ** 9, 756, 1.0, "NVIDIA H100 PCIe"), 6e-3)
        self.assertIsNone(shape.mfu(10 ** 9, 989, 1.0, "libtorch 2.11.0 cpu"))

    def test_peers_are_compared_with_ours(self):
        def line(peer, seconds):
            return {"peer": peer, "step_s": seconds, "mfu": None, "precision": "bf16",
                    "used_device_bytes": None}
        verdict, printed = self.judge(figures.peers, [line("eps", 1), line("fsdp2", 2),
                                                      line("eps", 3), line("fsdp2", 6)])
        self.assertTrue(verdict)
        self.assertIn("its step / ours 2.000", printed)


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main(verbosity=2)
