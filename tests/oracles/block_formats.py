"""Computes the values that each codec decodes to, from docs/formats/codecs.md with numpy; ml_dtypes
rounds to the small floats. Shares no code with EPS.

Every function takes and returns FP32 arrays. Quotients and products are computed in float64, in
which all of them are exact.
"""

import math

import ml_dtypes
import numpy

NAN = numpy.uint32(0x7fc00000).view(numpy.float32)

# Element formats of the OCP codecs: ml_dtypes type, largest value, emax.
OCP = {
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0, 15),
    "mxfp6_e2m3": (ml_dtypes.float6_e2m3fn, 7.5, 2),
    "mxfp6_e3m2": (ml_dtypes.float6_e3m2fn, 28.0, 4),
    "mxfp4_e2m1": (ml_dtypes.float4_e2m1fn, 6.0, 2),
    "mxint8": (None, 127 / 64, 0),
}
OCP_BLOCK = 32
MX_BITS = {"mx9": 7, "mx6": 4, "mx4": 2}
MX_BLOCK = 16


def bits(values):
    return numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)


def by_blocks(values, column, size, function):
    """Applies `function` to all blocks, one per row: runs of `size` along the axis, zero-padded."""
    lines = values.T if column else values
    padded = numpy.zeros((lines.shape[0], -(-lines.shape[1] // size) * size), numpy.float32)
    padded[:, :lines.shape[1]] = lines
    result = function(padded.reshape(-1, size)).reshape(padded.shape)[:, :lines.shape[1]]
    return numpy.ascontiguousarray(result.T if column else result)


def saturated(values, largest):
    """Clips to the largest value, infinities too; keeps NaN."""
    return numpy.clip(values, -largest, largest)


def through(values, dtype):
    return values.astype(dtype).astype(numpy.float32)


def mx_blocks(blocks, magnitude_bits, truncate):
    """Rounds blocks to shared microexponents (arXiv 2302.08007)."""
    exponents = (bits(blocks) >> 23 & 255).astype(numpy.int64)
    exact = numpy.where(exponents == 0, 0.0, numpy.abs(blocks.astype(numpy.float64)))
    shared = exponents.max(axis=1)[:, None]
    pairs = exponents.reshape(len(blocks), -1, 2).max(axis=2)
    micro = numpy.repeat((pairs < shared).astype(numpy.int64), 2, axis=1)
    step = shared - 127 - micro + 1 - magnitude_bits
    quotient = numpy.ldexp(exact, -step)
    rounded = numpy.floor(quotient) if truncate else numpy.rint(quotient)
    magnitude = numpy.ldexp(numpy.minimum(rounded, 2 ** magnitude_bits - 1), step)
    values = numpy.where(numpy.signbit(blocks), -magnitude, magnitude).astype(numpy.float32)
    return numpy.where(shared == 255, NAN, values)


def ocp_scales(blocks, emax):
    """Returns the scale bytes of OCP blocks."""
    largest = numpy.abs(blocks.astype(numpy.float64)).max(axis=1)
    bad = ~numpy.isfinite(largest)
    exponent = numpy.frexp(numpy.where(bad | (largest == 0), 1.0, largest))[1] - 1 - emax
    exponent = numpy.where(largest == 0, -127, numpy.maximum(exponent, -127))
    return numpy.where(bad, 255, exponent + 127)


def ocp_blocks(blocks, codec):
    dtype, largest, emax = OCP[codec]
    scales = ocp_scales(blocks, emax)[:, None]
    quotient = numpy.ldexp(blocks.astype(numpy.float64), 127 - scales)
    # A quotient too small for FP32 is far below half of the format's smallest value.
    quotient = saturated(quotient, largest).astype(numpy.float32)
    if dtype is None:
        elements = numpy.rint(quotient * 64) / 64 + 0.0  # two's complement has one zero
    else:
        elements = through(quotient, dtype)
    values = numpy.ldexp(elements.astype(numpy.float64), scales - 127).astype(numpy.float32)
    return numpy.where(scales == 255, NAN, values)


def topk(values, fraction, sampled, fp32):
    """Returns the elements of one chunk that top-k keeps. REQUIRES admissible values."""
    flat = values.ravel()
    magnitudes = numpy.abs(flat)
    count = math.ceil(fraction * flat.size)
    if sampled:
        sample = numpy.sort(magnitudes[::64])[::-1]
        threshold = sample[math.ceil(fraction * sample.size) - 1]
        chosen = numpy.flatnonzero((magnitudes >= threshold) & (magnitudes > 0))[:2 * count]
    else:
        chosen = numpy.argsort(-magnitudes, kind="stable")[:count]
        chosen = chosen[magnitudes[chosen] > 0]
    result = numpy.zeros_like(flat)
    result[chosen] = flat[chosen] if fp32 else through(flat[chosen], ml_dtypes.bfloat16)
    return result.reshape(values.shape)


@numpy.errstate(all="ignore")  # infinities and NaN are intended
def expected(codec, values, column):
    """Returns the values of a tensor that a receiver decodes, or None for an unknown codec."""
    name, *parameters = codec.split(":")
    if name == "fp32":
        return values
    if name == "bf16":
        return through(values, ml_dtypes.bfloat16)
    if name == "fp16":
        return through(values, numpy.float16)
    if name == "fp8_e4m3":
        return through(saturated(values, 448.0), ml_dtypes.float8_e4m3fn)
    if name == "fp8_e5m2":
        return through(saturated(values, 57344.0), ml_dtypes.float8_e5m2)
    if name in MX_BITS:
        return by_blocks(values, column, MX_BLOCK,
                         lambda blocks: mx_blocks(blocks, MX_BITS[name], "truncate" in parameters))
    if name in OCP:
        return by_blocks(values, column, OCP_BLOCK, lambda blocks: ocp_blocks(blocks, name))
    if name == "topk":
        return topk(values, float(parameters[0]), "sampled" in parameters, "fp32" in parameters)
    return None
