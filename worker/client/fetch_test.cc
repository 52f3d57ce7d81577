// Fetching, and waiting for servers that are slow or gone.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "worker/client/testing/client_fixture.h"

namespace eps {
namespace {

using std::chrono::milliseconds;

using FetchTest = ClientFixture;

TEST_F(FetchTest, FetchesStagesThatAreStripedOverServers) {
  StartServers(2);
  ChangeAll([](Script* s) { s->slice_bytes = 1000; });
  Join();
  Begin();
  for (uint32_t stage = 0; stage < 3; ++stage) {
    ExpectFetch(StageId(stage), 4, /*backward=*/stage == 2);
  }
  const Seen seen = servers_[0]->seen();
  ASSERT_EQ(seen.fetches.size(), 3u);
  EXPECT_EQ(seen.fetches[0].pass(), v1::PASS_FORWARD);
  EXPECT_EQ(seen.fetches[2].pass(), v1::PASS_BACKWARD);
  EXPECT_EQ(seen.fetches[2].version(), 4u);
  EXPECT_GT(client_->stats().fetched_bytes, 3u * 64 * 64 * 4);
  EXPECT_EQ(account_.live_bytes(), 0u);
  EXPECT_GT(account_.peak_bytes(MemoryKind::kStage), 0u);
}

TEST_F(FetchTest, UsesTheCodecsOfTheSpecsTable) {
  codecs_.weights = codecs_.gradients = "bf16";
  StartServers(1);
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  ASSERT_TRUE(client_->FetchStage(StageId(1), Version(1), false, memory.sink())->Wait().ok());
  ASSERT_EQ(chunks_.chunk(ChunkId(3)).segments[0].tensor, spec_.stages[1].uses[0].tensor);
  EXPECT_EQ(ScriptedWeight(3, 4, 1), 3004.5f);
  EXPECT_EQ(memory.tensors[0][4], 3008.0f) << "3004.5 in bf16";
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_EQ(servers_[0]->seen().headers[0].codec(), static_cast<uint32_t>(CodecId::kBf16));
}

TEST_F(FetchTest, DecodeOnceRoundsMatricesOnly) {
  codecs_.backward_weights = BackwardWeights::kDecodeOnce;
  StartServers(1);
  Join();
  Begin();
  for (const bool backward : {false, true}) {
    StageMemory memory(spec_, StageId(1));
    ASSERT_TRUE(client_->FetchStage(StageId(1), Version(1), backward, memory.sink())->Wait().ok());
    ASSERT_EQ(chunks_.chunk(ChunkId(3)).segments[0].tensor, spec_.stages[1].uses[0].tensor);
    EXPECT_EQ(ScriptedWeight(3, 4, 1), 3004.5f);
    EXPECT_EQ(memory.tensors[0][4], 3008.0f) << "3004.5 in bf16";
    EXPECT_EQ(ScriptedWeight(4, 32 * 64 - 1, 1), 4053.5f);
    EXPECT_EQ(memory.tensors[0].back(), 4048.0f) << "the other panel";
    const ChunkId vectors = chunks_.ChunksOfStage(StageId(1)).back();
    EXPECT_EQ(memory.tensors[1][4], ScriptedWeight(vectors.value(), 4, 1));
  }
}

// The scripted weights differ from version to version, also the frozen ones, so they show whether a
// worker fetched them.
TEST_F(FetchTest, FrozenWeightsAreFetchedOnce) {
  frozen_ = ".0";  // of stage 0, in three chunks
  options_.frozen_cache_bytes = uint64_t{1} << 20;
  StartServers(2);
  Join();
  Begin();
  ExpectFetch(StageId(0), 1);
  const uint64_t fetched = client_->stats().fetched_bytes;
  for (const bool backward : {true, false}) {
    StageMemory kept(spec_, StageId(0));
    ASSERT_TRUE(client_->FetchStage(StageId(0), Version(2), backward, kept.sink())->Wait().ok());
    ExpectWeights(kept, StageId(0), 1);
  }
  EXPECT_EQ(client_->stats().fetched_bytes, fetched);
  ExpectFetch(StageId(1), 1);
  ExpectFetch(StageId(1), 2);
  EXPECT_EQ(client_->stats().fetched_bytes, 3 * fetched) << "stage 1 is trained";
}

TEST_F(FetchTest, FrozenWeightsBeyondTheCacheAreFetched) {
  frozen_ = ".0";
  StartServers(1);
  const Chunk& first = chunks_.chunk(chunks_.ChunksOfStage(StageId(0)).front());
  options_.frozen_cache_bytes = first.elements * sizeof(float);
  Join();
  Begin();
  ExpectFetch(StageId(0), 1);
  const uint64_t fetched = client_->stats().fetched_bytes;
  StageMemory again(spec_, StageId(0));
  ASSERT_TRUE(client_->FetchStage(StageId(0), Version(2), false, again.sink())->Wait().ok());
  EXPECT_EQ(client_->stats().fetched_bytes, 2 * fetched - options_.frozen_cache_bytes);
  EXPECT_LE(account_.live_bytes(), options_.frozen_cache_bytes);
}

TEST_F(FetchTest, NothingIsKeptWithoutACache) {
  frozen_ = ".0";
  StartServers(1);
  Join();
  Begin();
  ExpectFetch(StageId(0), 1);
  ExpectFetch(StageId(0), 2);
  EXPECT_EQ(account_.live_bytes(), 0u);
}

TEST_F(FetchTest, AssemblesSlicesOfDifferentChunksThatInterleave) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->interleave = true;
    s->slice_bytes = 100;
  });
  Join();
  Begin();
  ExpectFetch(StageId(1), 2);
}

