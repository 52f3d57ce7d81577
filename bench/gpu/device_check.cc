// Checks the CUDA kernels on a device, and fails without one. It is built with --config=cuda and
// started by bench/gpu/gpu_session.sh. It is no test, because tests must pass on every machine.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/rng.h"
#include "base/numerics/tree_add.h"
#include "compression/codecs/floats/reference.h"
#include "worker/exec/cuda/crc_bodies.h"
#include "worker/exec/cuda/dropout_bodies.h"
#include "worker/exec/cuda/elementwise.h"
#include "worker/exec/cuda/kernels.h"
#include "worker/exec/cuda/loss_bodies.h"
#include "worker/exec/cuda/testing/codec_cases.h"
#include "worker/exec/cuda/testing/simulated_grid.h"
#include "worker/exec/cuda_library.h"

namespace eps {
namespace {

void Must(cudaError_t error, const char* what) {
  EPS_CHECK_MSG(error == cudaSuccess, what << ": " << cudaGetErrorString(error));
}

// Device memory, filled from `host`.
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

// Returns every exponent with both signs, each with `per_exponent` mantissas.
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
  // Half of the pairs nearly cancel, so that sums reach the denormals.
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

// Runs the codecs' functions on the device, from and to host memory. Encoded bytes of block codecs
// have another alignment in each call.
class DeviceRunner final : public KernelRunner {
 public:
  explicit DeviceRunner(const CudaKernels& kernels) : kernels_(kernels) {}

  std::string Encode(uint32_t codec, bool truncate, const eps_cuda_chunk& chunk,
                     const std::vector<float>& in, size_t bytes) override {
    const size_t begin = BeginFor(codec);
    OnDevice<float> elements(in);
    OnDevice<uint8_t> encoded(std::vector<uint8_t>(begin + bytes, 0xa5));
    Check(kernels_.encode_chunk(codec, truncate, &chunk, elements.get(), encoded.get() + begin,
                                nullptr));
    const std::vector<uint8_t> got = encoded.Read();
    return std::string(got.begin() + static_cast<ptrdiff_t>(begin), got.end());
  }

  std::vector<float> Decode(uint32_t codec, const eps_cuda_chunk& chunk, const std::string& bytes,
                            size_t n) override {
    return DecodeTo(kernels_.decode_chunk, codec, chunk, bytes, std::vector<float>(n, -77.0f));
  }

  std::vector<uint16_t> DecodeBf16(uint32_t codec, const eps_cuda_chunk& chunk,
                                   const std::string& bytes, size_t n) override {
    return DecodeTo(kernels_.decode_chunk_bf16, codec, chunk, bytes,
                    std::vector<uint16_t>(n, 0xa5a5));
  }

  std::string EncodeTopk(const eps_cuda_topk& call, const std::vector<float>& gradient,
                         std::vector<float>* residual_or_null, size_t room) override {
    OnDevice<float> elements(gradient);
    OnDevice<float> residual(residual_or_null == nullptr ? std::vector<float>(1)
                                                         : *residual_or_null);
    OnDevice<uint8_t> scratch(std::vector<uint8_t>(kernels_.topk_scratch_bytes(&call), 0xa5));
    OnDevice<uint8_t> encoded(std::vector<uint8_t>(room, 0xa5));
    OnDevice<uint64_t> size(std::vector<uint64_t>(1));
    Check(kernels_.encode_topk(&call, elements.get(),
                               residual_or_null == nullptr ? nullptr : residual.get(),
                               scratch.get(), encoded.get(), size.get(), nullptr));
    if (residual_or_null != nullptr) *residual_or_null = residual.Read();
    const std::vector<uint8_t> got = encoded.Read();
    const uint64_t bytes = size.Read()[0];
    EPS_CHECK_MSG(bytes <= room, bytes << " bytes, expected " << room << " at most");
    return std::string(got.begin(), got.begin() + static_cast<ptrdiff_t>(bytes));
  }

