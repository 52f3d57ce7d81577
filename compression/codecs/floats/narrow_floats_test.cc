// fp16, fp8_e4m3 and fp8_e5m2: compares the reference with the definition of the formats, and the
// kernels with the reference, with denormals kept and flushed, on every instruction set.
//
// With EPS_LONG=1 in the environment, EncodeEveryFloatLikeTheReference covers all 2^32 floats
// instead of one in 4099 (5 minutes on one core):
//   bazel build //compression:floats_narrow_floats_test
//   EPS_LONG=1 bazel-bin/compression/floats_narrow_floats_test --gtest_filter='*EveryFloat*'

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "base/testing/guarded_memory.h"
#include "compression/codec.h"
#include "compression/codecs/floats/kernels.h"
#include "compression/codecs/floats/reference.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// A format as the papers describe it, with its kernels and its reference.
struct Format {
  const char* name;
  size_t bytes;
  int mantissa_bits;
  int bias;
  uint32_t largest;   // code of the largest finite value
  uint32_t infinity;  // code of values beyond the range
  uint32_t (*round)(uint32_t bits);
  uint32_t (*bits_of)(uint32_t code);
  void (*encode)(const float*, size_t, size_t, size_t, size_t, bool, uint8_t*);
  void (*decode)(const uint8_t*, size_t, size_t, size_t, size_t, float*);
  void (*accumulate)(const uint8_t*, size_t, size_t, size_t, size_t, float*);
  size_t (*first_inadmissible)(const uint8_t*, size_t);

  uint32_t sign() const { return 1u << (8 * bytes - 1); }
  uint32_t codes() const { return 1u << (8 * bytes); }
};

namespace ref = float_reference;

constexpr Format kFormats[] = {
    {"fp16", 2, 10, 15, 0x7bff, 0x7c00,
     [](uint32_t bits) -> uint32_t { return ref::RoundToFp16(bits); },
     [](uint32_t code) { return ref::BitsOfFp16(static_cast<uint16_t>(code)); },
     float_kernels::EncodeFp16, float_kernels::DecodeFp16, float_kernels::AccumulateFp16,
     float_kernels::FirstInadmissibleFp16},
    {"fp8_e4m3", 1, 3, 7, 0x7e, 0x7e,
     [](uint32_t bits) -> uint32_t { return ref::RoundToE4m3(bits); },
     [](uint32_t code) { return ref::BitsOfE4m3(static_cast<uint8_t>(code)); },
     float_kernels::EncodeE4m3, float_kernels::DecodeE4m3, float_kernels::AccumulateE4m3,
     float_kernels::FirstInadmissibleE4m3},
    {"fp8_e5m2", 1, 2, 15, 0x7b, 0x7b,
     [](uint32_t bits) -> uint32_t { return ref::RoundToE5m2(bits); },
     [](uint32_t code) { return ref::BitsOfE5m2(static_cast<uint8_t>(code)); },
     float_kernels::EncodeE5m2, float_kernels::DecodeE5m2, float_kernels::AccumulateE5m2,
     float_kernels::FirstInadmissibleE5m2},
};

// Calls `body(format)` for each format, on every instruction set, with denormals kept and flushed.
template <class Body>
void OnEveryTargetAndMode(Body body) {
  OnEveryTarget([&] {
    for (const Format& format : kFormats) {
      SCOPED_TRACE(format.name);
      body(format);
      SCOPED_TRACE("denormals flushed");
      ScopedFlushDenormals flush;
      body(format);
    }
  });
}

// Returns the value of a finite code without its sign, by the formula of the papers.
double ValueOf(const Format& format, uint32_t code) {
  const int field = static_cast<int>(code >> format.mantissa_bits);
  const double mantissa =
      std::ldexp(code & ((1u << format.mantissa_bits) - 1), -format.mantissa_bits);
  return field == 0 ? std::ldexp(mantissa, 1 - format.bias)
                    : std::ldexp(1 + mantissa, field - format.bias);
}

std::string Codes(const Format& format, const std::vector<uint32_t>& codes) {
  std::string bytes(codes.size() * format.bytes, '\0');
  for (size_t i = 0; i < codes.size(); ++i) {
    std::memcpy(&bytes[i * format.bytes], &codes[i], format.bytes);  // little-endian
  }
  return bytes;
}

