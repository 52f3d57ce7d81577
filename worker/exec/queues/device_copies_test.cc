#include "worker/exec/queues/device_copies.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "compression/codec.h"
#include "gtest/gtest.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/testing/simulated_queues.h"

namespace eps {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 8;  // floats in a stage, an activation or a gradient
constexpr uint64_t kBytes = kWidth * sizeof(float);

// Pinned memory of stages as the relay's pool keeps it; refills returned memory at once.
class StagePool {
 public:
  std::shared_ptr<std::vector<float>> Take(float value) {
    ++in_use;
    most_in_use = std::max(most_in_use, in_use);
    auto* memory = new std::vector<float>(kWidth, value);
    return {memory, [this](std::vector<float>* returned) {
              std::fill(returned->begin(), returned->end(), -1.0f);
              --in_use;
              graveyard_.emplace_back(returned);
            }};
  }
  int in_use = 0;
  int most_in_use = 0;

 private:
  std::vector<std::unique_ptr<std::vector<float>>> graveyard_;
};

SlotSizes OneStage() {
  SlotSizes sizes;
  sizes.decoded = kBytes;
  return sizes;
}

std::shared_ptr<DeviceSlots::Slot> Load(DeviceCopies* copies, const Tensor& pinned,
                                        std::shared_ptr<void> host) {
  auto slot = copies->slots().Take(StageId(0));
  slot->CopyFrom(pinned, std::move(host));
  slot->Ready();
  return slot;
}

Tensor BytesOf(const std::shared_ptr<std::vector<float>>& stage) {
  return at::from_blob(stage->data(), {static_cast<int64_t>(kBytes)},
                       at::TensorOptions().dtype(at::kByte));
}

float* FloatsOf(const Tensor& tensor) { return static_cast<float*>(tensor.mutable_data_ptr()); }

// A relay of `stages` on the simulated device. Every stage maps the activation of each micro-batch
// to twice its value plus the stage's weight; the upper half of the stages has a gradient, which is
// that result minus one. Stage s has the weight s + 1.
class SmallRelay {
 public:
  explicit SmallRelay(uint32_t seed)
      : queues_(new SimulatedQueues(seed)),
        copies_(std::unique_ptr<DeviceQueues>(queues_), OneStage(), /*account_or_null=*/nullptr) {}

  void Run(int stages, int micro_batches) {
    expected_.assign(micro_batches, 0.0f);
    for (int s = 0; s < stages; ++s) Visit(s, micro_batches, /*with_gradient=*/2 * s > stages);
    PushBehind();
    for (int m = 0; m < micro_batches; ++m) {
      WaitFor(*stash_[m].copied);
      Expect(FloatsOf(stash_[m].host), expected_[m], "stash");
    }
  }

  uint64_t peak_device_bytes() const { return queues_->peak_device_bytes(); }
  StagePool& weights() { return weights_; }
  int wrong() const { return wrong_; }

 private:
  struct Push {
    DeviceEventPtr copied;
    std::shared_ptr<std::vector<float>> host;
    float expected = 0;
  };

  void Visit(int s, int micro_batches, bool with_gradient) {
    const float weight = static_cast<float>(s + 1);
    auto host = weights_.Take(weight);
    const Tensor pinned = BytesOf(host);
    const auto stage = Load(&copies_, pinned, std::move(host));
    Tensor gradient = queues_->New(DeviceQueue::kCompute, {kWidth}, at::kFloat);
    for (int m = 0; m < micro_batches; ++m) {
      Tensor in;
      if (s > 0) in = copies_.CopyFromStash(stash_[m]);
      const Tensor out = queues_->New(DeviceQueue::kCompute, {kWidth}, at::kFloat);
      queues_->Compute(
          [w = FloatsOf(stage->bytes()), x = s > 0 ? FloatsOf(in) : nullptr, y = FloatsOf(out),
           g = FloatsOf(gradient)] {
            for (int64_t i = 0; i < kWidth; ++i) {
              y[i] = 2 * (x == nullptr ? 0.0f : x[i]) + w[i];
              g[i] = y[i] - 1;
            }
          },
          /*operations=*/0);
      expected_[m] = 2 * expected_[m] + weight;
      if (m == static_cast<int>(stash_.size())) stash_.emplace_back();
      stash_[m] = copies_.CopyToStash(out);
      copies_.EndOfMicroBatch();
    }
    if (with_gradient) StartPush(std::move(gradient), expected_.back() - 1);
  }

  // As in the relay, a gradient is read after the work of the next stage is enqueued.
  void StartPush(Tensor gradient, float expected) {
    Push push;
    push.host = gradients_.Take(0);
    push.expected = expected;
    const Tensor to = BytesOf(push.host);
    push.copied = copies_.CopyGradients({{gradient, to}});
    gradient = Tensor();
    PushBehind();
    behind_ = std::move(push);
  }

  void PushBehind() {
    if (behind_.host == nullptr) return;
    WaitFor(*behind_.copied);
    Expect(behind_.host->data(), behind_.expected, "gradient");
    behind_.host = nullptr;
  }

  void Expect(const float* values, float expected, const char* what) {
    for (int64_t i = 0; i < kWidth; ++i) {
      if (values[i] == expected) continue;
      if (++wrong_ == 1) ADD_FAILURE() << what << " is " << values[i] << ", not " << expected;
    }
  }

