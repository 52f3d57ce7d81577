#include "worker/relay/weight_copies.h"

#include "base/check.h"
#include "base/job/layout/codec_table.h"
#include "compression/codec.h"

namespace eps {

bool HasSecondCopy(const JobSpec& spec, const TensorUse& use) {
  if (!WeightAxesOf(spec, use, /*backward=*/true).has_second) return false;
  const auto codec = FindCodec(WeightCodecName(spec, use.tensor));
  EPS_CHECK_MSG(codec.ok(), codec.status());
  return (*codec)->traits().block > 1;
}

}  // namespace eps
