"""Writes the corpus of base/files/safetensors_corpus_test.cc as safetensors_corpus.tar.

Names say what a reader has to do: good_* is read in full, bad_* is refused. Members end in
.safetensors or .json (an index of shards). Plain Python; the same bytes every time.
"""

import io
import json
import pathlib
import struct
import tarfile

ARCHIVE = pathlib.Path(__file__).resolve().parent / "safetensors_corpus.tar"


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def padded(header):
    text = json.dumps(header).encode()
    return text + b" " * (-len(text) % 8)


def floats(*values):
    return struct.pack("<%df" % len(values), *values)


F32 = tensor("F32", [2], 0, 8)
EIGHT = bytes(range(8))
MIXED = {
    "__metadata__": {"format": "pt"},
    "transformer.wte.weight": tensor("F32", [2, 2], 0, 16),
    "transformer.h.0.ln_1.weight": tensor("BF16", [4], 16, 24),
    "transformer.h.0.ln_1.bias": tensor("F16", [4], 24, 32),
    "transformer.h.0.attn.bias": tensor("BOOL", [1, 1, 2, 2], 32, 36),
    "scalar": tensor("I32", [], 36, 40),
    "none": tensor("F64", [0, 7], 40, 40),
}
# Zeros, ones, the largest and the smallest values, infinities and NaNs of the 16-bit floats.
BF16S = struct.pack("<4H", 0x3f80, 0x8000, 0x7f80, 0x7fc1)
F16S = struct.pack("<4H", 0x0001, 0x03ff, 0xfc00, 0x7e01)

