#include "storage/csd/opencl/session.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps::opencl {
namespace {

// Returns a text that `get` writes, such as a name.
template <class Get>
std::string TextOf(const Get& get) {
  size_t bytes = 0;
  if (get(0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return "";
  std::string text(bytes, '\0');
  if (get(bytes, text.data(), nullptr) != CL_SUCCESS) return "";
  return text.substr(0, text.find('\0'));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const std::string& name, size_t index) {
  EPS_ASSIGN_OR_RETURN(const Library* const library, LoadLibrary());
  std::unique_ptr<Session> session(new Session(library, name));
  EPS_RETURN_IF_ERROR(session->Choose(index));
  EPS_RETURN_IF_ERROR(session->CheckProperties());
  EPS_RETURN_IF_ERROR(session->MakeQueues());
  return session;
}

Session::~Session() {
  for (cl_command_queue const queue : {transfers_, kernels_queue_}) {
    if (queue == nullptr) continue;
    cl_.Finish(queue);
    cl_.ReleaseCommandQueue(queue);
  }
  for (const auto& [name, kernel] : kernels_) cl_.ReleaseKernel(kernel);
  if (program_ != nullptr) cl_.ReleaseProgram(program_);
  for (cl_mem const buffer : buffers_) cl_.ReleaseMemObject(buffer);
  if (context_ != nullptr) cl_.ReleaseContext(context_);
}

absl::Status Session::Check(absl::string_view call, cl_int error) const {
  if (error == CL_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(description_, ": ", call, ": ", ErrorName(error)));
}

absl::Status Session::Choose(size_t index) {
  description_ = absl::StrCat("device ", name_, " (OpenCL)");
  cl_uint count = 0;
  std::vector<cl_platform_id> platforms;
  if (cl_.GetPlatformIDs(0, nullptr, &count) == CL_SUCCESS) {
    platforms.resize(count);
    EPS_RETURN_IF_ERROR(
        Check("clGetPlatformIDs", cl_.GetPlatformIDs(count, platforms.data(), nullptr)));
  }
  std::vector<std::pair<cl_platform_id, cl_device_id>> found;
  for (cl_platform_id const platform : platforms) {
    if (cl_.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> devices(count);
    EPS_RETURN_IF_ERROR(Check("clGetDeviceIDs", cl_.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL,
                                                                 count, devices.data(), nullptr)));
    for (cl_device_id const device : devices) found.emplace_back(platform, device);
  }
  if (found.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        description_, ": storage.csd.driver=opencl finds no device on ", platforms.size(),
        " platforms; install the runtime of the card, or pocl-opencl-icd for the CPU"));
  }
  const auto [platform, device] = found[index % found.size()];
  device_ = device;
  description_ =
      absl::StrCat("device ", name_, " (",
                   TextOf([&, device = device](size_t bytes, void* text, size_t* needed) {
                     return cl_.GetDeviceInfo(device, CL_DEVICE_NAME, bytes, text, needed);
                   }),
                   ", ", TextOf([&, platform = platform](size_t bytes, void* text, size_t* needed) {
                     return cl_.GetPlatformInfo(platform, CL_PLATFORM_NAME, bytes, text, needed);
                   }),
                   ")");
  return absl::OkStatus();
}

template <class T>
absl::StatusOr<T> Session::Property(cl_device_info property) const {
  T value{};
  EPS_RETURN_IF_ERROR(Check("clGetDeviceInfo",
                            cl_.GetDeviceInfo(device_, property, sizeof(value), &value, nullptr)));
  return value;
}

absl::Status Session::CheckProperties() {
  EPS_ASSIGN_OR_RETURN(const auto singles,
                       Property<cl_device_fp_config>(CL_DEVICE_SINGLE_FP_CONFIG));
  EPS_ASSIGN_OR_RETURN(const auto doubles,
                       Property<cl_device_fp_config>(CL_DEVICE_DOUBLE_FP_CONFIG));
  EPS_ASSIGN_OR_RETURN(const auto little_endian, Property<cl_bool>(CL_DEVICE_ENDIAN_LITTLE));
  EPS_ASSIGN_OR_RETURN(const auto compiles, Property<cl_bool>(CL_DEVICE_COMPILER_AVAILABLE));
  EPS_ASSIGN_OR_RETURN(const auto unified, Property<cl_bool>(CL_DEVICE_HOST_UNIFIED_MEMORY));
  EPS_ASSIGN_OR_RETURN(largest_buffer_, Property<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE));
  uses_host_memory_ = unified == CL_TRUE;
  const cl_device_fp_config exact = CL_FP_ROUND_TO_NEAREST | CL_FP_INF_NAN;
  const std::pair<bool, const char*> needs[] = {
      {(singles & exact) == exact, "floats that round to nearest, infinities and NaN"},
      {(singles & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0,
       "a correctly rounded division and root (CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)"},
      {(doubles & exact) == exact, "doubles (CL_DEVICE_DOUBLE_FP_CONFIG)"},
      {little_endian == CL_TRUE, "little-endian numbers"},
      {compiles == CL_TRUE, "a compiler (CL_DEVICE_COMPILER_AVAILABLE)"},
  };
  for (const auto& [met, need] : needs) {
    if (met) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(description_, " lacks ", need, ": its updates would have other bits; set ",
                     "storage.csd.driver=emulated, or use another device"));
  }
  return absl::OkStatus();
}

absl::Status Session::MakeQueues() {
  cl_int error = CL_SUCCESS;
  context_ = cl_.CreateContext(nullptr, 1, &device_, nullptr, nullptr, &error);
  EPS_RETURN_IF_ERROR(Check("clCreateContext", error));
  for (cl_command_queue* const queue : {&transfers_, &kernels_queue_}) {
    *queue = cl_.CreateCommandQueue(context_, device_, 0, &error);
    EPS_RETURN_IF_ERROR(Check("clCreateCommandQueue", error));
  }
  return absl::OkStatus();
}

