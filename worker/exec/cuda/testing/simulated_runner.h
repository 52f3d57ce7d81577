#ifndef EPS_WORKER_EXEC_CUDA_TESTING_SIMULATED_RUNNER_H_
#define EPS_WORKER_EXEC_CUDA_TESTING_SIMULATED_RUNNER_H_

// Runs the codecs' launches on a simulated grid. Each run has another order of threads, other
// garbage in all memory, and another alignment of bytes. Dies if a call writes to bytes that it
// must not write.

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "worker/exec/cuda/codec_launches.h"
#include "worker/exec/cuda/testing/codec_cases.h"
#include "worker/exec/cuda/testing/guarded_bytes.h"
#include "worker/exec/cuda/testing/simulated_grid.h"
#include "worker/exec/cuda/topk_launches.h"

namespace eps {

// Runs each call of a codec on a simulated grid.
class SimulatedRunner final : public KernelRunner {
 public:
  std::string Encode(uint32_t codec, bool truncate, const eps_cuda_chunk& chunk,
                     const std::vector<float>& in, size_t bytes) override {
    ++round_;
    GuardedBytes out(bytes, Misalignment(codec), Garbage());
    grid::SimulatedGrid grid(round_);
    EPS_CHECK(grid::LaunchEncodeChunk(codec, truncate, chunk, in.data(), out.data(), grid) == 0);
    return out.Read(bytes);
  }

  std::vector<float> Decode(uint32_t codec, const eps_cuda_chunk& chunk, const std::string& bytes,
                            size_t n) override {
    return DecodeTo(codec, chunk, bytes, std::vector<float>(n, -77.0f));
  }

  std::vector<uint16_t> DecodeBf16(uint32_t codec, const eps_cuda_chunk& chunk,
                                   const std::string& bytes, size_t n) override {
    return DecodeTo(codec, chunk, bytes, std::vector<uint16_t>(n, 0xa5a5));
  }

  std::string EncodeTopk(const eps_cuda_topk& call, const std::vector<float>& gradient,
                         std::vector<float>* residual_or_null, size_t room) override {
    ++round_;
    GuardedBytes out(room, round_ % 4, Garbage());
    GuardedBytes scratch(grid::LayOutTopkScratch(call.n, call.max_count).bytes, 0, Garbage());
    uint64_t bytes = 0;
    grid::SimulatedGrid grid(round_);
    EPS_CHECK(
        grid::LaunchEncodeTopk(call, gradient.data(),
                               residual_or_null == nullptr ? nullptr : residual_or_null->data(),
                               scratch.data(), out.data(), &bytes, grid) == 0);
    scratch.Read(0);
    EPS_CHECK_MSG(bytes <= room, bytes << " bytes, expected " << room << " at most");
    return out.Read(bytes);
  }

 private:
  template <class Element>
  std::vector<Element> DecodeTo(uint32_t codec, const eps_cuda_chunk& chunk,
                                const std::string& bytes, std::vector<Element> out) {
    ++round_;
    GuardedBytes in(bytes.size(), Misalignment(codec), Garbage());
    if (!bytes.empty()) std::memcpy(in.data(), bytes.data(), bytes.size());
    grid::SimulatedGrid grid(round_);
    EPS_CHECK(grid::LaunchDecodeChunk(codec, chunk, in.data(), out.data(), grid) == 0);
    EPS_CHECK_MSG(in.Read(bytes.size()) == bytes, "the input has changed");
    return out;
  }

  uint8_t Garbage() const { return static_cast<uint8_t>(17 * round_ + 5); }
  // Codecs without blocks read and write whole codes.
  size_t Misalignment(uint32_t codec) const { return codec < 8 ? 4 * (round_ % 4) : round_ % 4; }

  uint32_t round_ = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_CUDA_TESTING_SIMULATED_RUNNER_H_