TEST_F(FetchTest, KeepsAtMostEightRequestsInFlight) {
  StartServers(1);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  std::vector<StageMemory> memories(12, StageMemory(spec_, StageId(0)));
  std::vector<std::unique_ptr<PendingFetch>> fetches;
  for (auto& memory : memories) {
    fetches.push_back(client_->FetchStage(StageId(0), Version(1), false, memory.sink()));
  }
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.fetches.size() >= 8; }));
  for (size_t i = 0; i < fetches.size(); ++i) {
    ChangeAll([](Script* s) { s->answer_parked = 1; });
    ASSERT_TRUE(fetches[i]->Wait().ok());
    ExpectWeights(memories[i], StageId(0), 1);
  }
  EXPECT_EQ(servers_[0]->seen().fetches.size(), 12u);
  EXPECT_EQ(servers_[0]->seen().most_in_flight, 8u);
}

TEST_F(FetchTest, RetriesOnlyMissingChunks) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->slice_bytes = 4096;     // two slices for each of the two panels, one for the bias
    s->break_fetch_after = 4;  // within the second panel
  });
  Join();
  Begin();
  ExpectFetch(StageId(1), 9);
  const Seen seen = servers_[0]->seen();
  ASSERT_EQ(seen.fetches.size(), 2u);
  EXPECT_EQ(seen.fetches[0].chunks_size(), 3);
  EXPECT_LT(seen.fetches[1].chunks_size(), 3) << "chunks that were complete are not repeated";
  EXPECT_EQ(client_->stats().reconnects, 1u);
  EXPECT_GE(seen.hellos, 4) << "Hello is the first call on every connection";
}

// (slice before which the stream breaks, whether slices of different copies interleave)
class BrokenFetchTest : public ClientFixture,
                        public testing::WithParamInterface<std::tuple<int, bool>> {
 protected:
  // Fetches both copies of a stage; returns them along one axis, then along the other.
  std::vector<std::vector<float>> FetchBothAxes() {
    StageMemory first(spec_, StageId(1)), second(spec_, StageId(1));
    TensorPointers out = first.pointers();
    for (float* tensor : second.pointers()) out.push_back(tensor);
    const absl::Status status =
        client_
            ->FetchStage(StageId(1), Version(3), /*backward=*/true,
                         std::make_shared<HostSink>(&spec_, StageId(1), std::move(out)))
            ->Wait();
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::vector<float>> tensors = std::move(first.tensors);
    for (std::vector<float>& tensor : second.tensors) tensors.push_back(std::move(tensor));
    return tensors;
  }
};

