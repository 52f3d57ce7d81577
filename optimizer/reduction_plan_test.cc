#include "optimizer/reduction_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/numerics/flush_denormals.h"
#include "base/testing/guarded_memory.h"
#include "compression/testing/codec_testing.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// Decodes like `chunk`, but never says that its elements can be read in place.
class Opaque final : public EncodedChunk {
 public:
  explicit Opaque(std::shared_ptr<const EncodedChunk> chunk) : chunk_(std::move(chunk)) {}
  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    chunk_->Read(tile, accumulate, ld, out);
  }
  const Bytes& bytes() const override { return chunk_->bytes(); }

 private:
  const std::shared_ptr<const EncodedChunk> chunk_;
};

// Values over many binades, with zeros of both signs and denormals: sums depend on their order.
std::vector<float> SomeValues(TestRandom* random, uint64_t n) {
  std::vector<float> values(n);
  for (float& v : values) {
    const uint32_t r = random->Next();
    v = std::ldexp(static_cast<float>(static_cast<int32_t>(random->Next())),
                   -31 - static_cast<int>(r % 24));
    if (r % 31 == 0) v = -0.0f;
    if (r % 37 == 0) v = 0.0f;
    if (r % 41 == 0) v = 1e-39f;
    if (r % 43 == 0) v = -1.2e-38f;
    if (r % 47 == 0) v = 1.3e-38f;
  }
  return values;
}

std::shared_ptr<const EncodedChunk> Encoded(absl::string_view codec_name, const Chunk& chunk,
                                            const std::vector<float>& values) {
  const Codec& codec = **FindCodec(codec_name);
  return *codec.Open(chunk, Axis::kRow, EncodeChunk(codec, chunk, EncodeOptions(), values.data()),
                     Content::kGradient);
}

// Cuts the tree at random nodes, as merging workers may do.
void CutTree(TreeRange node, TestRandom* random, std::vector<TreeRange>* out) {
  if (node.count == 1 || random->Next() % 4 == 0) {
    out->push_back(node);
    return;
  }
  const uint32_t left = LeftLeaves(node.count);
  CutTree(TreeRange{node.first, left}, random, out);
  CutTree(TreeRange{node.first + left, node.count - left}, random, out);
}

// The bits of the sums and of the floats after each panel.
std::string ReduceAll(const ReductionPlan& plan, const Chunk& chunk) {
  ScopedFlushDenormals flush;
  std::string bits;
  std::vector<float> buffers(plan.buffers() * ReductionPlan::kBufferElements, 3.0f);
  ForEachPanel(chunk, [&](const Panel& panel) {
    std::vector<float> sums(panel.elements() + 5, 7.0f);
    plan.Run(panel, buffers.data(), sums.data());
    bits.append(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(float));
  });
  return bits;
}

std::vector<UpdateInput> OpaqueInputs(const std::vector<UpdateInput>& inputs) {
  std::vector<UpdateInput> opaque = inputs;
  for (UpdateInput& input : opaque) input.data = std::make_shared<Opaque>(input.data);
  return opaque;
}

// Random trees, merged ranges, uses and formats over a chunk.
std::vector<UpdateInput> SomeInputs(const Chunk& chunk, uint32_t parts, const char* format_or_null,
                                    TestRandom* random) {
  std::vector<UpdateInput> inputs;
  for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
    std::vector<TreeRange> ranges;
    CutTree(TreeRange{0, parts}, random, &ranges);
    for (const TreeRange range : ranges) {
      const char* const any[] = {"bf16",     "fp32",     "topk:0.01",
                                 "topk:0.1", "topk:0.5", "topk:0.1:raw32:fp32"};
      const char* const format =
          format_or_null != nullptr ? format_or_null : any[random->Next() % std::size(any)];
      inputs.push_back({use, range, Encoded(format, chunk, SomeValues(random, chunk.elements))});
    }
  }
  for (size_t i = inputs.size(); i > 1; --i) {
    std::swap(inputs[i - 1], inputs[random->Next() % i]);
  }
  return inputs;
}

