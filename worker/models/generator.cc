#include "worker/models/generator.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files/safetensors_folder.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/gpt2.h"
#include "base/status_macros.h"
#include "worker/exec/torch_device.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

using at::Tensor;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path, " (--model)"));
  return content.str();
}

// Returns the folder that holds the model itself.
absl::StatusOr<std::string> ModelFolder(const std::string& model_dir) {
  if (std::ifstream(model_dir + "/config.json").good()) return model_dir;
  const absl::StatusOr<std::string> latest = ReadFile(model_dir + "/latest");
  if (!latest.ok()) {
    return absl::NotFoundError(
        absl::StrCat(model_dir, " (--model) holds neither config.json nor a checkpoint's name in ",
                     "the file latest"));
  }
  return absl::StrCat(model_dir, "/", absl::StripAsciiWhitespace(*latest));
}

// Reads the weights of one tensor. GPT-2 files on the Hub may lack the prefix "transformer." of its
// name.
absl::StatusOr<Tensor> ReadTensor(const SafetensorsFolder& weights, const TensorSpec& spec) {
  absl::string_view name = spec.name;
  absl::StatusOr<SafetensorsFolder::Tensor> stored = weights.Find(name);
  if (!stored.ok() && absl::ConsumePrefix(&name, "transformer.")) stored = weights.Find(name);
  EPS_RETURN_IF_ERROR(stored.status());
  std::vector<int64_t> shape = {spec.rows, spec.cols};
  if (spec.rank == 1) shape = {spec.cols};
  if (stored->entry->shape != std::vector<uint64_t>(shape.begin(), shape.end())) {
    return absl::DataLossError(absl::StrCat(stored->file->path(), ": tensor ", spec.name,
                                            " has another shape than config.json says"));
  }
  Tensor tensor;
  EPS_RETURN_IF_ERROR(CatchTorch("loading the model", [&] {
    tensor = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  }));
  EPS_RETURN_IF_ERROR(stored->Read(0, spec.elements(), tensor.mutable_data_ptr<float>()));
  return tensor;
}

// Runs the stages of one GPT-2 model on all of the text that it sees, once per token.
class Gpt2Generator final : public Generator {
 public:
  const Gpt2Config& config() const override { return spec_.model.gpt2; }
  const std::string& folder() const override { return folder_; }

  absl::Status Init(const std::string& model_dir, const RuntimeOptions& options) {
    EPS_ASSIGN_OR_RETURN(folder_, ModelFolder(model_dir));
    EPS_ASSIGN_OR_RETURN(const std::string json, ReadFile(folder_ + "/config.json"));
    EPS_ASSIGN_OR_RETURN(spec_.model.gpt2, ParseGpt2Config(json));
    Gpt2Config& config = spec_.model.gpt2;
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0;
    EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0, &spec_));
    EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device));
    EPS_RETURN_IF_ERROR(PrepareThreads(ResolveThreads(options.threads)));
    EPS_ASSIGN_OR_RETURN(const auto file, SafetensorsFolder::Open(folder_));
    std::vector<Tensor> tensors;
    for (const TensorSpec& tensor_spec : spec_.tensors) {
      EPS_ASSIGN_OR_RETURN(Tensor tensor, ReadTensor(*file, tensor_spec));
      EPS_RETURN_IF_ERROR(CatchTorch("loading the model", [&] { tensor = tensor.to(device); }));
      tensors.push_back(std::move(tensor));
    }
    for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
      EPS_ASSIGN_OR_RETURN(auto stage, NewModelStage(spec_, StageId(s)));
      stages_.push_back(std::move(stage));
      weights_.emplace_back();
      for (const TensorUse& use : spec_.stages[s].uses) {
        weights_.back().push_back(tensors[use.tensor.value()]);
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
      if (id >= 0 && id < config().vocab_size) continue;
      return absl::InvalidArgumentError(absl::StrCat("the prompt holds token ", id,
                                                     ", the vocabulary of the model has ",
                                                     config().vocab_size));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> ScoresAfter(const std::vector<int32_t>& tokens) {
    const size_t seen = std::min<size_t>(tokens.size(), static_cast<size_t>(config().n_positions));
    MicroBatch batch;
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
  auto generator = std::make_unique<Gpt2Generator>();
  EPS_RETURN_IF_ERROR(generator->Init(model_dir, options));
  return std::unique_ptr<Generator>(std::move(generator));
}

}  // namespace eps