TEST_P(BrokenFetchTest, BringsBothCopiesOfEveryChunk) {
  codecs_.weights = "mx9";
  codecs_.backward_weights = BackwardWeights::kBothAxes;
  StartServers(1);
  ChangeAll([](Script* s) { s->slice_bytes = 1500; });
  Join();
  Begin();
  const std::vector<std::vector<float>> undisturbed = FetchBothAxes();
  EXPECT_NE(undisturbed[0], undisturbed[undisturbed.size() / 2]);
  ChangeAll([](Script* s) {
    s->break_fetch_after = std::get<0>(GetParam());
    s->interleave = std::get<1>(GetParam());
  });
  EXPECT_EQ(FetchBothAxes(), undisturbed);
  EXPECT_EQ(client_->stats().reconnects, 1u) << "the stream broke";
  EXPECT_EQ(account_.live_bytes(), 0u);
}

// Two chunks with two copies of two slices each, and one with one.
INSTANTIATE_TEST_SUITE_P(Slices, BrokenFetchTest,
                         testing::Combine(testing::Range(1, 10), testing::Bool()));

TEST_F(FetchTest, RetriesAChunkWithAWrongCrc) {
  StartServers(1);
  ChangeAll([](Script* s) { s->damage = 2; });
  Join();
  Begin();
  ExpectFetch(StageId(0), 1);
  EXPECT_EQ(servers_[0]->seen().fetches.size(), 3u);
}

TEST_F(FetchTest, RefusesAChunkWhoseCrcStaysWrong) {
  StartServers(1);
  ChangeAll([](Script* s) { s->damage = 1000; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(0));
  const absl::Status status =
      client_->FetchStage(StageId(0), Version(1), false, memory.sink())->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "layer.0")) << status;
}

TEST_F(FetchTest, RefusesSlicesThatContradictTheRequest) {
  const std::vector<std::pair<std::string, void (*)(v1::FetchSlice*)>> cases = {
      {"not asked for", [](v1::FetchSlice* s) { s->set_tag(99); }},
      {"not asked for", [](v1::FetchSlice* s) { s->set_chunk(7); }},
      {"got version 8", [](v1::FetchSlice* s) { s->set_version(8); }},
      {"codec 2", [](v1::FetchSlice* s) { s->set_codec(2); }},
      {"expected offset", [](v1::FetchSlice* s) { s->set_offset(s->offset() + 1); }},
      {"at most", [](v1::FetchSlice* s) { s->set_total_bytes(1 << 30); }},
      {"a slice of", [](v1::FetchSlice* s) { s->mutable_data()->append("x"); }},
      {"the last", [](v1::FetchSlice* s) { s->mutable_data()->resize(1); }},
  };
  for (const auto& [expected, edit] : cases) {
    servers_.clear();
    StartServers(1);
    ChangeAll([&edit = edit](Script* s) { s->edit_slice = edit; });
    Join();
    Begin();
    StageMemory memory(spec_, StageId(0));
    const absl::Status status =
        client_->FetchStage(StageId(0), Version(1), false, memory.sink())->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << expected << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), expected)) << status;
    client_.reset();
  }
}

TEST_F(FetchTest, ReportsARefusedFetch) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->edit_slice = [](v1::FetchSlice* slice) {
      slice->clear_data();
      slice->set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
      slice->set_message("version 1 is gone");
    };
  });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(2));
  const absl::Status status =
      client_->FetchStage(StageId(2), Version(1), false, memory.sink())->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "version 1 is gone")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "2 (layer.2)")) << status;
}

TEST_F(FetchTest, DoesNotWriteToAnAbandonedDestination) {
  StartServers(1);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  auto gone = std::make_unique<StageMemory>(spec_, StageId(0));
  auto kept = std::make_unique<StageMemory>(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, kept->sink());
  client_->FetchStage(StageId(0), Version(1), false, gone->sink()).reset();
  gone.reset();  // the address sanitizer reports later writes
  fetch.reset();
  ChangeAll([](Script* s) { s->park_fetches = false; });
  ExpectFetch(StageId(1), 3);  // follows them on the stream
  for (const auto& tensor : kept->tensors) {
    for (const float value : tensor) ASSERT_EQ(value, -1.0f);
  }
}

