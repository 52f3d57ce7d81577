#ifndef EPS_BASE_TESTING_TEST_PROGRAMS_H_
#define EPS_BASE_TESTING_TEST_PROGRAMS_H_

// Model programs for tests, written as an export of transformers' classes would write them.

#include <string>

#include "base/job/models/model_spec.h"

namespace eps {

// The sizes of a small Llama.
struct LlamaShape {
  int layers = 2, heads = 4, kv_heads = 2, width = 32, inner = 48, vocab = 256, positions = 64;
  double attention_dropout = 0;
  std::string dtype = "float32";
};
// LlamaForCausalLM, untied, without a mask (variant causal).
std::string LlamaProgram(const LlamaShape& shape);

// GPT2LMHeadModel of a config. `fused_gelu` computes the activation as worker/models/gpt2.cc does,
// in one call; transformers computes it in eight.
std::string Gpt2Program(const Gpt2Config& config, bool fused_gelu,
                        const std::string& dtype = "float32");

// The model of a text. REQUIRES that it is valid.
ModelSpec ModelOf(const std::string& program_text);

}  // namespace eps

#endif  // EPS_BASE_TESTING_TEST_PROGRAMS_H_
