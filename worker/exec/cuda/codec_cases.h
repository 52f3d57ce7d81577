#ifndef EPS_WORKER_EXEC_CUDA_CODEC_CASES_H_
#define EPS_WORKER_EXEC_CUDA_CODEC_CASES_H_

// Inputs on which the kernels of the codecs are compared with the reference codecs, bit for bit:
// in loops on a CPU by the tests, and on a device by device_check.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/exec/cuda/kernels.h"

namespace eps {

// What runs the functions of kernels.h on host memory.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  // The `bytes` bytes that eps_cuda_encode_chunk writes.
  virtual std::string Encode(uint32_t codec, bool truncate, const eps_cuda_chunk& chunk,
                             const std::vector<float>& in, size_t bytes) = 0;
  // The n floats that eps_cuda_decode_chunk writes.
  virtual std::vector<float> Decode(uint32_t codec, const eps_cuda_chunk& chunk,
                                    const std::string& bytes, size_t n) = 0;
  // The bytes that eps_cuda_encode_topk writes, `room` at most. Updates the residual.
  virtual std::string EncodeTopk(const eps_cuda_topk& call, const std::vector<float>& gradient,
                                 std::vector<float>* residual_or_null, size_t room) = 0;
};

struct DenseCodec {
  const char* name;
  uint32_t number;
  bool truncate;
};
// Every dense codec and variant.
const std::vector<DenseCodec>& DenseCodecs();

struct CaseCount {
  uint64_t cases = 0;
  uint64_t failed = 0;
  std::string first_failure;
};

// Encodes and decodes along both axes: every bfloat16 alone and beside others, special values,
// heavy-tailed blocks, tiles that are ragged on every side, many segments; decodes any codes under
// every scale.
CaseCount CheckDenseCodec(const DenseCodec& codec, KernelRunner* runner);
// Selects from ties, zeros, NaN, denormals and more, so that each format of the index occurs; with
// error feedback over several rounds.
CaseCount CheckTopk(KernelRunner* runner);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_CUDA_CODEC_CASES_H_
