#ifndef EPS_STORAGE_CSD_OPENCL_LIBRARY_H_
#define EPS_STORAGE_CSD_OPENCL_LIBRARY_H_

// The functions of an OpenCL runtime, which is loaded when a device first needs it: no program
// links it.

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <string>

#include "absl/status/statusor.h"

#define EPS_OPENCL_FUNCTIONS(X) \
  X(GetPlatformIDs)             \
  X(GetPlatformInfo)            \
  X(GetDeviceIDs)               \
  X(GetDeviceInfo)              \
  X(CreateContext)              \
  X(ReleaseContext)             \
  X(CreateCommandQueue)         \
  X(ReleaseCommandQueue)        \
  X(CreateBuffer)               \
  X(ReleaseMemObject)           \
  X(CreateProgramWithSource)    \
  X(BuildProgram)               \
  X(GetProgramBuildInfo)        \
  X(ReleaseProgram)             \
  X(CreateKernel)               \
  X(ReleaseKernel)              \
  X(SetKernelArg)               \
  X(EnqueueNDRangeKernel)       \
  X(EnqueueReadBuffer)          \
  X(EnqueueWriteBuffer)         \
  X(EnqueueMapBuffer)           \
  X(EnqueueUnmapMemObject)      \
  X(WaitForEvents)              \
  X(ReleaseEvent)               \
  X(Finish)

namespace eps::opencl {

// The functions without their prefix. Plain value.
struct Library {
#define EPS_OPENCL_FIELD(name) decltype(&::cl##name) name = nullptr;
  EPS_OPENCL_FUNCTIONS(EPS_OPENCL_FIELD)
#undef EPS_OPENCL_FIELD
};

// Loads libOpenCL.so.1 once; it stays loaded. FailedPrecondition says what to install.
absl::StatusOr<const Library*> LoadLibrary();

// "CL_OUT_OF_RESOURCES"
std::string ErrorName(cl_int error);

}  // namespace eps::opencl

#endif  // EPS_STORAGE_CSD_OPENCL_LIBRARY_H_
