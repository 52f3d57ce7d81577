#include "storage/cuts/drives/drive_placement.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr size_t kArrays = 3;

std::vector<ChunkId> AllOf(const ChunkMap& chunks) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : chunks.chunks()) all.push_back(chunk.id);
  return all;
}

TEST(DrivePlacement, NoDriveNeedsNoTable) {
  const ChunkMap chunks = ChunkMap::Build(TinyGpt2Spec());
  const DrivePlacement placement = SpreadOverDrives(chunks, AllOf(chunks), kArrays, 0);
  EXPECT_EQ(placement.drives, 0u);
  EXPECT_TRUE(placement.drive.empty());
  EXPECT_EQ(placement.of(3), 0u);
}

// The bytes of state on each drive, and the largest chunk.
struct Fill {
  std::vector<uint64_t> bytes;
  uint64_t largest = 0;

  void Add(uint32_t drive, uint64_t chunk, uint32_t drives) {
    bytes.resize(drives);
    bytes[drive] += chunk;
    largest = std::max(largest, chunk);
  }
  uint64_t Difference() const {
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    return *most - *least;
  }
};

// Jobs with few and with many chunks, some of them with frozen tensors.
std::vector<JobSpec> Jobs() {
  std::vector<JobSpec> jobs = {RaggedSpec()};
  for (const uint64_t chunk_elements : {1024, 4096, 6144, 16384, 65536}) {
    JobSpec spec = TinyGpt2Spec();
    spec.tensors.clear();
    spec.groups.clear();
    spec.stages.clear();
    spec.chunk_elements = chunk_elements;
    EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
    jobs.push_back(spec);
    for (const char* const part : {"attn", "mlp", "wte", "c_fc"}) {
      JobSpec frozen = spec;
      Freeze(part, /*others=*/false, &frozen);
      jobs.push_back(frozen);
    }
  }
  return jobs;
}

TEST(DrivePlacement, EveryStageIsSpread) {
  for (const JobSpec& spec : Jobs()) {
    const ChunkMap chunks = ChunkMap::Build(spec);
    for (const uint32_t drives : {1u, 2u, 3u, 5u}) {
      const DrivePlacement placement = SpreadOverDrives(chunks, AllOf(chunks), kArrays, drives);
      Fill job;
      std::map<StageId, Fill> stages;
      for (const Chunk& chunk : chunks.chunks()) {
        const uint32_t drive = placement.of(chunk.id.value());
        ASSERT_LT(drive, drives);
        job.Add(drive, StateBytes(spec, chunk), drives);
        stages[chunk.uses.front()].Add(drive, StateBytes(spec, chunk), drives);
      }
      for (const auto& [stage, fill] : stages) {
        EXPECT_LE(fill.Difference(), fill.largest) << "stage " << stage << ", drives " << drives;
      }
      EXPECT_LE(job.Difference(), 2 * job.largest) << drives << " drives";
    }
  }
}

}  // namespace
}  // namespace eps