  SimulatedQueues* const queues_;
  StagePool weights_;
  StagePool gradients_;
  DeviceCopies copies_;  // waits for the device before the pools are destroyed
  std::vector<DeviceCopies::Stashed> stash_;
  std::vector<float> expected_;
  Push behind_;
  int wrong_ = 0;
};

TEST(DeviceCopiesTest, EveryPermittedOrderGivesTheSameNumbers) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SmallRelay relay(seed);
    relay.Run(/*stages=*/7, /*micro_batches=*/1 + static_cast<int>(seed % 5));
    ASSERT_EQ(relay.wrong(), 0) << "seed " << seed;
  }
}

// Work in flight is bounded, whatever order the device chooses.
TEST(DeviceCopiesTest, MemoryIsIndependentOfDepthAndBatches) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    for (const auto& [stages, micro_batches] : {std::pair(4, 3), std::pair(40, 3), {4, 30}}) {
      SmallRelay relay(seed);
      relay.Run(stages, micro_batches);
      // Two stages. A micro-batch has two activations: one is running, two may be before it and one
      // after it. A gradient each for the running stage and the previous one.
      EXPECT_LE(relay.peak_device_bytes(), (2 + 2 * 4 + 2) * kBytes) << stages << " stages";
      EXPECT_LE(relay.weights().most_in_use, 3) << stages << " stages, seed " << seed;
    }
  }
}

TEST(DeviceCopiesTest, FillsOneBufferWhileAnotherComputes) {
  auto owned = std::make_unique<SimulatedQueues>(1);
  SimulatedQueues* const queues = owned.get();
  DeviceCopies copies(std::move(owned), OneStage(), nullptr);
  StagePool pool;
  std::vector<float> seen(20);
  for (int s = 0; s < 20; ++s) {
    auto host = pool.Take(static_cast<float>(s));
    const Tensor pinned = BytesOf(host);
    const auto stage = Load(&copies, pinned, std::move(host));
    queues->Compute([from = FloatsOf(stage->bytes()), to = &seen[s]] { *to = *from; },
                    /*operations=*/0);
    EXPECT_GT(queues->pending(), 0u) << "stage " << s << " was waited for";
  }
  WaitFor(*queues->Record(DeviceQueue::kCompute));
  for (int s = 0; s < 20; ++s) EXPECT_EQ(seen[s], static_cast<float>(s));
  EXPECT_EQ(queues->peak_device_bytes(), 2 * kBytes);
}

TEST(DeviceCopiesTest, StagesLoadWithoutWaitsForComputing) {
  SlotSizes sizes = OneStage();
  sizes.encoded = kBytes;
  auto owned = std::make_unique<SimulatedQueues>(1);
  SimulatedQueues* const queues = owned.get();
  DeviceCopies copies(std::move(owned), sizes, nullptr);
  for (int s = 0; s < 20; ++s) {
    const std::vector<float> weights(kWidth, static_cast<float>(s));
    const auto stage = copies.slots().Take(StageId(0));
    DeviceSlots::Slot::Piece piece;
    piece.code = {static_cast<uint32_t>(CodecId::kFp32), 1, kWidth, /*column=*/false};
    stage->Arrive(Bytes::Borrow({reinterpret_cast<const uint8_t*>(weights.data()), kBytes}),
                  /*offset=*/0, {piece});
    stage->Ready();
    queues->Compute([] {}, /*operations=*/0);
  }
  EXPECT_EQ(queues->host_waits(DeviceQueue::kCompute), 0);
  EXPECT_EQ(queues->peak_device_bytes(), 2 * kBytes);
}

TEST(DeviceCopiesTest, AllocatesABufferPerHeldStage) {
  auto owned = std::make_unique<SimulatedQueues>(1);
  SimulatedQueues* const queues = owned.get();
  DeviceCopies copies(std::move(owned), OneStage(), nullptr);
  StagePool pool;
  std::vector<std::shared_ptr<DeviceSlots::Slot>> held;
  for (int round = 0; round < 3; ++round) {
    for (int s = 0; s < 5; ++s) {
      auto host = pool.Take(static_cast<float>(s));
      const Tensor pinned = BytesOf(host);
      held.push_back(Load(&copies, pinned, std::move(host)));
    }
    WaitFor(*queues->Record(DeviceQueue::kWeights));
    for (int s = 0; s < 5; ++s) EXPECT_EQ(FloatsOf(held[s]->bytes())[0], static_cast<float>(s));
    held.clear();
  }
  EXPECT_EQ(queues->peak_device_bytes(), 5 * kBytes) << "buffers are reused";
}

TEST(DeviceCopiesTest, WaitsForTheDeviceBeforeDestruction) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    StagePool pool;
    auto owned = std::make_unique<SimulatedQueues>(seed);
    bool computed = false;
    {
      DeviceCopies copies(std::move(owned), OneStage(), nullptr);
      auto host = pool.Take(1);
      const Tensor pinned = BytesOf(host);
      const auto stage = Load(&copies, pinned, std::move(host));
      static_cast<SimulatedQueues&>(copies.queues())
          .Compute([&computed] { computed = true; }, /*operations=*/0);
    }
    EXPECT_TRUE(computed) << "seed " << seed;
    EXPECT_EQ(pool.in_use, 0);
  }
}

}  // namespace
}  // namespace eps
