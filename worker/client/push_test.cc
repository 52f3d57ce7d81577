// Pushing, retries, and the servers' answers.

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "worker/client/testing/client_fixture.h"

namespace eps {
namespace {

using PushTest = ClientFixture;

constexpr size_t kChunks = 3;  // of layer 1

TEST_F(PushTest, PushesEachChunkToItsServer) {
  StartServers(2);
  Join();
  Begin();
  std::vector<StageMemory> gradients;
  for (uint32_t stage = 0; stage < 3; ++stage) {
    gradients.push_back(Gradient(StageId(stage), static_cast<float>(stage)));
  }
  for (uint32_t stage = 3; stage-- > 0;) {
    ASSERT_TRUE(Push(StageId(stage), 0, &gradients[stage]).ok());
  }
  ASSERT_TRUE(client_->Flush().ok());
  for (uint32_t stage = 0; stage < 3; ++stage) {
    ExpectCounted(StageId(stage), 0, gradients[stage]);
  }
  const Seen seen = servers_[0]->seen();
  EXPECT_EQ(seen.headers[0].key().job_id(), spec_.id().value());
  EXPECT_EQ(seen.headers[0].key().step(), 1u);
  EXPECT_EQ(seen.headers[0].key().part_count(), 1u);
  EXPECT_NE(seen.headers[0].worker_nonce(), 0u);
  EXPECT_EQ(account_.live_bytes(), 0u);
}

TEST_F(PushTest, SendsPayloadInTwoMebibyteSlices) {
  StartServers(1, /*width=*/1024, /*chunk_elements=*/1 << 20);
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, gradient);
  EXPECT_EQ(servers_[0]->seen().largest_frame, size_t{2} << 20);
}

TEST_F(PushTest, SendsPayloadOnlyAfterItsCredit) {
  StartServers(1);
  ChangeAll([](Script* s) { s->pushes.hold_credits = true; });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.headers.size() == 3; }))
      << "headers run ahead of credits";
  EXPECT_EQ(servers_[0]->seen().payload_frames, 0);
  ChangeAll([](Script* s) { s->pushes.hold_credits = false; });
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_FALSE(servers_[0]->seen().payload_without_credit);
  ExpectCounted(StageId(1), 0, gradient);
}

TEST_F(PushTest, DropsKeepAliveAfterEncodingTheGradient) {
  StartServers(1);
  ChangeAll([](Script* s) { s->pushes.hold_credits = true; });
  Join();
  Begin();
  auto gradient = std::make_unique<StageMemory>(Gradient(StageId(1), 1));
  const StageMemory copy = *gradient;
  std::weak_ptr<void> watch;
  {
    std::shared_ptr<void> keep_alive(new int(0), [&](void* p) {
      gradient.reset();
      delete static_cast<int*>(p);
    });
    watch = keep_alive;
    ASSERT_TRUE(Push(StageId(1), 0, gradient.get(), std::move(keep_alive)).ok());
  }
  ASSERT_TRUE(servers_[0]->WaitUntil([&](const Seen&) { return watch.expired(); }));
  ChangeAll([](Script* s) { s->pushes.hold_credits = false; });
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, copy);
}

TEST_F(PushTest, HoldsEncodedGradientsWithinThePushWindow) {
  StartServers(2);
  options_.push_window_bytes = 2 * 2048 * 4 + 100;  // two panels
  Join();
  Begin();
  std::vector<StageMemory> gradients;
  for (uint32_t i = 0; i < 12; ++i) {
    gradients.push_back(Gradient(StageId(i % 3), static_cast<float>(i)));
  }
  for (uint32_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(Push(StageId(i % 3), i / 3, &gradients[i]).ok());
  }
  ASSERT_TRUE(client_->Flush().ok());
  for (uint32_t i = 0; i < 12; ++i) ExpectCounted(StageId(i % 3), i / 3, gradients[i]);
  EXPECT_LE(account_.peak_bytes(MemoryKind::kStage), options_.push_window_bytes);
}

