// The trust ratios of tensors that span several chunks.

#include "eps_server/core/trust/trust_fold.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/optimizers.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

class TrustFoldTest : public testing::Test {
 protected:
  TrustFoldTest() { spec_.optimizer.always_adapt = true; }

  // The norms of a chunk: each segment has the squares 4 * (n + 1) and n + 1, with n its number
  // among all segments of the job.
  v1::TensorNorms NormsOf(const std::vector<ChunkId>& ids, uint64_t step = 3) const {
    v1::TensorNorms norms;
    norms.set_step(step);
    for (const ChunkId id : ids) {
      norms.add_chunks(id.value());
      uint64_t n = 0;
      for (const Chunk& chunk : chunks_.chunks()) {
        for (size_t i = 0; i < chunk.segments.size(); ++i, ++n) {
          if (chunk.id != id) continue;
          norms.add_weight_squares(4 * static_cast<double>(n + 1));
          norms.add_step_squares(static_cast<double>(n + 1));
        }
      }
    }
    return norms;
  }
  std::vector<ChunkId> AllChunks() const {
    std::vector<ChunkId> ids;
    for (const Chunk& chunk : chunks_.chunks()) ids.push_back(chunk.id);
    return ids;
  }

  SmallJob job_;
  JobSpec spec_ = job_.spec;
  const ChunkMap& chunks_ = job_.chunks();
};

TEST_F(TrustFoldTest, NeedsEveryChunk) {
  TrustFold fold(spec_, chunks_);
  EXPECT_FALSE(fold.Fold().has_value()) << "no step has begun";
  fold.Begin(3);
  for (const ChunkId id : AllChunks()) {
    EXPECT_FALSE(fold.Fold().has_value());
    EXPECT_EQ(fold.Missing(), id);
    ASSERT_TRUE(fold.OnNorms(NormsOf({id})).ok());
  }
  EXPECT_FALSE(fold.Missing().has_value());
  const auto trust = fold.Fold();
  ASSERT_TRUE(trust.has_value());
  EXPECT_EQ(trust->step(), 3u);
  ASSERT_EQ(trust->ratios_size(), static_cast<int>(spec_.tensors.size()));
  for (const double ratio : trust->ratios()) EXPECT_EQ(ratio, 2);
}

TEST_F(TrustFoldTest, AddsTheSegmentsOfATensor) {
  TrustFold fold(spec_, chunks_);
  fold.Begin(1);
  v1::TensorNorms norms = NormsOf(AllChunks(), 1);
  // The first tensor's weights: 9 in its first segment, nothing in all others.
  int n = 0;
  for (const Chunk& chunk : chunks_.chunks()) {
    for (const Segment& segment : chunk.segments) {
      if (segment.tensor == TensorId(0)) {
        norms.set_weight_squares(n, n == 0 ? 9 : 0);
        norms.set_step_squares(n, n == 0 ? 0.25 : 0);
      }
      ++n;
    }
  }
  ASSERT_TRUE(fold.OnNorms(norms).ok());
  EXPECT_EQ(fold.Fold()->ratios(0), 6);
  EXPECT_EQ(fold.Fold()->ratios(1), 2);
}

TEST_F(TrustFoldTest, ArrivalOrderChangesNothing) {
  std::vector<ChunkId> ids = AllChunks();
  TrustFold first(spec_, chunks_), second(spec_, chunks_);
  first.Begin(3);
  second.Begin(3);
  ASSERT_TRUE(first.OnNorms(NormsOf(ids)).ok());
  std::reverse(ids.begin(), ids.end());
  for (const ChunkId id : ids) ASSERT_TRUE(second.OnNorms(NormsOf({id})).ok());
  EXPECT_EQ(first.Fold()->SerializeAsString(), second.Fold()->SerializeAsString());
}

TEST_F(TrustFoldTest, CountsAChunkOnce) {
  TrustFold fold(spec_, chunks_);
  fold.Begin(3);
  ASSERT_TRUE(fold.OnNorms(NormsOf(AllChunks())).ok());
  v1::TensorNorms other = NormsOf(AllChunks());
  for (double& square : *other.mutable_weight_squares()) square *= 100;
  ASSERT_TRUE(fold.OnNorms(other).ok());
  EXPECT_EQ(fold.Fold()->ratios(0), 2);
}

TEST_F(TrustFoldTest, IgnoresOtherSteps) {
  TrustFold fold(spec_, chunks_);
  fold.Begin(3);
  ASSERT_TRUE(fold.OnNorms(NormsOf(AllChunks(), 2)).ok());
  ASSERT_TRUE(fold.OnNorms(NormsOf(AllChunks(), 4)).ok());
  EXPECT_FALSE(fold.Fold().has_value());
  ASSERT_TRUE(fold.OnNorms(NormsOf(AllChunks(), 3)).ok());
  EXPECT_TRUE(fold.Fold().has_value());
  fold.Begin(4);
  EXPECT_FALSE(fold.Fold().has_value());
}

TEST_F(TrustFoldTest, GroupsWithoutDecayHaveRatioOne) {
  spec_.optimizer.always_adapt = false;
  for (ParameterGroup& group : spec_.groups) group.weight_decay = 0;
  spec_.groups[spec_.tensors[0].group.value()].weight_decay = 0.1;
  TrustFold fold(spec_, chunks_);
  fold.Begin(3);
  ASSERT_TRUE(fold.OnNorms(NormsOf(AllChunks())).ok());
  const auto trust = fold.Fold();
  for (size_t t = 0; t < spec_.tensors.size(); ++t) {
    const bool decays = spec_.tensors[t].group == spec_.tensors[0].group;
    EXPECT_EQ(trust->ratios(static_cast<int>(t)), decays ? 2 : 1) << t;
  }
}

TEST_F(TrustFoldTest, NormsThatDoNotFitAreRefused) {
  TrustFold fold(spec_, chunks_);
  fold.Begin(3);
  v1::TensorNorms norms = NormsOf({ChunkId(0)});
  norms.set_chunks(0, 1000);
  EXPECT_THAT(fold.OnNorms(norms).message(), HasSubstr("chunk 1000, which is not trained"));
  norms = NormsOf({ChunkId(0)});
  norms.add_step_squares(1);
  EXPECT_THAT(fold.OnNorms(norms).message(), HasSubstr("of weights and"));
  norms.add_weight_squares(1);
  EXPECT_THAT(fold.OnNorms(norms).message(), HasSubstr("segments"));
  norms = NormsOf({ChunkId(0)});
  norms.mutable_weight_squares()->RemoveLast();
  norms.mutable_step_squares()->RemoveLast();
  EXPECT_THAT(fold.OnNorms(norms).message(), HasSubstr("too few"));
}

}  // namespace
}  // namespace eps