uint32_t CodeAt(const Format& format, const uint8_t* bytes, size_t i) {
  uint32_t code = 0;
  std::memcpy(&code, bytes + i * format.bytes, format.bytes);
  return code;
}

// Encodes `bits` in one row and compares every code with the reference.
void CheckEncode(const Format& format, const std::vector<uint32_t>& bits) {
  std::vector<float> values(bits.size());
  std::memcpy(values.data(), bits.data(), 4 * bits.size());
  std::vector<uint8_t> found(bits.size() * format.bytes);
  format.encode(values.data(), bits.size(), 1, bits.size(), bits.size(), true, found.data());
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(CodeAt(format, found.data(), i), format.round(bits[i])) << std::hex << bits[i];
  }
}

// Returns floats at and next to every point where rounding decides: each value and each midpoint.
std::vector<uint32_t> BorderBits(const Format& format) {
  std::vector<uint32_t> bits = SpecialBits();
  for (uint32_t code = 0; code <= format.largest; ++code) {
    const double value = ValueOf(format, code);
    // For `largest`, the point where overflow begins.
    const double next = ValueOf(format, code + 1);
    for (const double border : {value, (value + next) / 2, next}) {
      const uint32_t at = BitsOfFloat(static_cast<float>(border));
      for (const uint32_t around : {at - 1, at, at + 1}) {
        bits.push_back(around);
        bits.push_back(around ^ 0x80000000u);
      }
    }
  }
  return bits;
}

TEST(NarrowReference, DecodesEveryCodeToItsValue) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    for (uint32_t code = 0; code < format.codes(); ++code) {
      const uint32_t magnitude = code & (format.sign() - 1);
      const uint32_t bits = format.bits_of(code);
      ASSERT_EQ(bits >> 31 != 0, (code & format.sign()) != 0) << code;
      const double found = std::fabs(static_cast<double>(FloatOfBits(bits)));
      if (magnitude <= format.largest) {
        ASSERT_EQ(found, ValueOf(format, magnitude)) << code;
      } else if (format.bias == 15 && magnitude == format.largest + 1) {
        ASSERT_TRUE(std::isinf(found)) << code;
      } else {
        ASSERT_TRUE(std::isnan(found)) << code;
        ASSERT_NE(bits & 0x400000u, 0u) << "quiet";
        const uint32_t payload = format.bytes == 2 ? (code & 0x3ff) << 13 | 0x400000u : 0x400000u;
        ASSERT_EQ(bits & 0x7fffffu, payload) << code;
      }
    }
  }
}

// The nearer of the two neighbours, or the even one; beyond the last midpoint, the format's
// overflow code.
TEST(NarrowReference, RoundsToNearestValueTiesEven) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    std::vector<uint32_t> all = BorderBits(format);
    for (uint32_t upper = 0; upper < 65536; ++upper) all.push_back(upper << 16);
    for (const uint32_t bits : all) {
      const double exact = std::fabs(static_cast<double>(FloatOfBits(bits)));
      const uint32_t sign = bits >> 31 != 0 ? format.sign() : 0;
      const uint32_t found = format.round(bits);
      ASSERT_EQ(found & format.sign(), sign) << std::hex << bits;
      const uint32_t code = found & (format.sign() - 1);
      if (std::isnan(exact)) {
        const uint32_t nan = format.bytes == 2           ? 0x7e00u | (bits >> 13 & 0x3ffu)
                             : format.mantissa_bits == 3 ? 0x7fu
                                                         : 0x7eu;
        ASSERT_EQ(code, nan) << std::hex << bits;
        continue;
      }
      const double largest = ValueOf(format, format.largest);
      const double beyond = (largest + ValueOf(format, format.largest + 1)) / 2;
      if (exact >= beyond) {
        ASSERT_EQ(code, format.infinity) << std::hex << bits;
        continue;
      }
      ASSERT_LE(code, format.largest) << std::hex << bits;
      const double error = std::fabs(ValueOf(format, code) - exact);
      for (const uint32_t other : {code - 1, code + 1}) {
        if (other > format.largest) continue;  // also below 0
        const double others = std::fabs(ValueOf(format, other) - exact);
        ASSERT_TRUE(error < others || (error == others && code % 2 == 0)) << std::hex << bits;
      }
    }
  }
}

