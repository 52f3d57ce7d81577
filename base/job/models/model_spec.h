#ifndef EPS_BASE_JOB_MODELS_MODEL_SPEC_H_
#define EPS_BASE_JOB_MODELS_MODEL_SPEC_H_

// The hyperparameters of each model that is written by hand, and the place of the models that come
// as data. To write one by hand, add its enumerator, its name and its struct here, and its family
// in a file of its own (docs/guides/extend.md).

#include <array>
#include <memory>

#include "base/job/names.h"

namespace eps {

// Hugging Face's GPT2Config fields, by their names there.
struct Gpt2Config {
  int n_layer = 6;
  int n_head = 8;
  int n_embd = 256;
  int n_inner = 0;  // 0: 4 * n_embd
  int n_positions = 256;
  int vocab_size = 256;
  bool tie_word_embeddings = true;
  double resid_pdrop = 0.0;
  double embd_pdrop = 0.0;
  double attn_pdrop = 0.0;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
};

// A model without LibTorch: `n_layer` square layers of width `n_embd`, its gradients a pure
// function of (weights, step, part). For tests of the protocol.
struct SyntheticConfig {
  int n_layer = 4;
  int n_embd = 64;
  bool tied = true;  // the first and the last stage share one tensor
};

struct ModelProgram;  // base/job/models/model_program.h

// kProgram: any model that was exported (docs/formats/model_program.md).
enum class ModelType { kGpt2, kSynthetic, kProgram };
template <>
inline constexpr std::array<const char*, 3> kNames<ModelType> = {"gpt2", "synthetic", "program"};

// The model of a job: its type, and the hyperparameters of that type.
struct ModelSpec {
  ModelType type = ModelType::kGpt2;
  Gpt2Config gpt2;                              // meaningful if type == kGpt2
  SyntheticConfig synthetic;                    // meaningful if type == kSynthetic
  std::shared_ptr<const ModelProgram> program;  // set if type == kProgram
};

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_MODEL_SPEC_H_
