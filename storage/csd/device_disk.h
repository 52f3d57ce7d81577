#ifndef EPS_STORAGE_CSD_DEVICE_DISK_H_
#define EPS_STORAGE_CSD_DEVICE_DISK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/csd/device.h"
#include "storage/disk/disk.h"

namespace eps {

// A folder of a DeviceDisk whose files lie in a device. Plain value.
struct DeviceMount {
  std::string folder;        // absolute; no mount lies in another
  Device* device = nullptr;  // used by this mount alone
};

// A file system of which some folders are devices, and everything else is another disk. The host
// reaches every byte of a device's files over the host link, as it does with ordinary drives: it is
// the baseline of Smart-Infinity (section 7.1), whose host updates the state on a RAID0 of drives.
//
// A file of a device is one area of its medium. Its name and place are in a table at the beginning
// of the medium, which is written twice in turn, so that a power cut leaves the old or the new one.
// Destroy what Open returned before you remove or replace the file: its area may be given away.
class DeviceDisk final : public Disk {
 public:
  // Returns the purpose of a file's bytes.
  using Classify = std::function<Purpose(const std::string& path)>;

  // Reads the tables; a medium of zeros is empty. `host` and the devices must outlive the disk and
  // its files. DataLoss if both copies of a table are damaged.
  static absl::StatusOr<std::unique_ptr<DeviceDisk>> Open(Disk* host,
                                                          const std::vector<DeviceMount>& mounts,
                                                          Classify classify);
  ~DeviceDisk() override;

  absl::Status CreateFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::Status CreateFile(const std::string& path, uint64_t size) override;
  absl::StatusOr<std::unique_ptr<AsyncFile>> Open(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  // Unimplemented from one device to another, or between a device and the host's disk.
  absl::Status Rename(const std::string& from, const std::string& to) override;
  // Excludes users of this disk only, because a device has one process. The disk outlives the lock.
  absl::StatusOr<std::unique_ptr<Lock>> TakeLock(const std::string& path) override;
  // Returns the device that holds a folder; null for the host's disk.
  Device* DeviceOf(const std::string& folder) const;
  // Creates a file in the memory of the device that holds the path, which is gone with the device:
  // only Open and PlaceOf know it. It hides a file of this name on the medium. ResourceExhausted.
  absl::Status CreateInMemory(const std::string& path, uint64_t size);
  // Returns where a file begins in its device. NotFound; InvalidArgument for a file of the host's
  // disk.
  absl::StatusOr<Place> PlaceOf(const std::string& path) const;
  // Returns the free bytes of the device, which a file may find in several pieces.
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;

 private:
  class Volume;

  DeviceDisk(Disk* host, Classify classify);
  // Returns the volume that holds the path; null for the host's disk.
  Volume* VolumeOf(const std::string& path) const;

  Disk* const host_;
  const Classify classify_;
  std::vector<std::unique_ptr<Volume>> volumes_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_DEVICE_DISK_H_
