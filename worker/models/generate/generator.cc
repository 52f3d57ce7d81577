#include "worker/models/generate/generator.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/config/model_folder.h"
#include "base/files/files.h"
#include "base/files/safetensors_folder.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "worker/exec/torch_device.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

using at::Tensor;

// Returns the folder that holds the model itself.
absl::StatusOr<std::string> ModelFolder(const std::string& given) {
  EPS_ASSIGN_OR_RETURN(const ModelPlace place, FindModel(given));
  const std::string& model_dir = place.path;
  if (HoldsExportedModel(model_dir) || std::ifstream(model_dir + "/config.json").good()) {
    return model_dir;
  }
  const absl::StatusOr<std::string> latest = ReadTextFile(model_dir + "/latest");
  if (!latest.ok()) {
    return absl::NotFoundError(
        absl::StrCat(model_dir, " (--model) holds neither config.json nor a checkpoint's name in ",
                     "the file latest"));
  }
  return absl::StrCat(model_dir, "/", absl::StripAsciiWhitespace(*latest));
}

// Reads the weights of tensor number `index` of the model. Files on the Hub may lack the prefix of
// its name.
absl::StatusOr<Tensor> ReadTensor(const SafetensorsFolder& weights, const JobSpec& spec,
                                  size_t index) {
  const TensorSpec& tensor_spec = spec.tensors[index];
  const ModelFamily& family = FamilyOf(spec.model.type);
  std::vector<int64_t> shape = {tensor_spec.rows, tensor_spec.cols};
  if (tensor_spec.rank == 1) shape = {tensor_spec.cols};
  Tensor tensor;
  EPS_RETURN_IF_ERROR(CatchTorch("loading the model", [&] {
    tensor = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  }));
  float* values = tensor.mutable_data_ptr<float>();
  for (const FileTensor& file : family.InFiles(spec.model, tensor_spec, index)) {
    absl::string_view name = file.name;
    absl::StatusOr<SafetensorsFolder::Tensor> stored = weights.Find(name);
    if (!stored.ok() && absl::ConsumePrefix(&name, family.optional_prefix())) {
      stored = weights.Find(name);
    }
    EPS_RETURN_IF_ERROR(stored.status());
    if (stored->entry->shape != file.shape) {
      return absl::DataLossError(absl::StrCat(stored->file->path(), ": tensor ", file.name,
                                              " has another shape than config.json says"));
    }
    EPS_RETURN_IF_ERROR(stored->Read(0, file.elements(), values));
    values += file.elements();
  }
  return tensor;
}

// Runs the stages of a model on all of the text that it sees, once per token.
class StageGenerator final : public Generator {
 public:
  uint32_t vocabulary() const override {
    return FamilyOf(spec_.model.type).vocabulary(spec_.model);
  }
  const std::string& folder() const override { return folder_; }

  absl::Status Init(const std::string& model_dir, const RuntimeOptions& options) {
    EPS_ASSIGN_OR_RETURN(folder_, ModelFolder(model_dir));
    EPS_ASSIGN_OR_RETURN(spec_.model, ReadModelFolder(folder_));
    EPS_RETURN_IF_ERROR(FamilyOf(spec_.model.type).CheckReadsTokens(spec_.model));
    EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0, &spec_));
    EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device));
    EPS_RETURN_IF_ERROR(PrepareThreads(ResolveThreads(options.threads)));
    EPS_ASSIGN_OR_RETURN(const auto file, SafetensorsFolder::Open(folder_));
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < spec_.tensors.size(); ++i) {
      EPS_ASSIGN_OR_RETURN(Tensor tensor, ReadTensor(*file, spec_, i));
      EPS_RETURN_IF_ERROR(CatchTorch("loading the model", [&] { tensor = tensor.to(device); }));
      tensors.push_back(std::move(tensor));
    }
    for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
      EPS_ASSIGN_OR_RETURN(auto stage, NewModelStage(spec_, StageId(s)));
      stages_.push_back(std::move(stage));
      weights_.emplace_back();
      for (const TensorUse& use : spec_.stages[s].uses) {
        Tensor& tensor = tensors[use.tensor.value()];
        EPS_RETURN_IF_ERROR(
            CatchTorch("loading the model", [&] { tensor = tensor.to(stages_.back()->type()); }));
        weights_.back().push_back(tensor);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int32_t>> Continue(const std::vector<int32_t>& prompt, uint32_t count,
                                                const SamplerOptions& sampling) override {
    EPS_RETURN_IF_ERROR(CheckPrompt(prompt));
    std::vector<int32_t> tokens = prompt;
    for (uint32_t i = 0; i < count; ++i) {
      EPS_ASSIGN_OR_RETURN(const std::vector<float> scores, ScoresAfter(tokens));
      tokens.push_back(SampleToken(scores, sampling, i));
    }
    return std::vector<int32_t>(tokens.begin() + static_cast<int64_t>(prompt.size()), tokens.end());
  }

  absl::StatusOr<std::vector<float>> Scores(const std::vector<int32_t>& tokens) override {
    EPS_RETURN_IF_ERROR(CheckPrompt(tokens));
    return ScoresAfter(tokens);
  }

 private:
  absl::Status CheckPrompt(const std::vector<int32_t>& prompt) const {
    if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
    for (const int32_t id : prompt) {
      if (id >= 0 && static_cast<uint32_t>(id) < vocabulary()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the prompt holds token ", id, ", the vocabulary of the model has ", vocabulary()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> ScoresAfter(const std::vector<int32_t>& tokens) {
    const uint32_t longest = FamilyOf(spec_.model.type).max_seq_len(spec_.model);
    const size_t seen = longest == 0 ? tokens.size() : std::min<size_t>(tokens.size(), longest);
    MicroBatch batch;
    batch.held_out = true;  // nothing is dropped
    batch.samples = 1;
    batch.seq_len = static_cast<uint32_t>(seen);
    batch.tokens.assign(tokens.end() - static_cast<int64_t>(seen), tokens.end());
    std::vector<float> scores;
    EPS_RETURN_IF_ERROR(CatchTorch("generating a token", [&] {
      const at::NoGradGuard no_grad;
      Tensor x;
      const size_t last = stages_.size() - 1;
      for (size_t s = 0; s < last; ++s) x = stages_[s]->Forward(weights_[s], batch, x);
      const Tensor last_row = x[0].narrow(0, x.size(1) - 1, 1);
      const Tensor out = stages_[last]->Logits(weights_[last], last_row).to(at::kCPU).contiguous();
      scores.assign(out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel());
    }));
    return scores;
  }

  std::string folder_;
  JobSpec spec_;
  std::vector<std::unique_ptr<TorchStage>> stages_;
  std::vector<StageTensors> weights_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> Generator::Load(const std::string& model_dir,
                                                           const RuntimeOptions& options) {
  auto generator = std::make_unique<StageGenerator>();
  EPS_RETURN_IF_ERROR(generator->Init(model_dir, options));
  return std::unique_ptr<Generator>(std::move(generator));
}

}  // namespace eps
