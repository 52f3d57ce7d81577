#ifndef EPS_STORAGE_BACKENDS_NEAR_JOB_DEVICES_H_
#define EPS_STORAGE_BACKENDS_NEAR_JOB_DEVICES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "storage/backends/near/device_use.h"
#include "storage/csd/device.h"
#include "storage/csd/device_disk.h"
#include "storage/csd/file_device.h"
#include "storage/csd/link_bytes.h"
#include "storage/csd/rates/device_rates.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/disk.h"

namespace eps {

// The kinds of devices.
enum class DeviceDriver {
  kEmulated,  // DeviceProcess
  kOpenCl,    // OpenClDevice, within this process
};

// The settings of the devices of a server; the keys storage.csd.*.
struct DeviceSettings {
  DeviceDriver driver = DeviceDriver::kEmulated;
  // Of emulated devices: the paths of eps-csd, and of the plug-ins of jobs that use them; empty for
  // none.
  std::string program;
  std::string updater_plugin;
  std::string codec_plugin;
  uint32_t count = 0;       // if no drives are named: devices in storage.path
  uint64_t dram_bytes = 0;  // of each device
  DeviceUse use;
  DeviceRates rates;     // of each device
  HostRates host_rates;  // of the link that they share
  std::chrono::milliseconds command_timeout{30'000};
  // Called at most once for each device, on any thread, when it has ended without being asked to.
  // May be null.
  std::function<void(const absl::Status&)> lost;
};

// The bytes that the links of one device have carried.
struct DeviceLinks {
  std::string device;
  LinkBytes bytes;
};

// The devices of one job, each on a drive. The medium is a file in the job's folder on the drive,
// as large as the files of the job that lie in it, so that jobs are listed, copied and removed like
// those on other drives. Thread-safe.
class JobDevices {
 public:
  // Returns why bytes of a job's file are moved, by the file's path; for DeviceDisk.
  static Purpose PurposeOf(const std::string& path);
  // The path of the medium. It is also the path of the folder, in disk(), of what it holds.
  static std::string MediumIn(const std::string& job_folder);
  // The path of the slots' folder in disk().
  static std::string SlotFolderIn(const std::string& job_folder);
  // Returns how many bytes the medium of a drive needs.
  static uint64_t MediumBytes(const ExtentLayout& layout, uint32_t drive, bool gradients);
  // Returns whether the folder has a medium that may hold the slots of a job: a creation that was
  // interrupted leaves one without.
  static bool HoldSlots(Disk* host, const std::string& job_folder);

  // Returns how many of the job's folders are on devices, which are the first: up to the last one
  // that has a medium.
  static size_t CountMedia(Disk* host, const std::vector<std::string>& job_folders);
  // FailedPrecondition unless those on the first `devices` drives have media, and no others.
  static absl::Status CheckMedia(Disk* host, const std::vector<std::string>& job_folders,
                                 size_t devices);

  // Creates the medium and its folder, which does not exist, durably. ResourceExhausted with the
  // missing bytes.
  static absl::Status CreateMedium(Disk* host, const std::string& job_folder, uint64_t bytes);
  // Starts a device for the medium in each of the job's folders. `host` and `account` must outlive
  // the devices. NotFound if a medium is missing; other errors are those of DeviceProcess, or of
  // OpenClDevice and FailedPrecondition if another process has the medium.
  static absl::StatusOr<std::shared_ptr<JobDevices>> Start(Disk* host, const JobSpec& spec,
                                                           const std::vector<std::string>& folders,
                                                           const DeviceSettings& settings,
                                                           MemoryAccount* account);
  // The same within this process, for reading and without kernels. FailedPrecondition if a device
  // has the medium.
  static absl::StatusOr<std::shared_ptr<JobDevices>> OpenForReading(
      Disk* host, const std::vector<std::string>& folders);

  // The host's files, and those in the devices.
  DeviceDisk* disk() const { return disk_.get(); }
  // Returns the folders of the slots: those in the devices, which are the first of the job's
  // folders, and the others of `job_folders` themselves.
  Extents::Folders SlotFoldersAmong(const std::vector<std::string>& job_folders) const;
  // Waits a second for a device that does not answer.
  std::vector<DeviceLinks> link_bytes() const;

 private:
  explicit JobDevices(std::vector<std::string> folders) : folders_(std::move(folders)) {}
  absl::Status StartProcesses(Disk* host, const JobSpec& spec, const DeviceSettings& settings,
                              MemoryAccount* account);
  absl::Status OpenClDevices(Disk* host, const JobSpec& spec, const DeviceSettings& settings,
                             MemoryAccount* account);
  // Takes the medium of a drive for a device within this process.
  absl::StatusOr<FileDeviceOptions> LockMedium(Disk* host, size_t drive);
  absl::Status OpenDisk(Disk* host);

  const std::vector<std::string> folders_;  // of the job, by drive
  // For devices within this process.
  std::vector<std::unique_ptr<Disk::Lock>> locks_;
  MemoryAccount no_account_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::unique_ptr<Device>> devices_;  // by drive
  std::unique_ptr<DeviceDisk> disk_;
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_NEAR_JOB_DEVICES_H_
