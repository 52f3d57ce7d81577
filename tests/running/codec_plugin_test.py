"""A user writes a codec with `eps codec new`, builds it, and lets `eps codec check` find mistakes.

Argument: the path of eps."""

import hashlib
import json
import os
import shutil

import runs  # finds the modules of tests/
import updater_test
from runs import TMP


class CodecPluginTest(runs.RunTest):
    make = updater_test.UpdaterTest.make
    replace = updater_test.UpdaterTest.replace

    def new(self, name):
        """Writes a new codec and returns its folder."""
        out = os.path.join(TMP, "codecs", name)
        shutil.rmtree(out, ignore_errors=True)
        self.assertIn(name + ".c", self.eps("codec", "new", name, "--out=" + out))
        return out

    def test_a_new_codec_builds_and_passes(self):
        out = self.new("my_codec2")
        self.assertEqual(sorted(os.listdir(out)),
                         ["Makefile", "README.md", "eps_codec.h", "my_codec2.c"])
        self.assertNotIn("warning", self.make(out))
        self.assertIn("ok: true", self.make(out, "check"))
        file = os.path.join(out, "my_codec2.so")
        with open(file, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()

        said = self.eps("codec", "show", file)
        complete = "plugin:my_codec2:" + digest + ":4:144:feedback"
        for line in ["name: my_codec2", "sha256: " + digest, "error feedback: yes",
                     "in a job: " + complete]:
            self.assertIn(line + "\n", said)

        said = json.loads(self.eps("codec", "check", file, "--json"))
        self.assertEqual((said["name"], said["sha256"], said["codec"], said["ok"]),
                         ("my_codec2", digest, complete, True))
        self.assertEqual([check["name"] for check in said["checks"]],
                         ["bounds", "size", "round_trip", "alignment", "threads", "values",
                          "feedback", "hostile", "mode"])
        self.assertEqual({check["outcome"] for check in said["checks"]}, {"ok"})
        speed = said["speed"]
        self.assertEqual(speed["encoded_bytes"] * 1024, speed["elements"] * 144)
        for figure in ["encode_gb_per_s", "decode_gb_per_s", "copy_gb_per_s"]:
            self.assertGreater(speed[figure]["median"], 0)

    def test_mistakes_are_found_and_end_with_1(self):
        out = self.new("trusting")
        self.replace(os.path.join(out, "trusting.c"), "if (size != encoded_bytes(n)) return 1;",
                     "(void)size;")
        self.make(out)
        said = self.eps("codec", "check", os.path.join(out, "trusting.so"), code=1)
        self.assertIn("codec trusting fails check hostile: reads or writes outside of its arrays",
                      said)
        self.assertIn("ok: false", said)

        out = self.new("tame")
        self.replace(os.path.join(out, "tame.c"), "any_wild ? INFINITY", "any_wild ? 1.0f")
        self.make(out)
        said = self.eps("codec", "check", os.path.join(out, "tame.so"), code=1)
        self.assertIn("codec tame fails check values: length 1: element 0 is inf", said)

    def test_refusals_have_exit_codes(self):
        out = self.new("full")
        self.assertIn("the folder is not empty",
                      self.eps("codec", "new", "other", "--out=" + out, code=64))
        self.assertIn("a-z, 0-9 and _",
                      self.eps("codec", "new", "a-b", "--out=" + TMP + "/no_codec", code=64))
        self.assertFalse(os.path.exists(TMP + "/no_codec"))
        for command in ["show", "check"]:
            self.assertIn("gone.so", self.eps("codec", command, TMP + "/gone.so", code=66))
            self.assertIn("cannot be loaded", self.eps(
                "codec", command, os.path.join(out, "Makefile"), code=64))
        self.assertIn("--deadline",
                      self.eps("codec", "check", "x.so", "--deadline=0", code=64))


if __name__ == "__main__":
    runs.main()
