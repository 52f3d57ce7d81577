#include "base/job/data_position.h"

#include <algorithm>
#include <vector>

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// The samples of the running indices [first, first + n), in the order in which steps take them.
std::vector<uint64_t> Samples(const JobSpec& spec, uint64_t first, uint64_t n) {
  std::vector<uint64_t> samples;
  for (uint64_t r = first; r < first + n; ++r) {
    const uint64_t in_step = r % spec.samples_per_step();
    samples.push_back(SampleIndex(spec, Step(r / spec.samples_per_step() + 1),
                                  static_cast<uint32_t>(in_step / spec.training.micro_batch_size),
                                  static_cast<uint32_t>(in_step % spec.training.micro_batch_size)));
  }
  return samples;
}

bool IsPermutation(std::vector<uint64_t> values) {
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != i) return false;
  }
  return true;
}

TEST(FeistelPermutation, IsABijectionForEverySize) {
  std::vector<uint64_t> sizes;
  for (uint64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (uint64_t n : {255, 256, 257, 1023, 1024, 1025, 65'537}) sizes.push_back(n);
  for (uint64_t n : sizes) {
    for (uint64_t key : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
      const FeistelPermutation permutation(n, key);
      std::vector<uint64_t> image;
      for (uint64_t i = 0; i < n; ++i) image.push_back(permutation(i));
      EXPECT_TRUE(IsPermutation(image)) << n << " key " << key;
    }
  }
}

TEST(FeistelPermutation, ReachesTheLargestSize) {
  const FeistelPermutation permutation(UINT64_MAX, 5);
  EXPECT_LT(permutation(UINT64_MAX - 1), UINT64_MAX);
  EXPECT_NE(permutation(0), permutation(1));
}

TEST(FeistelPermutation, GivesTheGoldenOrder) {
  const FeistelPermutation permutation(10, 7);
  const std::vector<uint64_t> expected = {8, 1, 5, 2, 4, 9, 0, 7, 3, 6};
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(permutation(i), expected[i]);
}

TEST(WholeSamples, LeavesRoomForTheLastLabel) {
  JobSpec spec = TinyGpt2Spec();
  spec.data.tokens = 33;
  EXPECT_EQ(WholeSamples(spec), 1u);
  spec.data.tokens = 64;
  EXPECT_EQ(WholeSamples(spec), 1u);
  spec.data.tokens = 65;
  EXPECT_EQ(WholeSamples(spec), 2u);
}

TEST(WholeSamples, RowsAreSamples) {
  JobSpec spec = TinyGpt2Spec();
  spec.data.samples = 7;
  spec.data.tokens = 7 * spec.training.seq_len;
  EXPECT_EQ(WholeSamples(spec), 7u);
  EXPECT_TRUE(IsPermutation(Samples(spec, 7, 7)));
}

TEST(SampleIndex, SequentialOrderWrapsAtTheEnd) {
  JobSpec spec = TinyGpt2Spec();
  spec.data.order = DataOrder::kSequential;
  const uint64_t whole = WholeSamples(spec);
  const std::vector<uint64_t> samples = Samples(spec, 0, 3 * whole);
  for (uint64_t r = 0; r < samples.size(); ++r) EXPECT_EQ(samples[r], r % whole);
}

TEST(SampleIndex, ShuffledOrderPermutesEveryPass) {
  const JobSpec spec = TinyGpt2Spec();
  const uint64_t whole = WholeSamples(spec);
  const std::vector<uint64_t> first = Samples(spec, 0, whole);
  const std::vector<uint64_t> second = Samples(spec, whole, whole);
  EXPECT_TRUE(IsPermutation(first));
  EXPECT_TRUE(IsPermutation(second));
  EXPECT_NE(first, second);
  JobSpec other = spec;
  other.training.seed = 43;
  EXPECT_NE(Samples(other, 0, whole), first);
}

TEST(SampleIndex, GivesTheGoldenOrder) {
  const JobSpec spec = TinyGpt2Spec();
  EXPECT_EQ(Samples(spec, 0, 8), (std::vector<uint64_t>{168, 93, 101, 34, 311, 137, 218, 112}));
  EXPECT_EQ(Samples(spec, 39 * 8, 8),
            (std::vector<uint64_t>{53, 17, 222, 149, 295, 145, 277, 204}));
}

TEST(SampleIndex, IsIndependentOfTheParts) {
  JobSpec one = TinyGpt2Spec();
  JobSpec other = one;
  other.training.parts = 4;
  other.training.micro_batches = 1;
  EXPECT_EQ(Samples(one, 100, 64), Samples(other, 100, 64));
}

}  // namespace
}  // namespace eps
