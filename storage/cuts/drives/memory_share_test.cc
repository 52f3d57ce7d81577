#include "storage/cuts/drives/memory_share.h"

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

// A job of many chunks, some of whose tensors are frozen.
JobSpec Job() {
  JobSpec spec = TinyGpt2Spec();
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = 1024;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  Freeze("ln_", /*others=*/false, &spec);
  return spec;
}

class MemoryShareTest : public testing::Test {
 protected:
  MemoryShareTest() {
    for (const Chunk& chunk : chunks_.chunks()) {
      owned_.push_back(chunk.id);
      all_ += BytesOf(chunk);
    }
  }
  static uint64_t BytesOf(const Chunk& chunk) {
    return chunk.elements * (chunk.frozen ? 1 : kArrays) * sizeof(float);
  }
  std::vector<bool> With(uint64_t bytes) const {
    return ChunksInMemory(chunks_, owned_, kArrays, bytes);
  }

  const JobSpec spec_ = Job();
  const ChunkMap chunks_ = ChunkMap::Build(spec_);
  std::vector<ChunkId> owned_;
  uint64_t all_ = 0;
};

TEST_F(MemoryShareTest, NothingAndEverything) {
  const auto count = [](const std::vector<bool>& held) {
    return std::count(held.begin(), held.end(), true);
  };
  EXPECT_EQ(count(With(0)), 0);
  EXPECT_EQ(count(With(all_)), static_cast<int64_t>(owned_.size()));
  EXPECT_EQ(count(With(~uint64_t{0})), static_cast<int64_t>(owned_.size()));
  EXPECT_LT(count(With(all_ - 1)), static_cast<int64_t>(owned_.size()));
}

TEST_F(MemoryShareTest, EachStageHasTheSameShare) {
  for (const double share : {0.1, 0.35, 0.5, 0.9}) {
    const auto bytes = static_cast<uint64_t>(share * static_cast<double>(all_));
    const std::vector<bool> held = With(bytes);
    std::map<StageId, uint64_t> here, in_all;
    uint64_t sum = 0, largest = 0;
    for (size_t i = 0; i < owned_.size(); ++i) {
      const Chunk& chunk = chunks_.chunk(owned_[i]);
      largest = std::max(largest, BytesOf(chunk));
      in_all[chunk.uses.front()] += BytesOf(chunk);
      if (!held[i]) continue;
      here[chunk.uses.front()] += BytesOf(chunk);
      sum += BytesOf(chunk);
    }
    EXPECT_LE(sum, bytes) << share;
    EXPECT_GE(sum + largest, bytes) << share;
    for (const auto& [stage, stage_bytes] : in_all) {
      const double wanted = share * static_cast<double>(stage_bytes);
      EXPECT_NEAR(static_cast<double>(here[stage]), wanted, static_cast<double>(largest))
          << share << " of stage " << stage.value();
    }
  }
}

}  // namespace
}  // namespace eps
