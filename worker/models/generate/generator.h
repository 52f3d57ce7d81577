#ifndef EPS_WORKER_MODELS_GENERATE_GENERATOR_H_
#define EPS_WORKER_MODELS_GENERATE_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "worker/models/generate/sampler.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Continues token sequences with a model from a Hugging Face folder. Use from one thread (see
// NewTorchRuntime). The tokens depend only on model, prompt, options and compute profile.
class Generator {
 public:
  // `model_dir` holds a model's description (base/config/model_folder.h) and model.safetensors (or
  // its shards with their index), or is a folder of checkpoints whose file `latest` names one that
  // does. Uses only device and threads of `options`. NotFound, InvalidArgument and DataLoss name
  // the file, the field or the tensor; InvalidArgument also refuses a model that reads anything but
  // token ids.
  static absl::StatusOr<std::unique_ptr<Generator>> Load(const std::string& model_dir,
                                                         const RuntimeOptions& options);
  virtual ~Generator() = default;

  // Token ids are below this.
  virtual uint32_t vocabulary() const = 0;
  // The folder that the model was read from: model_dir, or the checkpoint that `latest` names.
  virtual const std::string& folder() const = 0;

  // Returns the `count` tokens that follow `prompt`; each depends on at most as many tokens before
  // it as the model's longest sequence has. Returns InvalidArgument for an empty prompt or an id
  // outside the vocabulary.
  virtual absl::StatusOr<std::vector<int32_t>> Continue(const std::vector<int32_t>& prompt,
                                                        uint32_t count,
                                                        const SamplerOptions& sampling) = 0;

  // Returns the score (logit) with which each token of the vocabulary follows `tokens`, from which
  // Continue draws. Errors as in Continue.
  virtual absl::StatusOr<std::vector<float>> Scores(const std::vector<int32_t>& tokens) = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_MODELS_GENERATE_GENERATOR_H_
