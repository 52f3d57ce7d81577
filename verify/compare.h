#ifndef EPS_VERIFY_COMPARE_H_
#define EPS_VERIFY_COMPARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/checksum.h"
#include "base/files/safetensors.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "verify/recorded_array.h"
#include "verify/reference_training.h"

namespace eps {

// The first tensor, in spec order, whose bits differ, and its first differing element.
struct TensorDifference {
  TensorId tensor;
  uint64_t element = 0;
  float expected = 0;
  float found = 0;
  uint64_t differing = 0;  // how many elements of the tensor differ
};

// The SHA-256 of both sides of an array of tensors, read in spec order as little-endian floats.
struct ArraySums {
  Sha256 expected;
  Sha256 found;
};

// Compares `expected` with the file bit by bit: -0 differs from +0, and NaNs with different
// payloads differ. `sums_or_null` receives all values of both sides. Returns DataLoss if the file
// cannot be read.
absl::StatusOr<std::optional<TensorDifference>> CompareTensors(const JobSpec& spec,
                                                               const TensorValues& expected,
                                                               const RecordedArray& found,
                                                               ArraySums* sums_or_null);

// Compares the residuals of a part (WireReference::Residuals) with its file, null if there is no
// file. A tensor that only the file has is expected to be zero. Returns a description of the first
// difference, empty if there is none. `sums` receives the tensors of the file in the file's order.
absl::StatusOr<std::string> CompareResiduals(
    const std::map<std::string, std::vector<float>>& expected,
    const SafetensorsReader* found_or_null, ArraySums* sums);

// Describes a difference: "exp_avg of transformer.wte.weight [256 x 64]: 3 of 16384 elements
// differ, the first at element 65 (row 1, column 1): expected 0.5 (0x3f000000), found 0.25
// (0x3e800000)".
std::string Describe(const JobSpec& spec, const char* field, const TensorDifference& difference);

// Compares one figure bit by bit; two NaNs are equal. Returns "" or "loss: expected 5.5
// (0x4016000000000000), found 5.25 (0x4015000000000000)".
std::string CompareFigure(const char* name, double expected, double found);

}  // namespace eps

#endif  // EPS_VERIFY_COMPARE_H_
