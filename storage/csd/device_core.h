#ifndef EPS_STORAGE_CSD_DEVICE_CORE_H_
#define EPS_STORAGE_CSD_DEVICE_CORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/csd/device.h"
#include "storage/csd/kernel_runner.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {

// The settings of a DeviceCore.
struct DeviceCoreOptions {
  std::string name;
  std::string path;          // of the file that is the medium
  uint64_t media_bytes = 0;  // a multiple of kDiskBlock
  uint64_t dram_bytes = 0;   // a multiple of kDiskBlock
};

// A device in the process that uses it: its medium is a file, its memory an arena of this process.
// Thread-safe.
class DeviceCore final : public Device {
 public:
  // Creates the medium if there is none. Charges the memory as kState. `disk`, `executor` (for
  // transfers that touch no file) and `account` must outlive the device. FailedPrecondition if the
  // medium has another size; ResourceExhausted if memory or disk are full.
  static absl::StatusOr<std::unique_ptr<DeviceCore>> Open(const DeviceCoreOptions& options,
                                                          Disk* disk, Executor* executor,
                                                          MemoryAccount* account);
  ~DeviceCore() override;

  // Runs a job's kernels from now on. Call it at most once, before any Run.
  void UseKernels(std::unique_ptr<KernelRunner> kernels) { kernels_ = std::move(kernels); }

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<Place> Allocate(uint64_t bytes) override EPS_EXCLUDES(mu_);
  void HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) override;
  void HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) override;
  void Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) override;
  void Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) override;
  void Sync(Done done) override { medium_->Sync(std::move(done)); }
  LinkBytes link_bytes() const override { return ledger_.Read(); }

 private:
  DeviceCore(DeviceInfo info, std::unique_ptr<AsyncFile> medium, std::unique_ptr<StateArena> dram,
             Executor* executor, MemoryAccount* account);

  uint8_t* InDram(Place place) const;
  // Completes an operation elsewhere than on the caller's stack.
  void Complete(Done done, absl::Status status);
  // Returns a completion that counts the bytes of a transfer if it succeeded.
  Done Counting(Link link, Direction direction, bool media_too, Purpose purpose, uint64_t bytes,
                Done done);

  const DeviceInfo info_;
  const std::unique_ptr<AsyncFile> medium_;
  const std::unique_ptr<StateArena> dram_;  // null without device memory
  std::unique_ptr<KernelRunner> kernels_;   // null without a job
  Executor* const executor_;
  MemoryAccount* const account_;
  LinkLedger ledger_;
  Mutex mu_;
  uint64_t allocated_bytes_ EPS_GUARDED_BY(mu_) = 0;  // of dram_, from its begin
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_DEVICE_CORE_H_
