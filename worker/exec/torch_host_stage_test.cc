#include "worker/exec/torch_host_stage.h"

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

JobSpec SpecOf(uint32_t rows, uint32_t cols) {
  JobSpec spec;
  TensorSpec tensor;
  tensor.rank = 2;
  tensor.rows = rows;
  tensor.cols = cols;
  spec.tensors.push_back(tensor);
  StageSpec stage;
  stage.name = "h.7";
  stage.uses.resize(1);
  spec.stages.push_back(stage);
  return spec;
}

TEST(TorchHostStageTest, ChargesItsBytes) {
  const JobSpec spec = SpecOf(3, 5);
  MemoryAccount account;
  auto stage = TorchHostStage::New("h.7", StageLayout(spec, spec.stages[0], /*backward=*/false),
                                   /*pinned=*/false, &account);
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ(account.live_bytes(MemoryKind::kStage), 64u);
  *stage = nullptr;
  EXPECT_EQ(account.live_bytes(), 0u);
}

// No machine has so much pinned memory, and one without a device has none: LibTorch throws.
TEST(TorchHostStageTest, RefusedPinnedMemoryBecomesAStatus) {
  const JobSpec spec = SpecOf(uint32_t{1} << 30, uint32_t{1} << 26);
  MemoryAccount account;
  const auto stage =
      TorchHostStage::New("h.7", StageLayout(spec, spec.stages[0], /*backward=*/false),
                          /*pinned=*/true, &account);
  ASSERT_FALSE(stage.ok());
  EXPECT_TRUE(absl::StrContains(stage.status().message(),
                                "allocating 288230376151711744 bytes of pinned host memory for "
                                "stage h.7: "))
      << stage.status();
  EXPECT_EQ(account.live_bytes(), 0u);
}

}  // namespace
}  // namespace eps
