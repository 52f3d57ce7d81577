"""Tests of making and splitting data files, with bytes as the vocabulary: no package is needed."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import source_tree  # noqa: E402
from eps_models.data import __main__ as command, check, epsd, errors, packing  # noqa: E402
from eps_models.data import parallel, show, split  # noqa: E402

TEXTS = ["a first text", "Zwei Wörter", "x", "a longer text of several words\nin two lines"]


class MakeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = str(self.folder / "out.epsd")

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def make(self, kind, *arguments):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command.run(["make", kind, *arguments, "--tokenizer=bytes", f"--out={self.out}",
                         "--overwrite"])
        return check.verify(self.out)

    def refusal(self, code, *arguments):
        with self.assertRaises(errors.DataError) as caught:
            self.make(*arguments)
        self.assertEqual(caught.exception.code, code, caught.exception)
        return str(caught.exception)

    def write_megatron(self, name, code, documents, gap=b""):
        """Writes a dataset as Megatron-LM's indexed_dataset.py lays it out. A document is a list of
        sequences; they lie in PREFIX.bin in the opposite order."""
        kind = {1: "B", 3: "<h", 4: "<i", 5: "<q", 8: "<H", 7: "<f"}[code]
        content, pointers = b"", []
        sequences = [sequence for document in documents for sequence in document]
        for sequence in reversed(sequences):
            pointers.insert(0, len(content))
            content += b"".join(struct.pack(kind, token) for token in sequence) + gap
        borders = [0]
        for document in documents:
            borders.append(borders[-1] + len(document))
        index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code)
        index += struct.pack("<QQ", len(sequences), len(borders))
        index += b"".join(struct.pack("<i", len(sequence)) for sequence in sequences)
        index += b"".join(struct.pack("<q", pointer) for pointer in pointers)
        index += b"".join(struct.pack("<q", border) for border in borders)
        self.write(name + ".bin", content)
        return self.write(name + ".idx", index)

    def test_datasets_of_megatron_keep_their_documents(self):
        documents = [[[1, 2, 3], [4]], [[255]], [[0, 0, 7]]]
        flat = [[token for sequence in document for token in sequence] for document in documents]
        for code in (1, 3, 4, 5, 8):
            path = self.write_megatron(f"type{code}", code, documents, gap=b"\0" * 3)
            for name in (path, path[:-4], path[:-4] + ".bin"):
                reader = self.make("megatron", name)
                self.assertEqual(flat, [list(reader.document(i).tokens) for i in range(3)], name)
        again = self.write_megatron("again", 4, documents[:1])
        self.assertEqual(4, self.make("megatron", path, again).header.samples)
        rows = self.make("megatron", path, "--seq-len=4", "--no-pack")
        # A row of one token has nothing to learn.
        self.assertEqual([4, 3], [len(rows.row(i).tokens) for i in range(2)])

    def test_damaged_datasets_of_megatron_are_refused(self):
        path = self.write_megatron("good", 4, [[[1, 2]], [[3]]])
        index = pathlib.Path(path).read_bytes()
        for name, changed, word in (
                ("magic", b"X" + index[1:], "no index of Megatron-LM"),
                ("version", index[:9] + b"\2" + index[10:], "no index of Megatron-LM"),
                ("cut", index[:-1], "bytes"), ("short", index[:20], "no index"),
                ("longer", index + b"\0\0", "modes"),
                ("length", index[:34] + b"\x63" + index[35:], "sequence 0 is at byte 4"),
                ("pointer", index[:42] + b"\x63" + index[43:], "sequence 0 is at byte 99"),
                ("negative", index[:49] + b"\xff" + index[50:], "sequence 0"),
                ("borders", index[:-8] + b"\1" + index[-7:], "do not lead")):
            (self.folder / f"{name}.bin").write_bytes((self.folder / "good.bin").read_bytes())
            self.assertIn(word, self.refusal(errors.INVALID, "megatron", self.write(
                name + ".idx", changed)), name)
        self.assertIn("integer ids", self.refusal(errors.INVALID, "megatron",
                                                  self.write_megatron("floats", 7, [[[1.5]]])))
        self.assertIn("there is no", self.refusal(errors.MISSING, "megatron",
                                                  str(self.folder / "gone")))

    def test_ids_of_megatron_must_be_of_the_vocabulary(self):
        for code, wrong, found in ((4, 256, "the id 256"), (5, 2**40, "too large"),
                                   (4, -1, "negative")):
            path = self.write_megatron("wrong", code, [[[1]], [[2], [wrong]]])
            said = self.refusal(errors.INVALID, "megatron", path)
            self.assertIn("wrong: document 1: has", said)
            self.assertIn(found, said)
            self.assertIn("at token 1", said)
            self.assertEqual(1, self.make("megatron", path, "--bad-rows=skip").header.samples)
        empty = self.write_megatron("empty", 4, [[[1]], []])
        self.assertIn("document 1: is an empty", self.refusal(errors.INVALID, "megatron", empty))

    def texts(self, reader):
        vocabulary = show.vocabulary_of(reader, "")
        return [show.sample_text(reader, i, vocabulary, False)
                for i in range(reader.header.samples)]

    def test_text_comes_out_as_it_went_in(self):
        lines = self.write("a.txt", "\n".join(["one", "", "two", "three"]))
        self.assertEqual(self.texts(self.make("text", lines)), ["one\n\ntwo\nthree"])
        self.assertEqual(self.texts(self.make("text", lines, "--documents=line")),
                         ["one", "two", "three"])
        self.assertEqual(self.texts(self.make("text", lines, "--documents=paragraph")),
                         ["one", "two\nthree"])
        packed = gzip.compress(b"one\r\ntwo\r\n")
        self.assertEqual(self.texts(self.make("text", self.write("b.gz", packed),
                                              "--documents=line")), ["one", "two"])

    def test_jsonl_and_csv_come_out_as_they_went_in(self):
        rows = [{"text": text, "n": 1} for text in TEXTS]
        lines = self.write("a.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n")
        array = self.write("a.json", json.dumps(rows, indent=1))
        self.assertEqual(self.texts(self.make("jsonl", lines)), TEXTS)
        self.assertEqual(self.texts(self.make("jsonl", array)), TEXTS)
        self.assertEqual(self.texts(self.make("jsonl", lines, array)), TEXTS + TEXTS)
        quoted = "".join('%d,"%s"\n' % (i, text) for i, text in enumerate(TEXTS))
        table = self.write("a.csv", "id,body\n" + quoted)
        self.assertEqual(self.texts(self.make("csv", table, "--field=body")), TEXTS)
        tabs = self.write("a.tsv", "id\tbody\n1\ta b\n2\tc,d\n")
        self.assertEqual(self.texts(self.make("csv", tabs, "--field=body")), ["a b", "c,d"])

    def test_bad_rows_end_the_work_or_are_skipped(self):
        for kind, name, content, place, reason in (
                ("jsonl", "a.jsonl", '{"text": "ok"}\n{"text": 1}\n', "a.jsonl:2", "is no text"),
                ("jsonl", "a.jsonl", '{"text": "ok"}\n[1]\n', "a.jsonl:2", "no JSON object"),
                ("jsonl", "a.jsonl", '{"text": "ok"}\n{"text\n', "a.jsonl:2", "no JSON"),
                ("jsonl", "a.jsonl", '{"text": "ok"}\n{"body": "b"}\n', "a.jsonl:2", "it has body"),
                ("jsonl", "a.jsonl", '{"text": "ok"}\n{"text": ""}\n', "a.jsonl:2", "empty"),
                ("csv", "a.csv", "text,b\nok,2\n3\n", "a.csv:3", "1 fields"),
                ("text", "a.txt", b"ok\n\xff\n", "a.txt:2", "UTF-8")):
            path = self.write(name, content)
            extra = ["--documents=line"] if kind == "text" else []
            text = self.refusal(errors.INVALID, kind, path, *extra)
            self.assertIn(place, text)
            self.assertIn(reason, text)
            self.assertIn("--bad-rows=skip", text)
            self.assertFalse(os.path.exists(self.out))
            reader = self.make(kind, path, "--bad-rows=skip", *extra)
            self.assertEqual(self.texts(reader), ["ok"])
            self.assertEqual(reader.header.provenance["skipped"], 1)
            os.unlink(self.out)

    def test_impossible_calls_are_refused(self):
        path = self.write("a.jsonl", '{"text": "b"}\n')
        for code, arguments, text in (
                (errors.MISSING, ("text", "/nonexistent/a"), "/nonexistent/a"),
                (errors.USAGE, ("chat", path), "--seq-len"),
                (errors.USAGE, ("pairs", path, "--seq-len=8"), "--fields"),
                (errors.USAGE, ("images", path), "--size"),
                (errors.USAGE, ("chat", path, "--seq-len=8", "--field=text"), "chat template"),
                (errors.USAGE, ("jsonl", path, "--frame=x"), "--frame"),
                (errors.USAGE, ("jsonl", path, "--words"), "--words"),
                (errors.INVALID, ("text", self.write("b.gz", gzip.compress(b"a" * 99)[:-9])),
                 "b.gz"),
                (errors.INVALID, ("csv", self.write("c.csv", "")), "c.csv is empty")):
            self.assertIn(text, self.refusal(code, *arguments))
            self.assertEqual([p for p in os.listdir(self.folder) if "epsd" in p], [])

    def test_no_documents_make_no_file(self):
        for arguments in (("text", self.write("a.txt", "")),
                          ("text", self.write("b.txt", "\n\n"), "--documents=line"),
                          ("jsonl", self.write("c.jsonl", "\n"))):
            self.assertIn("no documents", self.refusal(errors.INVALID, *arguments))
            self.assertEqual([p for p in os.listdir(self.folder) if "epsd" in p], [])

    def test_an_existing_file_is_kept(self):
        path = self.write("a.txt", "text")
        pathlib.Path(self.out).write_text("mine")
        with self.assertRaises(errors.DataError) as caught:
            command.run(["make", "text", path, "--tokenizer=bytes", f"--out={self.out}"])
        self.assertIn("--overwrite", str(caught.exception))
        self.assertEqual(pathlib.Path(self.out).read_text(), "mine")

    def test_the_processes_do_not_change_a_bit(self):
        rows = [json.dumps({"text": f"text {i} " * (i % 20 + 1)}) for i in range(6000)]
        rows[700] = "no JSON"
        path = self.write("a.jsonl", "\n".join(rows))
        for extra in ((), ("--seq-len=96",), ("--seq-len=96", "--no-pack")):
            sums = set()
            for processes in (1, 4):
                self.make("jsonl", path, "--bad-rows=skip", f"--processes={processes}", *extra)
                sums.add(hashlib.sha256(pathlib.Path(self.out).read_bytes()).hexdigest())
            self.assertEqual(len(sums), 1, extra)

    def test_a_process_that_ends_is_noticed(self):
        path = self.write("a.txt", "\n".join(map(str, range(2000))))
        code = ("import os, sys; sys.path.insert(0, %r)\n"
                "from eps_models.data import __main__ as command, recipes\n"
                "recipes.Texts.documents = lambda self, block: os._exit(9)\n"
                "sys.argv[1:] = ['make', 'text', %r, '--documents=line', '--tokenizer=bytes', "
                "'--processes=2', '--out=%s']\n"
                "sys.exit(command.main())\n" % (str(ROOT / "python"), path, self.out))
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(done.returncode, errors.DOES_NOT_FIT)
        self.assertIn(b"--processes", done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.txt"])

    def test_rows_hold_whole_documents_in_the_best_place(self):
        path = self.write("a.txt", "\n".join(["a" * 6, "b" * 7, "c" * 3, "d" * 4, "e" * 2]))
        reader = self.make("text", path, "--documents=line", "--seq-len=10")
        self.assertEqual(self.texts(reader), ["b" * 7 + "\n" + "c" * 3, "a" * 6 + "\n" + "d" * 4,
                                              "ee"])
        self.assertEqual(reader.row(0).starts, b"\1\0\0\0\0\0\0\1\0\0")
        reader = self.make("text", path, "--documents=line", "--seq-len=10", "--no-pack")
        self.assertEqual([len(text) for text in self.texts(reader)], [6, 7, 3, 4, 2])
        self.assertIsNone(reader.header.find("document_starts"))

    def test_a_document_longer_than_a_row_is_cut(self):
        path = self.write("a.txt", "abcdefghijk" + "\n" + "xyz")
        for extra in ((), ("--no-pack",)):
            reader = self.make("text", path, "--documents=line", "--seq-len=5", *extra)
            self.assertEqual(sorted(self.texts(reader)), ["abcde", "fghij", "xyz"])
        reader = self.make("text", path, "--documents=line", "--seq-len=4")
        self.assertEqual(self.texts(reader), ["abcd", "efgh", "ijk", "xyz"])

    def test_packing_wastes_little(self):
        packer = packing.Packer(512)
        rows = []
        for i in range(20_000):
            length = 2 + i * 7919 % 400
            rows += packer.add(epsd.Document(epsd.array.array("I", [1]) * length))
        rows += packer.finish()
        tokens = sum(len(row.tokens) for row in rows)
        self.assertLess(1 - tokens / (512 * len(rows)), 0.03)

    def test_pairs_have_labels(self):
        path = self.write("a.csv", "s,t,y\nab,c,1\nde,f,0\n")
        reader = self.make("pairs", path, "--fields=s,t", "--label=y", "--seq-len=8")
        self.assertEqual([reader.row(i).label for i in range(2)], [1, 0])
        self.assertEqual(self.texts(reader)[0], "ab\nc\nlabel: 1")
        reader = self.make("pairs", path, "--fields=s", "--label=y", "--seq-len=8",
                           "--label-type=number")
        self.assertEqual(reader.header.find("labels").dtype, "f32")
        named = self.write("b.jsonl", '{"s": "a", "y": "pos"}\n{"s": "b", "y": "neg"}\n')
        reader = self.make("pairs", named, "--fields=s", "--label=y", "--classes=neg,pos",
                           "--seq-len=4")
        self.assertEqual([reader.row(i).label for i in range(2)], [1, 0])
        for extra, text in ((("--classes=a,b",), "--classes has a, b"), ((), "--label-type")):
            self.assertIn(text, self.refusal(errors.INVALID, "pairs", named, "--fields=s",
                                             "--label=y", "--seq-len=4", *extra))
        self.assertIn("--truncate", self.refusal(errors.INVALID, "pairs", path, "--fields=s,t",
                                                 "--seq-len=3"))
        reader = self.make("pairs", path, "--fields=s,t", "--seq-len=3", "--truncate")
        self.assertEqual(self.texts(reader), ["ab\n", "de\n"])

    def test_a_split_goes_by_documents(self):
        texts = [f"text {i % 400}" for i in range(500)]
        path = self.write("a.txt", "\n".join(texts))
        for extra in ((), ("--seq-len=64",), ("--seq-len=64", "--no-pack")):
            self.make("text", path, "--documents=line", *extra)
            names = split.split(self.out, 0.2, overwrite=True)
            parts = [[line for text in self.texts(check.verify(name))
                      for line in text.split("\n")] for name in names]
            self.assertEqual(sorted(parts[0] + parts[1]), sorted(texts))
            self.assertEqual(set(parts[0]) & set(parts[1]), set(), "one document on both sides")
            self.assertLess(abs(len(parts[1]) / 500 - 0.2), 0.1)
        self.assertEqual([os.path.basename(name) for name in names],
                         ["out.train.epsd", "out.eval.epsd"])

    def test_a_split_leaves_no_empty_file(self):
        self.make("text", self.write("a.txt", "one document"))
        for fraction, code in ((0.5, errors.INVALID), (0.0, errors.USAGE), (1.5, errors.USAGE)):
            with self.assertRaises(errors.DataError) as caught:
                split.split(self.out, fraction, overwrite=False)
            self.assertEqual(caught.exception.code, code)
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.txt", "out.epsd"])

    def test_results_come_in_order(self):
        self.assertEqual(list(parallel.ordered_map(lambda x: x * x, range(50), 4)),
                         [x * x for x in range(50)])

    def test_the_program_prints_errors_with_their_codes(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        path = self.write("a.txt", "some text")
        def run(*arguments):
            return subprocess.run([sys.executable, "-m", "eps_models.data", *arguments],
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=60, check=False)
        for code, arguments in ((0, ("--help",)), (64, ("make", "text")),
                                (66, ("show", "/nonexistent")),
                                (65, ("verify", path)),
                                (0, ("make", "text", path, "--tokenizer=bytes", "--out",
                                     self.out)),
                                (0, ("verify", self.out)), (64, ("show", self.out, "--sample=1"))):
            done = run(*arguments)
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(run("show", self.out).stdout, b"some text\n")


if __name__ == "__main__":
    source_tree.main()