 private:
  template <class Decode, class Element>
  std::vector<Element> DecodeTo(Decode decode, uint32_t codec, const eps_cuda_chunk& chunk,
                                const std::string& bytes, const std::vector<Element>& garbage) {
    const size_t begin = BeginFor(codec);
    std::vector<uint8_t> padded(begin + bytes.size());
    std::copy(bytes.begin(), bytes.end(), padded.begin() + static_cast<ptrdiff_t>(begin));
    OnDevice<uint8_t> encoded(padded);
    OnDevice<Element> elements(garbage);
    Check(decode(codec, &chunk, encoded.get() + begin, elements.get(), nullptr));
    return elements.Read();
  }

  void Check(int error) { EPS_CHECK_MSG(error == 0, kernels_.error_text(error)); }
  size_t BeginFor(uint32_t codec) { return codec < 8 ? 0 : round_++ % 4; }

  const CudaKernels& kernels_;
  size_t round_ = 0;
};

uint64_t CountCodecDifferences(const CudaKernels& kernels) {
  DeviceRunner runner(kernels);
  uint64_t differences = 0;
  const auto report = [&differences](const char* name, const CaseCount& count) {
    std::printf("%s: %lu of %lu results differ from the CPU's%s%s\n", name, count.failed,
                count.cases, count.failed > 0 ? "; first " : "", count.first_failure.c_str());
    differences += count.failed;
  };
  for (const DenseCodec& codec : DenseCodecs()) report(codec.name, CheckDenseCodec(codec, &runner));
  report("topk", CheckTopk(&runner));
  return differences;
}

// Compares bits.
template <class T>
uint64_t CountDifferent(const std::vector<T>& got, const std::vector<T>& expected) {
  uint64_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    different += std::memcmp(&got[i], &expected[i], sizeof(T)) != 0;
  }
  return different;
}

// Elements of about one: their products and sums are no NaN, whose payloads are the machine's.
template <class Element>
std::vector<Element> Finite(uint32_t seed, size_t n) {
  std::vector<Element> elements(n);
  const std::vector<float> values = Floats(seed, static_cast<uint32_t>(n / 512 + 1));
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = (elementwise::BitsOf(values[i]) & 0x83ffffffu) | 0x3c000000u;
    elementwise::Store(elementwise::FloatOf(bits), &elements[i]);
  }
  return elements;
}

// Dropout in place with a residual, from an element that begins no quad.
template <class Element>
uint64_t CountDropoutDifferences(const CudaKernels& kernels, int elements) {
  constexpr size_t kElements = 5'000'001;
  const eps_cuda_mask mask = {1, 2, 3, 4, 5, 0.3, 6};
  std::vector<Element> x = Finite<Element>(6, kElements);
  const std::vector<Element> residual = Finite<Element>(7, kElements);
  OnDevice<Element> on_device(x), residual_on_device(residual);
  const int error = kernels.dropout(&mask, elements, on_device.get(), residual_on_device.get(),
                                    kElements, on_device.get(), nullptr);
  EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  grid::SimulatedGrid simulated(1);
  grid::LaunchDropout(mask, elements, x.data(), residual.data(), kElements, x.data(), simulated);
  uint64_t different = CountDifferent(on_device.Read(), x);

  OnDevice<float> drawn(std::vector<float>(kElements, -1.0f));
  const int mask_error = kernels.dropout_mask(&mask, kElements, drawn.get(), nullptr);
  EPS_CHECK_MSG(mask_error == 0, kernels.error_text(mask_error));
  std::vector<float> expected(mask.first + kElements);
  FillDropoutMask({mask.seed, mask.step, mask.micro_batch, mask.stage, mask.site}, mask.p,
                  absl::MakeSpan(expected));
  expected.erase(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(mask.first));
  return different + CountDifferent(drawn.Read(), expected);
}

