#include "worker/exec/cuda/testing/codec_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codecs/floats/reference.h"
#include "compression/reference_codec.h"

namespace eps {
namespace {

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns a chunk with a segment of rows x cols elements for each pair.
Chunk ChunkOf(const std::vector<std::pair<uint32_t, uint32_t>>& shapes) {
  Chunk chunk;
  for (const auto& shape : shapes) {
    Segment segment;
    segment.rows = shape.first;
    segment.cols = shape.second;
    segment.offset = chunk.elements;
    chunk.elements += segment.elements();
    chunk.segments.push_back(segment);
  }
  return chunk;
}

// A Chunk as the kernels' functions take it.
class KernelChunk {
 public:
  KernelChunk(const Chunk& chunk, Axis axis) {
    for (const Segment& s : chunk.segments) segments_.push_back({s.rows, s.cols});
    chunk_ = {segments_.data(), static_cast<uint32_t>(segments_.size()), axis == Axis::kColumn};
  }
  KernelChunk(const KernelChunk&) = delete;
  KernelChunk& operator=(const KernelChunk&) = delete;
  const eps_cuda_chunk& get() const { return chunk_; }

 private:
  std::vector<eps_cuda_segment> segments_;
  eps_cuda_chunk chunk_;
};

// Zeros, denormals, halves between neighbours, limits of the formats, infinities and NaN.
const std::vector<uint32_t>& SpecialBits() {
  static const auto* const bits = new std::vector<uint32_t>{
      0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00400000, 0x007fffff, 0x00800000,
      0x00ffffff, 0x01000000, 0x33000000, 0x33000001, 0x33800000, 0x38800000, 0x387fffff,
      0x3f7fffff, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f880000, 0x3f980000, 0x40f80000,
      0x40e00000, 0x43e00000, 0x43e80000, 0x43f00000, 0x477fe000, 0x477fefff, 0x477ff000,
      0x47600000, 0x47700000, 0x58800000, 0x7e800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff,
      0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffc12345, 0xffffffff};
  return *bits;
}

enum class Content { kHeavyTailed, kGaussian, kSpecials, kDenormals, kAnyBits };
constexpr Content kContents[] = {Content::kHeavyTailed, Content::kGaussian, Content::kSpecials,
                                 Content::kDenormals, Content::kAnyBits};

std::vector<float> Floats(Content content, uint64_t seed, size_t n) {
  std::vector<float> values(n);
  uint64_t state = seed;
  for (float& value : values) {
    const uint64_t r = SplitMix(&state);
    const uint32_t mantissa = static_cast<uint32_t>(r) & 0x807fffffu;
    // Sum of uniforms: about normal, of variance 1/3.
    double normal = -2;
    for (int i = 0; i < 4; ++i) normal += static_cast<double>(r >> (8 + 14 * i) & 0x3fffu) / 16384;
    switch (content) {
      case Content::kHeavyTailed: {
        const int exponent = std::min(std::max(120 + static_cast<int>(normal * 25), 0), 254);
        value = FloatOf(mantissa | static_cast<uint32_t>(exponent) << 23);
        break;
      }
      case Content::kGaussian:
        value = static_cast<float>(normal);
        break;
      case Content::kSpecials:
        // Sparse among ones, because an infinity or NaN affects its whole block.
        value = r % 8 == 0 ? FloatOf(SpecialBits()[(r >> 8) % SpecialBits().size()])
                           : static_cast<float>(normal);
        break;
      case Content::kDenormals:
        // Includes blocks of denormals only, and values close to the smallest normals.
        value = FloatOf((mantissa >> (r >> 40 & 15u) & 0x7fffffu) | (mantissa & 0x80000000u) |
                        (r >> 50 & 7u) / 7 << 23);
        break;
      case Content::kAnyBits:
        value = FloatOf(static_cast<uint32_t>(r >> 32));
        break;
    }
  }
  return values;
}

// Compares a runner with the reference codecs and counts the differences.
class Checker {
 public:
  explicit Checker(KernelRunner* runner) : runner_(runner) {}

