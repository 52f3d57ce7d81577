#ifndef EPS_STORAGE_CSD_DEVICE_CORE_H_
#define EPS_STORAGE_CSD_DEVICE_CORE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "storage/csd/file_device.h"
#include "storage/csd/kernel_runner.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {

// A device in the process that uses it: its memory is an arena of this process. Thread-safe.
class DeviceCore final : public FileDevice {
 public:
  // Creates the medium if there is none. Charges the memory as kState. `disk`, `executor` (for
  // transfers that touch no file) and `account` must outlive the device. FailedPrecondition if the
  // medium has another size; ResourceExhausted if memory or disk are full.
  static absl::StatusOr<std::unique_ptr<DeviceCore>> Open(const FileDeviceOptions& options,
                                                          Disk* disk, Executor* executor,
                                                          MemoryAccount* account);
  ~DeviceCore() override;

  // Runs a job's kernels from now on. Call it at most once, before any Run.
  void UseKernels(std::unique_ptr<KernelRunner> kernels) { kernels_ = std::move(kernels); }

 private:
  DeviceCore(const FileDeviceOptions& options, std::unique_ptr<AsyncFile> medium,
             std::unique_ptr<StateArena> dram, Executor* executor, MemoryAccount* account);

  absl::Status WriteMemory(absl::Span<const uint8_t> from, uint64_t at) override;
  absl::Status ReadMemory(uint64_t at, absl::Span<uint8_t> into) override;
  void Load(uint64_t from, uint64_t at, uint64_t bytes, Done done) override;
  void Store(uint64_t at, uint64_t to, uint64_t bytes, Done done) override;
  absl::StatusOr<std::string> RunKernel(const std::string& kernel, uint64_t at,
                                        uint64_t bytes) override;
  absl::Span<uint8_t> Memory(uint64_t at, uint64_t bytes) const;

  const std::unique_ptr<StateArena> dram_;  // null without device memory
  std::unique_ptr<KernelRunner> kernels_;   // null without a job
  MemoryAccount* const account_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_DEVICE_CORE_H_