TEST(NarrowKernels, DecodeEveryCodeLikeTheReference) {
  OnEveryTargetAndMode([](const Format& format) {
    std::vector<uint32_t> codes(format.codes());
    for (uint32_t code = 0; code < codes.size(); ++code) codes[code] = code;
    const std::string bytes = Codes(format, codes);
    const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
    // Together, and one by one as at the ends of rows.
    std::vector<float> found(codes.size());
    std::vector<float> single(codes.size());
    format.decode(in, codes.size(), 1, codes.size(), codes.size(), found.data());
    format.decode(in, 1, codes.size(), 1, 1, single.data());
    for (uint32_t code = 0; code < codes.size(); ++code) {
      ASSERT_EQ(BitsOfFloat(found[code]), format.bits_of(code)) << code;
      ASSERT_EQ(BitsOfFloat(single[code]), format.bits_of(code)) << code;
      const size_t first = format.first_inadmissible(in + code * format.bytes, 1);
      ASSERT_EQ(first == 1, std::fabs(FloatOfBits(format.bits_of(code))) < kMaxGradient) << code;
    }
  });
}

TEST(NarrowKernels, EncodeBf16AndBordersLikeReference) {
  std::vector<uint32_t> bits;
  for (uint32_t upper = 0; upper < 65536; ++upper) bits.push_back(upper << 16);
  OnEveryTargetAndMode([&](const Format& format) {
    CheckEncode(format, bits);
    CheckEncode(format, BorderBits(format));
  });
}

