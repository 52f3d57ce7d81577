// Norms for trust ratios (LAMB), measured inside storage devices.

#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/job/job_spec.h"
#include "base/job/optimizers.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/backends/near/testing/train_shard.h"
#include "storage/csd/kernels/kernel_records.h"
#include "storage/csd/link_bytes.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/block_bytes.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kDramBytes = uint64_t{8} << 20;

JobSpec LambSpec() {
  JobSpec spec = TinySyntheticSpec();
  spec.training.mode = Mode::kSealed;
  spec.optimizer.name = OptimizerName::kLamb;
  return spec;
}

// Whether the devices are processes, whether gradients wait in their memory, and whether a chunk
// hands its buffers over to the next one.
class CsdMeasureTest : public testing::TestWithParam<std::tuple<bool, bool, bool>> {
 protected:
  static RigOptions Options() {
    RigOptions options;
    options.processes = std::get<0>(GetParam());
    options.gradients_in_memory = std::get<1>(GetParam());
    options.hands_buffers_over = std::get<2>(GetParam());
    if (options.hands_buffers_over) options.sets = 1;
    options.dram_bytes = kDramBytes;
    return options;
  }
};

TEST_P(CsdMeasureTest, TrainsAsInMemory) {
  const JobSpec spec = LambSpec();
  const DeviceRig rig(spec, Options());
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(devices.status().ok()) << devices.status();
  EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory));
}

// State and gradient are read inside the device; nothing but the norms crosses the host link.
TEST_P(CsdMeasureTest, NothingCrossesTheHostLink) {
  const JobSpec spec = LambSpec();
  const DeviceRig rig(spec, Options());
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(shard.chunks(), owned, /*arrays=*/3, 0, spec.training.parts);
  int compared = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    const Chunk& chunk = *area.chunk;
    const uint64_t n = chunk.elements;
    if (n * 4 % kDiskBlock != 0) continue;  // whole blocks: there is no padding
    ++compared;
    UpdateRequest request = RequestOf(&shard, chunk, GradientsOf(chunk, 1, 2), 1, Merging::kNone);
    const BackendDone reduced = shard.Await(ReduceRequest{request});
    ASSERT_TRUE(reduced.status.ok()) << reduced.status;
    request.inputs.clear();
    request.reduced = std::get<UpdateResult>(reduced.value).reduced;
    const LinkBytes before = rig.link_bytes();
    const BackendDone measured = shard.Await(MeasureRequest{request});
    ASSERT_TRUE(measured.status.ok()) << measured.status;
    const LinkBytes moved = rig.link_bytes().Since(before);
    LinkBytes expected;
    for (const Link link : {Link::kInternal, Link::kMedia}) {
      expected.Add(link, Direction::kRead, Purpose::kState, 12 * n);
      expected.Add(link, Direction::kRead, Purpose::kPadding, area.footer_bytes);
      if (!std::get<1>(GetParam())) {
        expected.Add(link, Direction::kRead, Purpose::kGradient, 4 * n);
      }
    }
    EXPECT_TRUE(moved == expected) << "chunk " << chunk.id.value() << " of " << n;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, CsdMeasureTest,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) ? "Processes" : "Here",
                                               std::get<1>(info.param) ? "InDevice" : "OnMedium",
                                               std::get<2>(info.param) ? "Handover" : "Sets");
                         });

// The result of a kernel is one frame.
TEST(CsdMeasureLimitTest, ChunksOfManyTensorsAreRefused) {
  JobSpec spec = LambSpec();
  for (size_t i = 0; i <= csd::kMaxMeasuredSegments; ++i) {
    TensorSpec tiny = spec.tensors.back();
    tiny.name = absl::StrCat("tiny.", i);
    tiny.rows = tiny.cols = 1;
    const TensorId id(static_cast<uint32_t>(spec.tensors.size()));
    spec.tensors.push_back(tiny);
    spec.stages.back().uses.push_back({id});
  }
  RigOptions options;
  options.dram_bytes = kDramBytes;
  const DeviceRig rig(spec, options);
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(devices.status().message(), HasSubstr("and a device measures at most 200 of one"));
  EXPECT_THAT(devices.status().message(), HasSubstr("lower training.chunk_elements"));
}

}  // namespace
}  // namespace eps
