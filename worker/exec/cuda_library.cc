#include "worker/exec/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eps {
namespace {

constexpr char kName[] = "libeps_cuda.so";

std::string LoaderError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error" : error;
}

template <class Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// Functions and attributes of the driver's API (cuda.h).
struct CudaDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*get)(int* device, int index) = nullptr;
  int (*name)(char* name, int size, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
};
constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;

absl::StatusOr<CudaKernels> FunctionsOf(void* library, const std::string& path) {
  int (*abi_version)() = nullptr;
  if (!Find(library, "eps_cuda_abi_version", &abi_version)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a library of EPS: it lacks eps_cuda_abi_version"));
  }
  if (abi_version() != EPS_CUDA_ABI_VERSION) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has version ", abi_version(), " of the kernels, this worker needs ",
                     EPS_CUDA_ABI_VERSION, "; build both from one source"));
  }
  CudaKernels kernels = {};
  if (!Find(library, "eps_cuda_tree_add", &kernels.tree_add) ||
      !Find(library, "eps_cuda_decode_bf16", &kernels.decode_bf16) ||
      !Find(library, "eps_cuda_encode_bf16", &kernels.encode_bf16) ||
      !Find(library, "eps_cuda_decode_chunk", &kernels.decode_chunk) ||
      !Find(library, "eps_cuda_encode_chunk", &kernels.encode_chunk) ||
      !Find(library, "eps_cuda_decode_chunk_bf16", &kernels.decode_chunk_bf16) ||
      !Find(library, "eps_cuda_topk_scratch_bytes", &kernels.topk_scratch_bytes) ||
      !Find(library, "eps_cuda_encode_topk", &kernels.encode_topk) ||
      !Find(library, "eps_cuda_dropout", &kernels.dropout) ||
      !Find(library, "eps_cuda_dropout_mask", &kernels.dropout_mask) ||
      !Find(library, "eps_cuda_loss", &kernels.loss) ||
      !Find(library, "eps_cuda_crc32c", &kernels.crc32c) ||
      !Find(library, "eps_cuda_register_host", &kernels.register_host) ||
      !Find(library, "eps_cuda_unregister_host", &kernels.unregister_host) ||
      !Find(library, "eps_cuda_error_text", &kernels.error_text)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " lacks a function: ", LoaderError()));
  }
  return kernels;
}

}  // namespace

absl::StatusOr<CudaKernels> LoadCudaKernels(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (access(path.c_str(), F_OK) != 0) continue;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::FailedPreconditionError(LoaderError());
    return FunctionsOf(library, path);
  }
  return absl::NotFoundError(
      absl::StrCat("no ", kName, " (built with --config=cuda) at ", absl::StrJoin(paths, " or ")));
}

std::vector<std::string> CudaKernelPaths() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  if (length <= 0 || length == sizeof(program)) return {};
  std::string folder(program, static_cast<size_t>(length));
  folder.resize(folder.rfind('/') + 1);
  return {folder + kName, folder + "exec/cuda/" + kName};
}

absl::StatusOr<std::string> CudaDeviceModel(int index, const std::string& driver) {
  void* const library = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(LoaderError());
  CudaDriver cuda;
  if (!Find(library, "cuInit", &cuda.init) || !Find(library, "cuDeviceGet", &cuda.get) ||
      !Find(library, "cuDeviceGetName", &cuda.name) ||
      !Find(library, "cuDeviceGetAttribute", &cuda.attribute)) {
    return absl::FailedPreconditionError(
        absl::StrCat(driver, " lacks a function: ", LoaderError()));
  }
  int device = 0, major = 0, minor = 0;
  char name[256] = {};
  const struct {
    const char* call;
    int error;
  } calls[] = {
      {"cuInit", cuda.init(0)},
      {"cuDeviceGet", cuda.get(&device, index)},
      {"cuDeviceGetName", cuda.name(name, sizeof(name) - 1, device)},
      {"cuDeviceGetAttribute", cuda.attribute(&major, kCapabilityMajor, device)},
      {"cuDeviceGetAttribute", cuda.attribute(&minor, kCapabilityMinor, device)},
  };
  for (const auto& [call, error] : calls) {
    if (error == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(driver, ": ", call, " fails for device ", index, " with error ", error));
  }
  return absl::StrCat(name, " sm_", major, minor);
}

std::string WhyNoCudaDriver() {
  return dlopen(kCudaDriver, RTLD_LAZY | RTLD_LOCAL) == nullptr ? LoaderError() : "";
}

}  // namespace eps
