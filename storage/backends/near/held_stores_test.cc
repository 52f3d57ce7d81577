// Devices whose stores begin late: what the host reads from the medium was written before.

#include <string>
#include <tuple>

#include "base/job/job_spec.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/backends/near/testing/train_shard.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

// Whether buffers are handed over, and whether devices encode weights.
class HeldStoresTest : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(HeldStoresTest, StateIsThatOfMemory) {
  const auto [hands_over, encodes] = GetParam();
  JobSpec spec = RaggedSpec();
  spec.training.mode = Mode::kSealed;
  RigOptions options;
  options.dram_bytes = uint64_t{8} << 20;
  options.sets = 1;
  options.hands_buffers_over = hands_over;
  options.encodes_weights = encodes;
  options.reads_weights_back = !encodes;
  options.holds_stores = true;
  const DeviceRig rig(spec, options);
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ASSERT_TRUE(devices.status().ok()) << devices.status();
  EXPECT_TRUE(TrainShard(&devices) == TrainShard(&memory));
}

INSTANTIATE_TEST_SUITE_P(Handlers, HeldStoresTest,
                         testing::Combine(testing::Bool(), testing::Bool()), [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Handover" : "Naive") +
                                  (std::get<1>(info.param) ? "Encoded" : "Fp32");
                         });

}  // namespace
}  // namespace eps
