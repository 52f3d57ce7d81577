#ifndef EPS_WORKER_EXEC_CUDA_TESTING_CODEC_CASES_H_
#define EPS_WORKER_EXEC_CUDA_TESTING_CODEC_CASES_H_

// Inputs on which the codecs' kernels are compared bit for bit with the reference codecs: by tests
// in loops on a CPU, and by device_check on a device.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/exec/cuda/kernels.h"

namespace eps {

// Runs the functions of kernels.h on host memory.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  // Returns the `bytes` bytes that eps_cuda_encode_chunk writes.
  virtual std::string Encode(uint32_t codec, bool truncate, const eps_cuda_chunk& chunk,
                             const std::vector<float>& in, size_t bytes) = 0;
  // Returns the n floats that eps_cuda_decode_chunk writes.
  virtual std::vector<float> Decode(uint32_t codec, const eps_cuda_chunk& chunk,
                                    const std::string& bytes, size_t n) = 0;
  // Returns the n bfloat16s that eps_cuda_decode_chunk_bf16 writes.
  virtual std::vector<uint16_t> DecodeBf16(uint32_t codec, const eps_cuda_chunk& chunk,
                                           const std::string& bytes, size_t n) = 0;
  // Returns the bytes that eps_cuda_encode_topk writes, at most `room`. Updates the residual.
  virtual std::string EncodeTopk(const eps_cuda_topk& call, const std::vector<float>& gradient,
                                 std::vector<float>* residual_or_null, size_t room) = 0;
};

// A dense codec by name and by number on the wire, in one of its variants.
struct DenseCodec {
  const char* name;
  uint32_t number;
  bool truncate;
};
// Returns every dense codec and variant.
const std::vector<DenseCodec>& DenseCodecs();

// The result of a check.
struct CaseCount {
  uint64_t cases = 0;
  uint64_t failed = 0;
  std::string first_failure;
};

// Encodes and decodes along both axes: every bfloat16 alone and beside others, special values,
// heavy-tailed blocks, tiles with ragged edges, many segments. Decodes arbitrary codes under every
// scale. Decodes to floats and to bfloat16.
CaseCount CheckDenseCodec(const DenseCodec& codec, KernelRunner* runner);
// Selects from ties, zeros, NaN, denormals and more, so that every format of the index occurs; with
// error feedback over several rounds.
CaseCount CheckTopk(KernelRunner* runner);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_CUDA_TESTING_CODEC_CASES_H_
