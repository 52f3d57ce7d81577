#include "worker/exec/queues/pinned_memory.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/testing/simulated_queues.h"

namespace eps {
namespace {

using at::Tensor;

constexpr uint64_t kPage = 4096;

// Copies, and the simulated device of them.
struct Device {
  explicit Device(uint32_t seed) : Device(std::make_unique<SimulatedQueues>(seed)) {}
  explicit Device(std::unique_ptr<SimulatedQueues> owned)
      : queues(owned.get()), copies(std::move(owned), SlotSizes(), nullptr) {}
  SimulatedQueues* const queues;
  DeviceCopies copies;
};

// Fills a tensor on the device with one value when its queue gets there.
Tensor NewFilled(SimulatedQueues* queues, int64_t n, uint8_t value) {
  const Tensor tensor = queues->New(DeviceQueue::kCompute, {n}, at::kByte);
  queues->Compute([to = tensor.mutable_data_ptr(), n, value] { std::memset(to, value, n); }, 0);
  return tensor;
}

// A step stashes several activations and reads them again, from the last to the first.
TEST(PinnedMemory, StepsShareOneBlock) {
  constexpr int kItems = 5;
  constexpr int64_t kBytes = 3 * kPage - 7;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Device device(seed);
    device.copies.stash_memory().Reserve(kItems, kBytes);
    std::vector<std::vector<uint8_t>> read;
    for (int step = 0; step < 3; ++step) {
      std::vector<DeviceCopies::Stashed> stash;
      for (int i = 0; i < kItems; ++i) {
        const auto value = static_cast<uint8_t>(step * kItems + i);
        stash.push_back(device.copies.CopyToStash(NewFilled(device.queues, kBytes, value)));
      }
      for (; !stash.empty(); stash.pop_back()) {
        const Tensor back = device.copies.CopyFromStash(stash.back());
        read.emplace_back(kBytes);
        device.queues->Compute([from = back.const_data_ptr(),
                                to = read.back().data()] { std::memcpy(to, from, kBytes); },
                               0);
      }
    }
    WaitFor(*device.queues->Record(DeviceQueue::kCompute));
    for (int step = 0, k = 0; step < 3; ++step) {
      for (int i = kItems - 1; i >= 0; --i, ++k) {
        const std::vector<uint8_t> expected(kBytes, static_cast<uint8_t>(step * kItems + i));
        ASSERT_EQ(read[k], expected) << "seed " << seed << ", step " << step << ", item " << i;
      }
    }
    EXPECT_EQ(device.queues->pinned_bytes(), kItems * 3 * kPage) << "seed " << seed;
  }
}

// The host writes an activation that comes from a file.
TEST(PinnedMemory, TheHostWritesOnlyFreeParts) {
  constexpr int64_t kBytes = 100;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Device device(seed);
    PinnedMemory& memory = device.copies.stash_memory();
    memory.Reserve(2, kBytes);
    std::vector<std::vector<uint8_t>> read;
    for (int i = 0; i < 20; ++i) {
      // A copy to a part that is dropped unread.
      device.copies.CopyToStash(NewFilled(device.queues, kBytes, 0xee));
      DeviceCopies::Stashed stashed;
      stashed.host = memory.New({kBytes}, at::kByte);
      std::memset(stashed.host.mutable_data_ptr(), i, kBytes);
      stashed.copied = device.queues->Record(DeviceQueue::kStashIn);
      const Tensor back = device.copies.CopyFromStash(stashed);
      stashed = DeviceCopies::Stashed();
      read.emplace_back(kBytes);
      device.queues->Compute([from = back.const_data_ptr(),
                              to = read.back().data()] { std::memcpy(to, from, kBytes); },
                             0);
    }
    WaitFor(*device.queues->Record(DeviceQueue::kCompute));
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(read[i], std::vector<uint8_t>(kBytes, static_cast<uint8_t>(i))) << "seed " << seed;
    }
    EXPECT_EQ(device.queues->pinned_bytes(), 2 * kPage) << "seed " << seed;
  }
}

TEST(PinnedMemory, ReservesOnlyTheMissingRoom) {
  Device device(1);
  PinnedMemory& memory = device.copies.stash_memory();
  memory.Reserve(4, kPage);
  memory.Reserve(3, kPage);
  EXPECT_EQ(device.queues->pinned_bytes(), 4 * kPage);
  memory.Reserve(6, kPage);
  EXPECT_EQ(device.queues->pinned_bytes(), 6 * kPage);
  std::vector<Tensor> all;
  for (int i = 0; i < 6; ++i) all.push_back(memory.New({kPage / 4}, at::kFloat));
  EXPECT_EQ(device.queues->pinned_bytes(), 6 * kPage);
  all.push_back(memory.New({2, 3}, at::kBFloat16));
  EXPECT_EQ(all.back().sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(all.back().scalar_type(), at::kBFloat16);
  EXPECT_EQ(device.queues->pinned_bytes(), 7 * kPage) << "there was no room";
  all.clear();
  for (int i = 0; i < 7; ++i) all.push_back(memory.New({kPage}, at::kByte));
  EXPECT_EQ(device.queues->pinned_bytes(), 7 * kPage);
}

}  // namespace
}  // namespace eps
