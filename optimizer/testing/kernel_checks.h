#ifndef EPS_OPTIMIZER_TESTING_KERNEL_CHECKS_H_
#define EPS_OPTIMIZER_TESTING_KERNEL_CHECKS_H_

// Helpers for tests that compare a kernel with its reference, bit for bit, on every instruction set
// of this machine.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "base/job/optimizers.h"
#include "base/testing/every_target.h"
#include "base/testing/guarded_memory.h"
#include "gtest/gtest.h"
#include "optimizer/update_rule.h"

namespace eps {

// Reproducible values.
class Random {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  // In [-1, 1).
  float Uniform() { return static_cast<float>(static_cast<int32_t>(Next())) * 0x1p-31f; }
  // Of either sign, with any exponent from 2^-40 on.
  float Wide() { return std::ldexp(Uniform(), -static_cast<int>(Next() % 40)); }

 private:
  uint64_t state_ = 7;
};

inline uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline void ExpectSame(const float* expected, const float* found, size_t n, const char* what) {
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(ToBits(expected[i]), ToBits(found[i]))
        << what << "[" << i << "]: " << expected[i] << " expected, " << found[i] << " found";
  }
}

// A tile's gradient, weights and state, in memory that ends at a guard page.
struct RuleArrays {
  // The arrays begin `shift` bytes after an alignment of the page.
  RuleArrays(size_t state_fields, size_t rows, size_t cols, size_t ld, size_t grad_ld,
             size_t shift = 0)
      : fields(state_fields),
        rows(static_cast<uint32_t>(rows)),
        cols(static_cast<uint32_t>(cols)),
        grad_ld(grad_ld),
        n(rows == 0 ? 0 : (rows - 1) * ld + cols),
        grad_n(rows == 0 ? 0 : (rows - 1) * grad_ld + cols) {
    memory.emplace_back(4 * grad_n + shift);
    for (size_t i = 0; i < 1 + fields; ++i) memory.emplace_back(4 * n + shift);
    state.ld = ld;
    state.weight = memory[1].floats();
    for (size_t i = 0; i < fields; ++i) state.field[i] = memory[2 + i].floats();
  }

  float* grad() { return memory[0].floats(); }

  // No field is negative, because some hold squares.
  void FillRandomly(Random* random) {
    for (size_t i = 0; i < grad_n; ++i) grad()[i] = 1000 * random->Wide();
    for (size_t i = 0; i < n; ++i) {
      state.weight[i] = random->Uniform();
      for (size_t f = 0; f < fields; ++f) {
        state.field[f][i] = f == 0 ? random->Wide() : std::fabs(random->Wide());
      }
    }
  }

  void CopyFrom(RuleArrays* other) {
    std::memcpy(grad(), other->grad(), 4 * grad_n);
    std::memcpy(state.weight, other->state.weight, 4 * n);
    for (size_t f = 0; f < fields; ++f) std::memcpy(state.field[f], other->state.field[f], 4 * n);
  }

  // Compares all bits, those of the padding between rows included.
  void ExpectEqual(const RuleArrays& found) const {
    ExpectSame(state.weight, found.state.weight, n, "weight");
    for (size_t f = 0; f < fields; ++f) {
      ExpectSame(state.field[f], found.state.field[f], n, "field");
    }
  }

  void Run(const UpdateRule& rule, const StepScalars& step, const GroupScalars& group) {
    rule.Run(rows, cols, grad(), grad_ld, step, group, state);
  }

  const size_t fields;
  const uint32_t rows;
  const uint32_t cols;
  const size_t grad_ld;
  const size_t n;       // elements of the weights and of each field, padding included
  const size_t grad_n;  // elements of the gradient, padding included
  std::deque<GuardedMemory> memory;
  TileState state;
};

// Fills the arrays of an optimizer's tile. Sums, which some keep first, are of squares.
inline void FillRandomly(const OptimizerSpec& spec, Random* random, RuleArrays* arrays) {
  arrays->FillRandomly(random);
  if (arrays->fields == 0 || StateFields(spec)[0] != "sum") return;
  float* const sums = arrays->state.field[0];
  for (size_t i = 0; i < arrays->n; ++i) sums[i] = std::fabs(sums[i]);
}

// The scalars of update `t`, with the bias corrections of `spec`.
inline StepScalars ScalarsOfUpdate(const OptimizerSpec& spec, uint64_t t) {
  StepScalars step;
  step.lr = 1e-3;
  step.bias_correction1 = 1 - std::pow(spec.beta1, static_cast<double>(t));
  step.bias_correction2 = 1 - std::pow(spec.beta2, static_cast<double>(t));
  step.grad_scale = 1.0f / 4096;
  step.update = t;
  return step;
}

}  // namespace eps

#endif  // EPS_OPTIMIZER_TESTING_KERNEL_CHECKS_H_
