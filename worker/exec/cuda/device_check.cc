// The kernels where they run. It needs a device, and fails without one: it is built with
// --config=cuda and started by bench/gpu_step.sh, and is none of the tests, which pass on every
// machine.

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/flush_denormals.h"
#include "common/tree_add.h"
#include "compression/codecs/floats/reference.h"
#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda_library.h"

namespace eps {
namespace {

void Must(cudaError_t error, const char* what) {
  EPS_CHECK_MSG(error == cudaSuccess, what << ": " << cudaGetErrorString(error));
}

// Memory on the device, filled from `host`.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : n_(host.size()) {
    Must(cudaMalloc(&data_, n_ * sizeof(T)), "cudaMalloc");
    Must(cudaMemcpy(data_, host.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* get() { return static_cast<T*>(data_); }
  std::vector<T> Read() const {
    std::vector<T> host(n_);
    Must(cudaMemcpy(host.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }

 private:
  const size_t n_;
  void* data_ = nullptr;
};

// Every exponent with both signs, each with `per_exponent` mantissas.
std::vector<float> Floats(uint32_t seed, uint32_t per_exponent) {
  std::vector<float> values;
  uint32_t state = seed;
  for (uint32_t i = 0; i < 512 * per_exponent; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(elementwise::FloatOf((i % 512) << 23 | state >> 9));
  }
  return values;
}

uint64_t CountTreeAddDifferences(const CudaKernels& kernels) {
  const std::vector<float> left = Floats(1, 2048);
  std::vector<float> right = Floats(2, 2048);
  // Half of the pairs cancel nearly, so that sums reach the denormals.
  for (size_t i = 0; i < right.size(); i += 2) {
    right[i] = elementwise::FloatOf((elementwise::BitsOf(left[i]) ^ 0x80000000u) + i % 64);
  }
  OnDevice<float> a(left), b(right);
  const int error = kernels.tree_add(a.get(), b.get(), left.size(), a.get(), nullptr);
  EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  const std::vector<float> got = a.Read();
  std::vector<float> expected(left.size());
  {
    const ScopedFlushDenormals flush;
    TreeAdd(left.data(), right.data(), left.size(), expected.data());
  }
  uint64_t differences = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    differences += elementwise::BitsOf(got[i]) != elementwise::BitsOf(expected[i]);
  }
  return differences;
}

uint64_t CountBf16Differences(const CudaKernels& kernels) {
  const std::vector<float> values = Floats(3, 4096);
  OnDevice<float> in(values);
  OnDevice<uint16_t> codes(std::vector<uint16_t>(values.size()));
  int error = kernels.encode_bf16(in.get(), values.size(), codes.get(), nullptr);
  EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  const std::vector<uint16_t> encoded = codes.Read();
  uint64_t differences = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    differences += encoded[i] != float_reference::RoundToBf16(elementwise::BitsOf(values[i]));
  }

  std::vector<uint16_t> all(65536);
  for (uint32_t code = 0; code < 65536; ++code) all[code] = static_cast<uint16_t>(code);
  OnDevice<uint16_t> every(all);
  OnDevice<float> out(std::vector<float>(all.size()));
  error = kernels.decode_bf16(every.get(), all.size(), out.get(), nullptr);
  EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  const std::vector<float> decoded = out.Read();
  for (uint32_t code = 0; code < 65536; ++code) {
    differences += elementwise::BitsOf(decoded[code]) != code << 16;
  }
  return differences;
}

// GB/s of a sum over 64 Mi floats: two reads and a write per element.
double TreeAddSpeed(const CudaKernels& kernels) {
  constexpr uint64_t kElements = uint64_t{64} << 20;
  constexpr int kRounds = 20;
  const std::vector<float> zeros(kElements);
  OnDevice<float> a(zeros), b(zeros);
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "cudaEventCreate");
  Must(cudaEventCreate(&end), "cudaEventCreate");
  for (int round = 0; round <= kRounds; ++round) {
    if (round == 1) Must(cudaEventRecord(begin), "cudaEventRecord");
    const int error = kernels.tree_add(a.get(), b.get(), kElements, a.get(), nullptr);
    EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  }
  Must(cudaEventRecord(end), "cudaEventRecord");
  Must(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0;
  Must(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  return kRounds * kElements * 12.0 / (ms * 1e6);
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: device_check PATH_OF_libeps_cuda.so\n", stderr);
    return 64;
  }
  const auto kernels = LoadCudaKernels({argv[1]});
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", kernels.status().ToString().c_str());
    return 1;
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "device_check: no CUDA device: %s\n", cudaGetErrorString(error));
    return 1;
  }
  const uint64_t sums = CountTreeAddDifferences(*kernels);
  const uint64_t codes = CountBf16Differences(*kernels);
  std::printf("tree_add: %lu sums differ from the CPU's\n", sums);
  std::printf("bf16: %lu codes or values differ from the CPU's\n", codes);
  std::printf("tree_add: %.0f GB/s\n", TreeAddSpeed(*kernels));
  return sums == 0 && codes == 0 ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
