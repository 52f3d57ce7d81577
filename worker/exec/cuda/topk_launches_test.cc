#include "worker/exec/cuda/topk_launches.h"

#include <set>

#include "base/numerics/flush_denormals.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/testing/codec_cases.h"
#include "worker/exec/cuda/testing/simulated_runner.h"

namespace eps {
namespace {

// Records which formats of the index occur.
class NotingRunner final : public KernelRunner {
 public:
  std::string Encode(uint32_t, bool, const eps_cuda_chunk&, const std::vector<float>&,
                     size_t) override {
    return "";
  }
  std::vector<float> Decode(uint32_t, const eps_cuda_chunk&, const std::string&, size_t) override {
    return {};
  }
  std::vector<uint16_t> DecodeBf16(uint32_t, const eps_cuda_chunk&, const std::string&,
                                   size_t) override {
    return {};
  }
  std::string EncodeTopk(const eps_cuda_topk& call, const std::vector<float>& gradient,
                         std::vector<float>* residual_or_null, size_t room) override {
    const std::string bytes = runner_.EncodeTopk(call, gradient, residual_or_null, room);
    formats.insert(bytes[4]);
    return bytes;
  }
  std::set<int> formats;

 private:
  SimulatedRunner runner_;
};

TEST(TopkLaunchesTest, GiveReferenceBitsInEveryFormat) {
  NotingRunner runner;
  const CaseCount count = CheckTopk(&runner);
  EXPECT_EQ(count.failed, 0u) << count.failed << " of " << count.cases << ": "
                              << count.first_failure;
  EXPECT_EQ(runner.formats, (std::set<int>{0, 1, 2, 3}));
}

TEST(TopkLaunchesTest, DoNotDependOnTheDenormalMode) {
  const ScopedFlushDenormals flush;
  SimulatedRunner runner;
  const CaseCount count = CheckTopk(&runner);
  EXPECT_EQ(count.failed, 0u) << count.failed << " of " << count.cases << ": "
                              << count.first_failure;
}

TEST(TopkLaunchesTest, RefuseCallsThatNoCodecMakes) {
  grid::SimulatedGrid grid(1);
  const auto launch = [&grid](const eps_cuda_topk& call) {
    return grid::LaunchEncodeTopk(call, nullptr, nullptr, nullptr, nullptr, nullptr, grid);
  };
  EXPECT_EQ(launch({0, 1, 1, 0, 0}), grid::kInvalidValue);
  EXPECT_EQ(launch({10, 0, 1, 0, 0}), grid::kInvalidValue);
  EXPECT_EQ(launch({10, 11, 5, 0, 0}), grid::kInvalidValue);
  EXPECT_EQ(launch({10, 5, 0, 0, 0}), grid::kInvalidValue);
  EXPECT_EQ(launch({10, 5, 11, 0, 0}), grid::kInvalidValue);
  EXPECT_EQ(launch({10, 2, 5, 1, 0}), grid::kInvalidValue) << "the sample has one element";
  EXPECT_EQ(launch({(uint64_t{1} << 31) + 1, 5, 5, 0, 0}), grid::kInvalidValue);
  EXPECT_EQ(grid.launches(), 0);
}

}  // namespace
}  // namespace eps
