// Compares attentions with the same ones under autograd: the same outputs and gradients, bit for
// bit.

#include "worker/models/attention/attention.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/softmax.h"
#include "absl/strings/str_cat.h"
#include "base/numerics/rng.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/models/stage_inputs.h"
#include "worker/models/testing/values.h"
#include "worker/relay/stage_program.h"

namespace eps {
namespace {

using at::Tensor;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr double kDropped = 0.3;

// The sizes of an attention.
struct Shape {
  int64_t samples, heads, tokens, head_size;
  int64_t width() const { return heads * head_size; }
};

constexpr Shape kShapes[] = {{1, 1, 1, 4},   {2, 3, 1, 8},    {3, 2, 5, 4},
                             {2, 3, 5, 64},  {1, 4, 64, 8},   {2, 2, 64, 64},
                             {2, 3, 130, 8}, {1, 2, 130, 64}, {2, 2, 130, 12}};

std::string NameOf(const Shape& s, at::ScalarType type, bool masked) {
  return absl::StrCat(s.samples, "x", s.heads, "x", s.tokens, "x", s.head_size, " ",
                      c10::toString(type), masked ? " masked" : " causal");
}

// Returns rows of a packed matrix, as views per head.
Tensor PerHead(const Tensor& packed, const Shape& s, int64_t third) {
  return packed.narrow(1, third * s.width(), s.width())
      .view({s.samples, s.tokens, s.heads, s.head_size})
      .transpose(1, 2);
}

AttentionThirds ThirdsOf(const Shape& s, at::ScalarType type) {
  const Tensor packed = Values({s.samples * s.tokens, 3 * s.width()}, 1, 4.0f).to(type);
  return {PerHead(packed, s, 0), PerHead(packed, s, 1), PerHead(packed, s, 2)};
}

Tensor GradientOf(const Shape& s, at::ScalarType type) {
  return PerHead(Values({s.samples * s.tokens, s.width()}, 2, 2.0f).to(type), s, 0);
}

// Returns the mask of samples in which a document begins every 7 tokens, or every 8, ...
Tensor MaskOf(const Shape& s) {
  MicroBatch batch;
  batch.samples = static_cast<uint32_t>(s.samples);
  batch.seq_len = static_cast<uint32_t>(s.tokens);
  for (int64_t sample = 0; sample < s.samples; ++sample) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      batch.positions.push_back(static_cast<int32_t>(t % (7 + sample)));
    }
  }
  return SeenTokens(batch, at::ones({1}));
}

Tensor Drop(const Tensor& x) {
  RngKey key;
  key.seed = 5;
  return x.mul(DropoutMask(key, kDropped, x.sizes(), x));
}

// The output and the gradients of q, k and v.
using Results = std::array<Tensor, 4>;

Results ByAutograd(const AttentionThirds& x, const Tensor& dout,
                   const std::function<Tensor(const AttentionThirds&)>& attention) {
  const at::AutoGradMode with_grad(true);
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(true); };
  const AttentionThirds leaves = {leaf(x.q), leaf(x.k), leaf(x.v)};
  const Tensor out = attention(leaves);
  const auto grads = torch::autograd::grad({out}, {leaves.q, leaves.k, leaves.v}, {dout});
  return {out.detach(), grads[0], grads[1], grads[2]};
}

Tensor LibTorchs(const AttentionThirds& x, const Tensor& seen) {
  if (seen.defined()) return at::scaled_dot_product_attention(x.q, x.k, x.v, seen);
  return at::scaled_dot_product_attention(x.q, x.k, x.v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                          /*is_causal=*/true);
}

Tensor WithDropout(const AttentionThirds& x, const Tensor& seen) {
  const int64_t tokens = x.q.size(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(x.q.size(3)));
  const Tensor scores = at::matmul(x.q, x.k.transpose(2, 3)).to(at::kFloat).mul(scale);
  const Tensor hidden = seen.defined()
                            ? seen.logical_not()
                            : at::ones({tokens, tokens}, at::TensorOptions(at::kBool)).triu(1);
  const Tensor p =
      at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
  return at::matmul(Drop(p).to(x.q.scalar_type()), x.v);
}

Results Ours(const AttentionThirds& x, const Tensor& seen, const AttentionDrop& drop,
             const Tensor& dout, AttentionKernel expected) {
  const at::NoGradGuard no_grad;
  const Attended attended = Attend(x, seen, drop);
  EXPECT_EQ(attended.kernel, expected);
  const AttentionThirds grads = attended.backward(dout, drop);
  return {attended.out, grads.q, grads.k, grads.v};
}

