// Operations of one chunk by every kind of backend, and the memory that the state takes.
// update_test.cc tests updates.

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/job/initial_values.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

// The contract of every backend, wherever it keeps the state.
class StateBackendTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  const BackendUnderTest& kind() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, StateBackendTest, testing::ValuesIn(BackendsUnderTest()),
                         testing::PrintToStringParamName());

TEST_P(StateBackendTest, OperationsOnAChunkKeepCallOrder) {
  ShardUnderTest shard(kind(), RaggedSpec(), 8);
  shard.InitializeAll();
  const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
  constexpr uint64_t kSteps = 20;
  std::vector<OpId> reads, updates;
  const Codec* codec = *FindCodec("fp32");
  for (uint64_t step = 1; step <= kSteps; ++step) {
    reads.push_back(shard.Submit(ReadRequest{chunk.id, Version(step - 1), codec, Axis::kRow}));
    updates.push_back(
        shard.Submit(RequestOf(&shard, chunk, GradientsOf(chunk, 1, 1), step, Merging::kNone)));
  }
  std::set<std::string> seen;
  for (uint64_t i = 0; i < kSteps; ++i) {
    const BackendDone read = shard.completions().Take(reads[i]);
    ASSERT_TRUE(read.status.ok()) << read.status;
    seen.insert(std::string(std::get<Bytes>(read.value).view()));
    EXPECT_TRUE(shard.completions().Take(updates[i]).status.ok());
  }
  EXPECT_EQ(seen.size(), kSteps);
}

TEST_P(StateBackendTest, ReadReturnsStableBytes) {
  ShardUnderTest shard(kind(), RaggedSpec(), 1);
  shard.InitializeAll();
  const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
  const std::string state = *shard.State(chunk.id, Version(0));
  for (const char* name : {"fp32", "bf16"}) {
    const Codec* codec = *FindCodec(name);
    const BackendDone done = shard.Await(ReadRequest{chunk.id, Version(0), codec, Axis::kRow});
    ASSERT_TRUE(done.status.ok()) << done.status;
    const Bytes bytes = std::get<Bytes>(done.value);
    const Bytes expected =
        EncodeChunk(*codec, chunk, EncodeOptions(), reinterpret_cast<const float*>(state.data()));
    std::string changed = state;
    changed[0] = static_cast<char>(changed[0] + 1);
    ASSERT_TRUE(shard.Write(chunk.id, Version(0), changed).ok());
    EXPECT_TRUE(bytes.view() == expected.view());
    ASSERT_TRUE(shard.Write(chunk.id, Version(0), state).ok());
  }
}

TEST_P(StateBackendTest, ReadNamesBothVersions) {
  ShardUnderTest shard(kind(), RaggedSpec(), 1);
  const ChunkId chunk(1);
  EXPECT_THAT(std::string(shard.State(chunk, Version(0)).status().message()),
              HasSubstr("chunk 1: version 0 wanted, it has no content yet"));
  shard.InitializeAll();
  const BackendDone done =
      shard.Await(ReadRequest{chunk, Version(3), *FindCodec("fp32"), Axis::kRow});
  EXPECT_EQ(done.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(done.status.message()),
              HasSubstr("chunk 1: version 3 wanted, version 0 is here"));
}

TEST_P(StateBackendTest, InitializeSetsSpecValuesAndZeroState) {
  ShardUnderTest shard(kind(), RaggedSpec(), 2);
  shard.InitializeAll();
  for (const Chunk& chunk : shard.chunks().chunks()) {
    const PlainState r(*shard.State(chunk.id, Version(0)), chunk.elements);
    for (const Segment& s : chunk.segments) {
      std::vector<float> expected(s.elements());
      FillInitialValues(shard.spec(), s.tensor, s.tensor_offset, absl::MakeSpan(expected));
      EXPECT_EQ(std::memcmp(expected.data(), r.arrays()[0].data() + s.offset, 4 * s.elements()), 0);
    }
    for (int field : {1, 2}) EXPECT_THAT(r.arrays()[field], ::testing::Each(0.0f));
  }
}

TEST_P(StateBackendTest, WriteStateRefusesWrongSize) {
  ShardUnderTest shard(kind(), RaggedSpec(), 1);
  const Chunk& chunk = shard.chunks().chunk(ChunkId(2));
  std::string state(12 * chunk.elements, '\0');
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<char>(i * 31 % 127);
  EXPECT_TRUE(shard.Write(chunk.id, Version(17), state).ok());
  EXPECT_TRUE(*shard.State(chunk.id, Version(17)) == state);
  const absl::Status refused = shard.Write(chunk.id, Version(18), state.substr(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("expected " + std::to_string(state.size()) + " bytes (3 arrays of"));
  EXPECT_TRUE(*shard.State(chunk.id, Version(17)) == state);
}

TEST_P(StateBackendTest, DestructorAwaitsOperationsInFlight) {
  ShardUnderTest shard(kind(), RaggedSpec(), 2);
  std::vector<OpId> ops;
  for (const Chunk& c : shard.chunks().chunks()) {
    ops.push_back(shard.Submit(InitializeRequest{c.id}));
  }
  shard.DropBackend();
  for (const OpId op : ops) EXPECT_TRUE(shard.completions().Take(op).status.ok());
}

// The memory of the backend that keeps nothing on disk.
constexpr BackendUnderTest kDram = {"Dram", &NewDramBackend};

TEST(DramMemory, IsExactlyTwelveBytesPerParameter) {
  ShardUnderTest shard(kDram, RaggedSpec(), 1);
  const uint64_t state_bytes = 12 * shard.spec().total_elements();
  EXPECT_EQ(shard.account().live_bytes(), state_bytes);
  EXPECT_EQ(shard.account().live_bytes(MemoryKind::kState), state_bytes);
  shard.InitializeAll();
  EXPECT_EQ(shard.account().live_bytes(), state_bytes);
  shard.DropBackend();
  EXPECT_EQ(shard.account().live_bytes(), 0u);
}

TEST(DramMemory, MatchesTheFieldsOfTheRule) {
  for (const double momentum : {0.0, 0.9}) {
    JobSpec spec = RaggedSpec();
    spec.optimizer.name = OptimizerName::kSgd;
    spec.optimizer.momentum = momentum;
    ShardUnderTest shard(kDram, spec, 1);
    EXPECT_EQ(shard.account().live_bytes(), (momentum > 0 ? 8 : 4) * spec.total_elements());
  }
}

TEST(DramMemory, RefusalNamesTheFiguresAndTheKey) {
  const JobSpec spec = RaggedSpec();
  const uint64_t state_bytes = 12 * spec.total_elements();
  ShardUnderTest enough(kDram, spec, 1, state_bytes);
  EXPECT_TRUE(enough.status().ok()) << enough.status();
  ShardUnderTest short_by_one(kDram, spec, 1, state_bytes - 1);
  EXPECT_EQ(short_by_one.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(short_by_one.status().message());
  EXPECT_THAT(message, HasSubstr(std::to_string(state_bytes) + " bytes wanted, 0 in use, limit " +
                                 std::to_string(state_bytes - 1)));
  EXPECT_THAT(message, HasSubstr(std::to_string(spec.total_elements()) + " parameters"));
  EXPECT_THAT(message, HasSubstr("servers.memory_limit"));
  EXPECT_EQ(short_by_one.account().live_bytes(), 0u);
}

}  // namespace
}  // namespace eps
