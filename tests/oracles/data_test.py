"""Makes data files with real tokenizers and compares them with what transformers gives.

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pyarrow
import pyarrow.parquet
import small_tokenizers
import transformers
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import source_tree  # noqa: E402
from eps_models.data import __main__ as command, check, errors, show  # noqa: E402

TEXTS = ["this license is free", "the program is distributed in the hope that it is useful",
         "you may copy it and change it", "without any warranty"]
CHATS = [[{"role": "system", "content": "be short"}, {"role": "user", "content": "what is free?"},
          {"role": "assistant", "content": "the program"}, {"role": "user", "content": "why?"},
          {"role": "assistant", "content": "the license says so"}],
         [{"role": "user", "content": "who may copy it?"},
          {"role": "assistant", "content": "you"}]]


class DataTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.tokenizers = {"bpe": small_tokenizers.bpe(cls.root / "bpe"),
                          "word_piece": small_tokenizers.word_piece(cls.root / "word_piece"),
                          "unigram": small_tokenizers.unigram(cls.root / "unigram")}
        for name in ("marks", "plain", "rewriting"):
            template = {"marks": small_tokenizers.CHAT_WITH_MARKS,
                        "plain": small_tokenizers.CHAT_PLAIN,
                        "rewriting": small_tokenizers.CHAT_REWRITING}[name]
            cls.tokenizers[name] = small_tokenizers.bpe(cls.root / name, template)

    def path(self, name):
        return str(self.root / name)

    def make(self, kind, path, tokenizer, *arguments):
        out = self.path("out.epsd")
        with contextlib.redirect_stdout(io.StringIO()):
            command.run(["make", kind, path, f"--tokenizer={self.tokenizers.get(tokenizer, '')}",
                         f"--out={out}", "--overwrite", "--processes=1", *arguments])
        return check.verify(out)

    def refusal(self, code, *arguments):
        with self.assertRaises(errors.DataError) as caught:
            self.make(*arguments)
        self.assertEqual(caught.exception.code, code, caught.exception)
        return str(caught.exception)

    def reference(self, tokenizer):
        return transformers.AutoTokenizer.from_pretrained(self.tokenizers[tokenizer])

    def write_lines(self, name, rows):
        path = self.path(name)
        pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def write_all(self, texts):
        """Writes the texts in every format; returns (kind, path, further arguments)."""
        rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
        pathlib.Path(self.path("a.txt")).write_text("\n".join(texts) + "\n")
        with open(self.path("a.csv"), "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["id", "text"])
            table.writeheader()
            table.writerows(rows)
        columns = pyarrow.table({"id": list(range(len(texts))), "text": texts})
        pyarrow.parquet.write_table(columns, self.path("a.parquet"))
        for name, opener in (("file.arrow", pyarrow.ipc.new_file),
                             ("stream.arrow", pyarrow.ipc.new_stream)):
            with opener(self.path(name), columns.schema) as writer:
                writer.write_table(columns)
        return [("text", self.path("a.txt"), ["--documents=line"]),
                ("jsonl", self.write_lines("a.jsonl", rows), []),
                ("csv", self.path("a.csv"), []), ("parquet", self.path("a.parquet"), []),
                ("parquet", self.path("file.arrow"), []),
                ("parquet", self.path("stream.arrow"), [])]

    def test_every_format_gives_the_ids_of_transformers(self):
        for tokenizer in ("bpe", "word_piece", "unigram"):
            reference = self.reference(tokenizer)
            end = reference.eos_token_id
            ends = {"word_piece": [], "unigram": [end], "bpe": [end]}[tokenizer]
            expected = [reference.encode(text) + ends for text in TEXTS]
            for kind, path, extra in self.write_all(TEXTS):
                reader = self.make(kind, path, tokenizer, *extra)
                found = [list(reader.document(i).tokens) for i in range(len(TEXTS))]
                self.assertEqual(found, expected, (tokenizer, path))
                self.assertEqual(reader.header.vocab_size, len(reference))
                shown = [show.sample_text(reader, i, show.vocabulary_of(reader, ""), False)
                         for i in range(len(TEXTS))]
                framed = {"word_piece": "[CLS] %s [SEP]", "unigram": "%s</s>",
                          "bpe": "%s" + small_tokenizers.END}[tokenizer]
                self.assertEqual(shown, [framed % text for text in TEXTS], (tokenizer, path))
                reader = self.make(kind, path, tokenizer, "--frame=none", *extra)
                self.assertEqual(list(reader.document(0).tokens),
                                 reference.encode(TEXTS[0], add_special_tokens=False))

    def test_rows_hold_the_same_documents(self):
        path = self.write_lines("a.jsonl", [{"text": text} for text in TEXTS])
        reader = self.make("jsonl", path, "bpe", "--seq-len=64")
        shown = [show.sample_text(reader, i, show.vocabulary_of(reader, ""), False)
                 for i in range(reader.header.samples)]
        self.assertEqual(sorted("\n".join(shown).split("\n")),
                         sorted(text + small_tokenizers.END for text in TEXTS))

    def test_the_processes_do_not_change_a_bit(self):
        path = self.write_lines("many.jsonl", [{"text": TEXTS[i % 4] * (i % 9 + 1)}
                                               for i in range(3000)])
        sums = set()
        for processes in (1, 4):
            self.make("jsonl", path, "bpe", "--seq-len=64", f"--processes={processes}")
            sums.add(hashlib.sha256(pathlib.Path(self.path("out.epsd")).read_bytes()).hexdigest())
        self.assertEqual(len(sums), 1)

    def test_only_the_assistant_is_learned(self):
        path = self.write_lines("chats.jsonl", [{"messages": chat} for chat in CHATS])
        for tokenizer in ("marks", "plain"):
            reader = self.make("chat", path, tokenizer, "--seq-len=128", "--no-pack")
            shown = show.sample_text(reader, 0, show.vocabulary_of(reader, ""), False)
            self.assertEqual(shown, "[-<|system|>be short<|end|><|user|>what is free?<|end|>"
                                    "<|assistant|>-]the program<|end|>[-<|user|>why?<|end|>"
                                    "<|assistant|>-]the license says so<|end|>")
            self.assertIn("\x1b[90m<|system|>", show.sample_text(
                reader, 0, show.vocabulary_of(reader, ""), True))

    def test_masks_equal_those_of_transformers(self):
        path = self.write_lines("chats.jsonl", [{"messages": chat} for chat in CHATS])
        reference = self.reference("marks")
        for tokenizer in ("marks", "plain"):
            reader = self.make("chat", path, tokenizer, "--seq-len=128", "--no-pack")
            for i, chat in enumerate(CHATS):
                expected = reference.apply_chat_template(chat, return_dict=True,
                                                         return_assistant_tokens_mask=True)
                self.assertEqual(list(reader.row(i).tokens), expected["input_ids"])
                self.assertEqual(list(reader.row(i).mask), expected["assistant_masks"])

    def test_packed_chats_keep_their_masks(self):
        path = self.write_lines("chats.jsonl", [{"messages": chat} for chat in CHATS])
        apart = self.make("chat", path, "plain", "--seq-len=128", "--no-pack")
        rows = [apart.row(i) for i in range(2)]
        packed = self.make("chat", path, "plain", "--seq-len=128").row(0)
        self.assertEqual(packed.tokens, rows[0].tokens + rows[1].tokens)
        self.assertEqual(packed.mask, rows[0].mask + rows[1].mask)
        self.assertEqual([i for i, start in enumerate(packed.starts) if start],
                         [0, len(rows[0].tokens)])

    def test_a_template_that_rewrites_is_refused(self):
        path = self.write_lines("chats.jsonl", [{"messages": CHATS[1]}, {"messages": CHATS[0]}])
        text = self.refusal(errors.INVALID, "chat", path, "rewriting", "--seq-len=128")
        self.assertIn("chats.jsonl:2", text)
        self.assertIn("message 2", text)
        self.assertIn("{% generation %}", text)
        template = self.path("template.jinja")
        pathlib.Path(template).write_text(small_tokenizers.CHAT_WITH_MARKS)
        reader = self.make("chat", path, "rewriting", "--seq-len=128",
                           f"--chat-template={template}")
        self.assertEqual(reader.header.samples, 1)

    def test_bad_chats_name_their_line(self):
        good = {"messages": CHATS[1]}
        for bad, reason in (({"messages": CHATS[0][:2]}, "role assistant"), ({"text": "a"}, "text"),
                            ({"messages": "hi"}, "list"), ({"messages": [{"a": 1}]}, "message 0"),
                            ({"messages": CHATS[0] * 20}, "--truncate"),
                            ({"messages": [{"role": "user", "content": "word " * 200},
                                           CHATS[0][2]]}, "--truncate")):
            path = self.write_lines("bad.jsonl", [good, bad])
            text = self.refusal(errors.INVALID, "chat", path, "plain", "--seq-len=64")
            self.assertIn("bad.jsonl:2", text)
            self.assertIn(reason, text)
            reader = self.make("chat", path, "plain", "--seq-len=64", "--bad-rows=skip")
            self.assertEqual(reader.header.provenance["documents"], 1)
        text = self.refusal(errors.INVALID, "chat", path, "plain", "--seq-len=64", "--truncate")
        self.assertIn("among the first 64", text)

    def test_pairs_are_framed_as_transformers_frames_them(self):
        rows = [{"a": TEXTS[0], "b": TEXTS[1], "y": 1}, {"a": TEXTS[2], "b": TEXTS[3], "y": 0}]
        path = self.write_lines("pairs.jsonl", rows)
        reference = self.reference("word_piece")
        table = self.path("pairs.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
        for source in (path, table):
            reader = self.make("pairs", source, "word_piece", "--fields=a,b", "--label=y",
                               "--seq-len=48")
            for i, row in enumerate(rows):
                expected = reference(row["a"], row["b"], return_token_type_ids=True)
                found = reader.row(i)
                self.assertEqual(list(found.tokens), expected["input_ids"])
                self.assertEqual(list(found.types), expected["token_type_ids"])
                self.assertEqual(found.label, row["y"])
            masking = reader.header.masking
            self.assertEqual(masking.mask_token, reference.mask_token_id)
            self.assertEqual(masking.special_tokens, tuple(sorted(reference.all_special_ids)))
        cut = self.make("pairs", path, "word_piece", "--fields=a,b", "--seq-len=12", "--truncate")
        self.assertEqual(list(cut.row(0).tokens),
                         reference(TEXTS[0], TEXTS[1], truncation=True, max_length=12)["input_ids"])

    def test_images_are_resized_as_pillow_does(self):
        for label, colour in (("cats", (200, 10, 20)), ("dogs", (0, 100, 250))):
            folder = self.root / "images" / label
            folder.mkdir(parents=True, exist_ok=True)
            picture = Image.new("RGB", (6, 4), colour)
            picture.putpixel((0, 0), (1, 2, 3))
            picture.save(folder / "a.png")
        processor = self.root / "processor"
        processor.mkdir(exist_ok=True)
        (processor / "preprocessor_config.json").write_text(
            json.dumps({"image_mean": [0.5, 0.25, 0.125], "image_std": [1, 2, 3]}))
        reader = self.make("images", self.path("images"), "", "--size=2x3",
                           f"--processor={processor}")
        self.assertEqual([reader.row(i).label for i in range(2)], [0, 1])
        with Image.open(self.root / "images" / "dogs" / "a.png") as picture:
            small = picture.resize((3, 2), resample=Image.Resampling.BILINEAR)
        expected = [small.getpixel((x, y))[c] for c in range(3) for y in range(2) for x in range(3)]
        self.assertEqual(list(reader.row(1).pixels), expected)
        self.assertEqual((reader.header.image.mean, reader.header.image.std),
                         ((0.5, 0.25, 0.125), (1.0, 2.0, 3.0)))
        (self.root / "images" / "cats" / "b.png").write_bytes(b"no picture")
        self.assertIn("b.png", self.refusal(errors.INVALID, "images", self.path("images"), "",
                                            "--size=2x3"))

    def test_ids_above_uint16_are_u32(self):
        folder = self.path("wide")
        reference = self.reference("bpe")
        added = [f"<|{i}|>" for i in range(65_537 - len(reference))]
        for count in (len(added) - 1, len(added)):
            wide = self.reference("bpe")
            wide.add_tokens(added[:count], special_tokens=True)
            wide.save_pretrained(folder)
            self.tokenizers["wide"] = folder
            path = self.write_lines("wide.jsonl", [{"text": added[count - 1]}])
            reader = self.make("jsonl", path, "wide", "--frame=none")
            self.assertEqual(list(reader.document(0).tokens), [len(reference) + count - 1])
            self.assertEqual(reader.header.find("tokens").dtype,
                             "u16" if count < len(added) else "u32")
        self.assertEqual(list(reader.document(0).tokens), [65_536])

    def test_the_digest_is_that_of_sha256sum(self):
        content = (self.root / "bpe" / "tokenizer.json").read_bytes()
        line = f"{hashlib.sha256(content).hexdigest()}  tokenizer.json\n"
        expected = hashlib.sha256(line.encode()).hexdigest()
        path = self.write_lines("a.jsonl", [{"text": "a"}])
        self.assertEqual(self.make("jsonl", path, "bpe").header.tokenizer, expected)
        reader = self.make("jsonl", path, "word_piece")
        with self.assertRaises(errors.DataError) as caught:
            show.vocabulary_of(reader, self.tokenizers["bpe"])
        self.assertIn(expected, str(caught.exception))
        self.assertIn(reader.header.tokenizer, str(caught.exception))

    def test_folders_that_are_no_tokenizer_are_refused(self):
        path = self.write_lines("a.jsonl", [{"text": "a"}])
        empty = self.root / "empty"
        empty.mkdir(exist_ok=True)
        broken = self.root / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "tokenizer.json").write_text("{")
        for name, code, text in (("empty", errors.INVALID, "empty"),
                                 ("broken", errors.INVALID, "broken"),
                                 ("nowhere", errors.MISSING, "hf download")):
            self.tokenizers[name] = self.path(name)
            self.assertIn(text, self.refusal(code, "jsonl", path, name))

    def test_the_tokens_program_answers_as_transformers(self):
        reference = self.reference("plain")
        word_piece = self.reference("word_piece")
        requests = [({"encode": TEXTS[0]}, "ids", reference.encode(TEXTS[0])),
                    ({"decode": reference.encode(TEXTS[1])}, "text", TEXTS[1]),
                    ({"chat": CHATS[1][:1]}, "ids", reference.apply_chat_template(
                        CHATS[1][:1], add_generation_prompt=True)["input_ids"]),
                    ({"chat": "no list"}, "error", None), ({"other": 1}, "error", None)]
        lines = "".join(json.dumps(request) + "\n" for request, _, _ in requests)
        answers = self.tokens_program("plain", lines)
        self.assertEqual(answers[0], {"ready": len(reference)})
        for (request, key, expected), answer in zip(requests, answers[1:], strict=True):
            self.assertEqual(list(answer), [key], request)
            if expected is not None:
                self.assertEqual(answer[key], expected, request)
        framed = self.tokens_program("word_piece", json.dumps({"encode": TEXTS[0]}))
        self.assertEqual(framed[1]["ids"], word_piece.encode(TEXTS[0]))

    def tokens_program(self, tokenizer, lines):
        done = subprocess.run([sys.executable, "-m", "eps_models.tokens",
                               self.tokenizers[tokenizer]], input=lines, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
                              stdout=subprocess.PIPE, timeout=600, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    source_tree.main()
