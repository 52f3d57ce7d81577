"""Tests of the format: what is written is read again, and damage is refused with its place."""

import array
import hashlib
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import source_tree  # noqa: E402
from eps_models.data import check, epsd, errors, layout  # noqa: E402

# The C++ reader's test reads the same files (worker/data/testdata/README.md).
GOLDEN = ROOT / "worker" / "data" / "testdata"
PROVENANCE = {"made_by": "a test"}


def write_stream(path, documents, vocab_size, tokenizer="", masking=None):
    dtypes = {"tokens": layout.token_dtype(vocab_size), "document_ends": "u64"}
    with epsd.Writer(path, "stream", dtypes) as writer:
        end = 0
        for document in documents:
            writer.append("tokens", document)
            end += len(document)
            writer.append("document_ends", [end])
        return writer.finish(samples=len(documents), seq_len=0, vocab_size=vocab_size,
                             tokenizer=tokenizer, provenance=PROVENANCE, masking=masking)


def write_rows(path, rows, seq_len, vocab_size, dtypes, image=None):
    columns = {name: dtypes[name] for name in layout.COLUMNS["rows"] if name in dtypes}
    with epsd.Writer(path, "rows", columns) as writer:
        writer_of_rows = epsd.RowWriter(writer, columns, seq_len)
        for row in rows:
            writer_of_rows.add(row)
        return writer.finish(samples=len(rows), seq_len=seq_len, vocab_size=vocab_size,
                             tokenizer="", provenance=PROVENANCE, image=image)


def golden_files(folder):
    """Writes the golden files."""
    write_stream(f"{folder}/stream_u16.epsd", [[1, 2, 65_535], [7]], 65_536, "ab" * 32)
    write_stream(f"{folder}/stream_u32.epsd", [[1, 65_535, 65_536, 100_000], [5, 6]], 128_256)
    write_stream(f"{folder}/masking.epsd", [[3, 4, 5]], 256, masking=layout.Masking(4, (0, 2, 4)))
    rows = [epsd.Row(array.array("I", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), b"\0\0\1\1\0\0\1\0\1\1",
                     b"\1\0\0\0\0\1\0\0\0\0", bytes([0, 0, 1, 1, 1, 0, 0, 0, 1, 1]), 3),
            epsd.Row(array.array("I", [11, 12, 13]), b"\0\1\0", b"\1\0\0", bytes(3), -1)]
    write_rows(f"{folder}/rows.epsd", rows, 10, 300,
               {"tokens": "u16", "loss_mask": "bit", "document_starts": "bit", "lengths": "u32",
                "token_types": "u8", "labels": "i32"})
    images = [epsd.Row(array.array("I"), None, b"", None, label, bytes(range(label, label + 12)))
              for label in (0, 1, 2)]
    write_rows(f"{folder}/images.epsd", images, 0, 0, {"labels": "f32", "pixels": "u8"},
               layout.Image(3, 2, 2, (0.0, 0.5, 0.25), (1.0, 0.5, 2.0)))


class EpsdTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = f"{self.folder}/a.epsd"

    def refusal(self, function, *arguments):
        with self.assertRaises(errors.DataError) as caught:
            function(*arguments)
        self.assertEqual(caught.exception.code, errors.INVALID)
        return str(caught.exception)

    def test_a_stream_gives_its_documents_again(self):
        documents = [[5], [6, 7, 8], [255] * 5000]
        write_stream(self.path, documents, 256)
        reader = check.verify(self.path)
        self.assertEqual([list(reader.document(i).tokens) for i in range(3)], documents)
        self.assertEqual(reader.header.samples, 3)

    def test_ids_choose_the_narrowest_type(self):
        for vocab_size, dtype in ((65_536, "u16"), (65_537, "u32")):
            write_stream(self.path, [[vocab_size - 1, 0]], vocab_size)
            reader = check.verify(self.path)
            self.assertEqual(reader.header.find("tokens").dtype, dtype)
            self.assertEqual(list(reader.document(0).tokens), [vocab_size - 1, 0])

    def test_rows_give_every_column_again(self):
        golden_files(self.folder)
        reader = check.verify(f"{self.folder}/rows.epsd")
        row = reader.row(0)
        self.assertEqual(list(row.tokens), list(range(1, 11)))
        self.assertEqual(row.mask, b"\0\0\1\1\0\0\1\0\1\1")
        self.assertEqual(row.starts, b"\1\0\0\0\0\1\0\0\0\0")
        self.assertEqual(row.types, bytes([0, 0, 1, 1, 1, 0, 0, 0, 1, 1]))
        self.assertEqual(row.label, 3)
        self.assertEqual((list(reader.row(1).tokens), reader.row(1).label), ([11, 12, 13], -1))
        reader = check.verify(f"{self.folder}/images.epsd")
        self.assertEqual((reader.row(2).pixels, reader.row(2).label), (bytes(range(2, 14)), 2.0))

    def test_wrong_masking_is_refused(self):
        write_stream(self.path, [[3, 4, 5]], 256, masking=layout.Masking(255, (0, 255)))
        self.assertEqual(epsd.Reader(self.path).header.masking, layout.Masking(255, (0, 255)))
        for token, special in ((256, ()), (1, (256,)), (1, (3, 2)), (1, (2, 2)),
                               (1, tuple(range(257)))):
            write_stream(self.path, [[3, 4, 5]], 256, masking=layout.Masking(token, special))
            self.refusal(epsd.Reader, self.path)

    def test_bits_begin_at_the_lowest(self):
        self.assertEqual(epsd.bits(b"\1\0\0\0\0\0\0\0\0\1"), b"\x01\x02")
        self.assertEqual(epsd.flags_of(b"\x01\x02", 10), b"\1\0\0\0\0\0\0\0\0\1")

    def test_the_golden_files_are_what_is_written(self):
        golden_files(self.folder)
        for path in sorted(pathlib.Path(self.folder).glob("*.epsd")):
            self.assertEqual(path.read_bytes(), (GOLDEN / path.name).read_bytes(), path.name)

    def test_every_flipped_bit_of_a_header_is_found(self):
        write_stream(self.path, [[1, 2], [3]], 256)
        whole = pathlib.Path(self.path).read_bytes()
        for at in range(layout.HEADER_BYTES):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            with self.assertRaises(errors.DataError) as caught:
                layout.parse(bytes(damaged), "a.epsd", len(whole))
            self.assertIn("a.epsd: header: ", str(caught.exception))

    def test_every_flipped_bit_after_the_header_is_found(self):
        golden_files(self.folder)
        path = pathlib.Path(f"{self.folder}/rows.epsd")
        whole = path.read_bytes()
        columns = layout.parse(whole, "", len(whole)).columns
        for at in range(layout.HEADER_BYTES, len(whole), 97):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            text = self.refusal(check.verify, str(path))
            inside = [c for c in columns if c.offset <= at < c.end()]
            expected = f"column {inside[0].name} (bytes {inside[0].offset}" if inside else "not 0"
            self.assertIn(expected, text)

    def test_other_sizes_are_refused(self):
        write_stream(self.path, [[1, 2, 3]], 256)
        path = pathlib.Path(self.path)
        whole = path.read_bytes()
        for size in (0, 100, 4095, 4096, len(whole) - 1, len(whole) + 1):
            path.write_bytes((whole + b"\0")[:size])
            self.assertIn(self.path, self.refusal(epsd.Reader, self.path))

    def test_rules_of_the_header_are_checked(self):
        def header(**changes):
            columns = (layout.Column("tokens", "u16", 4096, 4, "0" * 64),
                       layout.Column("document_ends", "u64", 8192, 8, "0" * 64))
            fields = dict(kind="stream", samples=1, seq_len=0, vocab_size=256, tokenizer="",
                          provenance={}, columns=columns)
            return layout.Header(**{**fields, **changes})
        def changed(place, **changes):
            columns = list(header().columns)
            columns[place] = layout.Column(**{**vars(columns[place]), **changes})
            return header(columns=tuple(columns))
        layout.parse(layout.to_bytes(header()), "a", 8200)
        for wrong, text in (
                (header(kind="heap"), "heap"), (header(samples=0), "samples is 0"),
                (header(samples=2), "document_ends has 8 bytes"), (header(seq_len=4), "seq_len is"),
                (header(vocab_size=0), "vocab_size is 0"), (header(vocab_size=70_000), "u32"),
                (header(tokenizer="x"), "no SHA-256"), (header(columns=()), "tokens"),
                (header(columns=header().columns[::-1]), "in this order"),
                (changed(0, dtype="u32"), "tokens are u32"), (changed(0, bytes=5), "5 bytes"),
                (changed(0, offset=8192), "its place is 4096"), (changed(1, offset=4104), "8192"),
                (changed(1, sha256="0"), "no SHA-256"),
                (changed(0, name="words"), "has the columns tokens")):
            text_of_error = self.refusal(layout.parse, layout.to_bytes(wrong), "a", 8200)
            self.assertIn(text, text_of_error)

    def test_content_that_digests_cannot_show(self):
        for documents, vocab_size, text in (([[1, 300]], 256, "token 1 has id 300"),
                                            ([[1], []], 256, "document 1 ends at token 1")):
            write_stream(self.path, documents, vocab_size)
            self.assertIn(text, self.refusal(check.verify, self.path))
        dtypes = {"tokens": "u16", "loss_mask": "bit", "lengths": "u32"}
        for row, text in ((epsd.Row(array.array("I", [1, 2]), b"\1\0", b""), "no token to learn"),
                          (epsd.Row(array.array("I", [9]), b"\1", b""), "no token to learn"),
                          (epsd.Row(array.array("I"), b"", b""), "length 0")):
            write_rows(self.path, [row], 4, 256, dtypes)
            self.assertIn(text, self.refusal(check.verify, self.path))

    def test_a_failed_writer_leaves_nothing(self):
        with self.assertRaises(ZeroDivisionError):
            with epsd.Writer(self.path, "stream", {"tokens": "u16", "document_ends": "u64"}):
                raise ZeroDivisionError
        self.assertEqual(list(pathlib.Path(self.folder).iterdir()), [])

    def test_digests_are_those_of_the_columns(self):
        header = write_stream(self.path, [[1, 2]], 256)
        whole = pathlib.Path(self.path).read_bytes()
        for column in header.columns:
            content = whole[column.offset:column.end()]
            self.assertEqual(hashlib.sha256(content).hexdigest(), column.sha256)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write-golden"]:
        golden_files(str(GOLDEN))
    else:
        source_tree.main()
