#ifndef EPS_STORAGE_CSD_PROCESS_DEVICE_PROCESS_H_
#define EPS_STORAGE_CSD_PROCESS_DEVICE_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/csd/device.h"
#include "storage/csd/file_device.h"
#include "storage/csd/process/host_lanes.h"
#include "storage/csd/process/host_link.h"
#include "storage/csd/rates/device_rates.h"
#include "storage/csd/rates/paced_link.h"

namespace eps {

// The settings of a DeviceProcess.
struct DeviceProcessOptions {
  std::string program;  // the path of eps-csd
  FileDeviceOptions device;
  std::string job;  // the text of the spec of the job whose kernels it runs; empty for none
  // The paths of the job's plug-ins; empty for those that it does not have.
  std::string updater_plugin;
  std::string codec_plugin;
  // A device that needs longer for a command is killed.
  std::chrono::milliseconds command_timeout{30'000};
  // For the start, in which a new medium is written once.
  std::chrono::milliseconds start_timeout{600'000};
  // Called at most once, on any thread, when the first operation has failed because the process
  // ended or was killed. May be null.
  std::function<void(const absl::Status&)> lost;
  DeviceRates rates;
  std::shared_ptr<csd::HostLink> link_or_null;  // that it shares with other devices
};

// A device in a process of its own, which shares no memory with this one: every byte crosses a
// socket. Thread-safe. Once the process has ended, or was killed because a command took too long,
// all operations fail with Unavailable, which names the device, its medium, the end of the process
// and the command. Nothing is retried.
class DeviceProcess final : public Device {
 public:
  // Starts the process, and waits until it is ready. Charges the device's memory, which is memory
  // of this machine, to `account`, which must outlive the device. The errors are those of
  // DeviceCore::Open, FailedPrecondition if the medium is in use, NotFound without a program, and
  // Unavailable.
  static absl::StatusOr<std::unique_ptr<DeviceProcess>> Start(const DeviceProcessOptions& options,
                                                              MemoryAccount* account);
  // Closes the sockets, whereupon the process ends.
  ~DeviceProcess() override;

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<Place> Allocate(uint64_t bytes) override;  // blocks
  void HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) override;
  void HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) override;
  void Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) override;
  void Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) override;
  void Sync(Done done) override;
  // Returns the bytes of the host link as this end of it counted them, and those of the other links
  // as the device reports them. Waits a second for the report, and returns the one before if none
  // comes.
  LinkBytes link_bytes() const override EPS_EXCLUDES(mu_);

  // Returns what the device counted on all its links. Blocks.
  absl::StatusOr<LinkBytes> DeviceLedger() const;
  pid_t pid() const { return lanes_->pid(); }

 private:
  DeviceProcess(DeviceInfo info, std::unique_ptr<csd::HostLanes> lanes,
                std::shared_ptr<csd::HostLink> link_or_null, MemoryAccount* account);

  std::vector<Crossing> Up() const {
    return link_ != nullptr ? link_->up() : std::vector<Crossing>();
  }
  std::vector<Crossing> Down() const {
    return link_ != nullptr ? link_->down() : std::vector<Crossing>();
  }
  // Returns a completion that counts the bytes of a transfer if it succeeded.
  Done Counting(Direction direction, Purpose purpose, uint64_t bytes, Done done);
  // Runs a command whose reply has data, and waits for it.
  absl::StatusOr<std::string> Ask(const csd::Command& command) const;

  const DeviceInfo info_;
  const std::shared_ptr<csd::HostLink> link_;  // may be null
  const std::unique_ptr<csd::HostLanes> lanes_;
  MemoryAccount* const account_;
  LinkLedger host_link_;
  mutable Mutex mu_;
  mutable LinkBytes reported_ EPS_GUARDED_BY(mu_);  // of all links but the host's
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_PROCESS_DEVICE_PROCESS_H_
