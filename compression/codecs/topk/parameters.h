#ifndef EPS_COMPRESSION_CODECS_TOPK_PARAMETERS_H_
#define EPS_COMPRESSION_CODECS_TOPK_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eps::topk {

// The parameters after "topk" in a codec's name: FRACTION[:raw32][:fp32][:sampled|:tensor].
struct Parameters {
  // FRACTION as written: digits / 10^places. It is exact, because the error of a double could add
  // one to ceil(FRACTION * n).
  uint64_t digits = 0;
  uint64_t power_of_ten = 1;
  bool raw32 = false;
  bool fp32 = false;
  bool sampled = false;
  bool tensor = false;

  // Returns ceil(FRACTION * n). REQUIRES n < 2^63.
  uint64_t Fraction(uint64_t n) const {
    return digits * (n / power_of_ten) +
           (digits * (n % power_of_ten) + power_of_ten - 1) / power_of_ten;
  }
  // Returns the largest number of elements that an encoded chunk of n elements holds.
  uint64_t MaxCount(uint64_t n) const {
    if (tensor) return n;  // all large elements may be in one chunk
    const uint64_t k = Fraction(n);
    if (!sampled) return k;
    return 2 * k < n ? 2 * k : n;
  }
  // Returns the bytes of an encoded value, as in SparseElements.
  size_t value_bytes() const { return fp32 ? 4 : 2; }
  double fraction() const {
    return static_cast<double>(digits) / static_cast<double>(power_of_ten);
  }
};

// Parses the parameters. InvalidArgument says what was found and what was expected.
absl::StatusOr<Parameters> ParseParameters(const std::vector<std::string>& pieces);

}  // namespace eps::topk

#endif  // EPS_COMPRESSION_CODECS_TOPK_PARAMETERS_H_