TEST_F(PushTest, RetriesBrokenPushesWithTheSameIdentity) {
  StartServers(1);
  ChangeAll([](Script* s) { s->pushes.break_after = 2; });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, gradient);
  const Seen seen = servers_[0]->seen();
  EXPECT_GT(seen.headers.size(), 3u);
  for (const v1::PushHeader& header : seen.headers) {
    EXPECT_EQ(header.worker_nonce(), seen.headers[0].worker_nonce());
  }
  EXPECT_GE(client_->stats().reconnects, 1u);
}

TEST_F(PushTest, AcceptsDuplicateAndEarlierStaleAsSuccess) {
  for (const v1::Ack& ack : {AckOf(v1::Ack::DUPLICATE, 1, 1), AckOf(v1::Ack::STALE, 1, 2)}) {
    servers_.clear();
    StartServers(1);
    ChangeAll([&](Script* s) { s->pushes.header_replies.assign(kChunks, ReplyOf(ack)); });
    Join();
    Begin();
    StageMemory gradient = Gradient(StageId(1), 1);
    ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
    EXPECT_TRUE(client_->Flush().ok()) << client_->Flush();
    EXPECT_EQ(servers_[0]->seen().payload_frames, 0);
    EXPECT_EQ(client_->stats().duplicates, ack.outcome() == v1::Ack::DUPLICATE ? 3u : 0u);
    client_.reset();
  }
}

TEST_F(PushTest, ReportsRefusalsWithTheirReason) {
  struct Case {
    v1::Ack ack;
    absl::StatusCode code;
    std::string named;
  };
  const std::vector<Case> cases = {
      {AckOf(v1::Ack::CONFLICT, 1, 1), absl::StatusCode::kInternal, "other bytes"},
      {AckOf(v1::Ack::STALE, 2, 1), absl::StatusCode::kAborted, "term moved from 1 to 2"},
      {AckOf(v1::Ack::STALE, 1, 1), absl::StatusCode::kFailedPrecondition, "stale"},
      {AckOf(v1::Ack::REFUSED, 1, 1), absl::StatusCode::kFailedPrecondition, "scripted"},
      {AckOf(v1::Ack::FENCED, 1, 1), absl::StatusCode::kAborted,
       "another process holds part 0, this one had generation 7"},
      {AckOf(v1::Ack::OUTCOME_UNSPECIFIED, 1, 1), absl::StatusCode::kInternal, "unknown outcome"},
  };
  for (const Case& c : cases) {
    servers_.clear();
    StartServers(1);
    ChangeAll([&](Script* s) { s->pushes.header_replies.assign(kChunks, ReplyOf(c.ack)); });
    Join();
    Begin();
    StageMemory gradient = Gradient(StageId(1), 1);
    ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
    const absl::Status status = client_->Flush();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.named)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "layer.1")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
    client_.reset();
  }
}

TEST_F(PushTest, RetriesRefusedPushesAfterAPause) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->pushes.header_replies.assign(4,
                                    ReplyOf(AckOf(v1::Ack::REFUSED, 1, 1, /*retry_after_ms=*/5)));
  });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, gradient);
  EXPECT_EQ(servers_[0]->seen().headers.size(), 7u);
}

TEST_F(PushTest, RefusesUnexpectedReplies) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->pushes.header_replies.assign(kChunks, ReplyOf(AckOf(v1::Ack::ACCEPTED, 1, 1)));
    for (v1::PushReply& reply : s->pushes.header_replies) reply.set_tag(1000);
  });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  EXPECT_EQ(client_->Flush().code(), absl::StatusCode::kInternal);
}

