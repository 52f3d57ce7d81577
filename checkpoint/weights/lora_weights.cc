#include "checkpoint/weights/lora_weights.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/job/models/model_program.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// How peft names the parameters of a model that it wraps.
constexpr char kPeftPrefix[] = "base_model.model.";

}  // namespace

bool HasLora(const JobSpec& spec) {
  return spec.model.program != nullptr && spec.model.program->lora.r > 0;
}

absl::StatusOr<LoraWeights> LoraWeights::Open(const CheckpointReader& checkpoint) {
  LoraWeights weights(checkpoint);
  const JobSpec& spec = checkpoint.spec();
  std::map<std::string, TensorId> ids;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) ids[spec.tensors[t].name] = TensorId(t);
  for (const auto& [name, id] : ids) {
    absl::string_view layer = name;
    const bool is_a = absl::ConsumeSuffix(&layer, kLoraA);
    if (!is_a && !absl::ConsumeSuffix(&layer, kLoraB)) continue;
    const auto base = ids.find(absl::StrCat(layer, ".weight"));
    if (base == ids.end()) {
      return absl::DataLossError(absl::StrCat(name, ": the job has no ", layer, ".weight"));
    }
    weights.names_[id] = absl::StrCat(kPeftPrefix, layer, is_a ? ".lora_A" : ".lora_B", ".weight");
    Adapter& adapter = weights.adapters_[base->second];
    (is_a ? adapter.a : adapter.b) = id;
  }
  for (const ProgramStageSpec& stage : spec.model.program->stages) {
    for (const ProgramUse& use : stage.uses) {
      const auto found = weights.adapters_.find(TensorId(use.tensor));
      if (found == weights.adapters_.end()) continue;
      found->second.in_out = use.role == TensorRole::kLinearInOut;
      weights.in_out_ |= found->second.in_out;
    }
  }
  for (const auto& [base, adapter] : weights.adapters_) {
    const TensorSpec& w = spec.tensors[base.value()];
    const uint32_t in = adapter.in_out ? w.rows : w.cols;
    const uint32_t out = adapter.in_out ? w.cols : w.rows;
    const TensorSpec* const a = adapter.a ? &spec.tensors[adapter.a->value()] : nullptr;
    const TensorSpec* const b = adapter.b ? &spec.tensors[adapter.b->value()] : nullptr;
    if (a != nullptr && b != nullptr && a->cols == in && b->rows == out && a->rows == b->cols) {
      continue;
    }
    return absl::DataLossError(
        absl::StrCat(w.name, ": expected adapters [r, ", in, "] and [", out, ", r]"));
  }
  return weights;
}

std::string LoraWeights::OtherTrained() const {
  const JobSpec& spec = checkpoint_->spec();
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    if (!spec.IsFrozen(TensorId(t)) && !IsAdapter(TensorId(t))) return spec.tensors[t].name;
  }
  return "";
}

absl::StatusOr<std::vector<float>> LoraWeights::ReadAll(TensorId tensor) const {
  std::vector<float> values(checkpoint_->spec().tensors[tensor.value()].elements());
  EPS_RETURN_IF_ERROR(checkpoint_->Read(/*field=*/0, tensor, 0, values.size(), values.data()));
  return values;
}

absl::Status LoraWeights::ReadMerged(TensorId tensor, uint64_t first, size_t count, float* out) {
  EPS_RETURN_IF_ERROR(checkpoint_->Read(/*field=*/0, tensor, first, count, out));
  const auto found = adapters_.find(tensor);
  if (found == adapters_.end()) return absl::OkStatus();
  const Adapter& adapter = found->second;
  if (loaded_ != tensor) {
    EPS_ASSIGN_OR_RETURN(a_, ReadAll(*adapter.a));
    EPS_ASSIGN_OR_RETURN(b_, ReadAll(*adapter.b));
    loaded_ = tensor;
  }
  const JobSpec& spec = checkpoint_->spec();
  const ProgramLora& lora = spec.model.program->lora;
  const double scale = lora.alpha / static_cast<double>(lora.r);
  const uint64_t cols = spec.tensors[tensor.value()].cols;
  const uint64_t rank = spec.tensors[adapter.a->value()].rows;
  const uint64_t inputs = spec.tensors[adapter.a->value()].cols;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t row = (first + i) / cols;
    const uint64_t col = (first + i) % cols;
    const uint64_t of_input = adapter.in_out ? row : col;
    const uint64_t of_output = adapter.in_out ? col : row;
    double sum = 0;
    for (uint64_t k = 0; k < rank; ++k) {
      sum += static_cast<double>(b_[of_output * rank + k]) *
             static_cast<double>(a_[k * inputs + of_input]);
    }
    out[i] = static_cast<float>(static_cast<double>(out[i]) + scale * sum);
  }
  return absl::OkStatus();
}

}  // namespace eps
