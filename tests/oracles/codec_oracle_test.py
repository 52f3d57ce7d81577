"""Compares every codec, through `eps codec roundtrip`, bit for bit with independent programs:
ml_dtypes, torchao and numpy (block_formats.py).

Runs in the environment of third_party/install/setup_oracles.sh (./test --oracles).
Argument: the path of eps.
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

import block_formats
import eps_run
import numpy
import torch
import torchao.prototype.mx_formats.constants as mx_constants
from torchao.prototype.mx_formats import mx_tensor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import source_tree  # noqa: E402

EPS = None
AXES = {"row": False, "column": True}
LARGEST_GRADIENT = numpy.float32(2.0 ** 50)
TORCHAO = {
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e2m3": mx_constants.DTYPE_FP6_E2M3,
    "mxfp6_e3m2": mx_constants.DTYPE_FP6_E3M2,
    "mxfp4_e2m1": torch.float4_e2m1fn_x2,
}


def floats(bits):
    return numpy.asarray(bits, numpy.uint32).view(numpy.float32)


def every_bf16(rng, window):
    """Returns all 2^16 values in ascending order, shuffled within windows, so that blocks hold
    neighbours (a small window) or arbitrary values (a large one)."""
    upper = numpy.arange(2 ** 16, dtype=numpy.uint32).reshape(-1, window)
    return floats(rng.permuted(upper, axis=1).reshape(256, 256) << 16)


def adversarial(rng, rows, cols):
    """Returns values whose exponents are close to each other, at every magnitude, and whose
    significands are at or next to the midpoint between neighbours of every format."""
    height = rng.integers(-8, 255, (rows, cols // 16 + 1)).repeat(16, axis=1)[:, :cols]
    exponent = numpy.clip(height - rng.integers(0, 12, (rows, cols)), 0, 254)
    tie = numpy.uint32(1) << rng.integers(12, 23, (rows, cols)).astype(numpy.uint32)
    upper = rng.integers(0, 2 ** 23, (rows, cols), numpy.uint32) & ~(tie * 2 - 1)
    significand = (upper | tie) + rng.integers(-1, 2, (rows, cols)).astype(numpy.uint32)
    ends = rng.choice([0, 1, 0x7ffffe, 0x7fffff], (rows, cols)).astype(numpy.uint32)
    significand = numpy.where(rng.random((rows, cols)) < 0.2, ends, significand & 0x7fffff)
    sign = rng.integers(0, 2, (rows, cols)).astype(numpy.uint32)
    return floats(sign << 31 | exponent.astype(numpy.uint32) << 23 | significand)


def heavy_tailed(rng, rows, cols):
    return (0.02 * rng.standard_t(2, (rows, cols))).astype(numpy.float32)


def inputs():
    """Returns tensors by name, the same in every run."""
    rng = numpy.random.default_rng(20231)
    result = {
        "every bf16, neighbours in a block": every_bf16(rng, 64),
        "every bf16, powers of two in a block": every_bf16(rng, 2048),
        "every bf16, anything in a block": every_bf16(rng, 2 ** 16),
        "heavy-tailed": heavy_tailed(rng, 288, 384),
        "adversarial": adversarial(rng, 512, 512),
        "zeros": floats(rng.integers(0, 2, (40, 40)).astype(numpy.uint32) << 31),
        "denormals": floats(rng.integers(0, 2 ** 23, (96, 96)) >> rng.integers(0, 23, (96, 96))),
        "mostly zero": heavy_tailed(rng, 64, 256) * (rng.random((64, 256)) < 0.004),
    }
    for rows, cols in ((1, 1), (1, 15), (2, 17), (33, 17), (31, 129), (70, 200), (129, 31)):
        result["tail %d x %d" % (rows, cols)] = heavy_tailed(rng, rows, cols)
        result["adversarial tail %d x %d" % (rows, cols)] = adversarial(rng, rows, cols)
    special = heavy_tailed(rng, 64, 200)
    at = rng.random(special.shape) < 0.01
    special[at] = rng.choice(floats([0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001,
                                     0xffffffff]), int(at.sum()))
    result["infinities and NaN"] = special
    return {name: numpy.ascontiguousarray(values, numpy.float32)
            for name, values in result.items()}


INPUTS = inputs()


class CodecOracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.families = json.loads(eps_run.call(EPS, "codec", "list", "--json"))
        cls.gradients_only = {name for family in cls.families for name in family["examples"]
                              if family["gradients_only"]}
        cls.codecs = [name for family in cls.families for name in family["examples"]]

    def roundtrip(self, codec, values, axis):
        before, after = (os.path.join(self.folder, name) for name in ("in.f32", "out.f32"))
        values.tofile(before)
        eps_run.call(EPS, "codec", "roundtrip", "--codec=" + codec, "--axis=" + axis,
                     "--shape=%dx%d" % values.shape, before, after)
        return numpy.fromfile(after, numpy.float32).reshape(values.shape)

    def assert_same(self, expected, found, values, any_nan=False):
        """Asserts equal bits; with `any_nan`, NaNs are equal if their signs are."""
        same = block_formats.bits(expected) == block_formats.bits(found)
        if any_nan:
            same |= (numpy.isnan(expected) & numpy.isnan(found) &
                     (numpy.signbit(expected) == numpy.signbit(found)))
        if same.all():
            return
        row, col = numpy.argwhere(~same)[0]
        self.fail("%d of %d elements differ; row %d, column %d: for %08x expected %08x, found %08x"
                  % ((~same).sum(), same.size, row, col, block_formats.bits(values)[row, col],
                     block_formats.bits(expected)[row, col], block_formats.bits(found)[row, col]))

    def test_knows_every_listed_codec(self):
        self.assertGreaterEqual(len(self.codecs), len(self.families))
        values = INPUTS["heavy-tailed"]
        for codec in self.codecs:
            self.assertIsNotNone(block_formats.expected(codec, values, column=False), codec)

    def test_matches_ml_dtypes_and_numpy(self):
        for codec in self.codecs:
            blocks = codec.split(":")[0] in {**block_formats.MX_BITS, **block_formats.OCP}
            for name, values in INPUTS.items():
                if codec in self.gradients_only:  # admission refuses larger values
                    values = numpy.where(numpy.abs(values) < LARGEST_GRADIENT / 2, values, 0)
                for axis, column in AXES.items():
                    with self.subTest(codec=codec, input=name, axis=axis):
                        self.assert_same(block_formats.expected(codec, values, column),
                                         self.roundtrip(codec, values, axis), values,
                                         any_nan=not blocks and codec != "fp32")

    def torchao_blocks(self, codec, blocks):
        """Returns torchao's values of blocks, and the blocks for which it is an oracle: it divides
        blocks of scale 2^-127 by 2^-126, and gives blocks with an infinity a finite scale. The
        test above checks these with numpy alone."""
        data = torch.from_numpy(numpy.ascontiguousarray(blocks))
        scale, codes = mx_tensor.to_mx(data, TORCHAO[codec], block_formats.OCP_BLOCK,
                                       mx_tensor.ScaleCalculationMode.FLOOR)
        values = mx_tensor.to_dtype(codes, scale, TORCHAO[codec], block_formats.OCP_BLOCK,
                                    torch.float32)
        good = ((scale.view(torch.uint8).numpy().ravel() != 0) &
                ~numpy.isinf(blocks).any(axis=1))
        return values.numpy().reshape(blocks.shape), good

    def test_matches_torchao(self):
        listed = {family["name"] for family in self.families}
        for codec in sorted(set(TORCHAO) & listed):
            compared = 0
            for name, values in INPUTS.items():
                for axis, column in AXES.items():
                    with self.subTest(codec=codec, input=name, axis=axis):
                        good = []

                        def theirs(blocks):
                            result, good_blocks = self.torchao_blocks(codec, blocks)
                            good.append(good_blocks)
                            return result

                        size = block_formats.OCP_BLOCK
                        expected = block_formats.by_blocks(values, column, size, theirs)
                        known = block_formats.by_blocks(
                            values, column, size,
                            lambda blocks: good[0][:, None].repeat(size, axis=1)) != 0
                        found = self.roundtrip(codec, values, axis)
                        # The format does not say which NaN represents a block of NaN.
                        nan = numpy.isnan(expected) & numpy.isnan(found)
                        self.assert_same(numpy.where(known & ~nan, expected, 0),
                                         numpy.where(known & ~nan, found, 0), values)
                        compared += int(known.sum())
            self.assertGreater(compared, 0.8 * 2 * sum(v.size for v in INPUTS.values()), codec)


if __name__ == "__main__":
    EPS = os.path.abspath(sys.argv[1])
    del sys.argv[1]
    source_tree.main()
