#include "worker/exec/cuda/dropout_bodies.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/rng.h"
#include "compression/codecs/floats/reference.h"
#include "gtest/gtest.h"
#include "worker/exec/cuda/testing/simulated_grid.h"

namespace eps::grid {
namespace {

using elementwise::BitsOf;
using elementwise::FloatOf;

constexpr float kGarbage = -77.0f;

eps_cuda_mask MaskOf(const RngKey& key, double p, uint64_t first) {
  return {key.seed, key.step, key.micro_batch, key.stage, key.site, p, first};
}

// Returns elements first to first + n of the CPU's mask.
std::vector<float> CpuMask(const RngKey& key, double p, uint64_t first, size_t n) {
  std::vector<float> mask(first + n);
  FillDropoutMask(key, p, absl::MakeSpan(mask));
  return std::vector<float>(mask.begin() + static_cast<ptrdiff_t>(first), mask.end());
}

// Returns the mask that the kernel writes; fails if it writes around it.
std::vector<float> KernelMask(const eps_cuda_mask& mask, size_t n, uint32_t seed) {
  std::vector<float> out(n + 2, kGarbage);
  SimulatedGrid grid(seed);
  EXPECT_EQ(LaunchDropoutMask(mask, n, out.data() + 1, grid), 0);
  EXPECT_EQ(out.front(), kGarbage);
  EXPECT_EQ(out.back(), kGarbage);
  return std::vector<float>(out.begin() + 1, out.end() - 1);
}

const RngKey kKeys[] = {{},
                        {1, 2, 3, 4, 5},
                        {~uint64_t{0}, ~uint64_t{0}, ~0u, 0xffff, 0xffff},
                        {0x123456789abcdef0u, uint64_t{1} << 32, 17, 300, 2}};

TEST(DropoutBodiesTest, MasksAreThoseOfTheCpu) {
  std::vector<size_t> sizes = {63, 64, 65, 1000, 1027, 70001};
  for (size_t n = 1; n < 12; ++n) sizes.push_back(n);
  uint32_t seed = 0;
  for (const RngKey& key : kKeys) {
    for (const double p : {0.0, 0x1p-33, 0.1, 0.5, 0.999, 1 - 0x1p-53}) {
      for (const size_t n : sizes) {
        const uint64_t first = seed % 4 + (seed % 3 == 0 ? 1000 : 0);
        ASSERT_EQ(KernelMask(MaskOf(key, p, first), n, ++seed), CpuMask(key, p, first, n))
            << "n " << n << ", p " << p << ", first " << first;
      }
    }
  }
}

TEST(DropoutBodiesTest, ThreadsDrawSeveralQuads) {
  // More quads than a launch has threads.
  constexpr size_t kElements = 4 * kThreads * kMaxBlocks + 4 * kThreads + 3;
  EXPECT_TRUE(KernelMask(MaskOf(kKeys[1], 0.25, 2), kElements, 1) ==
              CpuMask(kKeys[1], 0.25, 2, kElements));
}

// Returns the words from which elements 4 block to 4 block + 3 are drawn.
PhiloxBlock WordsOf(const RngKey& key, uint64_t block) {
  const PhiloxBlock step_key =
      Philox4x32({static_cast<uint32_t>(key.step), 0, 0, 1}, {static_cast<uint32_t>(key.seed), 0});
  return Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                     key.micro_batch, uint32_t{key.stage} << 16 | key.site},
                    {step_key[0], step_key[1]});
}

TEST(DropoutBodiesTest, DrawsElementsBeyondFourBillionQuads) {
  constexpr uint64_t kFirst = (uint64_t{1} << 34) - 6;
  const std::vector<float> got = KernelMask(MaskOf(kKeys[1], 0.5, kFirst), 12, 1);
  for (uint64_t i = 0; i < 12; ++i) {
    const uint32_t word = WordsOf(kKeys[1], (kFirst + i) / 4)[(kFirst + i) % 4];
    EXPECT_EQ(got[i], word < 0x80000000u ? 0.0f : 2.0f) << i;
  }
}

TEST(DropoutBodiesTest, DropsAWordJustBelowP) {
  for (size_t i = 0; i < 4; ++i) {
    const double word = WordsOf(kKeys[1], 0)[i];
    EXPECT_EQ(KernelMask(MaskOf(kKeys[1], (word + 0.5) * 0x1p-32, 0), 4, 1)[i], 0.0f) << i;
    EXPECT_GT(KernelMask(MaskOf(kKeys[1], word * 0x1p-32, 0), 4, 1)[i], 0.0f) << i;
  }
}

// Any bits, of which a part is denormal, infinite or NaN.
template <class Element>
std::vector<Element> AnyElements(uint32_t seed, size_t n) {
  std::vector<Element> elements(n);
  uint64_t state = seed;
  for (Element& element : elements) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = static_cast<uint32_t>(state >> 32);
    if (state >> 20 & 1u) bits = (bits & 0x81ffffffu) | 0x3e000000u;  // about 1
    if ((state >> 21 & 7u) == 0) bits &= 0x80ffffffu;                 // denormal or nearly so
    if ((state >> 21 & 63u) == 1) bits |= 0x7f800000u;
    elementwise::Store(FloatOf(bits), &element);
  }
  return elements;
}

float Widened(float value) { return value; }
float Widened(uint16_t bits) { return FloatOf(uint32_t{bits} << 16); }
void RoundTo(float value, float* to) { *to = value; }
void RoundTo(float value, uint16_t* to) { *to = float_reference::RoundToBf16(BitsOf(value)); }

