// The baseline of Smart-Infinity (sections 3.2 and 7.1): the host updates a state that is striped
// over devices as if they were drives, so that every byte crosses the host link.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/backends/near/testing/train_shard.h"
#include "storage/csd/link_bytes.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/disk.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

// Whether the devices are processes of their own.
class Raid0Test : public testing::TestWithParam<bool> {
 protected:
  // Makes new devices.
  void Open(const JobSpec& spec) {
    RigOptions options;
    options.processes = GetParam();
    rig_ = std::make_unique<DeviceRig>(spec, options);
  }

  static JobSpec Sealed(JobSpec spec) {
    spec.training.mode = Mode::kSealed;
    return spec;
  }
  // Makes the step of one chunk, and compares what the links carried.
  void CheckStep(ShardUnderTest* shard, const ExtentLayout::Area& area);

  std::unique_ptr<DeviceRig> rig_;
};

TEST_P(Raid0Test, StateIsThatOfMemory) {
  const JobSpec spec = Sealed(RaggedSpec());
  Open(spec);
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  ShardUnderTest striped({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(striped.status().ok()) << striped.status();
  EXPECT_TRUE(TrainShard(&striped) == TrainShard(&memory));
}

void Raid0Test::CheckStep(ShardUnderTest* shard, const ExtentLayout::Area& area) {
  const Chunk& chunk = *area.chunk;
  const LinkBytes before = rig_->link_bytes();
  UpdateRequest request = RequestOf(shard, chunk, GradientsOf(chunk, 1, 2), 1, Merging::kNone);
  UpdateRequest update = request;
  const BackendDone reduced = shard->Await(ReduceRequest{std::move(request)});
  ASSERT_TRUE(reduced.status.ok()) << reduced.status;
  update.inputs.clear();
  update.reduced = std::get<UpdateResult>(reduced.value).reduced;
  ASSERT_TRUE(shard->Await(std::move(update)).status.ok());
  const LinkBytes moved = rig_->link_bytes().Since(before);
  LinkBytes expected;
  for (const Link link : {Link::kHost, Link::kMedia}) {
    for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
      expected.Add(link, direction, Purpose::kGradient, area.gradient_bytes);
      expected.Add(link, direction, Purpose::kState, area.bytes());
    }
  }
  for (const Link link : {Link::kHost, Link::kInternal, Link::kMedia}) {
    for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
      for (const Purpose purpose : {Purpose::kState, Purpose::kGradient, Purpose::kControl}) {
        EXPECT_EQ(moved.of(link, direction, purpose), expected.of(link, direction, purpose))
            << NameOf(link) << " " << NameOf(direction) << " " << NameOf(purpose) << ", chunk "
            << chunk.id.value() << " of " << chunk.elements;
      }
    }
  }
  EXPECT_TRUE(moved == expected);
}

// The gradient is written and read, weights and moments are read and written; the devices move
// nothing on their own.
TEST_P(Raid0Test, EachByteCrossesTheHostLinkTwice) {
  Open(Sealed(RaggedSpec()));
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, Sealed(RaggedSpec()), 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(shard.chunks(), owned, /*arrays=*/3, 0, shard.spec().training.parts);
  for (const ExtentLayout::Area& area : layout.areas()) CheckStep(&shard, area);
}

// Where a chunk is whole blocks, that is 16 bytes per parameter, and a footer.
TEST_P(Raid0Test, AStepMovesSixteenBytesPerParameter) {
  Open(Sealed(TinySyntheticSpec()));
  ShardUnderTest shard({"Devices", &DeviceRig::NewBackendOfLast}, Sealed(TinySyntheticSpec()), 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(shard.chunks(), owned, /*arrays=*/3, 0, shard.spec().training.parts);
  int compared = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    const uint64_t bytes = area.chunk->elements * sizeof(float);
    if (bytes % kDiskBlock != 0) continue;
    ++compared;
    EXPECT_EQ(area.gradient_bytes + area.data_bytes, 16 * area.chunk->elements);
    CheckStep(&shard, area);
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, Raid0Test, testing::Bool(),
                         [](const auto& info) { return info.param ? "Processes" : "Here"; });

}  // namespace
}  // namespace eps
