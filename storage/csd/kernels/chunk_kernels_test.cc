#include "storage/csd/kernels/chunk_kernels.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "base/checksum.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "compression/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizer/chunk_compute.h"
#include "storage/csd/device.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/cuts/extents/extent_seals.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps::csd {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kNonce = 77;

// The memory of a device with a sealed chunk of version 4 and its gradient, and the kernel that
// updates it.
class ChunkKernelsTest : public testing::Test {
 protected:
  ChunkKernelsTest() {
    Seal(Version(4));
    for (uint64_t i = 0; i < chunk_.elements; ++i) gradient()[i] = static_cast<float>(i % 7) - 3;
    kernel_.from = {0, chunk_.id, kNonce, 1};
    kernel_.gradient_at = area().bytes();
    kernel_.from_crc32c = footer_.crc32c;
    kernel_.from_version = Version(4);
    kernel_.to_slot = 0;
    kernel_.to = Version(5);
    kernel_.term = Term(3);
    kernel_.step.lr = 0.5;
    kernel_.step.update = 5;
    kernel_.gradient_codec = "fp32";
    kernel_.gradient_bytes = chunk_.elements * sizeof(float);
    kernel_.gradient_crc32c = Crc32c(
        absl::string_view(reinterpret_cast<const char*>(gradient()), kernel_.gradient_bytes));
  }

  const ExtentLayout::Area& area() const { return seals_.layout().area(0); }
  float* floats() const { return arena_->floats(); }
  float* gradient() const { return floats() + area().bytes() / sizeof(float); }
  absl::Span<uint8_t> memory() const {
    return absl::MakeSpan(reinterpret_cast<uint8_t*>(floats()),
                          area().bytes() + kernel_.gradient_bytes + kDiskBlock);
  }
  void Seal(Version version) {
    for (size_t array = 0; array < area().arrays; ++array) {
      for (uint64_t i = 0; i < chunk_.elements; ++i) {
        floats()[array * area().stride_bytes / sizeof(float) + i] = 1;
      }
    }
    footer_ = seals_.Seal(1, 0, version, Term(2), reinterpret_cast<uint8_t*>(floats()));
  }
  absl::StatusOr<std::string> Run(const Kernel& kernel) const {
    return kernels_->Run(Encode(kernel), memory());
  }
  absl::StatusOr<std::string> Run() const { return Run(kernel_); }
  EncodeKernel EncodeIn(const std::string& codec) const {
    EncodeKernel kernel;
    kernel.from = kernel_.from;
    kernel.check = true;
    kernel.from_crc32c = footer_.crc32c;
    kernel.version = Version(4);
    kernel.codec = codec;
    kernel.to_at = area().bytes();
    kernel.to_bytes = memory().size() - area().bytes();
    return kernel;
  }

  const JobSpec spec_ = TinySyntheticSpec();
  const ChunkMap chunks_ = ChunkMap::Build(spec_);
  const Chunk& chunk_ = chunks_.chunk(ChunkId(1));
  const ExtentSeals seals_{
      ExtentLayout(chunks_, {ChunkId(1)}, 3, 0, spec_.training.parts), kNonce, {"/here"}};
  const std::unique_ptr<StateArena> arena_ =
      *StateArena::New(area().bytes() + chunk_.elements * sizeof(float) + kDiskBlock);
  MemoryAccount account_;
  const std::unique_ptr<KernelRunner> kernels_ = *ChunkKernels::New(spec_, &account_);
  ExtentFooter footer_;
  UpdateKernel kernel_;
};

TEST_F(ChunkKernelsTest, UpdateLeavesTheSealedChunk) {
  const absl::StatusOr<std::string> result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  const auto footer = seals_.Check(0, 0, ExtentSeals::Part::kAll, memory().data());
  ASSERT_TRUE(footer.ok()) << footer.status();
  EXPECT_EQ(footer->version, Version(5));
  EXPECT_EQ(footer->term, Term(3));
  EXPECT_EQ(footer->crc32c, DecodeUpdateKernelResult(*result)->crc32c);
  EXPECT_NE(floats()[0], 1);
}