TEST(ReductionPlan, InPlaceEqualsTiledOnEveryTarget) {
  TestRandom random;
  const std::vector<Chunk> shapes = {RaggedChunk(), MatrixChunk(33, 130), MatrixChunk(5, 64),
                                     MatrixChunk(1, 63), MatrixChunk(3, 127)};
  for (const Chunk& shape : shapes) {
    for (uint32_t parts = 1; parts <= 9; ++parts) {
      Chunk chunk = shape;
      chunk.uses.resize(1 + random.Next() % 3);
      const char* const formats[] = {"bf16", "fp32", "topk:0.1", "topk:0.1:fp32", nullptr, nullptr};
      const std::vector<UpdateInput> inputs =
          SomeInputs(chunk, parts, formats[random.Next() % std::size(formats)], &random);
      const std::vector<UpdateInput> opaque = OpaqueInputs(inputs);
      const ReductionPlan by_tile = *ReductionPlan::Build(chunk, parts, opaque);
      const ReductionPlan in_place = *ReductionPlan::Build(chunk, parts, inputs);
      const std::string expected = ReduceAll(by_tile, chunk);
      OnEveryTarget([&] {
        EXPECT_TRUE(ReduceAll(in_place, chunk) == expected)
            << parts << " parts, " << chunk.uses.size() << " uses, " << inputs.size() << " inputs";
      });
    }
  }
}

TEST(ReductionPlan, GivesEqualBitsForAnyTreeDepth) {
  TestRandom random(5);
  Chunk chunk = MatrixChunk(2, 70);
  chunk.uses.resize(2);
  for (const uint32_t parts : {31u, 64u, 127u, 300u}) {
    std::vector<UpdateInput> inputs;
    for (uint32_t use = 0; use < 2; ++use) {
      for (uint32_t part = 0; part < parts; ++part) {
        inputs.push_back(
            {use, TreeRange{part, 1}, Encoded("bf16", chunk, SomeValues(&random, chunk.elements))});
      }
    }
    const std::vector<UpdateInput> opaque = OpaqueInputs(inputs);
    EXPECT_TRUE(ReduceAll(*ReductionPlan::Build(chunk, parts, inputs), chunk) ==
                ReduceAll(*ReductionPlan::Build(chunk, parts, opaque), chunk))
        << parts;
  }
}

TEST(ReductionPlan, ReadsASumThatIsThere) {
  TestRandom random(6);
  const Chunk chunk = RaggedChunk();
  for (const char* format : {"fp32", "bf16", "topk:0.1", "topk:0.1:fp32"}) {
    const auto sum = Encoded(format, chunk, SomeValues(&random, chunk.elements));
    const std::string found = ReduceAll(ReductionPlan::Of(chunk, *sum), chunk);
    EXPECT_TRUE(ReduceAll(ReductionPlan::Of(chunk, Opaque(sum)), chunk) == found);
    std::vector<float> expected(chunk.elements);
    DecodeChunk(*sum, chunk, expected.data());
    uint64_t at = 0;  // in `found`, which has five more floats after each panel
    ForEachPanel(chunk, [&](const Panel& panel) {
      const uint64_t first = panel.offset(chunk.segments[panel.segment]);
      EXPECT_EQ(std::memcmp(found.data() + at, expected.data() + first, 4 * panel.elements()), 0);
      at += 4 * (panel.elements() + 5);
    });
  }
}

// Sparse elements, a share of which is present. Their words and values end at a guard page.
struct SparseWorld {
  SparseWorld(size_t n, uint32_t percent, size_t value_bytes, TestRandom* random)
      : elements(n), words(8 * ((n + 63) / 64 + 1)), before((n + 63) / 64 + 1) {
    auto* const bits = reinterpret_cast<uint64_t*>(words.data());
    std::memset(bits, 0, words.size());
    std::vector<uint8_t> encoded;
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i % 64 == 0) before[i / 64] = static_cast<uint32_t>(count);
      if (random->Next() % 100 >= percent) continue;
      bits[i / 64] |= uint64_t{1} << (i % 64);
      uint32_t value = random->Next() % 16 == 0 ? 0x80000000u : random->Next();
      if (value_bytes == 2) value &= 0xffff0000u;
      for (size_t b = 4 - value_bytes; b < 4; ++b) {
        encoded.push_back(static_cast<uint8_t>(value >> (8 * b)));
      }
      ++count;
      std::memcpy(&elements[i], &value, sizeof(value));
    }
    values = std::make_unique<GuardedMemory>(encoded.size());
    std::memcpy(values->data(), encoded.data(), values->size());
    sparse = {bits, before.data(), values->data(), count, value_bytes};
  }

  std::vector<float> elements;
  GuardedMemory words;
  std::vector<uint32_t> before;
  std::unique_ptr<GuardedMemory> values;
  SparseElements sparse{};
};

