#include "base/testing/test_specs.h"

#include "base/check.h"
#include "base/job/layout/model_layout.h"

namespace eps {
namespace {

JobSpec Tiny(const ModelSpec& model) {
  JobSpec spec;
  spec.name = "tiny";
  spec.model = model;
  spec.chunk_elements = 4096;
  spec.training.steps = 10;
  spec.training.micro_batch_size = 2;
  spec.training.micro_batches = 2;
  spec.training.parts = 2;
  spec.training.seq_len = 32;
  spec.training.clip = Clip::kLagged;
  spec.data.tokens = 10'000;
  spec.data.sha256 = std::string(64, 'a');
  const absl::Status status = BuildLayout(/*weight_decay=*/0.01, &spec);
  EPS_CHECK_MSG(status.ok(), status.message());
  return spec;
}

}  // namespace

JobSpec TinyGpt2Spec() {
  ModelSpec model;
  model.gpt2.n_layer = 2;
  model.gpt2.n_head = 4;
  model.gpt2.n_embd = 64;
  model.gpt2.n_positions = 32;
  return Tiny(model);
}

JobSpec TinySyntheticSpec() {
  ModelSpec model;
  model.type = ModelType::kSynthetic;
  return Tiny(model);
}

JobSpec RaggedSpec() {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.n_embd = 200;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = 96 * 200;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.02, &spec).ok());
  EPS_CHECK(spec.Validate().ok());
  return spec;
}

void Freeze(const std::string& part, bool others, JobSpec* spec) {
  const GroupId frozen(static_cast<uint32_t>(spec->groups.size()));
  spec->groups.push_back({"frozen", 0.0, 1.0, /*frozen=*/true});
  for (TensorSpec& tensor : spec->tensors) {
    const bool has_it = tensor.name.find(part) != std::string::npos;
    if (has_it != others) tensor.group = frozen;
  }
  const absl::Status status = spec->Validate();
  EPS_CHECK_MSG(status.ok(), status.message());
}

}  // namespace eps
