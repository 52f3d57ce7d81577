#include "worker/exec/torch_device.h"

#include <dlfcn.h>
#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/Version.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/full.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "torch/version.h"
#include "worker/exec/cuda_library.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

// Loads LibTorch's CUDA half, which registers itself. Returns the reason if that fails, else empty.
std::string LoadCuda() {
  const std::string no_driver = WhyNoCudaDriver();
  if (!no_driver.empty()) return absl::StrCat("no NVIDIA driver: ", no_driver);
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return "";
  // Without this LibTorch refuses deterministic matrix multiplication.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* error = dlerror();
    return absl::StrCat("no CUDA half of LibTorch: ", error == nullptr ? "unknown error" : error);
  }
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return "libtorch_cuda.so was loaded, but does not match this LibTorch";
  }
  return "";
}

int CudaDeviceCount() {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
}

// Returns vendor, family and model, by which LibTorch's matrix multiplication chooses its kernels,
// and thereby the bits.
std::string CpuModel() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return "x86";
  char vendor[13] = {};
  std::memcpy(vendor, &b, 4);
  std::memcpy(vendor + 4, &d, 4);
  std::memcpy(vendor + 8, &c, 4);
  if (!__get_cpuid(1, &a, &b, &c, &d)) return vendor;
  unsigned family = (a >> 8) & 15;
  unsigned model = (a >> 4) & 15;
  if (family == 6 || family == 15) model |= ((a >> 16) & 15) << 4;
  if (family == 15) family += (a >> 20) & 255;
  return absl::StrCat(vendor, "/", family, "/", model);
#else
  return "other";
#endif
}

// Returns whether every thread of a parallel operation reads denormals as zero.
bool AllThreadsFlush(int threads) {
  constexpr int kDenormalBits = 71362;  // 1e-40 as a float
  const int64_t n = int64_t{threads} * (64 << 10);
  at::Tensor values = at::full({n}, kDenormalBits, at::TensorOptions().dtype(at::kInt));
  values.view(at::kFloat).mul_(1.0f);
  return values.count_nonzero().item<int64_t>() == 0;
}

}  // namespace

absl::StatusOr<c10::Device> ChooseDevice(const std::string& name, int local_rank) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (name == "auto") {
    if (LoadCuda().empty() && CudaDeviceCount() > 0) {
      return c10::Device(c10::DeviceType::CUDA,
                         static_cast<c10::DeviceIndex>(local_rank % CudaDeviceCount()));
    }
    return c10::Device(c10::DeviceType::CPU);
  }
  absl::string_view index_text = name;
  int index = 0;
  const bool is_cuda = absl::ConsumePrefix(&index_text, "cuda") &&
                       (index_text.empty() || (absl::ConsumePrefix(&index_text, ":") &&
                                               absl::SimpleAtoi(index_text, &index) && index >= 0));
  if (!is_cuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.device is \"", name, "\"; expected auto, cpu, cuda or cuda:N"));
  }
  const std::string error = LoadCuda();
  if (!error.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker.device is ", name, ", but CUDA is not available: ", error));
  }
  if (name == "cuda" && CudaDeviceCount() > 0) index = local_rank % CudaDeviceCount();
  if (index >= CudaDeviceCount()) {
    return absl::FailedPreconditionError(absl::StrCat("worker.device is ", name, ", but there are ",
                                                      CudaDeviceCount(), " CUDA devices"));
  }
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

std::string CudaFinding() {
  const std::string error = LoadCuda();
  if (!error.empty()) return absl::StrCat("not used: ", error);
  const int devices = CudaDeviceCount();
  if (devices == 0) return "not used: the driver has no device for this process";
  const absl::Status kernels = LoadCudaKernels(CudaKernelPaths()).status();
  return absl::StrCat(devices, devices == 1 ? " device" : " devices",
                      kernels.ok() ? "" : "; gradients are added without a kernel of our own: ",
                      std::string(kernels.message()));
}

int ResolveThreads(int threads, int local_count) {
  if (threads > 0) return threads;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set) / std::max(1, local_count));
}

absl::StatusOr<std::string> ComputeProfileOf(c10::Device device, int threads) {
  if (device.is_cpu()) {
    return absl::StrCat("libtorch ", TORCH_VERSION, " cpu ", at::get_cpu_capability(), " ",
                        CpuModel(), " threads=", threads);
  }
  // Without the device's number, which differs between the workers of a machine.
  EPS_ASSIGN_OR_RETURN(const std::string model, CudaDeviceModel(device.index(), kCudaDriver));
  return absl::StrCat("libtorch ", TORCH_VERSION, " cuda ", model);
}

absl::Status PrepareThreads(int threads) {
  bool all_flush = false;
  absl::Status status = CatchTorch("starting LibTorch's threads", [&] {
    at::Context::setFlushDenormal(true);
    at::set_num_threads(threads);
    all_flush = AllThreadsFlush(threads);
  });
  if (status.ok() && !all_flush) {
    return absl::FailedPreconditionError(
        "LibTorch's threads do not flush denormals: they were started before the runtime was made");
  }
  return status;
}

}  // namespace eps
