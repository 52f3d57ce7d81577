#ifndef EPS_STORAGE_CSD_OPENCL_SESSION_H_
#define EPS_STORAGE_CSD_OPENCL_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "storage/csd/opencl/library.h"

namespace eps::opencl {

// The items of a launch, in two dimensions; in groups of `group` in the first, or of the runtime's
// choice if that is 0. Plain value.
struct Items {
  size_t count = 1;
  size_t rows = 1;
  size_t group = 0;
};

// Memory of a group, as an argument of a kernel. Plain value.
struct GroupMemory {
  size_t bytes = 0;
};

// One OpenCL device in use: its context, queues, buffers and program. Transfers and kernels have
// queues of their own, and overlap. Buffers live as long as the session. Transfers are thread-safe;
// kernels are for one thread at a time. Errors of the runtime are Internal, and name the device,
// the call and the error.
class Session {
 public:
  // Opens device number `index` modulo their number, counted over all platforms in the order of the
  // runtime. `name` is for errors. FailedPrecondition says what is missing: a runtime, a device, or
  // a property that exact arithmetic needs.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& name, size_t index);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // "device csd-0 (NAME of the device, NAME of its platform)"
  const std::string& description() const { return description_; }
  // Whether buffers are memory of the host.
  bool uses_host_memory() const { return uses_host_memory_; }

  // ResourceExhausted if the device has no buffers of that size. `flags` as in clCreateBuffer.
  absl::StatusOr<cl_mem> NewBuffer(cl_mem_flags flags, uint64_t bytes);
  absl::Status Write(cl_mem buffer, uint64_t at, absl::Span<const uint8_t> from);
  absl::Status Read(cl_mem buffer, uint64_t at, absl::Span<uint8_t> into);
  // Maps a part of a buffer into the memory of this process until Unmap. `flags` as in
  // clEnqueueMapBuffer.
  absl::StatusOr<uint8_t*> Map(cl_mem buffer, cl_map_flags flags, uint64_t at, uint64_t bytes);
  absl::Status Unmap(cl_mem buffer, uint8_t* mapped);

  // Builds the program. Call it once, before any launch. Errors have the compiler's log.
  absl::Status Build(const std::string& source, const std::string& options);
  // Starts a kernel of the program after those started before. Arguments are passed by value.
  template <class... Arguments>
  absl::Status Launch(const char* kernel, const Items& items, const Arguments&... arguments) {
    const std::vector<std::pair<size_t, const void*>> all = {Pass(arguments)...};
    return LaunchWith(kernel, items, all);
  }
  // The same as Write and Read, after the kernels started before.
  absl::Status WriteAfterKernels(cl_mem buffer, absl::Span<const uint8_t> from);
  absl::Status ReadAfterKernels(cl_mem buffer, absl::Span<uint8_t> into);

 private:
  Session(const Library* library, std::string name) : cl_(*library), name_(std::move(name)) {}

  template <class T>
  static std::pair<size_t, const void*> Pass(const T& value) {
    return {sizeof(value), &value};
  }
  static std::pair<size_t, const void*> Pass(const GroupMemory& memory) {
    return {memory.bytes, nullptr};
  }
  static std::pair<size_t, const void*> Pass(const absl::Span<const uint8_t>& bytes) {
    return {bytes.size(), bytes.data()};
  }

  // Returns the error of a call, or OK.
  absl::Status Check(absl::string_view call, cl_int error) const;
  absl::Status Choose(size_t index);
  absl::Status CheckProperties();
  absl::Status MakeQueues();
  template <class T>
  absl::StatusOr<T> Property(cl_device_info property) const;
  absl::StatusOr<cl_kernel> FindKernel(const char* name);
  absl::Status LaunchWith(const char* name, const Items& items,
                          absl::Span<const std::pair<size_t, const void*>> arguments);

  const Library& cl_;
  const std::string name_;
  std::string description_;
  cl_device_id device_ = nullptr;
  bool uses_host_memory_ = false;
  uint64_t largest_buffer_ = 0;
  cl_context context_ = nullptr;
  cl_command_queue transfers_ = nullptr;
  cl_command_queue kernels_queue_ = nullptr;
  std::vector<cl_mem> buffers_;
  cl_program program_ = nullptr;
  std::map<std::string, cl_kernel> kernels_;
};

}  // namespace eps::opencl

#endif  // EPS_STORAGE_CSD_OPENCL_SESSION_H_
