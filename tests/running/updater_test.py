"""A user writes an updater with `eps updater new`, builds it, and lets `eps updater check` find
mistakes.

Argument: the path of eps."""

import hashlib
import json
import os
import shutil
import subprocess

import runs  # finds the modules of tests/
from runs import TMP, TIMEOUT_SECONDS


class UpdaterTest(runs.RunTest):
    def new(self, name):
        """Writes a new updater and returns its folder."""
        out = os.path.join(TMP, "updaters", name)
        shutil.rmtree(out, ignore_errors=True)
        said = self.eps("updater", "new", name, "--out=" + out)
        self.assertIn(name + ".c", said)
        return out

    def make(self, out, target="all", code=0):
        command = ["make", "-C", out, "EPS=" + self.program]
        done = subprocess.run(command + ([] if target == "all" else [target]), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def replace(self, path, old, new):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertIn(old, text)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))

    def test_a_new_updater_builds_and_passes(self):
        out = self.new("my_rule2")
        self.assertEqual(sorted(os.listdir(out)),
                         ["Makefile", "README.md", "eps_updater.h", "my_rule2.c"])
        self.assertNotIn("warning", self.make(out))
        self.assertIn("ok: true", self.make(out, "check"))
        file = os.path.join(out, "my_rule2.so")
        with open(file, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()

        said = self.eps("updater", "show", file)
        for line in ["name: my_rule2", "sha256: " + digest, "state fields: square_avg",
                     "parameter alpha: 0 to 0.999999, usually 0.99"]:
            self.assertIn(line + "\n", said)

        said = json.loads(self.eps("updater", "check", file, "--json",
                                   "--hardware=a5000_smartssd_6"))
        speed, device = said["speed"], said["device"]
        # RMSProp moves 20 bytes for an element and reads 12 of them; that updater reads 8.2 GB/s.
        self.assertEqual((speed["bytes_per_element"], device["updater_gb_per_s"]), (20, 8.2))
        self.assertAlmostEqual(device["ratio"],
                               speed["update_gb_per_s"]["median"] * 12 / 20 / 8.2)
        self.assertEqual((said["name"], said["sha256"], said["ok"]), ("my_rule2", digest, True))
        self.assertEqual([check["name"] for check in said["checks"]],
                         ["bounds", "splits", "alignment", "threads", "values", "parameters",
                          "mode"])
        self.assertEqual({check["outcome"] for check in said["checks"]}, {"ok"})
        self.assertEqual(said["speed"]["bytes_per_element"], 20)
        for figure in ["update_gb_per_s", "plain_gb_per_s", "ratio"]:
            self.assertGreater(said["speed"][figure]["median"], 0)

    def test_mistakes_are_found_and_end_with_1(self):
        out = self.new("one_too_far")
        self.replace(os.path.join(out, "one_too_far.c"), "i < n;", "i <= n;")
        self.make(out)
        file = os.path.join(out, "one_too_far.so")
        said = self.eps("updater", "check", file, code=1)
        self.assertIn("updater one_too_far fails check bounds: reads or writes outside of its "
                      "arrays", said)
        self.assertIn("ok: false", said)

        out = self.new("fused")
        self.replace(os.path.join(out, "fused.c"), "const float v = old_part + new_part;",
                     "const float v = fmaf(s.alpha, fields[0][i], new_part);")
        self.make(out)
        said = self.eps("updater", "check", os.path.join(out, "fused.so"), code=1)
        self.assertIn("update differs from reference", said)

    def test_refusals_have_exit_codes(self):
        out = self.new("full")
        said = self.eps("updater", "new", "other", "--out=" + out, code=64)
        self.assertIn("the folder is not empty", said)
        for name in ["2fast", "My", "a-b", "a" * 64]:
            never = os.path.join(TMP, "never")
            self.assertIn("a-z, 0-9 and _", self.eps("updater", "new", name, "--out=" + never,
                                                     code=64))
            self.assertFalse(os.path.exists(never))
        for command in ["show", "check"]:
            self.assertIn("gone.so", self.eps("updater", command, TMP + "/gone.so", code=66))
            self.assertIn("cannot be loaded", self.eps(
                "updater", command, os.path.join(out, "Makefile"), code=64))
        self.eps("updater", code=64)


if __name__ == "__main__":
    runs.main()
