#ifndef EPS_WORKER_EXEC_CUDA_FLOAT_BODIES_H_
#define EPS_WORKER_EXEC_CUDA_FLOAT_BODIES_H_

// Kernels (grid.h) of the codecs without blocks, with a thread per element. `Codec` is one of
// codec_arithmetic.h; encoded bytes are aligned to their codes.

#include "worker/exec/cuda/codec_arithmetic.h"
#include "worker/exec/cuda/grid.h"

namespace eps::grid {

// Decodes codes to floats, or to bfloat16 if Element is uint16_t.
template <class Codec, class Element>
struct DecodeFloatsBody {
  // The arguments of a launch of `blocks` blocks for `n` elements.
  struct Args {
    const typename Codec::Code* in;
    uint64_t n;
    uint32_t blocks;
    Element* out;
  };
  struct Shared {};  // not used
  static constexpr int kPhases = 1;
  EPS_HOST_DEVICE static void Run(int /*phase*/, const Args& args, Shared* /*shared*/,
                                  uint32_t block, uint32_t thread) {
    const uint64_t step = uint64_t{args.blocks} * kThreads;
    for (uint64_t i = uint64_t{block} * kThreads + thread; i < args.n; i += step) {
      elementwise::Store(elementwise::FloatOf(Codec::Decode(args.in[i])), &args.out[i]);
    }
  }
};

// Encodes floats to codes.
template <class Codec>
struct EncodeFloatsBody {
  // The arguments of a launch of `blocks` blocks for `n` elements.
  struct Args {
    const float* in;
    uint64_t n;
    uint32_t blocks;
    typename Codec::Code* out;
  };
  struct Shared {};  // not used
  static constexpr int kPhases = 1;
  EPS_HOST_DEVICE static void Run(int /*phase*/, const Args& args, Shared* /*shared*/,
                                  uint32_t block, uint32_t thread) {
    const uint64_t step = uint64_t{args.blocks} * kThreads;
    for (uint64_t i = uint64_t{block} * kThreads + thread; i < args.n; i += step) {
      args.out[i] = Codec::Encode(elementwise::BitsOf(args.in[i]));
    }
  }
};

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_FLOAT_BODIES_H_
