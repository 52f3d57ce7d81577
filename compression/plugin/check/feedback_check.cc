// The check of error feedback.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"
#include "compression/plugin/check/checks.h"

namespace eps {
namespace {

// The rounds after which most codecs have sent enough of every element.
constexpr size_t kFewRounds = 200;
// A codec that sends one element at a time, chosen at random, needs about 8 rounds for each of 1025
// elements until all were sent.
constexpr size_t kRoundsPerElement = 64;
// The part of an element's gradients that may still be missing.
constexpr float kMissing = 0.25F;

// Returns a gradient whose elements have about the same magnitude: a codec that sends the largest
// ones first sends all of them in turn.
std::vector<float> ConstantGradient(size_t n) {
  std::vector<float> gradient(n);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t mixed = MixedNumber(10, i);
    const float magnitude = 0x1p-6F * (1 + static_cast<float>(mixed % 1024) / 1024);
    gradient[i] = (mixed >> 32) % 2 == 0 ? magnitude : -magnitude;
  }
  return gradient;
}

// Returns the number of the first element of which more is missing after `rounds` equal gradients
// than a quarter of their sum; n if there is none.
size_t FirstMissing(const std::vector<float>& residual, const std::vector<float>& gradient,
                    size_t rounds) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float most = kMissing * static_cast<float>(rounds) * std::abs(gradient[i]);
    if (!(std::abs(residual[i]) <= most)) return i;
  }
  return gradient.size();
}

// Sends the gradient again and again, as a worker does: what an encoding omits is added to the
// next one. The residual of a codec that sends every element at some time stays bounded, whatever
// its bound is, while the sum of the gradients grows: some round finds all of them sent.
std::string CheckConstant(CodecArrays* arrays, size_t n) {
  const ScopedFlushDenormals flush;
  const std::vector<float> gradient = ConstantGradient(n);
  std::vector<float> residual(n);
  const size_t most_rounds = std::max(kFewRounds, kRoundsPerElement * n);
  size_t missing = n;
  for (size_t round = 1; round <= most_rounds; ++round) {
    for (size_t i = 0; i < n; ++i) residual[i] = gradient[i] + residual[i];
    const Decoding sent = arrays->Decode(arrays->Encode(residual).bytes, n);
    for (size_t i = 0; i < n; ++i) residual[i] -= sent.elements[i];
    if (round < kFewRounds) continue;
    missing = FirstMissing(residual, gradient, round);
    if (missing == n) return "";
  }
  const double sum = static_cast<double>(most_rounds) * gradient[missing];
  return absl::StrFormat(
      "length %d: after %d equal gradients, element %d of %.3g arrives as %.3g on average", n,
      most_rounds, missing, gradient[missing],
      (sum - residual[missing]) / static_cast<double>(most_rounds));
}

}  // namespace

std::string CheckFeedback(CodecTools* tools) {
  if (!tools->arrays().plugin().error_feedback) return "";
  for (const size_t n : {size_t{1}, size_t{8}, kShortLengths, size_t{1025}}) {
    std::string finding = CheckConstant(&tools->arrays(), n);
    if (!finding.empty()) return finding;
  }
  return "";
}

}  // namespace eps