template <class Element>
uint64_t CountLossDifferences(const CudaKernels& kernels, int elements) {
  constexpr size_t kVocab = 50257;
  const std::vector<int32_t> labels = {0, 50256, EPS_CUDA_IGNORE_LABEL, -1, 777, 12345};
  std::vector<Element> logits = Finite<Element>(8, labels.size() * kVocab);
  elementwise::Store(90.0f, &logits[100]);
  elementwise::Store(-std::numeric_limits<float>::infinity(), &logits[kVocab + 1]);
  elementwise::Store(std::numeric_limits<float>::infinity(), &logits[4 * kVocab + 1]);
  std::vector<float> log_p(labels.size());
  OnDevice<Element> on_device(logits);
  OnDevice<int32_t> labels_on_device(labels);
  OnDevice<float> log_p_on_device(log_p);
  const int error = kernels.loss(elements, on_device.get(), labels_on_device.get(), labels.size(),
                                 kVocab, 0.3f, log_p_on_device.get(), nullptr);
  EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  grid::SimulatedGrid simulated(1);
  grid::LaunchLoss(elements, logits.data(), labels.data(), labels.size(), kVocab, 0.3f,
                   log_p.data(), simulated);
  return CountDifferent(on_device.Read(), logits) + CountDifferent(log_p_on_device.Read(), log_p);
}

uint64_t CountCrcDifferences(const CudaKernels& kernels) {
  const std::vector<float> values = Floats(9, 300);
  OnDevice<float> on_device(values);
  uint64_t different = 0;
  for (const uint64_t begin : {0, 1, 2, 3}) {
    const uint64_t n = 4 * values.size() - 2 * begin;
    OnDevice<uint32_t> crcs(std::vector<uint32_t>(n / EPS_CUDA_CRC_PIECE + 1));
    const auto* const bytes = reinterpret_cast<const char*>(on_device.get()) + begin;
    const int error = kernels.crc32c(bytes, n, crcs.get(), nullptr);
    EPS_CHECK_MSG(error == 0, kernels.error_text(error));
    const absl::string_view all(reinterpret_cast<const char*>(values.data()) + begin, n);
    different += grid::CombineCrc32c(crcs.Read().data(), n) != Crc32c(all);
  }
  return different;
}

// Dropout, loss and CRC.
uint64_t CountStepDifferences(const CudaKernels& kernels) {
  const uint64_t dropouts = CountDropoutDifferences<float>(kernels, EPS_CUDA_FP32) +
                            CountDropoutDifferences<uint16_t>(kernels, EPS_CUDA_BF16);
  const uint64_t losses = CountLossDifferences<float>(kernels, EPS_CUDA_FP32) +
                          CountLossDifferences<uint16_t>(kernels, EPS_CUDA_BF16);
  const uint64_t crcs = CountCrcDifferences(kernels);
  std::printf("dropout: %lu elements differ from the CPU's\nloss: %lu\ncrc32c: %lu\n", dropouts,
              losses, crcs);
  return dropouts + losses + crcs;
}

