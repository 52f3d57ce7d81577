#include "worker/exec/stash/stash_tiers.h"

#include <vector>

#include "absl/strings/match.h"
#include "base/job/layout/model_layout.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kBytes = 10;  // of an activation

std::vector<StashTier> TiersOf(StashTiers* tiers, size_t count) {
  std::vector<StashTier> found;
  for (size_t i = 0; i < count; ++i) found.push_back(tiers->Next(kBytes));
  return found;
}

// The activations that wait longest lie in the file.
TEST(StashTiers, FillsFastTiersFromTheEnd) {
  StashTiers tiers({/*device=*/20, /*host=*/30, /*file=*/true});
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(tiers.Begin(8 * kBytes).ok());
    EXPECT_EQ(tiers.in_file(), 30u);
    EXPECT_EQ(tiers.on_host(), 30u);
    constexpr StashTier kFile = StashTier::kFile, kHost = StashTier::kHost;
    constexpr StashTier kDevice = StashTier::kDevice;
    EXPECT_EQ(TiersOf(&tiers, 9), (std::vector<StashTier>{kFile, kFile, kFile, kHost, kHost, kHost,
                                                          kDevice, kDevice, kDevice}));
  }
}

TEST(StashTiers, UsesNoSlowTierWithoutNeed) {
  StashTiers on_device({/*device=*/100, /*host=*/100, /*file=*/true});
  ASSERT_TRUE(on_device.Begin(8 * kBytes).ok());
  EXPECT_EQ(TiersOf(&on_device, 9), std::vector<StashTier>(9, StashTier::kDevice));
  StashTiers on_host({/*device=*/0, /*host=*/100, /*file=*/true});
  ASSERT_TRUE(on_host.Begin(8 * kBytes).ok());
  EXPECT_EQ(TiersOf(&on_host, 9), std::vector<StashTier>(9, StashTier::kHost));
}

TEST(StashTiers, RefusesWithFiguresAndKeys) {
  StashTiers tiers({/*device=*/20, /*host=*/30, /*file=*/false});
  EXPECT_TRUE(tiers.Begin(50).ok());
  const absl::Status status = tiers.Begin(51);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* const part :
       {"takes 51 bytes", "20 fit", "30 into", "1 are left", "worker.stash_path",
        "worker.stash_host", "worker.device_memory"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  }
}

TEST(StashTiers, SizesFollowCodecAndPrecision) {
  JobSpec spec;
  spec.model.gpt2.n_layer = 2;
  spec.model.gpt2.n_head = 2;
  spec.model.gpt2.n_embd = 32;
  spec.training.micro_batch_size = 3;
  spec.training.seq_len = 8;
  ASSERT_TRUE(BuildLayout(0.01, &spec).ok());
  constexpr uint64_t kElements = 3 * 8 * 32;
  const auto sizes = [&](const char* codec) {
    return StashSizesOf(spec, **StashCodec::Find(codec));
  };
  EXPECT_EQ(sizes("fp32").input, 4 * kElements);
  EXPECT_EQ(sizes("fp32").gradient, 4 * kElements);
  EXPECT_EQ(sizes("fp8_e4m3").input, kElements);
  EXPECT_EQ(sizes("fp8_e4m3").gradient, 4 * kElements);
  spec.training.precision = Precision::kBf16;
  EXPECT_EQ(sizes("fp32").input, 2 * kElements);
  EXPECT_EQ(sizes("fp32").gradient, 2 * kElements);
  // Weights and gradients count by the largest stage, and what a backward pass keeps on top.
  const uint64_t less = DeviceBytesWithoutStash(spec, 0);
  EXPECT_GT(less, 0u);
  spec.training.micro_batches = 4;
  EXPECT_EQ(DeviceBytesWithoutStash(spec, 100) - less, 100u * (3 + 3 + 2));
}

}  // namespace
}  // namespace eps
