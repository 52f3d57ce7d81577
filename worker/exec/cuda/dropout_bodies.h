#ifndef EPS_WORKER_EXEC_CUDA_DROPOUT_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_DROPOUT_BODIES_H_

// Kernels (grid.h) that draw dropout masks, and their launches. A mask is that of FillDropoutMask
// (base/numerics/rng.h): a function of key and element, so that nothing is uploaded and a backward
// pass draws it again. A thread computes one block of Philox4x32-10 at a time, which gives four
// consecutive elements. `Element` is float, or uint16_t for bfloat16.

#include <cstdint>
#include <cstring>

#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/grid.h"
#include "worker/exec/cuda/kernels.h"

namespace eps::grid {

// Four consecutive elements.
template <class T>
struct alignas(4 * sizeof(T)) Quad {
  T at[4];
};

// Write a quad. nvcc splits an assignment into four; __stwb is one store. REQUIRES `to` to be
// aligned as a quad.
EPS_HOST_DEVICE inline void StoreQuad(const Quad<float>& quad, float* to) {
#if defined(__CUDA_ARCH__)
  __stwb(reinterpret_cast<float4*>(to),
         make_float4(quad.at[0], quad.at[1], quad.at[2], quad.at[3]));
#else
  memcpy(to, &quad, sizeof(quad));
#endif
}
EPS_HOST_DEVICE inline void StoreQuad(const Quad<uint16_t>& quad, uint16_t* to) {
#if defined(__CUDA_ARCH__)
  __stwb(reinterpret_cast<ushort4*>(to),
         make_ushort4(quad.at[0], quad.at[1], quad.at[2], quad.at[3]));
#else
  memcpy(to, &quad, sizeof(quad));
#endif
}

// Returns 10 rounds of Philox4x32 (Salmon et al., SC'11) over a counter.
EPS_HOST_DEVICE inline Quad<uint32_t> Philox(Quad<uint32_t> counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xd2511f53u} * counter.at[0];
    const uint64_t p1 = uint64_t{0xcd9e8d57u} * counter.at[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.at[1] ^ key0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.at[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return counter;
}

// The part of a mask that a launch of `blocks` blocks draws.
struct MaskPart {
  uint64_t first;  // the element of the mask that belongs to element 0 of the call
  uint64_t n;
  uint64_t threshold;  // an element is dropped if its word is below
  float kept;          // the factor of the others
  uint32_t key0;
  uint32_t key1;
  uint32_t micro_batch;
  uint32_t site;
  uint32_t blocks;
};

EPS_HOST_DEVICE inline Quad<float> FactorsOf(const MaskPart& mask, uint64_t quad) {
  const Quad<uint32_t> words =
      Philox({{static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), mask.micro_batch,
               mask.site}},
             mask.key0, mask.key1);
  Quad<float> factors;
  for (int j = 0; j < 4; ++j) {
    factors.at[j] = words.at[j] < mask.threshold ? 0.0f : mask.kept;
  }
  return factors;
}

// Calls visit(factors, i, begin, end) for each quad of this thread: factors.at[j] belongs to
// element i + j of the call, for j from begin to below end.
template <class Visitor>
EPS_HOST_DEVICE void ForEachQuad(const MaskPart& mask, uint32_t block, uint32_t thread,
                                 Visitor visit) {
  const uint64_t skipped = mask.first % 4;  // elements of the first quad before the call
  const uint64_t places = skipped + mask.n;
  const uint64_t step = uint64_t{mask.blocks} * kThreads;
  for (uint64_t q = uint64_t{block} * kThreads + thread; 4 * q < places; q += step) {
    const uint64_t rest = places - 4 * q;
    visit(FactorsOf(mask, mask.first / 4 + q),
          static_cast<int64_t>(4 * q) - static_cast<int64_t>(skipped),
          q == 0 ? static_cast<int>(skipped) : 0, rest < 4 ? static_cast<int>(rest) : 4);
  }
}

// Returns x * factor, rounded; reads and writes denormals as zeros of their sign.
EPS_HOST_DEVICE inline float Product(float x, float factor) {
  return elementwise::FlushedFloat(elementwise::FlushedFloat(x) * factor);
}

// Writes the mask itself.
struct DropoutMaskBody {
  // The arguments of a launch. With `aligned`, whole quads begin at multiples of their size.
  struct Args {
    MaskPart mask;
    float* out;
    bool aligned;
  };
  struct Shared {};  // not used
  static constexpr int kPhases = 1;
  EPS_HOST_DEVICE static void Run(int /*phase*/, const Args& args, Shared* /*shared*/,
                                  uint32_t block, uint32_t thread) {
    ForEachQuad(args.mask, block, thread,
                [&args](const Quad<float>& factors, int64_t i, int begin, int end) {
                  if (args.aligned && end - begin == 4) {
                    StoreQuad(factors, args.out + i);
                    return;
                  }
                  for (int j = 0; j < 4; ++j) {
                    if (j >= begin && j < end) args.out[i + j] = factors.at[j];
                  }
                });
  }
};

// Multiplies with the mask, and adds the residual if there is one. `y` may be `x` or the residual:
// the thread that writes an element is the one that reads it.
template <class Element>
struct DropoutBody {
  // The arguments of a launch. With `aligned`, whole quads begin at multiples of their size.
  struct Args {
    MaskPart mask;
    const Element* x;
    const Element* residual_or_null;
    Element* y;
    bool aligned;
  };
  struct Shared {};  // not used
  static constexpr int kPhases = 1;
  EPS_HOST_DEVICE static void Run(int /*phase*/, const Args& args, Shared* /*shared*/,
                                  uint32_t block, uint32_t thread) {
    ForEachQuad(args.mask, block, thread,
                [&args](const Quad<float>& factors, int64_t i, int begin, int end) {
                  if (args.aligned && end - begin == 4) {
                    Whole(args, factors, i);
                    return;
                  }
                  for (int j = 0; j < 4; ++j) {
                    if (j >= begin && j < end) One(args, factors.at[j], i + j);
                  }
                });
  }