  void Dense(const DenseCodec& codec, const Chunk& chunk, const std::vector<float>& values,
             const std::string& what) {
    const auto reference = NewReferenceCodec(codec.name);
    EPS_CHECK_MSG(reference.ok(), reference.status());
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      const KernelChunk kernel_chunk(chunk, axis);
      const std::string bytes = (*reference)->Encode(chunk, axis, values.data(), nullptr);
      const std::string got =
          runner_->Encode(codec.number, codec.truncate, kernel_chunk.get(), values, bytes.size());
      Compare(got, bytes, absl::StrCat(codec.name, " encodes ", what, Along(axis)));
      Decode(codec, **reference, chunk, axis, bytes, what);
    }
  }

  // Every code and scale, including those that no encoder writes.
  void AnyBytes(const DenseCodec& codec) {
    const auto reference = NewReferenceCodec(codec.name);
    EPS_CHECK_MSG(reference.ok(), reference.status());
    uint64_t state = 77;
    const auto decode = [&](const Chunk& chunk, Axis axis, int scale) {
      const std::vector<float> zeros(chunk.elements);
      std::string bytes = (*reference)->Encode(chunk, axis, zeros.data(), nullptr);
      for (char& byte : bytes) byte = static_cast<char>(SplitMix(&state) & 255u);
      // One scale for all blocks of a tile, followed by micro bytes and codes.
      if (scale >= 0) std::fill_n(bytes.begin(), codec.number < 16 ? 256 : 128, scale);
      Decode(codec, **reference, chunk, axis, bytes, absl::StrCat("any codes, scale ", scale));
    };
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      for (int round = 0; round < 4; ++round) {
        decode(ChunkOf({{70, 200}, {1, 37}}), axis, -1);
        decode(ChunkOf({{96, 384}}), axis, -1);
      }
    }
    if (codec.number < 8) return;
    for (int scale = 0; scale < 256; ++scale) {
      decode(ChunkOf({{32, 128}}), scale % 2 == 0 ? Axis::kRow : Axis::kColumn, scale);
    }
  }

  void Topk(const std::string& name, uint32_t n, const std::vector<float>& values, int rounds,
            const std::string& what) {
    const auto reference = NewReferenceCodec(name);
    EPS_CHECK_MSG(reference.ok(), reference.status());
    const Chunk chunk = ChunkOf({{1, n}});
    const eps_cuda_topk call = TopkCall(name, n);
    std::vector<float> residual(n), expected_residual(n);
    for (int round = 0; round < rounds; ++round) {
      // The last round runs without error feedback.
      const bool feedback = round + 1 < rounds;
      std::vector<float> gradient = values;
      std::rotate(gradient.begin(), gradient.begin() + round * 7 % n, gradient.end());
      const std::string bytes = (*reference)
                                    ->Encode(chunk, Axis::kRow, gradient.data(),
                                             feedback ? expected_residual.data() : nullptr);
      // No index is longer than raw32, or than the bitmap plus the overhead of delta codes.
      const size_t room = bytes.size() + 64;
      const std::string got =
          runner_->EncodeTopk(call, gradient, feedback ? &residual : nullptr, room);
      const std::string where = absl::StrCat(name, " of ", n, " ", what, ", round ", round);
      Compare(got, bytes, where);
      if (feedback) {
        Compare(BytesOf(residual), BytesOf(expected_residual), absl::StrCat(where, ": residual"));
      }
    }
  }

  const CaseCount& count() const { return count_; }

