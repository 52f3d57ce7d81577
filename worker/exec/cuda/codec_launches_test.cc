#include "worker/exec/cuda/codec_launches.h"

#include <limits>
#include <string>

#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/testing/codec_cases.h"
#include "worker/exec/cuda/testing/simulated_runner.h"

namespace eps {
namespace {

// Runs once for every dense codec.
class DenseKernelsTest : public ::testing::TestWithParam<DenseCodec> {};

TEST_P(DenseKernelsTest, GiveTheBitsOfTheReference) {
  SimulatedRunner runner;
  const CaseCount count = CheckDenseCodec(GetParam(), &runner);
  EXPECT_EQ(count.failed, 0u) << count.first_failure;
  EXPECT_GT(count.cases, GetParam().number < 8 ? 200u : 400u);
}

std::string NameOf(const ::testing::TestParamInfo<DenseCodec>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = c == ':' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, DenseKernelsTest, ::testing::ValuesIn(DenseCodecs()), NameOf);

TEST(CodecLaunchesTest, KeepDenormalsInEveryDenormalMode) {
  const ScopedFlushDenormals flush;
  SimulatedRunner runner;
  const CaseCount count = CheckDenseCodec({"mxfp8_e5m2", 17, false}, &runner);
  EXPECT_EQ(count.failed, 0u) << count.first_failure;
}

// Counts launches and fails one of them.
struct CountingLauncher {
  template <class Body>
  int Run(uint32_t blocks, const typename Body::Args& /*args*/) {
    total_blocks += blocks;
    return ++launches == refused ? 7 : 0;
  }
  int launches = 0;
  int refused = 0;
  uint64_t total_blocks = 0;
};

TEST(CodecLaunchesTest, RefuseCodecsThatAreNotDense) {
  const eps_cuda_segment segment = {1, 1};
  const eps_cuda_chunk chunk = {&segment, 1, 0};
  for (const uint32_t codec : {0u, 6u, 7u, 11u, 15u, 22u, 32u, 65535u}) {
    CountingLauncher launcher;
    EXPECT_EQ(grid::LaunchDecodeChunk<float>(codec, chunk, nullptr, nullptr, launcher), 1) << codec;
    EXPECT_EQ(grid::LaunchEncodeChunk(codec, false, chunk, nullptr, nullptr, launcher), 1);
    EXPECT_EQ(launcher.launches, 0);
  }
  CountingLauncher launcher;
  EXPECT_EQ(grid::LaunchEncodeChunk(16, true, chunk, nullptr, nullptr, launcher), 1);
  EXPECT_EQ(grid::LaunchEncodeChunk(3, true, chunk, nullptr, nullptr, launcher), 1);
  EXPECT_EQ(launcher.launches, 0);
}

TEST(CodecLaunchesTest, SplitSegmentsAndStopAtAnError) {
  const std::vector<eps_cuda_segment> segments(150, eps_cuda_segment{33, 129});
  const eps_cuda_chunk chunk = {segments.data(), 150, 1};
  CountingLauncher launcher;
  EXPECT_EQ(grid::LaunchDecodeChunk<float>(8, chunk, nullptr, nullptr, launcher), 0);
  EXPECT_EQ(launcher.launches, 3);
  EXPECT_EQ(launcher.total_blocks, 600u);
  CountingLauncher failing;
  failing.refused = 2;
  EXPECT_EQ(grid::LaunchDecodeChunk<float>(8, chunk, nullptr, nullptr, failing), 7);
  EXPECT_EQ(failing.launches, 2);
}

TEST(CodecLaunchesTest, LimitTheBlocksOfALaunch) {
  // 2^30 tiles each: two segments do not fit into one launch.
  const std::vector<eps_cuda_segment> segments(3, eps_cuda_segment{1u << 30, 32 * 128});
  CountingLauncher launcher;
  EXPECT_EQ(grid::LaunchDecodeChunk<float>(16, {segments.data(), 3, 0}, nullptr, nullptr, launcher),
            0);
  EXPECT_EQ(launcher.launches, 3);
  const eps_cuda_segment huge = {std::numeric_limits<uint32_t>::max(), 1u << 31};
  EXPECT_EQ(grid::LaunchDecodeChunk<float>(16, {&huge, 1, 0}, nullptr, nullptr, launcher), 1);
}

TEST(CodecLaunchesTest, LaunchNothingForEmptyChunks) {
  const eps_cuda_segment segments[] = {{0, 5}, {5, 0}};
  CountingLauncher launcher;
  for (const DenseCodec& codec : DenseCodecs()) {
    EXPECT_EQ(
        grid::LaunchDecodeChunk<float>(codec.number, {segments, 2, 0}, nullptr, nullptr, launcher),
        0);
    EXPECT_EQ(
        grid::LaunchEncodeChunk(codec.number, false, {nullptr, 0, 0}, nullptr, nullptr, launcher),
        0);
  }
  EXPECT_EQ(launcher.launches, 0);
}

}  // namespace
}  // namespace eps
