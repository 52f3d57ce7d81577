#include "storage/csd/opencl/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps::opencl {
namespace {

constexpr char kName[] = "libOpenCL.so.1";

template <class Function>
absl::Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(kName, " lacks ", name));
}

absl::StatusOr<Library> Load() {
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return absl::FailedPreconditionError(absl::StrCat(
        "storage.csd.driver=opencl needs a runtime of OpenCL: ",
        error == nullptr ? "it cannot be loaded" : error,
        "; install the one of the card, or ocl-icd-libopencl1 and pocl-opencl-icd for the CPU"));
  }
  Library functions;
#define EPS_OPENCL_FIND(name) EPS_RETURN_IF_ERROR(Find(library, "cl" #name, &functions.name));
  EPS_OPENCL_FUNCTIONS(EPS_OPENCL_FIND)
#undef EPS_OPENCL_FIND
  return functions;
}

// The errors of the functions above, and their names.
struct Error {
  cl_int number;
  const char* name;
};
#define EPS_OPENCL_ERROR(name) \
  Error { name, #name }
constexpr Error kErrors[] = {
    EPS_OPENCL_ERROR(CL_DEVICE_NOT_FOUND),
    EPS_OPENCL_ERROR(CL_DEVICE_NOT_AVAILABLE),
    EPS_OPENCL_ERROR(CL_COMPILER_NOT_AVAILABLE),
    EPS_OPENCL_ERROR(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    EPS_OPENCL_ERROR(CL_OUT_OF_RESOURCES),
    EPS_OPENCL_ERROR(CL_OUT_OF_HOST_MEMORY),
    EPS_OPENCL_ERROR(CL_BUILD_PROGRAM_FAILURE),
    EPS_OPENCL_ERROR(CL_MAP_FAILURE),
    EPS_OPENCL_ERROR(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    EPS_OPENCL_ERROR(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    EPS_OPENCL_ERROR(CL_INVALID_VALUE),
    EPS_OPENCL_ERROR(CL_INVALID_PLATFORM),
    EPS_OPENCL_ERROR(CL_INVALID_DEVICE),
    EPS_OPENCL_ERROR(CL_INVALID_CONTEXT),
    EPS_OPENCL_ERROR(CL_INVALID_QUEUE_PROPERTIES),
    EPS_OPENCL_ERROR(CL_INVALID_COMMAND_QUEUE),
    EPS_OPENCL_ERROR(CL_INVALID_HOST_PTR),
    EPS_OPENCL_ERROR(CL_INVALID_MEM_OBJECT),
    EPS_OPENCL_ERROR(CL_INVALID_BUILD_OPTIONS),
    EPS_OPENCL_ERROR(CL_INVALID_PROGRAM),
    EPS_OPENCL_ERROR(CL_INVALID_PROGRAM_EXECUTABLE),
    EPS_OPENCL_ERROR(CL_INVALID_KERNEL_NAME),
    EPS_OPENCL_ERROR(CL_INVALID_KERNEL),
    EPS_OPENCL_ERROR(CL_INVALID_ARG_INDEX),
    EPS_OPENCL_ERROR(CL_INVALID_ARG_VALUE),
    EPS_OPENCL_ERROR(CL_INVALID_ARG_SIZE),
    EPS_OPENCL_ERROR(CL_INVALID_KERNEL_ARGS),
    EPS_OPENCL_ERROR(CL_INVALID_WORK_DIMENSION),
    EPS_OPENCL_ERROR(CL_INVALID_WORK_GROUP_SIZE),
    EPS_OPENCL_ERROR(CL_INVALID_WORK_ITEM_SIZE),
    EPS_OPENCL_ERROR(CL_INVALID_GLOBAL_OFFSET),
    EPS_OPENCL_ERROR(CL_INVALID_EVENT_WAIT_LIST),
    EPS_OPENCL_ERROR(CL_INVALID_OPERATION),
    EPS_OPENCL_ERROR(CL_INVALID_BUFFER_SIZE),
    EPS_OPENCL_ERROR(CL_INVALID_GLOBAL_WORK_SIZE),
    // Of the loader, which finds no runtime.
    Error{-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
};
#undef EPS_OPENCL_ERROR

}  // namespace

absl::StatusOr<const Library*> LoadLibrary() {
  static const absl::StatusOr<Library>* const library = new absl::StatusOr<Library>(Load());
  EPS_RETURN_IF_ERROR(library->status());
  return &**library;
}

std::string ErrorName(cl_int error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const Error& e) { return e.number == error; });
  return found == std::end(kErrors) ? absl::StrCat("error ", error) : found->name;
}

}  // namespace eps::opencl
