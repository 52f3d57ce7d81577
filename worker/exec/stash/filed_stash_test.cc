// Moves activations of a simulated device, which computes later than the host asks, to a file and
// back.

#include "worker/exec/stash/filed_stash.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/testing/simulated_queues.h"

namespace eps {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 64;  // floats in an activation

class Device {
 public:
  explicit Device(uint32_t seed)
      : queues_(new SimulatedQueues(seed)),
        copies_(std::unique_ptr<DeviceQueues>(queues_), SlotSizes(), nullptr),
        stash_(*StashFile::Create(testing::TempDir(), kWidth * sizeof(float), nullptr), &copies_) {}

  ActivationPtr StashOf(float value) {
    const Tensor x = queues_->New(DeviceQueue::kCompute, {kWidth}, at::kFloat);
    auto* const values = static_cast<float*>(x.mutable_data_ptr());
    queues_->Compute(
        [values, value] {
          for (int64_t i = 0; i < kWidth; ++i) values[i] = value + static_cast<float>(i);
        },
        /*operations=*/0);
    ActivationPtr stashed = *stash_.Stash(x, /*is_encoded=*/false);
    copies_.EndOfMicroBatch();
    return stashed;
  }

  void StartRead(const ActivationPtr& stashed) {
    stash_.StartRead(static_cast<const FiledActivation&>(*stashed));
  }

  // Reads it on the device; Finish counts the wrong values.
  void Use(const ActivationPtr& stashed, float value) {
    const Tensor x = *stash_.Unstash(static_cast<const FiledActivation&>(*stashed));
    const auto* const values = static_cast<const float*>(x.const_data_ptr());
    queues_->Compute(
        [this, values, value] {
          for (int64_t i = 0; i < kWidth; ++i) wrong_ += values[i] != value + static_cast<float>(i);
        },
        /*operations=*/0);
    copies_.EndOfMicroBatch();
  }

  int Finish() {
    WaitFor(*queues_->Record(DeviceQueue::kCompute));
    return wrong_;
  }

 private:
  SimulatedQueues* const queues_;
  DeviceCopies copies_;
  FiledStash stash_;
  int wrong_ = 0;
};

TEST(FiledStash, KeepsValuesWhateverTheDevicesOrder) {
  constexpr int kItems = 12;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Device device(seed);
    for (int step = 0; step < 2; ++step) {
      std::vector<ActivationPtr> stashed;
      for (int i = 0; i < kItems; ++i) {
        stashed.push_back(device.StashOf(static_cast<float>(100 * i + step)));
      }
      for (int i = kItems; i-- > 0;) {
        if (i > 0) device.StartRead(stashed[i - 1]);
        device.Use(stashed[i], static_cast<float>(100 * i + step));
        stashed.pop_back();
      }
    }
    ASSERT_EQ(device.Finish(), 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace eps
