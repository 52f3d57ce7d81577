#ifndef EPS_STORAGE_CSD_FILE_DEVICE_H_
#define EPS_STORAGE_CSD_FILE_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "storage/csd/device.h"
#include "storage/disk/disk.h"

namespace eps {

// The settings of a FileDevice.
struct FileDeviceOptions {
  std::string name;
  std::string path;          // of the file that is the medium
  uint64_t media_bytes = 0;  // a multiple of kDiskBlock
  uint64_t dram_bytes = 0;   // a multiple of kDiskBlock
};

// A device whose medium is a file. The subclass has the memory, and computes in it. Thread-safe, if
// the subclass is.
class FileDevice : public Device {
 public:
  const DeviceInfo& info() const final { return info_; }
  absl::StatusOr<Place> Allocate(uint64_t bytes) final EPS_EXCLUDES(mu_);
  void HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) final;
  void HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) final;
  void Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) final;
  void Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) final;
  void Sync(Done done) final { medium_->Sync(std::move(done)); }
  LinkBytes link_bytes() const final { return ledger_.Read(); }

 protected:
  // Opens the medium, and creates it if there is none. InvalidArgument for sizes that are no
  // multiples of a block; FailedPrecondition if the medium has another size; ResourceExhausted if
  // the disk is full.
  static absl::StatusOr<std::unique_ptr<AsyncFile>> OpenMedium(const FileDeviceOptions& options,
                                                               Disk* disk);
  // `executor` (for transfers that touch no file, and for kernels) must outlive the device.
  FileDevice(DeviceInfo info, std::unique_ptr<AsyncFile> medium, Executor* executor)
      : info_(std::move(info)), medium_(std::move(medium)), executor_(executor) {}

  AsyncFile* medium() const { return medium_.get(); }
  Executor* executor() const { return executor_; }

 private:
  // The subclass's transfers of its memory. All ranges lie in it. These two run on the executor.
  virtual absl::Status WriteMemory(absl::Span<const uint8_t> from, uint64_t at) = 0;
  virtual absl::Status ReadMemory(uint64_t at, absl::Span<uint8_t> into) = 0;
  // Copies `bytes` from the medium at `from` into memory. Completes as Device::Copy.
  virtual void Load(uint64_t from, uint64_t at, uint64_t bytes, Done done) = 0;
  // Copies `bytes` of the memory to the medium at `to`.
  virtual void Store(uint64_t at, uint64_t to, uint64_t bytes, Done done) = 0;
  // As Device::Run. Runs on the executor.
  virtual absl::StatusOr<std::string> RunKernel(const std::string& kernel, uint64_t at,
                                                uint64_t bytes) = 0;

  // Completes an operation elsewhere than on the caller's stack.
  void Complete(Done done, absl::Status status);
  // Returns a completion that counts the bytes of a transfer if it succeeded.
  Done Counting(Link link, Direction direction, bool media_too, Purpose purpose, uint64_t bytes,
                Done done);

  const DeviceInfo info_;
  const std::unique_ptr<AsyncFile> medium_;
  Executor* const executor_;
  LinkLedger ledger_;
  Mutex mu_;
  uint64_t allocated_bytes_ EPS_GUARDED_BY(mu_) = 0;  // of the memory, from its begin
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_FILE_DEVICE_H_