GOOD = {
    "empty.safetensors": file_of({}),
    "only_metadata.safetensors": file_of({"__metadata__": {"format": "pt", "": "\u00e9 \u6f22"}}),
    "one.safetensors": file_of({"t": F32}, EIGHT),
    "padded.safetensors": file_of(padded({"t": F32}), EIGHT),
    "mixed.safetensors": file_of(padded(MIXED), floats(1, -2, 3.5, 1e-40) + BF16S + F16S +
                                 b"\1\0\1\1" + struct.pack("<i", -7)),
    "any_order.safetensors": file_of({"b": tensor("U8", [4], 4, 8), "a": tensor("I16", [2], 0, 4)},
                                     EIGHT),
    "escaped_name.safetensors": file_of(b'{"\\u0074\\n\\"":{"dtype":"F32","shape":[2],'
                                        b'"data_offsets":[0,8]}}', EIGHT),
    "every_dtype.safetensors": file_of(
        {name: tensor(name, [8 // size], 8 * i, 8 * i + 8)
         for i, (name, size) in enumerate([
             ("BOOL", 1), ("U8", 1), ("I8", 1), ("F8_E5M2", 1), ("F8_E4M3", 1), ("I16", 2),
             ("U16", 2), ("F16", 2), ("BF16", 2), ("I32", 4), ("U32", 4), ("F32", 4), ("F64", 8),
             ("I64", 8), ("U64", 8)])}, EIGHT * 15),
    "many.safetensors": file_of({"t.%d" % i: tensor("U8", [1], i, i + 1) for i in range(64)},
                                bytes(64)),
    "index.json": json.dumps({
        "metadata": {"total_size": 24, "list": [1, [2.5, None], {"deep": True}]},
        "weight_map": {"a": "model-00001-of-00002.safetensors",
                       "b": "model-00002-of-00002.safetensors"}}).encode(),
    "index_without_metadata.json": b'{"weight_map":{"a":"x.safetensors"}}',
}

BAD = {
    "no_bytes.safetensors": b"",
    "seven_bytes.safetensors": b"\2\0\0\0\0\0\0",
    "length_max.safetensors": b"\xff" * 8 + b"{}",
    "length_sign.safetensors": file_of({"t": F32}, EIGHT, length=1 << 63),
    "length_beyond.safetensors": file_of({"t": F32}, EIGHT, length=1 << 20),
    "length_limit.safetensors": file_of({"t": F32}, EIGHT, length=100_000_001),
    "length_short.safetensors": file_of({"t": F32}, EIGHT, length=10),
    "length_zero.safetensors": file_of(b""),
    "no_json.safetensors": file_of(b"hello"),
    "list.safetensors": file_of([1, 2]),
    "number.safetensors": file_of(b"1"),
    "deep_lists.safetensors": file_of(b"[" * 4000),
    "deep_objects.safetensors": file_of(b'{"a":' * 1000 + b"1" + b"}" * 1000),
    "deep_shape.safetensors": file_of(b'{"t":{"shape":' + b"[" * 2000),
    "name_twice.safetensors": file_of(b'{"t":%s,"t":%s}' % ((json.dumps(F32).encode(),) * 2),
                                      EIGHT),
    "field_twice.safetensors": file_of(b'{"t":{"dtype":"F32","dtype":"U8"}}'),
    "metadata_twice.safetensors": file_of(b'{"__metadata__":{},"__metadata__":{}}'),
    "metadata_number.safetensors": file_of({"__metadata__": {"a": 1}}),
    "metadata_deep.safetensors": file_of({"__metadata__": {"a": {"b": "c"}}}),
    "unknown_field.safetensors": file_of({"t": dict(F32, stride=[1])}, EIGHT),
    "no_dtype.safetensors": file_of({"t": {"shape": [2], "data_offsets": [0, 8]}}, EIGHT),
    "dtype.safetensors": file_of({"t": tensor("F33", [2], 0, 8)}, EIGHT),
    "dtype_case.safetensors": file_of({"t": tensor("f32", [2], 0, 8)}, EIGHT),
    "shape_bytes.safetensors": file_of({"t": tensor("F32", [3], 0, 8)}, EIGHT),
    "shape_overflow.safetensors": file_of({"t": tensor("F32", [1 << 62], 0, 0)}),
    "shape_product.safetensors": file_of({"t": tensor("U8", [1 << 32, (1 << 32) + 1], 0, 8)},
                                         EIGHT),
    "shape_negative.safetensors": file_of({"t": tensor("F32", [-2], 0, 8)}, EIGHT),
    "shape_float.safetensors": file_of({"t": tensor("F32", [2.0], 0, 8)}, EIGHT),
    "shape_beyond_64_bits.safetensors": file_of({"t": tensor("F32", [1 << 64], 0, 8)}, EIGHT),
    "rank.safetensors": file_of({"t": tensor("U8", [1] * 9, 0, 1)}, b"\0"),
    "rank_bomb.safetensors": file_of({"t": tensor("U8", [1] * 5000, 0, 1)}, b"\0"),
    "offsets_backwards.safetensors": file_of({"t": tensor("F32", [2], 8, 0)}, EIGHT),
    "offsets_beyond.safetensors": file_of({"t": tensor("F32", [4], 0, 16)}, EIGHT),
    "offsets_max.safetensors": file_of(
        {"t": tensor("U8", [2], (1 << 64) - 2, (1 << 64) - 1)}, EIGHT),
    "overlap.safetensors": file_of({"a": F32, "b": tensor("F32", [2], 4, 12)}, bytes(12)),
    "same_bytes.safetensors": file_of({"a": F32, "b": F32}, EIGHT),
    "empty_inside.safetensors": file_of({"a": F32, "b": tensor("F32", [0], 4, 4)}, EIGHT),
    "hole_before.safetensors": file_of({"t": tensor("F32", [1], 4, 8)}, EIGHT),
    "hole_between.safetensors": file_of(
        {"a": tensor("U8", [1], 0, 1), "b": tensor("U8", [1], 2, 3)}, bytes(3)),
    "hole_behind.safetensors": file_of({"t": F32}, EIGHT + b"\0"),
    "broken_utf8.safetensors": file_of(b'{"\xff\xfe":{}}'),
    "text_behind.safetensors": file_of(b"{}x"),
    "zero_byte.safetensors": file_of(b'{"t\0":{}}'),
    "long_name.safetensors": file_of({"n" * 3000: {"shape": "x"}}),
    "index_no_bytes.json": b"",
    "index_list.json": b"[]",
    "index_no_map.json": b'{"metadata":{}}',
    "index_empty_map.json": b'{"weight_map":{}}',
    "index_map_list.json": b'{"weight_map":["a"]}',
    "index_map_text.json": b'{"weight_map":"x.safetensors"}',
    "index_map_twice.json": b'{"weight_map":{"a":"x.safetensors"},"weight_map":{}}',
    "index_name_twice.json": b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}',
    "index_number.json": b'{"weight_map":{"a":1}}',
    "index_object.json": b'{"weight_map":{"a":{"b":"x.safetensors"}}}',
    "index_parent.json": b'{"weight_map":{"a":"../x.safetensors"}}',
    "index_absolute.json": b'{"weight_map":{"a":"/x.safetensors"}}',
    "index_below.json": b'{"weight_map":{"a":"b/x.safetensors"}}',
    "index_backslash.json": b'{"weight_map":{"a":"..\\\\x.safetensors"}}',
    "index_zero_byte.json": b'{"weight_map":{"a":"x\\u0000.safetensors"}}',
    "index_hidden.json": b'{"weight_map":{"a":".safetensors"}}',
    "index_other_file.json": b'{"weight_map":{"a":"passwords.txt"}}',
    "index_long_name.json": b'{"weight_map":{"a":"' + b"x" * 300 + b'.safetensors"}}',
    "index_deep.json": b'{"metadata":' + b"[" * 3000,
    "index_cut.json": b'{"weight_map":{"a":"x.safetensors"}',
}


def write_tar(path, files):
    """Writes `files` (name -> content) as one archive that depends on nothing else."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)  # time, user and group 0
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def main():
    write_tar(ARCHIVE, {f"{kind}_{name}": content for kind, files in (("good", GOOD), ("bad", BAD))
                        for name, content in files.items()})


if __name__ == "__main__":
    main()
