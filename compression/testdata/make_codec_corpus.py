"""Writes the corpus of compression/codec_corpus_test.cc: one archive for each codec, beside it.

Names say what a receiver has to do: good_* is read in full, bad_* is refused. Each member is an
input of compression/testing/codec_fuzz.h: six bytes that choose codec and chunk, then the encoded
chunk, written from docs/formats/codecs.md. Plain Python; the same bytes every time.
"""

import collections
import io
import pathlib
import struct
import tarfile

FOLDER = pathlib.Path(__file__).resolve().parent

COLUMN, GRADIENT = 1, 2
VECTOR_COLS = 37
TILE_ROWS, TILE_COLS = 32, 128

# name: number on the wire, bytes of an element, and values as its little-endian bytes.
FLOATS = {
    "fp32": (1, {"one": "0000803f", "largest_gradient": "ffff7f58", "two_to_50": "00008058",
                 "minus_two_to_50": "000080d8", "infinity": "0000807f", "nan": "0000c07f",
                 "signalling_nan": "010080ff", "denormal": "01000000"}),
    "bf16": (2, {"one": "803f", "largest_gradient": "7f58", "two_to_50": "8058",
                 "minus_two_to_50": "80d8", "infinity": "807f", "nan": "c07f", "denormal": "0100"}),
    "fp16": (3, {"one": "003c", "largest_gradient": "ff7b", "infinity": "007c",
                 "minus_infinity": "00fc", "nan": "007e", "signalling_nan": "01fc",
                 "denormal": "0100"}),
    "fp8_e4m3": (4, {"one": "38", "largest_gradient": "fe", "nan": "7f", "minus_nan": "ff",
                     "denormal": "01"}),
    "fp8_e5m2": (5, {"one": "3c", "largest_gradient": "fb", "infinity": "7c",
                     "minus_infinity": "fc", "nan": "7e", "signalling_nan": "fd",
                     "denormal": "01"}),
}
REFUSED_IN_GRADIENTS = ("two_to_50", "minus_two_to_50", "infinity", "minus_infinity", "nan",
                        "minus_nan", "signalling_nan")

MX = {"mx9": (8, 7), "mx6": (9, 4), "mx4": (10, 2)}  # number, magnitude bits

# number, bits of a code, the code of the largest value, codes that no gradient may hold.
OCP = {
    "mxfp8_e4m3": (16, 8, 0x7e, (0x7f, 0xff)),
    "mxfp8_e5m2": (17, 8, 0x7b, (0x7c, 0xfc, 0x7d, 0xff)),
    "mxfp6_e2m3": (18, 6, 0x1f, ()),
    "mxfp6_e3m2": (19, 6, 0x1f, ()),
    "mxfp4_e2m1": (20, 4, 0x07, ()),
    "mxint8": (21, 8, 0x7f, ()),
}

SHAPES = ((1, 1), (1, 17), (33, 17), (16, 129), (40, 140))


def tiles(rows, cols, vectors=0):
    """(rows, columns) of each tile of a chunk, in grid order."""
    for segment_rows, segment_cols in [(rows, cols)] + [(1, VECTOR_COLS)] * vectors:
        for row in range(0, segment_rows, TILE_ROWS):
            for col in range(0, segment_cols, TILE_COLS):
                yield min(TILE_ROWS, segment_rows - row), min(TILE_COLS, segment_cols - col)


def groups(codes, bits):
    """Codes of one row of a tile, in groups of 16."""
    out = b""
    for first in range(0, len(codes), 16):
        packed = sum(code << (i * bits) for i, code in enumerate(codes[first:first + 16]))
        out += packed.to_bytes(2 * bits, "little")
    return out


