// Compressed gradients in storage devices.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/testing/test_specs.h"
#include "compression/codec.h"
#include "compression/plugin/codec_plugin.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/backends/near/testing/train_shard.h"
#include "storage/csd/link_bytes.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

constexpr uint64_t kDramBytes = uint64_t{8} << 20;

// Returns names of all codecs: those of the tree with all parameters, and the template's.
std::vector<std::string> AllCodecs() {
  std::vector<std::string> codecs = CodecExamples();
  codecs.push_back(CodecNameOf(**LoadCodecPlugin("compression/plugin/template/sign.so")));
  return codecs;
}

// Smart-Infinity, section 4.3: a compressed gradient goes down as the worker sent it, waits so, and
// is decompressed in the device.
class CsdTierCompressionTest : public testing::TestWithParam<std::tuple<std::string, Mode>> {};

TEST_P(CsdTierCompressionTest, OnlyContributionGoesDownAsSent) {
  const auto& [codec, mode] = GetParam();
  JobSpec spec = TinySyntheticSpec();
  spec.training.mode = mode;
  spec.training.parts = 1;
  RigOptions options;
  options.dram_bytes = kDramBytes;
  const DeviceRig rig(spec, options);
  ShardUnderTest devices({"Devices", &DeviceRig::NewBackendOfLast}, spec, 1);
  ShardUnderTest memory({"Dram", &NewDramBackend}, spec, 1);
  std::vector<std::string> states[2];
  uint64_t sent = 0;
  const LinkBytes before = rig.link_bytes();
  for (ShardUnderTest* const shard : {&devices, &memory}) {
    ASSERT_TRUE(shard->status().ok()) << shard->status();
    shard->InitializeAll();
    for (const Chunk& chunk : shard->chunks().chunks()) {
      if (chunk.uses.size() > 1) continue;  // their contributions are summed
      uint64_t bytes = 0;
      states[shard == &memory ? 1 : 0].push_back(UpdateWith(shard, chunk, codec, &bytes));
      if (shard == &devices) sent += bytes;
    }
  }
  EXPECT_FALSE(states[0].empty());
  EXPECT_TRUE(states[0] == states[1]);
  const LinkBytes moved = rig.link_bytes().Since(before);
  EXPECT_EQ(moved.of(Link::kHost, Direction::kWritten, Purpose::kGradient), sent);
  const bool waits = mode == Mode::kSealed;
  EXPECT_EQ(moved.of(Link::kMedia, Direction::kWritten, Purpose::kGradient), waits ? sent : 0u);
  EXPECT_EQ(moved.of(Link::kInternal, Direction::kRead, Purpose::kGradient), waits ? sent : 0u);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CsdTierCompressionTest,
                         testing::Combine(testing::ValuesIn(AllCodecs()),
                                          testing::Values(Mode::kSealed, Mode::kEager)));

}  // namespace
}  // namespace eps