 private:
  EPS_HOST_DEVICE static void One(const Args& args, float factor, int64_t i) {
    float y = Product(elementwise::Load(args.x + i), factor);
    if (args.residual_or_null != nullptr) {
      y = elementwise::TreeAddOne(y, elementwise::Load(args.residual_or_null + i));
    }
    elementwise::Store(y, args.y + i);
  }

  EPS_HOST_DEVICE static void Whole(const Args& args, const Quad<float>& factors, int64_t i) {
    const Quad<Element> x = *reinterpret_cast<const Quad<Element>*>(args.x + i);
    Quad<float> y;
    for (int j = 0; j < 4; ++j) y.at[j] = Product(elementwise::Load(&x.at[j]), factors.at[j]);
    if (args.residual_or_null != nullptr) {
      const Quad<Element> residuals =
          *reinterpret_cast<const Quad<Element>*>(args.residual_or_null + i);
      for (int j = 0; j < 4; ++j) {
        y.at[j] = elementwise::TreeAddOne(y.at[j], elementwise::Load(&residuals.at[j]));
      }
    }
    Quad<Element> out;
    for (int j = 0; j < 4; ++j) elementwise::Store(y.at[j], &out.at[j]);
    StoreQuad(out, args.y + i);
  }
};

// Returns false if no mask has this probability.
inline bool PartOf(const eps_cuda_mask& mask, uint64_t n, MaskPart* part) {
  if (!(mask.p >= 0 && mask.p < 1)) return false;
  constexpr uint32_t kStepKeyPurpose = 1;
  const Quad<uint32_t> key =
      Philox({{static_cast<uint32_t>(mask.step), static_cast<uint32_t>(mask.step >> 32), 0,
               kStepKeyPurpose}},
             static_cast<uint32_t>(mask.seed), static_cast<uint32_t>(mask.seed >> 32));
  // A word is below p * 2^32 if and only if it is below the ceiling of that.
  const double scaled = mask.p * 0x1p32;
  const auto floor = static_cast<uint64_t>(scaled);
  part->first = mask.first;
  part->n = n;
  part->threshold = static_cast<double>(floor) < scaled ? floor + 1 : floor;
  part->kept = static_cast<float>(1.0 / (1.0 - mask.p));
  part->key0 = key.at[0];
  part->key1 = key.at[1];
  part->micro_batch = mask.micro_batch;
  part->site = uint32_t{mask.stage} << 16 | mask.site;
  part->blocks = BlocksFor(DivideUp(mask.first % 4 + n, 4));
  return true;
}

// Says whether whole quads of a call begin at multiples of their size.
template <class Element>
bool QuadsAreAligned(const eps_cuda_mask& mask, const Element* element_0) {
  const uint64_t before = mask.first % 4 * sizeof(Element);
  return (reinterpret_cast<uintptr_t>(element_0) - before) % sizeof(Quad<Element>) == 0;
}

template <class Launcher>
int LaunchDropoutMask(const eps_cuda_mask& mask, uint64_t n, float* out, Launcher& launcher) {
  MaskPart part;
  if (!PartOf(mask, n, &part)) return kInvalidValue;
  if (n == 0) return 0;
  return launcher.template Run<DropoutMaskBody>(part.blocks,
                                                {part, out, QuadsAreAligned(mask, out)});
}

template <class Element, class Launcher>
int LaunchDropoutOf(const eps_cuda_mask& mask, const Element* x, const Element* residual_or_null,
                    uint64_t n, Element* y, Launcher& launcher) {
  MaskPart part;
  if (!PartOf(mask, n, &part)) return kInvalidValue;
  if (n == 0) return 0;
  const bool aligned = QuadsAreAligned(mask, x) && QuadsAreAligned(mask, y) &&
                       (residual_or_null == nullptr || QuadsAreAligned(mask, residual_or_null));
  return launcher.template Run<DropoutBody<Element>>(part.blocks,
                                                     {part, x, residual_or_null, y, aligned});
}

template <class Launcher>
int LaunchDropout(const eps_cuda_mask& mask, int elements, const void* x,
                  const void* residual_or_null, uint64_t n, void* y, Launcher& launcher) {
  if (elements == EPS_CUDA_FP32) {
    return LaunchDropoutOf(mask, static_cast<const float*>(x),
                           static_cast<const float*>(residual_or_null), n, static_cast<float*>(y),
                           launcher);
  }
  if (elements == EPS_CUDA_BF16) {
    return LaunchDropoutOf(mask, static_cast<const uint16_t*>(x),
                           static_cast<const uint16_t*>(residual_or_null), n,
                           static_cast<uint16_t*>(y), launcher);
  }
  return kInvalidValue;
}

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_DROPOUT_BODIES_H_
