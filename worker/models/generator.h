#ifndef EPS_WORKER_MODELS_GENERATOR_H_
#define EPS_WORKER_MODELS_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "worker/models/sampler.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Continues token sequences with a GPT-2 that lies in a Hugging Face folder. Thread-compatible; one
// thread uses it (see NewTorchRuntime). Tokens are a function of model, prompt, options and compute
// profile.
class Generator {
 public:
  // `model_dir` holds config.json and model.safetensors (or its shards with their index), or is a
  // folder of checkpoints whose file `latest` names one that does. Of `options` only device and
  // threads matter. NotFound, InvalidArgument or DataLoss name the file, the field or the tensor.
  static absl::StatusOr<std::unique_ptr<Generator>> Load(const std::string& model_dir,
                                                         const RuntimeOptions& options);
  virtual ~Generator() = default;

  virtual const Gpt2Config& config() const = 0;

  // `count` tokens that follow `prompt`; each sees at most n_positions tokens before it.
  // InvalidArgument for an empty prompt or an id that the vocabulary lacks.
  virtual absl::StatusOr<std::vector<int32_t>> Continue(const std::vector<int32_t>& prompt,
                                                        uint32_t count,
                                                        const SamplerOptions& sampling) = 0;

  // The score (logit) of every token of the vocabulary to come after `tokens`, of which the last
  // n_positions are seen: what Continue draws from. Errors as Continue's.
  virtual absl::StatusOr<std::vector<float>> Scores(const std::vector<int32_t>& tokens) = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_MODELS_GENERATOR_H_