TEST(StripKernels, ReadSparseElementsWithinBounds) {
  OnEveryTarget([] {
    TestRandom random(7);
    for (const size_t value_bytes : {2u, 4u}) {
      for (const uint32_t percent : {0u, 1u, 30u, 100u}) {
        for (const size_t n : {64u, 65u, 127u, 192u, 700u}) {
          const SparseWorld world(n, percent, value_bytes, &random);
          const strip_kernels::Step read = {strip_kernels::StepKind::kReadSparse, nullptr,
                                            &world.sparse};
          for (int round = 0; round < 40; ++round) {
            const size_t first = random.Next() % (n - strip_kernels::kStrip + 1);
            const size_t count =
                strip_kernels::kStrip + random.Next() % (n - first - strip_kernels::kStrip + 1);
            std::vector<float> found(count + 1, 7.0f);
            strip_kernels::Reduce(&read, 1, first, count, found.data());
            ASSERT_EQ(std::memcmp(found.data(), &world.elements[first], 4 * count), 0)
                << value_bytes << " bytes, " << percent << " % of " << n << ", from " << first
                << ", " << count;
            ASSERT_EQ(found[count], 7.0f);
          }
        }
      }
    }
  });
}

TEST(ReductionPlan, AddsPlusZeroForMissingSparseElements) {
  Chunk chunk = MatrixChunk(2, 200);
  chunk.uses.resize(1);
  std::vector<float> one(chunk.elements, 0.0f);
  one[77] = 3.0f;
  const std::vector<UpdateInput> inputs = {
      {0, TreeRange{0, 1}, Encoded("bf16", chunk, std::vector<float>(chunk.elements, -0.0f))},
      {0, TreeRange{1, 1}, Encoded("topk:0.0025", chunk, one)}};
  const ReductionPlan plan = *ReductionPlan::Build(chunk, 2, inputs);
  OnEveryTarget([&] {
    const std::string bits = ReduceAll(plan, chunk);
    for (size_t i = 0; i < chunk.elements; ++i) {
      float sum;
      std::memcpy(&sum, bits.data() + 4 * i, sizeof(sum));
      ASSERT_EQ(sum, one[i]);
      ASSERT_FALSE(std::signbit(sum)) << i;
    }
  });
}

// Keeps the sizes of pieces, and checks that each has its sums when it comes.
class CheckedPieces final : public strip_kernels::PieceSink {
 public:
  // `expected` are the sums of the range, `found` is where the plan writes them.
  CheckedPieces(const float* expected, const float* found) : expected_(expected), found_(found) {}

  void Take(size_t offset, size_t n) override {
    EXPECT_EQ(offset, taken_);
    EXPECT_EQ(offset % 16, 0u);
    EXPECT_EQ(std::memcmp(expected_ + offset, found_ + offset, 4 * n), 0) << offset;
    taken_ += n;
    largest_ = std::max(largest_, n);
  }
  size_t taken() const { return taken_; }
  size_t largest() const { return largest_; }

 private:
  const float* const expected_;
  const float* const found_;
  size_t taken_ = 0;
  size_t largest_ = 0;
};

TEST(ReductionPlan, PiecesAreTheSumsInOrder) {
  TestRandom random(9);
  for (const Chunk& chunk : {RaggedChunk(), MatrixChunk(33, 130), MatrixChunk(3, 127),
                             MatrixChunk(1, 193), MatrixChunk(1, 63)}) {
    Chunk used = chunk;
    used.uses.resize(1);
    const std::vector<UpdateInput> inputs = SomeInputs(used, 5, nullptr, &random);
    const ReductionPlan plan = *ReductionPlan::Build(used, 5, inputs);
    std::vector<float> buffers(plan.buffers() * ReductionPlan::kBufferElements);
    OnEveryTarget([&] {
      ScopedFlushDenormals flush;
      ForEachPanel(used, [&](const Panel& panel) {
        std::vector<float> whole(panel.elements() + 5, 7.0f);
        plan.Run(panel, buffers.data(), whole.data());
        ASSERT_EQ(plan.InPlace(panel), panel.elements() >= strip_kernels::kStrip);
        if (!plan.InPlace(panel)) return;
        std::vector<float> pieces(panel.elements() + 5, 7.0f);
        // In one range, or in two.
        const size_t n = panel.elements();
        const size_t border = n < 2 * strip_kernels::kStrip ? n : strip_kernels::kStrip + n % 7;
        for (const ElementRange& range :
             {ElementRange{0, border}, ElementRange{border, n - border}}) {
          if (range.elements == 0) continue;
          CheckedPieces sink(whole.data() + range.offset, pieces.data() + range.offset);
          plan.RunPieces(panel, range, pieces.data() + range.offset, &sink);
          EXPECT_EQ(sink.taken(), range.elements);
          EXPECT_LT(sink.largest(), 1024u) << "stays in the first cache";
        }
        EXPECT_EQ(std::memcmp(pieces.data(), whole.data(), 4 * whole.size()), 0);
      });
    });
  }
}

}  // namespace
}  // namespace eps
