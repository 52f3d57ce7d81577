// Updates inside OpenCL devices (pocl): the state is that of memory, bit for bit, and gradients and
// weights cross the host link in FP32.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/job/optimizers.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/backends/near/testing/train_shard.h"
#include "storage/csd/link_bytes.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

RigOptions Options(bool gradients_in_memory) {
  RigOptions options;
  options.opencl = true;
  options.dram_bytes = uint64_t{8} << 20;
  options.gradients_in_memory = gradients_in_memory;
  return options;
}

JobSpec InMode(Mode mode, JobSpec spec) {
  spec.training.mode = mode;
  return spec;
}

// TrainShard fetches weights in bf16: the host encodes them.
TEST(CsdOpenClTest, EveryOptimizerGivesTheBitsOfMemory) {
  for (const OptimizerRow& row : Optimizers()) {
    JobSpec spec = InMode(Mode::kSealed, TinySyntheticSpec());
    static_cast<OptimizerSettings&>(spec.optimizer) = DefaultsOf(row.name);
    const DeviceRig rig(spec, Options(/*gradients_in_memory=*/true));
    ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
    ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ASSERT_TRUE(devices.status().ok()) << devices.status();
    EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory)) << NameOf(row.name);
  }
}

TEST(CsdOpenClTest, RaggedChunksHaveTheStateOfMemory) {
  for (const Mode mode : {Mode::kSealed, Mode::kEager}) {
    const JobSpec spec = InMode(mode, RaggedSpec());
    RigOptions options = Options(/*gradients_in_memory=*/false);
    options.hands_buffers_over = mode == Mode::kSealed;
    if (options.hands_buffers_over) options.sets = 1;
    const DeviceRig rig(spec, options);
    ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
    ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
    ASSERT_TRUE(devices.status().ok()) << devices.status();
    EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory));
    EXPECT_GT(rig.link_bytes().of(Link::kInternal, Direction::kWritten, Purpose::kState), 0u);
  }
}

// Whether gradients wait in the memory of devices.
class CsdOpenClBytesTest : public testing::TestWithParam<bool> {};

TEST_P(CsdOpenClBytesTest, StepMovesTheBytesOfFp32) {
  const JobSpec spec = InMode(Mode::kSealed, TinySyntheticSpec());
  const RigOptions options = Options(GetParam());
  const DeviceRig rig(spec, options);
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(shard.chunks(), owned, /*arrays=*/3, 0, spec.training.parts);
  int compared = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    const uint64_t n = area.chunk->elements;
    if (n * 2 % kDiskBlock != 0) continue;  // whole blocks: there is no padding
    ++compared;
    const LinkBytes before = rig.link_bytes();
    TrainChunk(&shard, *area.chunk, 1, {{*FindCodec("bf16"), Axis::kRow}});
    EXPECT_TRUE(rig.link_bytes().Since(before) == BytesOfStep(options, n, area.footer_bytes))
        << "chunk " << area.chunk->id.value() << " of " << n;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Gradients, CsdOpenClBytesTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "InDevice" : "OnMedium");
});

// A compressed gradient is decoded on the host, when it is reduced or when it is sent.
class CsdOpenClCodecsTest : public testing::TestWithParam<std::tuple<const char*, Mode>> {};

TEST_P(CsdOpenClCodecsTest, OnlyContributionGoesDownInFp32) {
  const auto [codec, mode] = GetParam();
  JobSpec spec = InMode(mode, TinySyntheticSpec());
  spec.training.parts = 1;
  const DeviceRig rig(spec, Options(/*gradients_in_memory=*/true));
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  std::string states[2];
  uint64_t sent = 0;
  const LinkBytes before = rig.link_bytes();
  for (ShardUnderTest* const shard : {&devices, &memory}) {
    ASSERT_TRUE(shard->status().ok()) << shard->status();
    shard->InitializeAll();
    const Chunk& chunk = shard->chunks().chunk(ChunkId(1));
    sent = RoundUpTo(chunk.elements * sizeof(float), kDiskBlock);
    uint64_t encoded = 0;
    states[shard == &memory ? 1 : 0] = UpdateWith(shard, chunk, codec, &encoded);
  }
  EXPECT_TRUE(states[0] == states[1]);
  const LinkBytes moved = rig.link_bytes().Since(before);
  EXPECT_EQ(moved.of(Link::kHost, Direction::kWritten, Purpose::kGradient), sent);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CsdOpenClCodecsTest,
                         testing::Combine(testing::Values("topk:0.01:raw32", "bf16", "fp32"),
                                          testing::Values(Mode::kSealed, Mode::kEager)));

TEST(CsdOpenClTest, DamagedMediumNamesFileAndOffset) {
  const JobSpec spec = InMode(Mode::kEager, TinySyntheticSpec());
  RigOptions options = Options(/*gradients_in_memory=*/false);
  options.devices = 1;
  const DeviceRig rig(spec, options);
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  rig.FlipBitsOfFirstChunk();
  const Chunk& chunk = shard.chunks().chunks().front();
  const absl::Status status =
      shard.Await(RequestOf(&shard, chunk, GradientsOf(chunk, 1, 2), 1, Merging::kNone)).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("/csd-0/job/slot-"));
  EXPECT_THAT(status.message(), HasSubstr("bytes at offset 4096"));
}

}  // namespace
}  // namespace eps