def block_chunk(shape, flags, block, bits, scale, code, micro=None, vectors=0):
    """`scale`: of every block but the last of its tile, and of that one, if there are two. Every
    block with the same micro byte; `code` is a function of (row, column)."""
    first, last = scale if isinstance(scale, tuple) else (scale, scale)
    out = b""
    for rows, cols in tiles(*shape, vectors):
        if flags & COLUMN:
            blocks = -(-rows // block) * cols
        else:
            blocks = rows * -(-cols // block)
        out += bytes([first]) * (blocks - 1) + bytes([last])
        if micro is not None:
            out += bytes([micro]) * blocks
        for row in range(rows):
            out += groups([code(row, col) for col in range(cols)], bits)
    return out


TOPK = 32
UNKNOWN = 255
NAMES = {**{number: name for name, (number, *_) in [*FLOATS.items(), *MX.items(), *OCP.items()]},
         TOPK: "topk", UNKNOWN: "unknown"}

ARCHIVES = collections.defaultdict(dict)  # by the name of the codec


def add(name, number, chunk, shape, flags=0, variant=0, vectors=0):
    files = ARCHIVES[NAMES[number]]
    assert name + ".bin" not in files, name
    header = bytes([number, variant, flags, shape[0] - 1, shape[1] - 1, vectors])
    files[name + ".bin"] = header + chunk


def add_lengths(codec, number, chunk, shape, flags=0, vectors=0):
    """What is too short or too long, by one byte and by all of them."""
    for name, wrong in (("short", chunk[:-1]), ("long", chunk + b"\0"), ("empty", b""),
                        ("half", chunk[:len(chunk) // 2]), ("twice", chunk * 2)):
        add("bad_%s_%s" % (codec, name), number, wrong, shape, flags, vectors=vectors)


def add_floats():
    for codec, (number, values) in FLOATS.items():
        one = bytes.fromhex(values["one"])
        add("good_%s_two_vectors" % codec, number, one * (40 * 140 + 2 * VECTOR_COLS), (40, 140),
            GRADIENT, vectors=2)
        add_lengths(codec, number, one * (33 * 17), (33, 17))
        for name, text in values.items():
            value = bytes.fromhex(text)
            chunk = one * 500 + value + one * (33 * 17 - 501)
            add("good_%s_weight_%s" % (codec, name), number, chunk, (33, 17), COLUMN)
            verdict = "bad" if name in REFUSED_IN_GRADIENTS else "good"
            add("%s_%s_gradient_%s" % (verdict, codec, name), number, chunk, (33, 17), GRADIENT)
            add("%s_%s_only_%s" % (verdict, codec, name), number, value, (1, 1), GRADIENT)


def add_mx():
    for codec, (number, magnitude) in MX.items():
        bits = magnitude + 1
        largest = 2 ** magnitude - 1

        def chunk(shape, flags, scale, micro, code):
            return block_chunk(shape, flags, 16, bits, scale, code, micro)

        for shape in SHAPES:
            for flags in (0, COLUMN):
                add("good_%s_%dx%d_%d" % (codec, *shape, flags), number,
                    chunk(shape, flags, 120, 0x55, lambda r, c: (r * 7 + c) % 2 ** bits), shape,
                    flags | GRADIENT, variant=flags)
        shape = (33, 17)
        full = chunk(shape, 0, 127, 0, lambda r, c: largest)
        add_lengths(codec, number, full, shape)
        # The other axis has another number of blocks.
        add("bad_%s_other_axis" % codec, number, full, shape, COLUMN)
        for name, scale, micro, code, verdict in (
                ("nan_scale", 255, 0, 0, "bad"),
                ("nan_scale_with_codes", 255, 255, largest, "bad"),
                ("nan_scale_of_last_block", (127, 255), 0, 0, "bad"),
                ("largest_scale_of_last_block", (127, 254), 0, largest, "bad"),
                ("largest_scale", 254, 0, largest, "bad"),
                ("largest_scale_negative", 254, 0, 2 ** bits - 1, "bad"),
                ("largest_scale_zeros", 254, 255, 0, "good"),
                # The block's largest magnitude is just below 2^(scale - 126).
                ("below_two_to_50", 176, 0, largest, "good"),
                ("above_two_to_50", 177, 0, largest, "bad"),
                ("halves_below_two_to_50", 177, 255, largest, "good"),
                ("halves_above_two_to_50", 178, 255, largest, "bad"),
                ("smallest_scale", 0, 0, largest, "good"),
                ("smallest_scale_with_micro", 0, 255, 1, "good"),
                ("minus_zeros", 0, 0, 2 ** magnitude, "good")):
            bytes_ = chunk(shape, 0, scale, micro, lambda r, c: code)
            add("%s_%s_gradient_%s" % (verdict, codec, name), number, bytes_, shape, GRADIENT)
            add("good_%s_weight_%s" % (codec, name), number, bytes_, shape)


def add_ocp():
    for codec, (number, bits, largest, refused) in OCP.items():
        def chunk(shape, flags, scale, code):
            return block_chunk(shape, flags, 32, bits, scale, code)

        for shape in SHAPES:
            for flags in (0, COLUMN):
                add("good_%s_%dx%d_%d" % (codec, *shape, flags), number,
                    chunk(shape, flags, 120, lambda r, c: (r + c) % (largest + 1)), shape,
                    flags | GRADIENT)
        shape = (33, 17)
        full = chunk(shape, 0, 127, lambda r, c: largest)
        add_lengths(codec, number, full, shape)
        add("bad_%s_other_axis" % codec, number, full, shape, COLUMN)
        for name, scale, code, verdict in (("nan_scale", 255, 0, "bad"),
                                           ("nan_scale_with_codes", 255, largest, "bad"),
                                           ("nan_scale_of_last_block", (127, 255), 0, "bad"),
                                           ("largest_scale_of_last_block", (127, 254), largest,
                                            "bad"),
                                           ("largest_scale", 254, largest, "bad"),
                                           ("largest_scale_zeros", 254, 0, "good"),
                                           ("two_to_50", 177, largest, "bad"),
                                           ("smallest_scale", 0, largest, "good")):
            bytes_ = chunk(shape, 0, scale, lambda r, c: code)
            add("%s_%s_gradient_%s" % (verdict, codec, name), number, bytes_, shape, GRADIENT)
            add("good_%s_weight_%s" % (codec, name), number, bytes_, shape)
        for code in refused:
            bytes_ = chunk(shape, 0, 127, lambda r, c: code if (r, c) == (20, 16) else 0)
            add("bad_%s_gradient_code_%02x" % (codec, code), number, bytes_, shape, GRADIENT)
            add("good_%s_weight_code_%02x" % (codec, code), number, bytes_, shape)
    lowest = block_chunk((33, 17), 0, 32, 8, 127, lambda r, c: 0x80)  # -2, which no encoder writes
    add("good_mxint8_gradient_minus_two", 21, lowest, (33, 17), GRADIENT)


ONE = 0x3f80
FP32_VARIANT = 6  # the first example with FP32 values, "topk:0.01:raw32:fp32"
RAW32, DELTA8, DELTA16, BITMAP = range(4)
N = 33 * 17


def topk_chunk(count, form, index, values=None, reserved=b"\0\0\0", index_bytes=None):
    values = [ONE] * min(count, 1000) if values is None else values
    return (struct.pack("<IB", count, form) + reserved +
            struct.pack("<I", len(index) if index_bytes is None else index_bytes) + index +
            struct.pack("<%dH" % len(values), *values))


def raw32(*numbers):
    return struct.pack("<%dI" % len(numbers), *numbers)


def bitmap(*numbers, bits=N):
    out = bytearray(-(-bits // 8))
    for number in numbers:
        out[number // 8] |= 1 << number % 8
    return bytes(out)


def words(*numbers):
    return struct.pack("<%dH" % len(numbers), *numbers)


def add_topk():
    three = raw32(0, 5, N - 1)
    good = {
        "none": topk_chunk(0, DELTA8, b""),
        "none_raw32": topk_chunk(0, RAW32, b""),
        "raw32": topk_chunk(3, RAW32, three),
        # 0, 5, 560: an escape means 255 more, and that the next byte continues.
        "delta8": topk_chunk(3, DELTA8, bytes([0, 4, 255, 255, 44])),
        "delta8_escape_exact": topk_chunk(2, DELTA8, bytes([255, 0, 0])),
        "delta16": topk_chunk(3, DELTA16, words(0, 4, 554)),
        "bitmap": topk_chunk(3, BITMAP, bitmap(0, 5, N - 1)),
        "all_bitmap": topk_chunk(N, BITMAP, bitmap(*range(N))),
        "all_delta8": topk_chunk(N, DELTA8, bytes(N)),
        "zeros_and_signs": topk_chunk(3, RAW32, three, [0x8000, 0x0000, 0xbf80]),
        "largest": topk_chunk(3, RAW32, three, [0x587f, 0xd87f, 0x0001]),
    }
    bad = {
        "empty": b"",
        "header_cut": good["raw32"][:11],
        "count_beyond_n": topk_chunk(N + 1, DELTA8, bytes(N + 1)),
        "count_beyond_n_raw32": topk_chunk(N + 1, RAW32, raw32(*range(N + 1))),
        "count_huge": topk_chunk(0xffffffff, RAW32, three),
        "count_wraps": topk_chunk(0x80000000, RAW32, b"", []),
        "count_low": topk_chunk(2, RAW32, three),
        "count_high": topk_chunk(4, RAW32, three),
        "format_4": topk_chunk(3, 4, three),
        "format_255": topk_chunk(3, 255, three),
        "reserved": topk_chunk(3, RAW32, three, reserved=b"\0\0\1"),
        "index_bytes_huge": topk_chunk(3, RAW32, three, index_bytes=0xffffffff),
        "index_bytes_low": topk_chunk(3, RAW32, three, index_bytes=11),
        "index_bytes_high": topk_chunk(3, RAW32, three, index_bytes=14),
        "unsorted": topk_chunk(3, RAW32, raw32(5, 0, 9)),
        "duplicate": topk_chunk(3, RAW32, raw32(0, 5, 5)),
        "out_of_range": topk_chunk(3, RAW32, raw32(0, 5, N)),
        "far_out_of_range": topk_chunk(3, RAW32, raw32(0, 5, 0xffffffff)),
        "short": good["raw32"][:-1],
        "long": good["raw32"] + b"\0",
        "delta8_out_of_range": topk_chunk(3, DELTA8, bytes([0, 4, 255, 255, 45])),
        "delta8_ends_in_escape": topk_chunk(3, DELTA8, bytes([0, 4, 255])),
        "delta8_only_escapes": topk_chunk(1, DELTA8, bytes([255] * 40)),
        "delta8_zero_escape_run": topk_chunk(0, DELTA8, bytes([255] * 4)),
        "delta8_one_too_many": topk_chunk(2, DELTA8, bytes([0, 4, 0])),
        "delta8_one_too_few": topk_chunk(3, DELTA8, bytes([0, 4])),
        "delta8_trailing_escape": topk_chunk(2, DELTA8, bytes([0, 4, 255])),
        "delta16_odd": topk_chunk(3, DELTA16, words(0, 4, 5) + b"\0"),
        "delta16_out_of_range": topk_chunk(3, DELTA16, words(0, 4, 555)),
        "delta16_escape_out_of_range": topk_chunk(1, DELTA16, words(65535, 0)),
        "delta16_ends_in_escape": topk_chunk(1, DELTA16, words(65535)),
        "delta16_wraps": topk_chunk(1, DELTA16, words(*[65535] * 65600, 0)),
        "bitmap_bits_behind_n": topk_chunk(3, BITMAP, bitmap(0, 5, N, bits=N + 1)),
        "bitmap_count_low": topk_chunk(2, BITMAP, bitmap(0, 5, 9)),
        "bitmap_count_high": topk_chunk(4, BITMAP, bitmap(0, 5, 9)),
        "bitmap_short": topk_chunk(3, BITMAP, bitmap(0, 5, 9)[:-1]),
        "bitmap_long": topk_chunk(3, BITMAP, bitmap(0, 5, 9) + b"\0"),
        "two_to_50": topk_chunk(3, RAW32, three, [ONE, ONE, 0x5880]),
        "minus_two_to_50": topk_chunk(3, DELTA8, bytes([0, 4, 2]), [0xd880, ONE, ONE]),
        "infinity": topk_chunk(3, BITMAP, bitmap(0, 5, 9), [ONE, 0x7f80, ONE]),
        "nan": topk_chunk(3, RAW32, three, [ONE, 0x7fc0, ONE]),
    }
    for verdict, chunks in (("good", good), ("bad", bad)):
        for name, chunk in chunks.items():
            add("%s_topk_%s" % (verdict, name), TOPK, chunk, (33, 17), GRADIENT)
    # Independent of the parameters of the codec that reads it.
    for variant in (1, 2, 3):
        add("good_topk_variant_%d" % variant, TOPK, good["delta8"], (33, 17), GRADIENT,
            variant=variant)
    add_topk_fp32(three)
    add("bad_unknown_codec", UNKNOWN, b"\0" * 64, (4, 4))


def add_topk_fp32(three):
    def chunk(form, index, *values):
        header = topk_chunk(len(values), form, index, [])
        return header + struct.pack("<%dI" % len(values), *values)

    one = 0x3f800000
    some = (one, 0x00000001, 0xbf818001)
    good = {
        "raw32": chunk(RAW32, three, *some),
        "delta8": chunk(DELTA8, bytes([0, 4, 255, 255, 44]), *some),
        "bitmap": chunk(BITMAP, bitmap(0, 5, N - 1), *some),
        "all_bitmap": chunk(BITMAP, bitmap(*range(N)), *range(N)),
        "none": chunk(DELTA8, b""),
        "zeros": chunk(RAW32, three, 0, 0x80000000, 0),
        "largest": chunk(RAW32, three, 0x587fffff, 0xd87fffff, one),
    }
    bad = {
        "bf16_values": topk_chunk(3, RAW32, three),
        "one_value_of_bf16": good["raw32"][:-2],
        "short": good["raw32"][:-1],
        "long": good["raw32"] + b"\0",
        "unsorted": chunk(RAW32, raw32(5, 0, 9), *some),
        "duplicate": chunk(RAW32, raw32(0, 5, 5), *some),
        "out_of_range": chunk(RAW32, raw32(0, 5, N), *some),
        "two_to_50": chunk(RAW32, three, one, one, 0x58800000),
        "minus_two_to_50": chunk(DELTA8, bytes([0, 4, 2]), 0xd8800000, one, one),
        "infinity": chunk(BITMAP, bitmap(0, 5, 9), one, 0x7f800000, one),
        "nan": chunk(RAW32, three, one, one, 0x7f800001),
    }
    for verdict, chunks in (("good", good), ("bad", bad)):
        for name, encoded in chunks.items():
            add("%s_topk_fp32_%s" % (verdict, name), TOPK, encoded, (33, 17), GRADIENT,
                variant=FP32_VARIANT)
    # Values of FP32 where bf16 is expected.
    add("bad_topk_fp32_values", TOPK, good["raw32"], (33, 17), GRADIENT)


def write_tar(path, files):
    """Writes `files` (name -> content) as one archive that depends on nothing else."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)  # time, user and group 0
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def main():
    add_floats()
    add_mx()
    add_ocp()
    add_topk()
    for old in FOLDER.glob("*.tar"):
        old.unlink()
    for codec, files in ARCHIVES.items():
        write_tar(FOLDER / (codec + ".tar"), files)
    print("%d files in %d archives" % (sum(map(len, ARCHIVES.values())), len(ARCHIVES)))


if __name__ == "__main__":
    main()