TEST(NarrowKernels, EncodeEveryFloatLikeTheReference) {
  const char* const mode = std::getenv("EPS_LONG");
  const uint64_t step = mode != nullptr && std::string(mode) == "1" ? 1 : 4099;
  constexpr uint64_t kFloats = uint64_t{1} << 32;
  constexpr size_t kBlock = 1 << 20;
  std::vector<uint32_t> bits;
  std::vector<uint8_t> expected;
  std::vector<uint8_t> found;
  for (uint64_t first = 0; first < kFloats; first += kBlock * step) {
    bits.clear();
    for (uint64_t b = first; b < kFloats && bits.size() < kBlock; b += step) {
      bits.push_back(static_cast<uint32_t>(b));
    }
    std::vector<float> values(bits.size());
    std::memcpy(values.data(), bits.data(), 4 * bits.size());
    for (const Format& format : kFormats) {
      SCOPED_TRACE(format.name);
      expected.resize(bits.size() * format.bytes);
      for (size_t i = 0; i < bits.size(); ++i) {
        const uint32_t code = format.round(bits[i]);
        std::memcpy(&expected[i * format.bytes], &code, format.bytes);
      }
      const auto check = [&] {
        found.assign(expected.size(), 0xa5);
        format.encode(values.data(), bits.size(), 1, bits.size(), bits.size(), true, found.data());
        ASSERT_TRUE(found == expected) << "in floats from " << std::hex << first;
      };
      OnEveryTarget([&] {
        check();
        ScopedFlushDenormals flush;
        check();
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NarrowKernels, StayInBoundsAtEveryLength) {
  OnEveryTargetAndMode([](const Format& format) {
    TestRandom random;
    for (size_t n = 0; n <= 150; ++n) {
      GuardedMemory values(4 * n);
      GuardedMemory codes(n * format.bytes);
      for (size_t i = 0; i < n; ++i) {
        const uint32_t word = random.Next() % 4 == 0
                                  ? SpecialBits()[random.Next() % SpecialBits().size()]
                                  : random.Next();
        std::memcpy(values.data() + 4 * i, &word, 4);
      }
      const std::vector<float> before(values.floats(), values.floats() + n);
      format.encode(values.floats(), n, 1, n, n, n % 2 == 0, codes.data());
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(CodeAt(format, codes.data(), i), format.round(BitsOfFloat(before[i]))) << n;
      }
      format.decode(codes.data(), n, 1, n, n, values.floats());
      for (size_t i = 0; i < n; ++i) {
        const uint32_t decoded = format.bits_of(CodeAt(format, codes.data(), i));
        ASSERT_EQ(BitsOfFloat(values.floats()[i]), decoded) << n;
      }
      std::copy_n(before.data(), n, values.floats());
      format.accumulate(codes.data(), n, 1, n, n, values.floats());
      ScopedFlushDenormals flush;
      for (size_t i = 0; i < n; ++i) {
        const float sum = before[i] + FloatOfBits(format.bits_of(CodeAt(format, codes.data(), i)));
        if (std::isnan(sum) && std::isnan(values.floats()[i])) continue;
        ASSERT_EQ(BitsOfFloat(values.floats()[i]), BitsOfFloat(sum)) << n;
      }
      size_t first = 0;
      while (first < n &&
             std::fabs(FloatOfBits(format.bits_of(CodeAt(format, codes.data(), first)))) <
                 kMaxGradient) {
        ++first;
      }
      ASSERT_EQ(format.first_inadmissible(codes.data(), n), first);
    }
  });
}

TEST(NarrowKernels, StayInTheirRowsAtAnyAlignment) {
  constexpr size_t kRows = 3, kCols = 37, kLd = 50, kCodesLd = 41;
  OnEveryTargetAndMode([](const Format& format) {
    std::vector<float> in(kRows * kLd);
    for (size_t i = 0; i < in.size(); ++i) in[i] = 0.01f * static_cast<float>(i) - 1.0f;
    for (size_t shift = 0; shift < 3; ++shift) {
      std::vector<uint8_t> codes(kRows * kCodesLd * format.bytes + shift, 0xa5);
      format.encode(in.data(), kLd, kRows, kCols, kCodesLd, true, codes.data() + shift);
      std::vector<float> out(kRows * kLd, 7.0f);
      format.decode(codes.data() + shift, kCodesLd, kRows, kCols, kLd, out.data());
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t c = 0; c < kLd; ++c) {
          if (c < kCodesLd) {
            const uint32_t code = CodeAt(format, codes.data() + shift, r * kCodesLd + c);
            const uint32_t untouched = format.bytes == 2 ? 0xa5a5 : 0xa5;
            ASSERT_EQ(code, c < kCols ? format.round(BitsOfFloat(in[r * kLd + c])) : untouched);
          }
          const uint32_t rounded = format.bits_of(format.round(BitsOfFloat(in[r * kLd + c])));
          ASSERT_EQ(out[r * kLd + c], c < kCols ? FloatOfBits(rounded) : 7.0f);
        }
      }
    }
  });
}

TEST(NarrowKernels, EncodePastCachesAtEveryAddress) {
  constexpr size_t kLength = 200;
  std::vector<float> in(kLength);
  for (size_t i = 0; i < kLength; ++i) in[i] = std::ldexp(1.0f + 0.003f * i, i % 30 - 15);
  OnEveryTargetAndMode([&](const Format& format) {
    for (size_t shift = 0; shift < 67; ++shift) {
      const size_t n = kLength - shift % 65;
      std::vector<uint8_t> codes((kLength + 1) * format.bytes + shift, 0xa5);
      format.encode(in.data(), n, 1, n, n, true, codes.data() + shift);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(CodeAt(format, codes.data() + shift, i), format.round(BitsOfFloat(in[i])))
            << "element " << i << ", shift " << shift;
      }
      for (size_t i = 0; i < codes.size(); ++i) {
        if (i >= shift && i < shift + n * format.bytes) continue;
        ASSERT_EQ(codes[i], 0xa5) << "byte " << i << ", shift " << shift;
      }
    }
  });
}

TEST(NarrowKernels, FindTheFirstInadmissibleElementAnywhere) {
  OnEveryTargetAndMode([](const Format& format) {
    constexpr size_t kLength = 1100;  // beyond the block of the widest vectors, with a tail
    for (size_t at = 0; at < kLength; at = at < 40 || at > kLength - 80 ? at + 1 : at + 13) {
      std::vector<uint32_t> codes(kLength, format.largest | format.sign());
      codes[at] = (format.largest + 1) | (at % 2 == 0 ? format.sign() : 0);
      codes[kLength - 1] = format.largest + 1;
      const std::string bytes = Codes(format, codes);
      ASSERT_EQ(format.first_inadmissible(reinterpret_cast<const uint8_t*>(bytes.data()), kLength),
                at);
      codes.assign(kLength, format.largest);
      const std::string good = Codes(format, codes);
      ASSERT_EQ(format.first_inadmissible(reinterpret_cast<const uint8_t*>(good.data()), kLength),
                kLength);
    }
  });
}

}  // namespace
}  // namespace eps
