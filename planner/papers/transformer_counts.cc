#include "planner/papers/transformer_counts.h"

#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/gpt2.h"

namespace eps::planner {

uint64_t LayerParameters(uint64_t width) { return 12 * width * width + 13 * width; }

uint64_t ModelParameters(const Gpt2Shape& shape) {
  return shape.layers * LayerParameters(shape.width) +
         (shape.vocabulary + shape.positions + 2) * shape.width;
}

LayoutCount CountLayout(const Gpt2Shape& shape) {
  JobSpec spec;
  spec.model.type = ModelType::kGpt2;
  spec.model.gpt2.n_layer = static_cast<int>(shape.layers);
  spec.model.gpt2.n_head = 1;  // the number of heads changes no shape
  spec.model.gpt2.n_embd = static_cast<int>(shape.width);
  spec.model.gpt2.vocab_size = static_cast<int>(shape.vocabulary);
  spec.model.gpt2.n_positions = static_cast<int>(shape.positions);
  const absl::Status built = BuildLayout(/*weight_decay=*/0, &spec);
  EPS_CHECK_MSG(built.ok(), built);
  LayoutCount count;
  count.total = spec.total_elements();
  for (size_t stage = 1; stage + 1 < spec.stages.size(); ++stage) {
    for (const TensorUse& use : spec.stages[stage].uses) {
      count.layers += spec.tensors[use.tensor.value()].elements();
    }
  }
  return count;
}

Flops LayersForwardFlops(const Gpt2Shape& shape, double tokens) {
  const double width = static_cast<double>(shape.width);
  return static_cast<double>(shape.layers) * Flops(BlockForwardFlops(tokens, width, 4 * width));
}

Flops SequenceTrainingFlops(const Gpt2Shape& shape, double tokens) {
  const Flops head(HeadForwardFlops(tokens, static_cast<double>(shape.width),
                                    static_cast<double>(shape.vocabulary)));
  return 3 * (LayersForwardFlops(shape, tokens) + head);
}

}  // namespace eps::planner