// At these bytes the updater of an emulated device has a rate.
TEST_F(ChunkKernelsTest, UpdaterReadsStateAndGradient) {
  const auto work_of = [&](const Kernel& kernel) { return kernels_->WorkOf(Encode(kernel)); };
  const uint64_t n = chunk_.elements;
  EXPECT_EQ(work_of(kernel_).bytes, 16 * n);
  EXPECT_FALSE(work_of(kernel_).decompresses);
  UpdateKernel sparse = kernel_;
  sparse.gradient_bytes = n / 16;
  EXPECT_EQ(work_of(sparse).bytes, 12 * n + n / 16);
  EXPECT_TRUE(work_of(sparse).decompresses);
  EXPECT_EQ(work_of(MeasureKernel{kernel_}).bytes, 16 * n);
  // These see bytes that pass anyway.
  EXPECT_EQ(work_of(CheckKernel{kernel_.from}).bytes, 0u);
  EXPECT_EQ(work_of(EncodeIn("bf16")).bytes, 0u);
  UpdateKernel unknown = kernel_;
  unknown.from.chunk = ChunkId(1000);
  EXPECT_EQ(work_of(unknown).bytes, 0u);
  EXPECT_EQ(kernels_->WorkOf("garbage").bytes, 0u);
}

TEST_F(ChunkKernelsTest, DamageAnywhereIsRefused) {
  const std::string before(reinterpret_cast<const char*>(memory().data()), memory().size());
  const uint64_t crc_bytes = area().bytes() - sizeof(uint32_t);
  for (const uint64_t at :
       {uint64_t{0}, area().stride_bytes + 5, area().data_bytes - 1, area().data_bytes + 9,
        crc_bytes, area().bytes(), area().bytes() + kernel_.gradient_bytes - 1}) {
    memory()[at] = static_cast<uint8_t>(memory()[at] ^ 4);
    const absl::Status status = Run().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << at << ": " << status;
    memory()[at] = static_cast<uint8_t>(memory()[at] ^ 4);
    EXPECT_EQ(std::memcmp(memory().data(), before.data(), before.size()), 0) << "byte " << at;
  }
}