// An FP8 codec would turn an infinity into a finite number.
TEST_F(PushTest, NamesElementsThatAreNotFinite) {
  codecs_.gradients = "fp8_e4m3";
  StartServers(1);
  spec_.training.mode = Mode::kSealed;
  spec_.training.nonfinite = Nonfinite::kSkip;
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  const ChunkId second = chunks_.ChunksOfStage(StageId(1))[1];
  const Segment& segment = chunks_.chunk(second).segments.front();
  size_t use = 0;
  while (spec_.stages[1].uses[use].tensor != segment.tensor) ++use;
  float* const values = gradient.tensors[use].data();
  values[segment.tensor_offset + 70] = std::numeric_limits<float>::infinity();
  values[segment.tensor_offset + 90] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  for (const v1::PushHeader& header : servers_[0]->seen().headers) {
    const bool is_second = ChunkId(header.key().chunk()) == second;
    EXPECT_EQ(header.has_nonfinite_element(), is_second);
    EXPECT_EQ(header.bytes() == 0, is_second);
    EXPECT_EQ(header.nonfinite_element(), is_second ? 70u : 0u);
  }
  EXPECT_EQ(account_.live_bytes(), 0u);
}

// The larger elements of layer 1 lie in its second chunk, whether or not the first is counted.
TEST_F(PushTest, ChoosesAmongTheChunksOfATensor) {
  for (const bool has_first : {false, true}) {
    SCOPED_TRACE(has_first);
    codecs_.gradients = "topk:0.25:tensor";
    codecs_.error_feedback = false;
    servers_.clear();
    StartServers(1);
    const ChunkId first = chunks_.ChunksOfStage(StageId(1))[0];
    const absl::Span<const Chunk> chunks = chunks_.ChunksOfTensor(first);
    ASSERT_EQ(chunks.size(), 2u);
    if (has_first) {
      ChangeAll([&](Script* s) {
        s->leases.parts = {2};
        v1::Have have;
        have.set_use_stage(1);
        have.set_part_count(4);
        have.set_chunk(first.value());
        s->have.push_back(have);
      });
    }
    Join();
    Begin();
    StageMemory gradient = Gradient(StageId(1), 0);
    size_t use = 0;
    while (gradient.tensors[use].size() != chunks[0].elements + chunks[1].elements) ++use;
    std::vector<float>& matrix = gradient.tensors[use];
    for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = i < chunks[0].elements ? 1.0f : 2.0f;
    matrix[5] = 3.0f;
    ASSERT_TRUE(Push(StageId(1), 2, &gradient).ok());
    ASSERT_TRUE(client_->Flush().ok());
    const Seen seen = servers_[0]->seen();
    std::vector<float> expected(chunks[0].elements, 0.0f);
    expected[5] = 3.0f;
    const auto counted = seen.counted.find({1, 2, first.value()});
    EXPECT_EQ(counted == seen.counted.end(), has_first);
    if (counted != seen.counted.end()) {
      EXPECT_EQ(counted->second, expected);
    }
    expected.assign(chunks[1].elements, 0.0f);
    std::fill_n(expected.begin(), matrix.size() / 4 - 1, 2.0f);
    EXPECT_EQ(seen.counted.at({1, 2, chunks[1].id.value()}), expected);
    client_ = nullptr;
  }
}

TEST_F(PushTest, DoesNotSendCountedContributions) {
  StartServers(1);
  const auto stage_chunks = chunks_.ChunksOfStage(StageId(1));
  ChangeAll([&](Script* s) {
    s->leases.parts = {2};
    v1::Have have;
    have.set_use_stage(1);
    have.set_part_first(2);
    have.set_part_count(1);
    have.set_chunk(stage_chunks[0].value());
    s->have.push_back(have);
    have.set_part_first(0);  // a merged contribution that covers part 2
    have.set_part_count(4);
    have.set_chunk(stage_chunks[1].value());
    s->have.push_back(have);
    have.set_part_first(0);  // of another part
    have.set_part_count(2);
    have.set_chunk(stage_chunks[2].value());
    s->have.push_back(have);
  });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 2, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  const Seen seen = servers_[0]->seen();
  ASSERT_EQ(seen.headers.size(), 1u);
  EXPECT_EQ(seen.headers[0].key().chunk(), stage_chunks[2].value());
}

}  // namespace
}  // namespace eps
