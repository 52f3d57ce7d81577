#ifndef EPS_WORKER_RELAY_TESTING_RELAY_JUDGE_H_
#define EPS_WORKER_RELAY_TESTING_RELAY_JUDGE_H_

// For tests only: jobs for a relay, and the gradients that it must push for them.

#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/job/layout/model_layout.h"
#include "base/numerics/flush_denormals.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "worker/data/batch_source.h"
#include "worker/relay/synthetic_runtime.h"
#include "worker/relay/testing/plain_loop.h"

namespace eps {

using PushKey = std::tuple<uint64_t, uint32_t, uint32_t>;  // step, use, part
using Pushes = std::map<PushKey, Tensors>;

// The properties of a job that tests vary.
struct JobShape {
  int layers = 4;
  bool tied = true;
  uint32_t parts = 2;
  uint32_t micro_batches = 3;
  uint64_t steps = 3;
  int width = 64;
  std::string weights = "fp32";  // their codec
  BackwardWeights backward_weights = BackwardWeights::kRecomputeAxis;
  std::string stash = "fp32";
  GradientSum gradient_sum = GradientSum::kTree;
};

inline JobSpec SpecOf(const JobShape& shape) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = shape.layers;
  spec.model.synthetic.tied = shape.tied;
  spec.model.synthetic.n_embd = shape.width;
  spec.training.parts = shape.parts;
  spec.training.micro_batches = shape.micro_batches;
  spec.training.steps = shape.steps;
  spec.training.gradient_sum = shape.gradient_sum;
  spec.codecs.weights = spec.codecs.embedding.weights = spec.codecs.head.weights = shape.weights;
  spec.codecs.backward_weights = shape.backward_weights;
  spec.codecs.stash = shape.stash;
  spec.groups.clear();
  spec.tensors.clear();
  spec.stages.clear();
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  return spec;
}

// Plain gradient descent on the reduced gradients; moments would add nothing to these tests.
inline void Descend(const Tensors& reduced, uint64_t tokens, int loss_scale_log2,
                    Tensors* weights) {
  const float rate = 0.5f * static_cast<float>(1 << loss_scale_log2) / static_cast<float>(tokens);
  for (size_t t = 0; t < weights->size(); ++t) {
    for (size_t i = 0; i < (*weights)[t].size(); ++i) (*weights)[t][i] -= rate * reduced[t][i];
  }
}

// The second copies that the servers of these tests send: far from the first copies, so that
// neither can replace the other unnoticed.
inline Tensors SecondCopies(Tensors weights) {
  for (std::vector<float>& tensor : weights) {
    for (float& w : tensor) w = 0.01f - 0.5f * w;
  }
  return weights;
}

inline float RoundedToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The weights as a client hands them out and programs compute with them.
inline Tensors Loaded(const JobSpec& spec, Tensors weights) {
  if (spec.codecs.backward_weights != BackwardWeights::kDecodeOnce) return weights;
  for (size_t t = 0; t < weights.size(); ++t) {
    if (spec.tensors[t].rank == 1) continue;
    for (float& w : weights[t]) w = RoundedToBf16(w);
  }
  return weights;
}

// The gradients that a job must push and the losses that it must report, computed micro-batch by
// micro-batch.
struct Reference {
  Reference(const JobSpec& spec, int loss_scale_log2) : weights(InitialWeights(spec)) {
    const ScopedFlushDenormals flush;
    const auto runtime = NewSyntheticRuntime(spec, nullptr);
    const auto batches = NewEmptyBatchSource(spec);
    for (uint64_t step = 1; step <= spec.training.steps; ++step) {
      std::vector<PlainPart> parts;
      uint64_t tokens = 0;
      for (uint32_t p = 0; p < spec.training.parts; ++p) {
        parts.push_back(RunPartPlainly(spec, Loaded(spec, weights), SecondCopies(weights),
                                       Step(step), PartId(p), loss_scale_log2, runtime.get(),
                                       batches.get()));
        for (uint32_t s = 0; s < spec.stages.size(); ++s) {
          pushes[{step, s, p}] = parts.back().gradients[s];
        }
        loss_sums[{step, p}] = parts.back().loss_sum;
        tokens += parts.back().tokens;
      }
      Descend(ReducePlainly(spec, std::move(parts)), tokens, loss_scale_log2, &weights);
    }
  }

  Tensors weights;  // after the last step
  Pushes pushes;
  std::map<std::pair<uint64_t, uint32_t>, double> loss_sums;  // by step, part
};

inline void ExpectSamePushes(const Pushes& actual, const Pushes& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [key, tensors] : expected) {
    const auto& [step, use, part] = key;
    ASSERT_EQ(actual.count(key), 1u) << "step " << step << " use " << use << " part " << part;
    for (size_t t = 0; t < tensors.size(); ++t) {
      ASSERT_EQ(std::memcmp(actual.at(key)[t].data(), tensors[t].data(),
                            tensors[t].size() * sizeof(float)),
                0)
          << "step " << step << " use " << use << " part " << part << " tensor " << t;
    }
  }
}

}  // namespace eps

#endif  // EPS_WORKER_RELAY_TESTING_RELAY_JUDGE_H_
