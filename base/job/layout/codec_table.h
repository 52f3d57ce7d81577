#ifndef EPS_BASE_JOB_LAYOUT_CODEC_TABLE_H_
#define EPS_BASE_JOB_LAYOUT_CODEC_TABLE_H_

// Which codec a tensor has on the wire, and along which axes: pure functions of the spec, so that
// servers, workers and the reference cannot disagree.

#include <string>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"

namespace eps {

// The role of a tensor in its model, for quantization. The first that fits applies.
enum class TensorKind {
  kNorm,       // rank 1: norms and biases
  kEmbedding,  // used by the first stage, also if the last one shares it
  kHead,       // used by the last stage alone
  kBlock,
};
TensorKind KindOf(const JobSpec& spec, TensorId tensor);

// Names for compression/codec.h. In the first warmup_steps steps, gradients whose codec is neither
// fp32 nor bf16 travel as kWarmupGradients.
const std::string& WeightCodecName(const JobSpec& spec, TensorId tensor);
std::string GradientCodecName(const JobSpec& spec, TensorId tensor, Step step);

// Every codec that the job needs to know, sorted, each once.
std::vector<std::string> CodecNamesOf(const JobSpec& spec);

// Along which axis blocks run in the weights that a pass gets, and in the second copy that a
// backward pass with both_axes gets for the gradient of the stage's input. Tensors of rank 1 have
// one axis.
struct WeightAxes {
  Axis first = Axis::kRow;
  bool has_second = false;
  Axis second = Axis::kRow;
};
WeightAxes WeightAxesOf(const JobSpec& spec, const TensorUse& use, bool backward);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_CODEC_TABLE_H_