// As a CPU computes it.
template <class Element>
std::vector<Element> Expected(const std::vector<float>& mask, const std::vector<Element>& x,
                              const std::vector<Element>* residual_or_null) {
  const ScopedFlushDenormals flush;
  std::vector<Element> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const float product = Widened(x[i]) * mask[i];
    RoundTo(residual_or_null == nullptr ? product : product + Widened((*residual_or_null)[i]),
            &y[i]);
  }
  return y;
}

// Compares bits, but for the payloads of NaN.
template <class Element>
void ExpectSame(const std::vector<Element>& got, const std::vector<Element>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(Widened(expected[i])) && std::isnan(Widened(got[i]))) continue;
    ASSERT_EQ(BitsOf(Widened(got[i])), BitsOf(Widened(expected[i]))) << i << " of " << got.size();
  }
}

// Runs once for float and once for bfloat16.
template <class Element>
class DropoutElementsTest : public ::testing::Test {
 public:
  static constexpr int kElements = sizeof(Element) == 4 ? EPS_CUDA_FP32 : EPS_CUDA_BF16;

  // Returns y for inputs that begin `offset` elements after an aligned address. y is x or the
  // residual if `in_place`.
  static std::vector<Element> Drop(const eps_cuda_mask& mask, const std::vector<Element>& x,
                                   const std::vector<Element>* residual_or_null, bool in_place,
                                   size_t offset, uint32_t seed) {
    const size_t n = x.size();
    const auto at_offset = [offset](const std::vector<Element>& from) {
      std::vector<Element> memory(offset, 7);
      memory.insert(memory.end(), from.begin(), from.end());
      memory.insert(memory.end(), 5, 7);
      return memory;
    };
    std::vector<Element> x_memory = at_offset(x);
    std::vector<Element> y_memory = at_offset(std::vector<Element>(n, 9));
    std::vector<Element> r_memory = at_offset(residual_or_null != nullptr ? *residual_or_null : x);
    std::vector<Element>* to = &y_memory;
    if (in_place) to = residual_or_null == nullptr || seed % 2 == 0 ? &x_memory : &r_memory;
    SimulatedGrid grid(seed);
    EXPECT_EQ(LaunchDropout(mask, kElements, x_memory.data() + offset,
                            residual_or_null == nullptr ? nullptr : r_memory.data() + offset, n,
                            to->data() + offset, grid),
              0);
    for (size_t i = 0; i < offset; ++i) EXPECT_EQ((*to)[i], 7) << "written before the elements";
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ((*to)[offset + n + i], 7) << "written after them";
    const auto begin = to->begin() + static_cast<ptrdiff_t>(offset);
    return std::vector<Element>(begin, begin + static_cast<ptrdiff_t>(n));
  }
};
using Elements = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(DropoutElementsTest, Elements);

TYPED_TEST(DropoutElementsTest, MultipliesAndAddsLikeTheCpu) {
  uint32_t seed = 0;
  for (const size_t n : {1, 2, 3, 4, 5, 7, 8, 64, 1001, 5000}) {
    for (const uint64_t first : {0, 1, 2, 3, 42}) {
      for (const size_t offset : {0, 1, 2, 3}) {
        const std::vector<TypeParam> x = AnyElements<TypeParam>(++seed, n);
        const std::vector<TypeParam> residual = AnyElements<TypeParam>(seed + 9999, n);
        const std::vector<float> mask = CpuMask(kKeys[1], 0.3, first, n);
        const eps_cuda_mask call = MaskOf(kKeys[1], 0.3, first);
        for (const bool in_place : {false, true}) {
          ExpectSame(this->Drop(call, x, nullptr, in_place, offset, seed),
                     Expected<TypeParam>(mask, x, nullptr));
          ExpectSame(this->Drop(call, x, &residual, in_place, offset, seed),
                     Expected(mask, x, &residual));
        }
      }
    }
  }
}

TYPED_TEST(DropoutElementsTest, DoesNotDependOnTheDenormalMode) {
  const std::vector<TypeParam> x = AnyElements<TypeParam>(1, 9000);
  const std::vector<TypeParam> residual = AnyElements<TypeParam>(2, 9000);
  const eps_cuda_mask call = MaskOf(kKeys[3], 0.3, 1);
  const std::vector<TypeParam> expected = this->Drop(call, x, &residual, false, 0, 1);
  const ScopedFlushDenormals flush;
  ExpectSame(this->Drop(call, x, &residual, false, 0, 2), expected);
}

TEST(DropoutBodiesTest, RefusesOtherProbabilitiesAndElements) {
  SimulatedGrid grid(1);
  float value = 0;
  for (const double p : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    const eps_cuda_mask mask = MaskOf(kKeys[0], p, 0);
    EXPECT_EQ(LaunchDropoutMask(mask, 1, &value, grid), kInvalidValue) << p;
    EXPECT_EQ(LaunchDropout(mask, EPS_CUDA_FP32, &value, nullptr, 1, &value, grid), kInvalidValue);
  }
  const eps_cuda_mask mask = MaskOf(kKeys[0], 0.5, 0);
  EXPECT_EQ(LaunchDropout(mask, 0, &value, nullptr, 1, &value, grid), kInvalidValue);
  EXPECT_EQ(LaunchDropout(mask, EPS_CUDA_BF16, nullptr, nullptr, 0, nullptr, grid), 0);
  EXPECT_EQ(LaunchDropoutMask(mask, 0, nullptr, grid), 0);
  EXPECT_EQ(grid.launches(), 0);
}

}  // namespace
}  // namespace eps::grid
