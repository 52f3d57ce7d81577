// Frozen chunks, tested on real cores over real backends: nobody pushes, reduces or updates them,
// and a fetch of any version returns their initial content.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/test_specs.h"
#include "eps_server/core/testing/core_training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

// The matrices are frozen, among them the one that two stages share, and the vector of the first
// stage. Three chunks are trained.
JobSpec FrozenSpec(Mode mode, Clip clip) {
  JobSpec spec = TinySyntheticSpec();
  spec.training.steps = 3;
  spec.training.mode = mode;
  spec.training.clip = clip;
  spec.training.max_grad_norm = 0.25;
  spec.chunk_elements = 2048;
  Freeze("layer", /*others=*/false, &spec);
  Freeze("bias.0", /*others=*/false, &spec);
  EXPECT_EQ(spec.LowestTrainableStage(), StageId(1));
  return spec;
}

CoreCluster::Options Servers(uint32_t shards, uint64_t seed) {
  CoreCluster::Options options;
  options.shards = shards;
  options.seed = seed;
  return options;
}

class FrozenChunks : public testing::TestWithParam<std::pair<Mode, Clip>> {
 protected:
  JobSpec Spec() const { return FrozenSpec(GetParam().first, GetParam().second); }
};

TEST_P(FrozenChunks, StayAsTheyWereAtAnyVersion) {
  CoreTraining training(Spec(), Servers(3, 7), /*fetches=*/true);
  ASSERT_TRUE(training.Finish([] {}).ok());
  const CoreTraining::Outcome outcome = training.End();
  const std::vector<Bytes> states = training.cluster().States();
  const JobSpec spec = Spec();
  const ChunkMap& chunks = training.cluster().chunks();
  size_t frozen = 0;
  for (const Chunk& chunk : chunks.chunks()) {
    EXPECT_EQ(states[chunk.id.value()].size(), StateBytes(spec, chunk)) << chunk.id;
    const auto first = outcome.served.find({0, chunk.id.value()});
    ASSERT_NE(first, outcome.served.end());
    for (uint64_t version = 1; version < spec.training.steps; ++version) {
      const auto later = outcome.served.find({version, chunk.id.value()});
      ASSERT_NE(later, outcome.served.end()) << chunk.id << " at version " << version;
      EXPECT_EQ(first->second == later->second, chunk.frozen) << chunk.id;
    }
    frozen += chunk.frozen ? 1 : 0;
  }
  EXPECT_GT(frozen, 0u);
  EXPECT_LT(frozen, chunks.chunks().size());
}

// Sealed, some of five servers have frozen chunks only.
TEST_P(FrozenChunks, GiveEqualBitsOnAnyServers) {
  std::string expected;
  for (const uint32_t shards : {1, 2, 3, 5}) {
    if (shards == 5 && GetParam().first == Mode::kEager) continue;  // refused
    CoreTraining training(Spec(), Servers(shards, shards));
    ASSERT_TRUE(training.Finish([] {}).ok()) << shards;
    const std::string digest = training.End().digest;
    if (expected.empty()) expected = digest;
    EXPECT_EQ(digest, expected) << shards << " servers";
  }
}

TEST_P(FrozenChunks, TakeNoContribution) {
  CoreCluster cluster(Spec(), Servers(1, 0));
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0, 1}, 5));
  const Chunk& chunk = cluster.chunks().chunks().front();
  ASSERT_TRUE(chunk.frozen);
  const std::vector<float> gradient(chunk.elements, 1.0f);
  const uint64_t tag = cluster.Push(cluster.NewStream(), 1, chunk.uses.front(), TreeRange{0, 1},
                                    chunk.id, gradient, 100, 5);
  cluster.Run();
  const v1::Ack& ack = cluster.answers.acks.at(tag);
  EXPECT_EQ(ack.outcome(), v1::Ack::REFUSED);
  EXPECT_THAT(ack.message(), HasSubstr("no such contribution"));
}

// The version that the open step makes is there already, and the one after it is refused.
TEST_P(FrozenChunks, AreServedAheadOfTheStep) {
  CoreCluster cluster(Spec(), Servers(1, 0));
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0, 1}, 5));
  const Chunk& chunk = cluster.chunks().chunks().front();
  const StreamId stream = cluster.NewStream();
  const uint64_t next = cluster.Fetch(stream, chunk.uses.front(), chunk.id, 1);
  const uint64_t beyond = cluster.Fetch(stream, chunk.uses.front(), chunk.id, 2);
  cluster.Run();
  EXPECT_EQ(cluster.answers.fetched.count(next), 1u);
  EXPECT_EQ(cluster.answers.failed_fetches.count(beyond), 1u);
}

TEST_P(FrozenChunks, TakeFourBytesOfMemoryAnElement) {
  CoreCluster cluster(Spec(), Servers(1, 0));
  uint64_t bytes = 0;
  for (const Chunk& chunk : cluster.chunks().chunks()) {
    bytes += chunk.elements * (chunk.frozen ? 4 : 12);
  }
  EXPECT_EQ(cluster.account(ShardId(0)).live_bytes(MemoryKind::kState), bytes);
}

INSTANTIATE_TEST_SUITE_P(Modes, FrozenChunks,
                         testing::Values(std::pair(Mode::kEager, Clip::kLagged),
                                         std::pair(Mode::kSealed, Clip::kExact)),
                         [](const testing::TestParamInfo<std::pair<Mode, Clip>>& info) {
                           return std::string(NameOf(info.param.first));
                         });

}  // namespace
}  // namespace eps
