// A relay that trains only the last stages of a model.

#include <cstdint>
#include <string>
#include <vector>

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "worker/relay/testing/relay_rig.h"

namespace eps {
namespace {

TEST(RelayTest, EndsAtTheLowestTrainableStage) {
  JobShape shape;
  shape.steps = 1;
  shape.tied = false;
  Rig rig(shape, /*prefetch=*/0);
  Freeze(".0", /*others=*/false, &rig.job.spec);
  Freeze(".1", /*others=*/false, &rig.job.spec);
  ASSERT_TRUE(rig.Run([&] { return !rig.steps.empty(); }).ok());
  const std::vector<std::string> expected = {
      "flush",         "begin 1",       "fetch 0f",      "fetch 1f", "fetch 2f",
      "fetch 3b",      "push 3 part 1", "push 3 part 0", "fetch 2b", "losses of parts 0 1",
      "push 2 part 0", "push 2 part 1", "flush",
  };
  EXPECT_EQ(rig.client->log, expected);
  // Only the inputs of the last two stages are kept for the way down.
  const uint64_t items = shape.parts * shape.micro_batches;
  const uint64_t activation = rig.spec.training.micro_batch_size * 64 * sizeof(float);
  EXPECT_EQ(rig.account.peak_bytes(MemoryKind::kStash), 2 * items * activation);
}

}  // namespace
}  // namespace eps
