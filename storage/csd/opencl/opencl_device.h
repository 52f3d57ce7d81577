#ifndef EPS_STORAGE_CSD_OPENCL_OPENCL_DEVICE_H_
#define EPS_STORAGE_CSD_OPENCL_OPENCL_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "storage/csd/file_device.h"
#include "storage/disk/disk.h"

namespace eps {

// A device whose updater and memory are an OpenCL device: a card beside its drive, or the CPU
// (pocl). Its medium is a file; Copy transfers between the file and the mapped buffer, which a card
// with peer-to-peer transfers does below its switch. It has no codecs. Thread-safe.
class OpenClDevice final : public FileDevice {
 public:
  // Loads the runtime, and takes its device number `index` modulo their number, for the kernels of
  // the job. `disk`, `executor` (transfers overlap with kernels if it has a thread more than there
  // are kernels at the same time) and `account` must outlive the device; its memory is charged as
  // kState if it is memory of the host. Errors are those of FileDevice::OpenMedium;
  // FailedPrecondition says what the runtime or the device lacks; Unimplemented if there is no rule
  // for the job's optimizer; ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<Device>> Open(const FileDeviceOptions& options,
                                                      size_t index, const JobSpec& spec, Disk* disk,
                                                      Executor* executor, MemoryAccount* account);
  ~OpenClDevice() override;

 private:
  class Memory;

  OpenClDevice(const FileDeviceOptions& options, std::unique_ptr<AsyncFile> medium,
               Executor* executor, std::unique_ptr<Memory> memory);

  absl::Status WriteMemory(absl::Span<const uint8_t> from, uint64_t at) override;
  absl::Status ReadMemory(uint64_t at, absl::Span<uint8_t> into) override;
  void Load(uint64_t from, uint64_t at, uint64_t bytes, Done done) override;
  void Store(uint64_t at, uint64_t to, uint64_t bytes, Done done) override;
  absl::StatusOr<std::string> RunKernel(const std::string& kernel, uint64_t at,
                                        uint64_t bytes) override;
  // Returns a completion that ends a mapping first, on the executor.
  Done Unmapping(uint8_t* mapped, Done done);

  const std::unique_ptr<Memory> memory_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_OPENCL_OPENCL_DEVICE_H_