// Returns milliseconds per call of `work`, which enqueues kernels and returns their error.
template <class Work>
double TimeOf(const CudaKernels& kernels, Work work) {
  constexpr int kRounds = 20;
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "cudaEventCreate");
  Must(cudaEventCreate(&end), "cudaEventCreate");
  for (int round = 0; round <= kRounds; ++round) {
    if (round == 1) Must(cudaEventRecord(begin), "cudaEventRecord");
    const int error = work();
    EPS_CHECK_MSG(error == 0, kernels.error_text(error));
  }
  Must(cudaEventRecord(end), "cudaEventRecord");
  Must(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0;
  Must(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  return ms / kRounds;
}

// Returns GB/s of a sum over 64 Mi floats: two reads and a write per element.
double TreeAddSpeed(const CudaKernels& kernels) {
  constexpr uint64_t kElements = uint64_t{64} << 20;
  const std::vector<float> zeros(kElements);
  OnDevice<float> a(zeros), b(zeros);
  const double ms = TimeOf(
      kernels, [&] { return kernels.tree_add(a.get(), b.get(), kElements, a.get(), nullptr); });
  return kElements * 12.0 / (ms * 1e6);
}

// Prints GB/s of floats read or written, for chunks of 16 Mi elements, and the time of top-k.
void PrintCodecSpeeds(const CudaKernels& kernels) {
  const eps_cuda_segment segment = {4096, 4096};
  constexpr uint64_t kElements = uint64_t{4096} * 4096;
  std::vector<float> values = Floats(5, 1 << 15);
  // Gradients of about one, so that no block is NaN.
  for (float& value : values) {
    value = elementwise::FloatOf((elementwise::BitsOf(value) & 0x83ffffffu) | 0x3c000000u);
  }
  EPS_CHECK(values.size() == kElements);
  OnDevice<float> elements(values);
  OnDevice<uint8_t> encoded(std::vector<uint8_t>(5 * kElements));
  const double gigabytes = kElements * 4.0 / 1e9;
  for (const DenseCodec& codec : DenseCodecs()) {
    for (const int column : {0, 1}) {
      const eps_cuda_chunk chunk = {&segment, 1, column};
      const double encode = TimeOf(kernels, [&] {
        return kernels.encode_chunk(codec.number, codec.truncate, &chunk, elements.get(),
                                    encoded.get(), nullptr);
      });
      const double decode = TimeOf(kernels, [&] {
        return kernels.decode_chunk(codec.number, &chunk, encoded.get(), elements.get(), nullptr);
      });
      std::printf("%s along %s: encodes %.0f GB/s of floats, decodes %.0f\n", codec.name,
                  column != 0 ? "columns" : "rows", gigabytes / (encode * 1e-3),
                  gigabytes / (decode * 1e-3));
    }
  }
  const eps_cuda_topk call = {uint64_t{1} << 20, 10486, 10486, 0, 0};
  OnDevice<float> residual(std::vector<float>(call.n));
  OnDevice<uint8_t> scratch(std::vector<uint8_t>(kernels.topk_scratch_bytes(&call)));
  OnDevice<uint64_t> size(std::vector<uint64_t>(1));
  const double ms = TimeOf(kernels, [&] {
    return kernels.encode_topk(&call, elements.get(), residual.get(), scratch.get(), encoded.get(),
                               size.get(), nullptr);
  });
  std::printf("topk:0.01 of 1 Mi elements with error feedback: %.1f us\n", ms * 1e3);
}

// Prints GB/s of memory: that of dropout reads twice and writes once, that of the loss (in three
// passes over a row) counts one read and one write, and that of CRCs one read.
void PrintStepSpeeds(const CudaKernels& kernels) {
  constexpr uint64_t kRows = 1024;
  constexpr uint64_t kVocab = 50257;
  constexpr uint64_t kElements = kRows * kVocab;
  const eps_cuda_mask mask = {1, 2, 3, 4, 5, 0.1, 0};
  const std::vector<uint16_t> ones(kElements, 0x3f80);
  OnDevice<uint16_t> x(ones), y(ones);
  OnDevice<int32_t> labels(std::vector<int32_t>(kRows, 7));
  OnDevice<float> log_p(std::vector<float>(kRows, 0.0f));
  OnDevice<uint32_t> crcs(std::vector<uint32_t>(2 * kElements / EPS_CUDA_CRC_PIECE + 1));
  const double dropout = TimeOf(kernels, [&] {
    return kernels.dropout(&mask, EPS_CUDA_BF16, x.get(), y.get(), kElements, y.get(), nullptr);
  });
  const double loss = TimeOf(kernels, [&] {
    return kernels.loss(EPS_CUDA_BF16, x.get(), labels.get(), kRows, kVocab, 1.0f, log_p.get(),
                        nullptr);
  });
  const double crc =
      TimeOf(kernels, [&] { return kernels.crc32c(x.get(), 2 * kElements, crcs.get(), nullptr); });
  const double megabytes = kElements * 2.0 / 1e6;
  std::printf("bf16 dropout with residual: %.0f GB/s, loss: %.0f GB/s, crc32c: %.0f GB/s\n",
              3 * megabytes / dropout, 2 * megabytes / loss, megabytes / crc);
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
  const uint64_t results = CountCodecDifferences(*kernels);
  const uint64_t steps = CountStepDifferences(*kernels);
  std::printf("tree_add: %.0f GB/s\n", TreeAddSpeed(*kernels));
  PrintCodecSpeeds(*kernels);
  PrintStepSpeeds(*kernels);
  return sums == 0 && codes == 0 && results == 0 && steps == 0 ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
