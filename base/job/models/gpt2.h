#ifndef EPS_BASE_JOB_MODELS_GPT2_H_
#define EPS_BASE_JOB_MODELS_GPT2_H_

// The config.json of GPT-2, and the formulas for operations and activations of its stages, which
// the planner also uses for models of papers.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/models/model_spec.h"

namespace eps {

// Returns whether workers compute the model in every training.precision, as they do a GPT-2.
bool HasEveryPrecision(const ModelSpec& model);

// Reads a Hugging Face config.json of model_type gpt2. InvalidArgument names the field.
absl::StatusOr<Gpt2Config> ParseGpt2Config(absl::string_view json);
std::string Gpt2ConfigToJson(const Gpt2Config& config);

// Forward operations for one sequence of S tokens, width E and inner width I: a block takes
// 4 S E I + 8 S E^2 + 4 S^2 E, the head 2 S E V (NNTile section 4).
double BlockForwardFlops(double tokens, double width, double inner);
double HeadForwardFlops(double tokens, double width, double vocabulary);

// The bytes of FP32 activations that the forward pass of one sequence keeps for the backward pass.
// For a block: 17 matrices of the width, and 2.5 values per head and pair of positions. At two
// bytes per element this is s h (34 + 5 a s / h) bytes for s tokens, width h and a heads
// (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
// equation 2). For the head: the logits, their softmax and its gradient.
double BlockActivationBytes(double tokens, double width, double heads);
double HeadActivationBytes(double tokens, double vocabulary);

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_GPT2_H_
