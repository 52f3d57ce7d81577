#include "storage/cuts/drives/drive_placement.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr size_t kArrays = 3;

// A job whose stages have several chunks each.
JobSpec SmallChunks() {
  JobSpec spec = TinySyntheticSpec();
  spec.chunk_elements = 256;
  return spec;
}

std::vector<ChunkId> AllOf(const ChunkMap& chunks) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : chunks.chunks()) all.push_back(chunk.id);
  return all;
}

TEST(DrivePlacement, NoDriveNeedsNoTable) {
  const ChunkMap chunks = ChunkMap::Build(SmallChunks());
  const DrivePlacement placement = SpreadOverDrives(chunks, AllOf(chunks), kArrays, 0);
  EXPECT_EQ(placement.drives, 0u);
  EXPECT_TRUE(placement.drive.empty());
  EXPECT_EQ(placement.of(3), 0u);
}

TEST(DrivePlacement, EveryStageIsSpread) {
  const ChunkMap chunks = ChunkMap::Build(SmallChunks());
  for (const uint32_t drives : {1u, 2u, 3u, 5u}) {
    const DrivePlacement placement = SpreadOverDrives(chunks, AllOf(chunks), kArrays, drives);
    std::map<StageId, std::vector<uint64_t>> of_stage;
    std::vector<uint64_t> of_job(drives);
    std::map<StageId, uint64_t> largest;
    uint64_t largest_chunk = 0;
    for (const Chunk& chunk : chunks.chunks()) {
      const uint32_t drive = placement.of(chunk.id.value());
      ASSERT_LT(drive, drives);
      of_stage[chunk.uses.front()].resize(drives);
      of_stage[chunk.uses.front()][drive] += chunk.elements;
      of_job[drive] += chunk.elements;
      uint64_t& most = largest[chunk.uses.front()];
      most = std::max(most, chunk.elements);
      largest_chunk = std::max(largest_chunk, chunk.elements);
    }
    for (const auto& [stage, filled] : of_stage) {
      const auto [least, most] = std::minmax_element(filled.begin(), filled.end());
      EXPECT_LE(*most - *least, largest[stage]) << "stage " << stage.value();
    }
    const auto [least, most] = std::minmax_element(of_job.begin(), of_job.end());
    EXPECT_LE(*most - *least, largest_chunk * 2);
  }
}

TEST(DrivePlacement, FrozenChunksCountTheirWeightsAlone) {
  JobSpec spec = SmallChunks();
  Freeze("wte", /*others=*/false, &spec);
  const ChunkMap chunks = ChunkMap::Build(spec);
  const DrivePlacement placement = SpreadOverDrives(chunks, AllOf(chunks), kArrays, 2);
  std::vector<uint64_t> bytes(2);
  uint64_t largest = 0;
  for (const Chunk& chunk : chunks.chunks()) {
    bytes[placement.of(chunk.id.value())] += StateBytes(spec, chunk);
    largest = std::max(largest, StateBytes(spec, chunk));
  }
  EXPECT_LE(std::max(bytes[0], bytes[1]) - std::min(bytes[0], bytes[1]), largest);
}

}  // namespace
}  // namespace eps
