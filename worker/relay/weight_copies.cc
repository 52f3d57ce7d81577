#include "worker/relay/weight_copies.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/job/layout/codec_table.h"
#include "compression/codec.h"
#include "compression/codecs/floats/kernels.h"

namespace eps {

bool HasSecondCopy(const JobSpec& spec, const TensorUse& use) {
  if (!WeightAxesOf(spec, use, /*backward=*/true).has_second) return false;
  const auto codec = FindCodec(WeightCodecName(spec, use.tensor));
  EPS_CHECK_MSG(codec.ok(), codec.status());
  return (*codec)->traits().block > 1;
}

void RoundMatricesToBf16(const JobSpec& spec, const StageSpec& stage, HostStage* host) {
  constexpr uint64_t kElements = 4096;  // both formats of a piece stay in L1
  std::array<uint8_t, 2 * kElements> rounded;
  for (size_t use = 0; use < stage.uses.size(); ++use) {
    const TensorSpec& tensor = spec.tensors[stage.uses[use].tensor.value()];
    if (tensor.rank == 1) continue;
    float* const values = host->tensor(use);
    for (uint64_t i = 0; i < tensor.elements(); i += kElements) {
      const size_t n = std::min(kElements, tensor.elements() - i);
      float_kernels::EncodeBf16(values + i, n, 1, n, n, /*past_caches=*/false, rounded.data());
      float_kernels::DecodeBf16(rounded.data(), n, 1, n, n, values + i);
    }
  }
}

}  // namespace eps