TEST_F(ChunkKernelsTest, OtherContentThanExpectedIsRefused) {
  Seal(Version(3));
  const absl::Status stale = Run().status();
  EXPECT_EQ(stale.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(stale.message(), HasSubstr("version 4 as written last expected, version 3 found"));
  Seal(Version(4));
  kernel_.from.slot = 0;
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kDataLoss);
  kernel_.from.slot = 1;
  kernel_.from.nonce = kNonce + 1;
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ChunkKernelsTest, CheckReturnsTheFooterOfWholeChunks) {
  const absl::StatusOr<std::string> result = Run(CheckKernel{kernel_.from});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto footer = DecodeCheckKernelResult(*result);
  ASSERT_TRUE(footer.ok()) << footer.status();
  EXPECT_EQ(footer->version, Version(4));
  EXPECT_EQ(footer->term, Term(2));
  EXPECT_EQ(footer->crc32c, footer_.crc32c);
  memory()[2 * area().stride_bytes] = static_cast<uint8_t>(memory()[2 * area().stride_bytes] ^ 1);
  EXPECT_EQ(Run(CheckKernel{kernel_.from}).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ChunkKernelsTest, EncodedWeightsFollowTheirChunk) {
  const ChunkCompute compute = *ChunkCompute::New(spec_, &account_);
  for (const char* const codec : {"bf16", "fp32", "mx6"}) {
    const absl::StatusOr<std::string> result = Run(EncodeIn(codec));
    ASSERT_TRUE(result.ok()) << codec << ": " << result.status();
    const EncodeKernelResult encoded = *DecodeEncodeKernelResult(*result);
    const Bytes expected = compute.Read(chunk_, Version(4), **FindCodec(codec), Axis::kRow,
                                        {floats(), area().stride_bytes / sizeof(float), nullptr});
    const absl::string_view found(reinterpret_cast<const char*>(gradient()), encoded.bytes);
    EXPECT_EQ(found, expected.view()) << codec;
    EXPECT_EQ(encoded.crc32c, Crc32c(found));
  }
}

TEST_F(ChunkKernelsTest, EncodeChecksWeightsIfAsked) {
  EncodeKernel kernel = EncodeIn("bf16");
  kernel.from_crc32c ^= 1;
  const absl::Status stale = Run(kernel).status();
  EXPECT_EQ(stale.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(stale.message(), HasSubstr("as written last expected"));
  kernel = EncodeIn("bf16");
  // Nobody reads the moments.
  memory()[area().stride_bytes] = static_cast<uint8_t>(memory()[area().stride_bytes] ^ 1);
  EXPECT_TRUE(Run(kernel).ok());
  memory()[0] = static_cast<uint8_t>(memory()[0] ^ 1);
  EXPECT_EQ(Run(kernel).status().code(), absl::StatusCode::kDataLoss);
  kernel.check = false;
  EXPECT_TRUE(Run(kernel).ok());
  kernel.to_bytes = 9;
  EXPECT_EQ(Run(kernel).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ChunkKernelsTest, KernelsThatDoNotFitAreRefused) {
  kernel_.from.chunk = ChunkId(static_cast<uint32_t>(chunks_.chunks().size()));
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kInvalidArgument);
  kernel_.from.chunk = chunk_.id;
  for (const uint64_t bytes : {kernel_.gradient_bytes + kDiskBlock + 1, ~uint64_t{0}}) {
    UpdateKernel kernel = kernel_;
    kernel.gradient_bytes = bytes;
    EXPECT_EQ(Run(kernel).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const uint64_t at : {memory().size() - 1, ~uint64_t{0}}) {
    UpdateKernel kernel = kernel_;
    kernel.gradient_at = at;
    EXPECT_EQ(Run(kernel).status().code(), absl::StatusCode::kInvalidArgument);
    kernel = kernel_;
    kernel.from.at = at;
    EXPECT_EQ(Run(kernel).status().code(), absl::StatusCode::kInvalidArgument);
  }
  kernel_.to = Version(6);
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kInvalidArgument);
  kernel_.to = Version(5);
  kernel_.gradient_codec = "no such codec";
  EXPECT_FALSE(Run().ok());
}

TEST_F(ChunkKernelsTest, TrustRatiosFollowTheKernel) {
  kernel_.trust_ratios = {2.5, 0.1, 1e-300};
  const absl::StatusOr<Kernel> read = DecodeKernel(Encode(kernel_));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<UpdateKernel>(*read).trust_ratios, kernel_.trust_ratios);
  kernel_.trust_ratios.resize(kMaxMeasuredSegments, 1);
  EXPECT_LE(Encode(kernel_).size(), kMaxKernelBytes);
  EXPECT_TRUE(DecodeKernel(Encode(kernel_)).ok());
  kernel_.trust_ratios.push_back(1);
  EXPECT_FALSE(DecodeKernel(Encode(kernel_)).ok());
  MeasureResult norms;
  norms.segments.resize(kMaxMeasuredSegments, {3, 4});
  EXPECT_LE(Encode(norms).size(), kMaxKernelBytes);
  const absl::StatusOr<MeasureResult> found = DecodeMeasureKernelResult(Encode(norms));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->segments.size(), kMaxMeasuredSegments);
  EXPECT_EQ(found->segments.back().steps, 4);
  norms.segments.push_back({});
  EXPECT_FALSE(DecodeMeasureKernelResult(Encode(norms)).ok());
}

TEST_F(ChunkKernelsTest, RatiosThatFitNoSegmentAreRefused) {
  kernel_.trust_ratios.resize(chunk_.segments.size() + 1, 1);
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(MeasureKernel{kernel_}).status().code(), absl::StatusCode::kInvalidArgument)
      << "AdamW has no trust ratios";
}

TEST_F(ChunkKernelsTest, FlippedBitsOfKernelsAreRefused) {
  for (const Kernel& each : {Kernel(kernel_), Kernel(CheckKernel{kernel_.from}),
                             Kernel(EncodeIn("bf16")), Kernel(MeasureKernel{kernel_})}) {
    const std::string kernel = Encode(each);
    EXPECT_EQ(DecodeKernel(kernel)->index(), each.index());
    for (size_t bit = 0; bit < 8 * kernel.size(); ++bit) {
      std::string damaged = kernel;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(DecodeKernel(damaged).ok()) << "bit " << bit;
    }
  }
  EXPECT_FALSE(DecodeKernel("").ok());
  EXPECT_FALSE(DecodeUpdateKernelResult("").ok());
  EXPECT_FALSE(DecodeCheckKernelResult("").ok());
  EXPECT_FALSE(DecodeEncodeKernelResult("").ok());
  EXPECT_FALSE(DecodeMeasureKernelResult("").ok());
}

}  // namespace
}  // namespace eps::csd
