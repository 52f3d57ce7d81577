// Residuals that live with the worker.

#include <atomic>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "worker/client/testing/client_fixture.h"

namespace eps {
namespace {

class ResidualTest : public ClientFixture {
 protected:
  void SetUp() override {
    codecs_.gradients = "topk:0.25";
    codecs_.error_feedback = true;
    codecs_.residual_home = ResidualHome::kWorker;
    StartServers(1);
  }

  void SetHave(const std::vector<ChunkId>& chunks) {
    ChangeAll([&](Script* s) {
      s->have.clear();
      for (const ChunkId chunk : chunks) {
        v1::Have& have = s->have.emplace_back();
        have.set_use_stage(1);
        have.set_part_count(1);
        have.set_chunk(chunk.value());
      }
    });
  }

  // Computes stage 1 of a step; returns the chunks whose residuals it asked the server for.
  std::set<uint32_t> Compute(uint64_t step) {
    const size_t before = servers_[0]->seen().fetches.size();
    Begin(step);
    ExpectFetch(StageId(1), step - 1, /*backward=*/true);
    StageMemory gradient = Gradient(StageId(1), static_cast<float>(step));
    EXPECT_TRUE(Push(StageId(1), 0, &gradient).ok());
    EXPECT_TRUE(client_->Flush().ok());
    std::set<uint32_t> chunks;
    const Seen seen = servers_[0]->seen();
    for (size_t i = before; i < seen.fetches.size(); ++i) {
      const v1::FetchRequest& fetch = seen.fetches[i];
      if (!fetch.residuals()) continue;
      EXPECT_EQ(fetch.version(), step - 1);
      chunks.insert(fetch.chunks().begin(), fetch.chunks().end());
    }
    return chunks;
  }
};

// L8: another process made the contribution to the first chunk in step 1, so its residual is on
// the server, and this process has to ask for it before it contributes to step 2.
TEST_F(ResidualTest, FetchesResidualsOfContributionsOfOthers) {
  const auto chunks = chunks_.ChunksOfStage(StageId(1));
  SetHave({chunks[0]});
  Join();
  // Of a stage with vectors, whose gradients are complete.
  EXPECT_EQ(Compute(1), (std::set<uint32_t>{chunks[0].value(), chunks[1].value()}));
  EXPECT_EQ(servers_[0]->seen().headers.size(), chunks.size() - 1) << "one is counted";
  SetHave({});
  EXPECT_EQ(Compute(2), std::set<uint32_t>{chunks[0].value()});
  EXPECT_EQ(servers_[0]->seen().headers.size(), 2 * chunks.size() - 1);
  EXPECT_EQ(Compute(3), std::set<uint32_t>{}) << "now all of them live here";
}

// The predecessor finished step 1 alone: nothing is known of the residuals at step 2.
TEST_F(ResidualTest, FetchesAllAfterACountedStep) {
  const auto chunks = chunks_.ChunksOfStage(StageId(1));
  SetHave({chunks.begin(), chunks.end()});
  Join();
  Begin(1);
  SetHave({});
  EXPECT_EQ(Compute(2), (std::set<uint32_t>{chunks[0].value(), chunks[1].value()}));
}

// A residual is that of the loss, whatever the scale of the step that left it.
TEST_F(ResidualTest, ResidualsHaveNoLossScale) {
  const ChunkId chunk = chunks_.ChunksOfStage(StageId(1))[0];
  const auto second_step = [&](int first, int second) {
    std::vector<float> counted;
    Join();
    for (uint64_t step : {1u, 2u}) {
      const int log2 = step == 1 ? first : second;
      ChangeAll([log2](Script* s) { s->loss_scale_log2 = log2; });
      Begin(step);
      ExpectFetch(StageId(1), step - 1, /*backward=*/true);
      StageMemory gradient = Gradient(StageId(1), static_cast<float>(step));
      for (auto& tensor : gradient.tensors) {
        for (float& g : tensor) g = std::ldexp(g, -log2);
      }
      EXPECT_TRUE(Push(StageId(1), 0, &gradient).ok());
      EXPECT_TRUE(client_->Flush().ok());
    }
    counted = servers_[0]->seen().counted.at({1, 0, chunk.value()});
    for (float& g : counted) g = std::ldexp(g, second);
    client_ = nullptr;
    return counted;
  };
  const std::vector<float> plain = second_step(0, 0);
  EXPECT_EQ(second_step(-9, -8), plain);
  EXPECT_EQ(second_step(4, -3), plain);
}

TEST_F(ResidualTest, LeavesNothingBehind) {
  Join();
  EXPECT_FALSE(client_->HandOver()) << "nothing was computed";
  Compute(1);
  const auto residual_bytes = [this] {
    uint64_t bytes = 0;
    for (const v1::PushHeader& header : servers_[0]->seen().headers) {
      bytes += header.residual_bytes();
    }
    return bytes;
  };
  EXPECT_EQ(residual_bytes(), 0u);
  EXPECT_TRUE(client_->HandOver());
  Compute(2);
  EXPECT_TRUE(servers_[0]->seen().begins.back().leaving());
  EXPECT_GT(residual_bytes(), 0u);
  EXPECT_FALSE(client_->HandOver()) << "the servers have all of it";
}

TEST_F(ResidualTest, AnInterruptedWaitHandsOver) {
  std::atomic<bool> interrupted{false};
  options_.interrupted = [&] { return interrupted.load(); };
  Join();
  Compute(1);
  ChangeAll([](Script* s) { s->park_begin_steps = true; });
  interrupted = true;
  std::thread others([this] {
    EXPECT_TRUE(
        servers_[0]->WaitUntil([](const Seen& seen) { return seen.begins.back().leaving(); }));
    ChangeAll([](Script* s) { s->park_begin_steps = false; });
  });
  Compute(2);
  others.join();
  EXPECT_FALSE(client_->HandOver());
}

TEST_F(ResidualTest, AStepWithoutBeginIsNotAwaited) {
  std::atomic<bool> interrupted{false};
  options_.interrupted = [&] { return interrupted.load(); };
  options_.rpc_timeout = std::chrono::milliseconds(200);
  Join();
  Compute(1);
  ChangeAll([](Script* s) { s->park_begin_steps = true; });
  interrupted = true;
  EXPECT_TRUE(absl::IsCancelled(client_->BeginStep(Step(2)).status()));
  EXPECT_TRUE(client_->HandOver()) << "they are lost";
}

}  // namespace
}  // namespace eps