absl::StatusOr<cl_mem> Session::NewBuffer(cl_mem_flags flags, uint64_t bytes) {
  if (bytes > largest_buffer_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(description_, ": a buffer of ", bytes, " bytes is needed, and it has at most ",
                     largest_buffer_, " (CL_DEVICE_MAX_MEM_ALLOC_SIZE): lower storage.csd.dram"));
  }
  cl_int error = CL_SUCCESS;
  cl_mem const buffer =
      cl_.CreateBuffer(context_, flags, static_cast<size_t>(bytes), nullptr, &error);
  EPS_RETURN_IF_ERROR(Check(absl::StrCat("clCreateBuffer of ", bytes, " bytes"), error));
  buffers_.push_back(buffer);
  return buffer;
}

absl::Status Session::Write(cl_mem buffer, uint64_t at, absl::Span<const uint8_t> from) {
  return Check("clEnqueueWriteBuffer",
               cl_.EnqueueWriteBuffer(transfers_, buffer, CL_TRUE, at, from.size(), from.data(), 0,
                                      nullptr, nullptr));
}

absl::Status Session::Read(cl_mem buffer, uint64_t at, absl::Span<uint8_t> into) {
  return Check("clEnqueueReadBuffer",
               cl_.EnqueueReadBuffer(transfers_, buffer, CL_TRUE, at, into.size(), into.data(), 0,
                                     nullptr, nullptr));
}

absl::Status Session::WriteAfterKernels(cl_mem buffer, absl::Span<const uint8_t> from) {
  return Check("clEnqueueWriteBuffer",
               cl_.EnqueueWriteBuffer(kernels_queue_, buffer, CL_TRUE, 0, from.size(), from.data(),
                                      0, nullptr, nullptr));
}

absl::Status Session::ReadAfterKernels(cl_mem buffer, absl::Span<uint8_t> into) {
  return Check("clEnqueueReadBuffer",
               cl_.EnqueueReadBuffer(kernels_queue_, buffer, CL_TRUE, 0, into.size(), into.data(),
                                     0, nullptr, nullptr));
}

absl::StatusOr<uint8_t*> Session::Map(cl_mem buffer, cl_map_flags flags, uint64_t at,
                                      uint64_t bytes) {
  cl_int error = CL_SUCCESS;
  void* const mapped = cl_.EnqueueMapBuffer(transfers_, buffer, CL_TRUE, flags, at, bytes, 0,
                                            nullptr, nullptr, &error);
  EPS_RETURN_IF_ERROR(Check("clEnqueueMapBuffer", error));
  return static_cast<uint8_t*>(mapped);
}

absl::Status Session::Unmap(cl_mem buffer, uint8_t* mapped) {
  cl_event unmapped = nullptr;
  EPS_RETURN_IF_ERROR(
      Check("clEnqueueUnmapMemObject",
            cl_.EnqueueUnmapMemObject(transfers_, buffer, mapped, 0, nullptr, &unmapped)));
  const absl::Status status =
      Check("clWaitForEvents of clEnqueueUnmapMemObject", cl_.WaitForEvents(1, &unmapped));
  cl_.ReleaseEvent(unmapped);
  return status;
}

absl::Status Session::Build(const std::string& source, const std::string& options) {
  cl_int error = CL_SUCCESS;
  const char* text = source.c_str();
  program_ = cl_.CreateProgramWithSource(context_, 1, &text, nullptr, &error);
  EPS_RETURN_IF_ERROR(Check("clCreateProgramWithSource", error));
  error = cl_.BuildProgram(program_, 1, &device_, options.c_str(), nullptr, nullptr);
  if (error == CL_SUCCESS) return absl::OkStatus();
  const std::string log = TextOf([&](size_t bytes, void* into, size_t* needed) {
    return cl_.GetProgramBuildInfo(program_, device_, CL_PROGRAM_BUILD_LOG, bytes, into, needed);
  });
  return Check(absl::StrCat("clBuildProgram says \"", log, "\""), error);
}

absl::StatusOr<cl_kernel> Session::FindKernel(const char* name) {
  cl_kernel& kernel = kernels_[name];
  if (kernel != nullptr) return kernel;
  cl_int error = CL_SUCCESS;
  kernel = cl_.CreateKernel(program_, name, &error);
  EPS_RETURN_IF_ERROR(Check(absl::StrCat("clCreateKernel of ", name), error));
  return kernel;
}

absl::Status Session::LaunchWith(const char* name, const Items& items,
                                 absl::Span<const std::pair<size_t, const void*>> arguments) {
  if (items.count == 0 || items.rows == 0) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(cl_kernel const kernel, FindKernel(name));
  for (cl_uint i = 0; i < arguments.size(); ++i) {
    EPS_RETURN_IF_ERROR(
        Check(absl::StrCat("clSetKernelArg of ", name, ", argument ", i),
              cl_.SetKernelArg(kernel, i, arguments[i].first, arguments[i].second)));
  }
  const size_t group[] = {items.group, 1};
  const size_t unit = items.group == 0 ? 1 : items.group;
  const size_t all[] = {(items.count + unit - 1) / unit * unit, items.rows};
  return Check(
      absl::StrCat("clEnqueueNDRangeKernel of ", name),
      cl_.EnqueueNDRangeKernel(kernels_queue_, kernel, items.rows > 1 ? 2 : 1, nullptr, all,
                               items.group == 0 ? nullptr : group, 0, nullptr, nullptr));
}

}  // namespace eps::opencl