bool SameBits(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const Tensor left = a.contiguous(), right = b.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

void ExpectEqual(const Results& found, const Results& expected) {
  const char* const names[] = {"out", "dq", "dk", "dv"};
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(SameBits(found[i], expected[i])) << names[i];
    EXPECT_FALSE(found[i].requires_grad()) << names[i];
    EXPECT_TRUE(found[i].isfinite().all().item<bool>()) << names[i];
  }
}

// Calls `check` for each type, shape and kind of mask.
void ForAll(const std::function<void(const AttentionThirds& x, const Tensor& seen,
                                     const Tensor& dout)>& check) {
  for (const at::ScalarType type : kTypes) {
    for (const Shape& s : kShapes) {
      for (const bool masked : {false, true}) {
        SCOPED_TRACE(NameOf(s, type, masked));
        check(ThirdsOf(s, type), masked ? MaskOf(s) : Tensor(), GradientOf(s, type));
      }
    }
  }
}

TEST(Attention, FlashHasTheBitsOfAutograd) {
  ForAll([](const AttentionThirds& x, const Tensor& seen, const Tensor& dout) {
    const Results expected =
        ByAutograd(x, dout, [&](const AttentionThirds& leaves) { return LibTorchs(leaves, seen); });
    ExpectEqual(Ours(x, seen, nullptr, dout, AttentionKernel::kFlash), expected);
  });
}

TEST(Attention, DropoutHasTheBitsOfAutograd) {
  ForAll([](const AttentionThirds& x, const Tensor& seen, const Tensor& dout) {
    const Results expected = ByAutograd(
        x, dout, [&](const AttentionThirds& leaves) { return WithDropout(leaves, seen); });
    ExpectEqual(Ours(x, seen, Drop, dout, AttentionKernel::kWrittenOut), expected);
  });
}

// A CPU chooses another kernel than flash for arguments that GPT-2 never has.
TEST(Attention, OtherKernelsKeepAGraph) {
  const Shape s = {2, 2, 5, 8};
  AttentionThirds x = ThirdsOf(s, at::kFloat);
  x.q = x.q.transpose(2, 3).contiguous().transpose(2, 3);
  const Tensor dout = GradientOf(s, at::kFloat);
  const Results expected = ByAutograd(
      x, dout, [](const AttentionThirds& leaves) { return LibTorchs(leaves, Tensor()); });
  ExpectEqual(Ours(x, Tensor(), nullptr, dout, AttentionKernel::kGraph), expected);
}

TEST(Attention, EqualsItsDefinition) {
  const Shape s = {2, 3, 13, 8};
  const AttentionThirds x = ThirdsOf(s, at::kFloat);
  for (const Tensor& seen : {Tensor(), MaskOf(s)}) {
    const Tensor dout = GradientOf(s, at::kFloat);
    const AttentionDrop keep_all = [](const Tensor& p) { return p.clone(); };
    const Results flash = Ours(x, seen, nullptr, dout, AttentionKernel::kFlash);
    const Results written = Ours(x, seen, keep_all, dout, AttentionKernel::kWrittenOut);
    for (size_t i = 0; i < flash.size(); ++i) {
      EXPECT_TRUE(flash[i].allclose(written[i], 1e-4, 1e-5)) << i;
    }
  }
}

// The first token's gradient by its score of the second overflows.
TEST(Attention, HiddenScoresHaveNoGradient) {
  const Shape s = {1, 1, 2, 4};
  const AttentionThirds x = ThirdsOf(s, at::kHalf);
  x.v.fill_(400);
  const Tensor dout = GradientOf(s, at::kHalf);
  dout.select(2, 0).fill_(400);
  const Results expected = ByAutograd(
      x, dout, [](const AttentionThirds& leaves) { return WithDropout(leaves, Tensor()); });
  const Results found = Ours(x, Tensor(), Drop, dout, AttentionKernel::kWrittenOut);
  const Tensor dk = found[2].select(2, 1);
  EXPECT_TRUE(dk.isfinite().all().item<bool>()) << dk;
  EXPECT_TRUE(SameBits(dk, expected[2].select(2, 1)));
}

TEST(Attention, ThrowsWhatLibTorchThrows) {
  const at::NoGradGuard no_grad;
  AttentionThirds x = ThirdsOf({2, 2, 5, 8}, at::kFloat);
  x.k = x.k.narrow(3, 0, 4);
  EXPECT_THROW(Attend(x, Tensor(), nullptr), c10::Error);
  EXPECT_THROW(Attend(x, Tensor(), Drop), c10::Error);
}

}  // namespace
}  // namespace eps
