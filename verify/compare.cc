#include "verify/compare.h"

#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace eps {
namespace {

template <class To, class From>
To Bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

absl::string_view BytesOf(const std::vector<float>& values) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(float));
}

// Fills `difference` from two arrays of equal size. Returns whether they differ.
bool Differ(const std::vector<float>& expected, const std::vector<float>& found,
            TensorDifference* difference) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (Bits<uint32_t>(expected[i]) == Bits<uint32_t>(found[i])) continue;
    if (difference->differing++ > 0) continue;
    difference->element = i;
    difference->expected = expected[i];
    difference->found = found[i];
  }
  return difference->differing > 0;
}

}  // namespace

absl::StatusOr<std::optional<TensorDifference>> CompareTensors(const JobSpec& spec,
                                                               const TensorValues& expected,
                                                               const RecordedArray& found,
                                                               ArraySums* sums_or_null) {
  std::optional<TensorDifference> first;
  std::vector<float> values;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    values.resize(expected[t].size());
    EPS_RETURN_IF_ERROR(found.Read(TensorId(t), values.data()));
    TensorDifference difference;
    difference.tensor = TensorId(t);
    if (!first.has_value() && Differ(expected[t], values, &difference)) first = difference;
    if (sums_or_null != nullptr) {
      sums_or_null->expected.Update(BytesOf(expected[t]));
      sums_or_null->found.Update(BytesOf(values));
    } else if (first.has_value()) {
      break;
    }
  }
  return first;
}

absl::StatusOr<std::string> CompareResiduals(
    const std::map<std::string, std::vector<float>>& expected,
    const SafetensorsReader* found_or_null, ArraySums* sums) {
  std::string first;
  for (const auto& [name, values] : expected) {
    if (found_or_null != nullptr && found_or_null->Find(name).ok()) continue;
    first = absl::StrCat("residual of ", name, ": expected one, found none");
    break;
  }
  if (found_or_null == nullptr) return first;
  std::vector<float> found;
  for (const SafetensorsEntry& entry : found_or_null->entries()) {
    uint64_t elements = 1;
    for (const uint64_t n : entry.shape) elements *= n;
    found.resize(elements);
    EPS_RETURN_IF_ERROR(found_or_null->Read(entry, 0, elements, found.data()));
    const auto it = expected.find(entry.name);
    std::vector<float> wanted = it == expected.end() ? std::vector<float>() : it->second;
    wanted.resize(elements);
    sums->expected.Update(BytesOf(wanted));
    sums->found.Update(BytesOf(found));
    TensorDifference difference;
    if (!first.empty() || !Differ(wanted, found, &difference)) continue;
    first = absl::StrFormat(
        "residual of %s: %d of %d elements differ, the first at element %d: expected %.9g "
        "(0x%08x), found %.9g (0x%08x)",
        entry.name, difference.differing, elements, difference.element, difference.expected,
        Bits<uint32_t>(difference.expected), difference.found, Bits<uint32_t>(difference.found));
  }
  return first;
}

std::string Describe(const JobSpec& spec, const char* field, const TensorDifference& difference) {
  const TensorSpec& tensor = spec.tensors[difference.tensor.value()];
  const std::string shape =
      tensor.rank == 1 ? absl::StrCat(tensor.cols) : absl::StrCat(tensor.rows, " x ", tensor.cols);
  const std::string place =
      tensor.rank == 1
          ? absl::StrCat("element ", difference.element)
          : absl::StrCat("element ", difference.element, " (row ", difference.element / tensor.cols,
                         ", column ", difference.element % tensor.cols, ")");
  return absl::StrFormat(
      "%s of %s [%s]: %d of %d elements differ, the first at %s: expected %.9g (0x%08x), found "
      "%.9g (0x%08x)",
      field, tensor.name, shape, difference.differing, tensor.elements(), place,
      difference.expected, Bits<uint32_t>(difference.expected), difference.found,
      Bits<uint32_t>(difference.found));
}

std::string CompareFigure(const char* name, double expected, double found) {
  const auto expected_bits = Bits<uint64_t>(expected);
  const auto found_bits = Bits<uint64_t>(found);
  // JSON records do not store the payload of a NaN, so any two NaNs are equal.
  const bool both_nan = expected != expected && found != found;
  if (expected_bits == found_bits || both_nan) return "";
  return absl::StrFormat("%s: expected %.17g (0x%016x), found %.17g (0x%016x)", name, expected,
                         expected_bits, found, found_bits);
}

}  // namespace eps
