#ifndef EPS_BASE_JOB_MODEL_LAYOUT_H_
#define EPS_BASE_JOB_MODEL_LAYOUT_H_

// The tensors and stages of a model: what a worker's programs and a server's chunks agree on.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/job_spec.h"

namespace eps {

// Fills spec->tensors, groups ("decay": rank >= 2, "no_decay": rank 1) and stages from spec->model.
//
// gpt2: stage 0 "embedding" (wte, wpe), stages 1…n "h.0"… (ln_1, attn.c_attn, attn.c_proj, ln_2,
// mlp.c_fc, mlp.c_proj; weights [in, out] as Hugging Face's Conv1D), stage n+1 "head" (ln_f, and
// wte again if tied, else lm_head.weight). Initial values are Hugging Face's: normal(0,
// initializer_range), residual projections divided by sqrt(2 n_layer), biases 0, norms 1.
//
// synthetic: stage i uses tensor "layer.i" [n_embd, n_embd] and "bias.i" [n_embd]; if tied the
// last stage uses "layer.0" instead of one of its own.
absl::Status BuildLayout(double weight_decay, JobSpec* spec);

// Reads a Hugging Face config.json of model_type gpt2. InvalidArgument names the field.
absl::StatusOr<Gpt2Config> ParseGpt2Config(absl::string_view json);
std::string Gpt2ConfigToJson(const Gpt2Config& config);

}  // namespace eps

#endif  // EPS_BASE_JOB_MODEL_LAYOUT_H_