 private:
  static std::string Along(Axis axis) {
    return axis == Axis::kColumn ? " along columns" : " along rows";
  }
  template <class T>
  static std::string BytesOf(const std::vector<T>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size());
  }

  void Decode(const DenseCodec& codec, const ReferenceCodec& reference, const Chunk& chunk,
              Axis axis, const std::string& bytes, const std::string& what) {
    const KernelChunk kernel_chunk(chunk, axis);
    std::vector<float> expected(chunk.elements);
    reference.Decode(chunk, axis, bytes, expected.data());
    const std::vector<float> got =
        runner_->Decode(codec.number, kernel_chunk.get(), bytes, expected.size());
    Compare(BytesOf(got), BytesOf(expected),
            absl::StrCat(codec.name, " decodes ", what, Along(axis)));
    std::vector<uint16_t> rounded;
    for (const float value : expected) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      rounded.push_back(float_reference::RoundToBf16(bits));
    }
    Compare(BytesOf(runner_->DecodeBf16(codec.number, kernel_chunk.get(), bytes, rounded.size())),
            BytesOf(rounded), absl::StrCat(codec.name, " decodes to bf16 ", what, Along(axis)));
  }

  void Compare(const std::string& got, const std::string& expected, const std::string& what) {
    ++count_.cases;
    if (got == expected) return;
    if (++count_.failed > 1) return;
    const size_t common = std::min(got.size(), expected.size());
    size_t at = 0;
    while (at < common && got[at] == expected[at]) ++at;
    count_.first_failure =
        absl::StrCat(what, ": byte ", at, " of ", got.size(), ", expected ", expected.size());
    if (at < common) {
      absl::StrAppend(&count_.first_failure, ", is ", absl::Hex(got[at] & 255), ", expected ",
                      absl::Hex(expected[at] & 255));
    }
  }

  static eps_cuda_topk TopkCall(const std::string& name, uint64_t n) {
    // topk:0.DIGITS[:raw32][:sampled]
    const std::vector<std::string> pieces = absl::StrSplit(name, ':');
    uint64_t digits = 0;
    uint64_t power = 1;
    for (const char c : pieces[1].substr(2)) {
      digits = 10 * digits + static_cast<uint64_t>(c - '0');
      power *= 10;
    }
    const auto fraction = [digits, power](uint64_t of) {
      return (digits * of + power - 1) / power;
    };
    eps_cuda_topk call = {};
    call.n = n;
    call.raw32 = absl::StrContains(name, ":raw32");
    call.sampled = absl::StrContains(name, ":sampled");
    call.rank = fraction(call.sampled != 0 ? (n + 63) / 64 : n);
    call.max_count = call.sampled != 0 ? std::min(2 * fraction(n), n) : fraction(n);
    return call;
  }

  KernelRunner* const runner_;
  CaseCount count_;
};

}  // namespace

const std::vector<DenseCodec>& DenseCodecs() {
  static const auto* const codecs = new std::vector<DenseCodec>{
      {"fp32", 1, false},        {"bf16", 2, false},         {"fp16", 3, false},
      {"fp8_e4m3", 4, false},    {"fp8_e5m2", 5, false},     {"mx9", 8, false},
      {"mx9:truncate", 8, true}, {"mx6", 9, false},          {"mx6:truncate", 9, true},
      {"mx4", 10, false},        {"mx4:truncate", 10, true}, {"mxfp8_e4m3", 16, false},
      {"mxfp8_e5m2", 17, false}, {"mxfp6_e2m3", 18, false},  {"mxfp6_e3m2", 19, false},
      {"mxfp4_e2m1", 20, false}, {"mxint8", 21, false}};
  return *codecs;
}

