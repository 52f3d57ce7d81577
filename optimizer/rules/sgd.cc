#include <memory>

#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "optimizer/update_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optimizer/rules/sgd.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
// Must follow Highway's headers.
#include "optimizer/rules/tile_loop-inl.h"

#ifndef EPS_OPTIMIZER_RULES_SGD_ONCE  // the types that all instruction sets share
#define EPS_OPTIMIZER_RULES_SGD_ONCE
namespace eps {
namespace {

// The numbers of one update, each computed in double and rounded to float once.
struct SgdScalars {
  float grad_scale = 1;
  float weight_decay = 0;
  float momentum = 0;
  float lr = 0;
};

// `rows` x `cols` elements; row r of the gradient begins at grad + r * grad_ld, that of the others
// at r * ld. No two arrays overlap. `momentum_buffer_or_null` is null if there is no momentum.
struct SgdTile {
  size_t rows = 0;
  size_t cols = 0;
  const float* grad = nullptr;
  size_t grad_ld = 0;
  float* weight = nullptr;
  float* momentum_buffer_or_null = nullptr;
  size_t ld = 0;
};

}  // namespace
}  // namespace eps
#endif  // EPS_OPTIMIZER_RULES_SGD_ONCE

HWY_BEFORE_NAMESPACE();
namespace eps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// SGD with the formula of torch.optim.SGD, dampening 0 and coupled decay (part of the gradient).
// Each operation on an element is rounded on its own, in this order:
//
//   g = grad * grad_scale + weight_decay * p
//   b = momentum * b + g
//   p = p - lr * b                     without momentum: p - lr * g
//
// torch begins with b = g; a b of zeros gives the same.
struct SgdLoop {
  // `momentum_buffer` is absent if there is no momentum.
  template <class D, class... Buffer>
  HWY_INLINE void Vector(D d, const float* HWY_RESTRICT grad, float* HWY_RESTRICT weight,
                         Buffer... momentum_buffer) const {
    const auto p = hn::LoadU(d, weight);
    const auto g = hn::Add(hn::Mul(hn::LoadU(d, grad), hn::Set(d, s.grad_scale)),
                           hn::Mul(hn::Set(d, s.weight_decay), p));
    auto b = g;
    if constexpr (sizeof...(momentum_buffer) == 1) {
      float* const buffer = (momentum_buffer, ...);
      b = hn::Add(hn::Mul(hn::Set(d, s.momentum), hn::LoadU(d, buffer)), g);
      hn::StoreU(b, d, buffer);
    }
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, s.lr), b)), d, weight);
  }
  SgdScalars s;
};

void SgdKernel(const SgdScalars& scalars, const SgdTile& tile) {
  const SgdLoop loop{scalars};
  if (tile.momentum_buffer_or_null != nullptr) {
    UpdateTile(loop, tile.rows, tile.cols, tile.grad, tile.grad_ld, tile.ld, tile.weight,
               tile.momentum_buffer_or_null);
  } else {
    UpdateTile(loop, tile.rows, tile.cols, tile.grad, tile.grad_ld, tile.ld, tile.weight);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps {
namespace {

HWY_EXPORT(SgdKernel);

void Sgd(const SgdScalars& scalars, const SgdTile& tile) {
  HWY_DYNAMIC_DISPATCH(SgdKernel)(scalars, tile);
}

void ReferenceSgd(const SgdScalars& scalars, const SgdTile& tile) {
  const SgdScalars s = scalars;
  for (size_t r = 0; r < tile.rows; ++r) {
    for (size_t c = 0; c < tile.cols; ++c) {
      const size_t i = r * tile.ld + c;
      const float g =
          tile.grad[r * tile.grad_ld + c] * s.grad_scale + s.weight_decay * tile.weight[i];
      float b = g;
      if (tile.momentum_buffer_or_null != nullptr) {
        b = s.momentum * tile.momentum_buffer_or_null[i] + g;
        tile.momentum_buffer_or_null[i] = b;
      }
      tile.weight[i] = tile.weight[i] - s.lr * b;
    }
  }
}

class SgdRule final : public UpdateRule {
 public:
  SgdRule(const OptimizerSpec& spec, Kernel kernel)
      : spec_(spec), run_(kernel == Kernel::kReference ? ReferenceSgd : Sgd) {}

  void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld, const StepScalars& step,
           const GroupScalars& group, const TileState& state) const override {
    SgdTile tile;
    tile.rows = rows;
    tile.cols = cols;
    tile.grad = grad;
    tile.grad_ld = grad_ld;
    tile.weight = state.weight;
    tile.momentum_buffer_or_null = StateFields(spec_).empty() ? nullptr : state.field[0];
    tile.ld = state.ld;
    SgdScalars scalars;
    scalars.grad_scale = step.grad_scale;
    scalars.weight_decay = static_cast<float>(group.weight_decay);
    scalars.momentum = static_cast<float>(spec_.momentum);
    scalars.lr = static_cast<float>(step.lr * group.lr_multiplier);
    // The mode is set outside of the indirect call: the compiler moves no arithmetic across it.
    ScopedFlushDenormals flush;
    run_(scalars, tile);
  }

 private:
  const OptimizerSpec spec_;
  void (*const run_)(const SgdScalars&, const SgdTile&);
};

const RuleRegistration kSgd(OptimizerName::kSgd,
                            [](const OptimizerSpec& spec,
                               Kernel kernel) -> std::unique_ptr<UpdateRule> {
                              return std::make_unique<SgdRule>(spec, kernel);
                            });

}  // namespace
}  // namespace eps
#endif  // HWY_ONCE