TEST_F(FetchTest, DoesNotDecodeAbandonedChunks) {
  StartServers(1);
  Join();
  Begin();
  // Gradients whose destructors block keep the decoding threads busy.
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  StageMemory gradient = Gradient(StageId(2), 1);
  for (uint32_t part = 0; part < 4; ++part) {
    std::shared_ptr<void> keep_alive(&gradient, [released](void*) {
      EXPECT_EQ(released.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    });
    ASSERT_TRUE(Push(StageId(2), part, &gradient, std::move(keep_alive)).ok());
  }
  StageMemory memory(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, memory.sink());
  ASSERT_TRUE(servers_[0]->WaitUntil([&](const Seen&) {
    return client_->stats().fetched_bytes == (64 * 64 + 64) * sizeof(float);
  }));
  fetch.reset();
  release.set_value();
  ASSERT_TRUE(client_->Flush().ok());
  client_.reset();
  for (const auto& tensor : memory.tensors) {
    for (const float value : tensor) ASSERT_EQ(value, -1.0f);
  }
}

TEST_F(FetchTest, AFetchMayOutliveItsClient) {
  StartServers(1);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, memory.sink());
  client_.reset();
  EXPECT_EQ(fetch->Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(FetchTest, ContinuesAfterAServerRestart) {
  StartServers(2);
  ChangeAll([](Script* s) { s->park_fetches = s->pushes.hold_credits = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, memory.sink());
  StageMemory gradient = Gradient(StageId(2), 3);
  ASSERT_TRUE(Push(StageId(2), 0, &gradient).ok());
  const auto busy = [](const Seen& s) { return !s.fetches.empty() && !s.headers.empty(); };
  for (auto& server : servers_) ASSERT_TRUE(server->WaitUntil(busy));
  servers_[1]->Stop();  // before it counts what it would then count again
  ChangeAll([](Script* s) { s->park_fetches = s->pushes.hold_credits = false; });
  servers_[1]->Start();
  ASSERT_TRUE(fetch->Wait().ok());
  ExpectWeights(memory, StageId(0), 1);
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(2), 0, gradient);
}

TEST_F(FetchTest, NamesAServerThatStaysAway) {
  StartServers(2);
  options_.rpc_timeout = milliseconds(300);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.sink());
  ASSERT_TRUE(servers_[1]->WaitUntil([](const Seen& s) { return !s.fetches.empty(); }));
  servers_[1]->Stop();
  const absl::Status status = fetch->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[1]->address())) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "stage 1 (layer.1)")) << status;
  StageMemory gradient = Gradient(StageId(2), 3);
  EXPECT_EQ(Push(StageId(2), 0, &gradient), status);
  EXPECT_EQ(client_->BeginStep(Step(2)).status(), status);
}

TEST_F(FetchTest, GivesUpWhenEveryStreamBreaks) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(300);
  ChangeAll([](Script* s) { s->break_fetch_streams = 1'000'000; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  const absl::Status status =
      client_->FetchStage(StageId(1), Version(1), false, memory.sink())->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "scripted break")) << status;
}

TEST_F(FetchTest, WaitsForParkedFetchesOfAnsweringServers) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.sink());
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.statuses >= 3; }));
  ChangeAll([](Script* s) { s->park_fetches = false; });
  EXPECT_TRUE(fetch->Wait().ok());
  ExpectWeights(memory, StageId(1), 1);
}

TEST_F(FetchTest, GivesUpOnASilentServer) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) {
    s->park_fetches = true;
    s->answer_status = false;
  });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.sink());
  const absl::Status status = fetch->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
}

TEST_F(FetchTest, StopsWaitingWhenTheJobFails) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) {
    s->park_fetches = true;
    s->failure = "part 1 is gone; start again with --resume=latest";
  });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.sink());
  const absl::Status status = fetch->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--resume=latest")) << status;
}

}  // namespace
}  // namespace eps
