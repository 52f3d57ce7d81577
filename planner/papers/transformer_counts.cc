#include "planner/papers/transformer_counts.h"

#include "common/check.h"
#include "spec/model_layout.h"

namespace eps::planner {

uint64_t LayerParameters(uint64_t width) { return 12 * width * width + 13 * width; }

uint64_t ModelParameters(const TransformerShape& shape) {
  return shape.layers * LayerParameters(shape.width) +
         (shape.vocabulary + shape.positions + 2) * shape.width;
}

LayoutCount CountLayout(const TransformerShape& shape) {
  JobSpec spec;
  spec.model.type = ModelType::kGpt2;
  spec.model.gpt2.n_layer = static_cast<int>(shape.layers);
  spec.model.gpt2.n_head = 1;  // how the width is divided among heads changes no shape
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

Flops LayersForwardFlops(const TransformerShape& shape, double tokens) {
  const double width = static_cast<double>(shape.width);
  const double inner = 4 * width;
  const double layers = static_cast<double>(shape.layers);
  return Flops(layers * (4 * tokens * width * inner + 8 * tokens * width * width +
                         4 * tokens * tokens * width));
}

Flops HeadOnlyForwardFlops(const TransformerShape& shape, double tokens) {
  return Flops(2 * tokens * static_cast<double>(shape.width) *
               static_cast<double>(shape.vocabulary));
}

Flops SequenceTrainingFlops(const TransformerShape& shape, double tokens) {
  return 3 * (LayersForwardFlops(shape, tokens) + HeadOnlyForwardFlops(shape, tokens));
}

}  // namespace eps::planner