CaseCount CheckDenseCodec(const DenseCodec& codec, KernelRunner* runner) {
  Checker checker(runner);
  std::vector<float> all(65536);
  for (uint32_t code = 0; code < 65536; ++code) all[code] = FloatOf(code << 16);
  // Along columns each value is a block of its own; along rows it has neighbours.
  checker.Dense(codec, ChunkOf({{1, 65536}}), all, "each bf16 alone");
  // Neighbours in a column are one binade apart.
  checker.Dense(codec, ChunkOf({{512, 128}}), all, "every bf16");
  // Along columns, beside a value that determines the scale, at every distance of exponents.
  for (const uint32_t other : {0x3f800000u, 0x00400000u, 0x7f000001u}) {
    std::vector<float> pairs(2 * 65536, FloatOf(other));
    for (uint32_t code = 0; code < 65536; ++code) {
      pairs[code] = FloatOf(code << 16 | (code * 40503u >> 8 & 0xffffu));
    }
    checker.Dense(codec, ChunkOf({{2, 65536}}), pairs, "every bf16 beside another value");
  }
  std::vector<Chunk> chunks = {ChunkOf({{1, 1}}),
                               ChunkOf({{1, 17}}),
                               ChunkOf({{33, 17}}),
                               ChunkOf({{16, 129}}),
                               ChunkOf({{70, 200}}),
                               ChunkOf({{96, 384}}),
                               ChunkOf({{31, 127}}),
                               ChunkOf({{1, 1030}}),
                               ChunkOf({{40, 140}, {1, 37}, {1, 1}, {33, 130}, {1, 300}})};
  std::vector<std::pair<uint32_t, uint32_t>> vectors;
  for (uint32_t i = 0; i < 150; ++i) vectors.push_back({1 + i % 3, 1 + i * 37 % 301});
  chunks.push_back(ChunkOf(vectors));
  uint64_t seed = 1;
  for (const Chunk& chunk : chunks) {
    for (const Content content : kContents) {
      checker.Dense(codec, chunk, Floats(content, ++seed, chunk.elements),
                    absl::StrCat("content ", static_cast<int>(content), " in ",
                                 chunk.segments.size(), " segments of ", chunk.elements));
    }
  }
  checker.AnyBytes(codec);
  return checker.count();
}

CaseCount CheckTopk(KernelRunner* runner) {
  Checker checker(runner);
  const std::vector<std::string> names = {"topk:0.01",
                                          "topk:0.1",
                                          "topk:0.5",
                                          "topk:0.001",
                                          "topk:0.01:raw32",
                                          "topk:0.05:sampled",
                                          "topk:0.1:raw32:sampled"};
  uint64_t seed = 100;
  for (const std::string& name : names) {
    for (const uint32_t n :
         {1u, 2u, 15u, 16u, 17u, 255u, 1000u, 4095u, 4096u, 4097u, 40000u, 150000u}) {
      checker.Topk(name, n, Floats(Content::kHeavyTailed, ++seed, n), 3, "heavy-tailed");
      if (n > 40000) break;
      checker.Topk(name, n, Floats(Content::kGaussian, ++seed, n), 4, "gaussian");
      // Machines may add to different NaN, so there are none with error feedback.
      checker.Topk(name, n, Floats(Content::kSpecials, ++seed, n), 1, "special values");
      checker.Topk(name, n, Floats(Content::kAnyBits, ++seed, n), 1, "any bits");
      checker.Topk(name, n, Floats(Content::kDenormals, ++seed, n), 3, "denormals");
      checker.Topk(name, n, std::vector<float>(n), 2, "zeros");
      std::vector<float> ties(n, 1.5f);
      for (uint32_t i = 0; i < n; i += 3) ties[i] = -1.5f;
      for (uint32_t i = 0; i < n; i += 91) ties[i] = 2.0f;
      checker.Topk(name, n, ties, 3, "ties");
      std::vector<float> few(n);
      for (uint32_t i = n / 2; i < n; i += 1 + n / 5) few[i] = -3.0f;
      checker.Topk(name, n, few, 3, "zeros but for a few");
    }
  }
  // Gaps around the escapes of delta8 and delta16, single and consecutive.
  for (const uint32_t gap : {254u, 255u, 256u, 510u, 65534u, 65535u, 65536u, 131071u}) {
    std::vector<float> far(3 * gap + 10);
    for (uint32_t i = 1; i <= 3; ++i) far[i * gap + (i > 1)] = static_cast<float>(i);
    const uint32_t n = static_cast<uint32_t>(far.size());
    checker.Topk("topk:0.01", n, far, 2, absl::StrCat("gaps of ", gap));
    // A few elements far apart, then many close together: any format may be the shortest.
    for (uint32_t i = n - n / 8; i < n; i += 2) far[i] = 1.0f + static_cast<float>(i % 5);
    checker.Topk("topk:0.1", n, far, 2, absl::StrCat("gaps of ", gap, " and a cluster"));
  }
  return checker.count();
}

}  // namespace eps
