#ifndef EPS_STORAGE_BACKENDS_DURABLE_STORAGE_H_
#define EPS_STORAGE_BACKENDS_DURABLE_STORAGE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/drivers/job_scope.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/near/job_devices.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/cut_reader.h"
#include "storage/cuts/job_folders.h"
#include "storage/disk/disk.h"
#include "storage/disk/fill.h"
#include "storage/log/log_room.h"
#include "storage/records/key_value_store.h"
#include "storage/state_backend.h"

namespace eps {

// The settings of a server's data directory; the section `storage` of the configuration.
struct StorageOptions {
  // dram: state in memory, cuts on disk | nvme: state on disk | csd: the same, and updates in
  // storage devices
  std::string kind;
  std::string path;  // a folder for this server alone
  uint64_t staging_bytes = 0;
  bool reopen = true;  // whether to open the job that was served when the server ended
  // The most steps between two cuts whose contributions are logged. 0 disables the log.
  uint64_t log_steps = 0;
  // With nvme or csd, and mode sealed: reduced gradients wait for their update on the disk, in 4
  // bytes per parameter. If false, in memory.
  bool gradients_on_disk = true;
  // With nvme or csd: the most bytes of the state of a job that are kept in memory.
  uint64_t memory_bytes = 0;
  // Folders for this server alone, one on each drive, that hold the slots and stored gradients of
  // its jobs, spread over them; catalogue and log stay in `path`. If empty, `path` holds all. Name
  // them in the same order for every process that serves the folder. With csd, each has a device.
  std::vector<std::string> drives = {};
  DeviceSettings devices = {};  // for csd
};

// The shard that a backend serves.
struct ShardPlace {
  ShardId shard;
  uint32_t shards = 1;
  uint64_t residual_bytes = 0;  // ResidualBudget
  LogRoom log;                  // ShardCore::LogNeeds
};

// A job that a server served when it ended.
struct ServedSpec {
  JobSpec spec;
  std::vector<std::string> servers;
  ShardId shard;
  DriverLease driver;  // of the driver that created the job last
  JobScope scope;      // what certificates and tokens of the job name
};

// The data directory of a server and its drives: their locks, its catalogue, and the folders of
// each job. Thread-safe; outlives the backends.
class DurableStorage {
 public:
  // Creates directories that are not there. InvalidArgument for another kind, an empty path or a
  // folder that is named twice (the error names the key); NotFound if the directory holds jobs
  // without a catalogue; FailedPrecondition if another process holds a folder.
  static absl::StatusOr<std::unique_ptr<DurableStorage>> Open(const StorageOptions& options);

  // Opens an existing folder without changing it. NotFound if it holds no catalogue;
  // FailedPrecondition if a server uses it.
  static absl::StatusOr<std::unique_ptr<DurableStorage>> OpenForReading(const std::string& path);

  // The records of this folder. REQUIRES OpenForReading, as do the next four functions.
  const Catalogue& catalogue() const { return *catalogue_; }
  // The data directory and its drives.
  std::vector<std::string> Directories() const;
  // Returns all job folders, also those on drives, including the remains of removed jobs.
  absl::StatusOr<std::vector<JobFolder>> JobFolders() const;
  // Removes a job as RemoveJob of storage/cuts/job_folders.h does. This is the only function that
  // changes a folder opened for reading.
  absl::Status RemoveJob(JobId job);
  // Opens a cut of a job in this folder; residual_bytes as in ShardPlace. `spec`, `chunks` and the
  // storage must outlive the reader.
  absl::StatusOr<std::unique_ptr<CutReader>> OpenCut(const JobSpec& spec, const ChunkMap& chunks,
                                                     std::vector<ChunkId> owned,
                                                     uint64_t residual_bytes,
                                                     const CatalogueJob& job,
                                                     const CatalogueCut& cut) const
      EPS_EXCLUDES(mu_);

  // The database, for records beside those of the catalogue. Lives as long as the storage.
  KeyValueStore* records() const { return store_.get(); }

  // Returns the bytes of the state whose reduced gradients wait in memory in mode sealed: those of
  // the chunks that are in memory themselves (ChunksInMemory), or of all.
  uint64_t gradients_in_memory() const {
    const bool all = options_.kind == kDram || !options_.gradients_on_disk;
    return all ? std::numeric_limits<uint64_t>::max() : options_.memory_bytes;
  }

  // Returns the bytes that the links of all devices have carried since their backend was made.
  // Waits a second for each device that does not answer.
  std::vector<DeviceLinks> link_bytes() const EPS_EXCLUDES(mu_);

  // Counts the bytes of the files that backends of this storage create.
  const FillMeter& fill_meter() const { return fill_meter_; }

  // Returns the job of the last Remember, or nullopt.
  absl::StatusOr<std::optional<ServedSpec>> Served() const;
  // Makes the job, which has a backend here, the one that Served returns.
  absl::Status Remember(const ServedJob& job);

  // Removes a job that has no backend here, as RemoveJob of storage/cuts/job_folders.h does. OK if
  // there is none.
  absl::Status Discard(JobId job);
  // Returns the backend of NewNvmeBackend or NewDurableDramBackend, by StorageOptions::kind; with
  // csd, over devices that this starts, and that end after the backend. First
  // removes jobs of the directory that never had a state and the remains of interrupted creations,
  // and moves job folders that the catalogue does not name to lost+found. Records the drives for
  // OpenForReading once they have proved to be those of the job. If the disk is full, the
  // error says how many bytes the other jobs hold and how to remove them.
  absl::StatusOr<std::unique_ptr<StateBackend>> NewBackend(
      const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
      const ShardPlace& place, Executor* executor, MemoryAccount* account, BackendDoneFn done);

 private:
  static constexpr char kDram[] = "dram";
  static constexpr char kNvme[] = "nvme";
  static constexpr char kCsd[] = "csd";

  explicit DurableStorage(StorageOptions options) : options_(std::move(options)) {}
  // Looks for folders of devices in storage.path. Call it once.
  absl::Status FindDeviceFolders();
  // Returns on how many drives new jobs are; 0 if they are in storage.path.
  uint32_t DrivesOfJobs() const;
  // Returns how many of these are devices, with storage.kind=csd.
  uint32_t DevicesOfJobs() const;
  // The folders of a job that hold its slots, or the devices with them.
  std::vector<std::string> SlotFolders(JobId job, uint32_t drives) const;
  // Removes all jobs without a state except `but`, and sets unknown folders aside. Returns the
  // bytes that the other jobs hold.
  absl::StatusOr<uint64_t> TidyUp(JobId but);
  // FailedPrecondition if the state of a known job lies in devices and `kind` does not say so, or
  // the other way round.
  absl::Status CheckHome(JobId job) const;
  // Starts the devices of a job and adds them to `options`. Creates their media for a new job.
  absl::Status StartDevices(const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
                            MemoryAccount* account, DurableOptions* options) EPS_EXCLUDES(mu_);

  StorageOptions options_;  // for reading: the drives of the catalogue
  // The folders of devices in storage.path, also those of earlier settings.
  std::vector<std::string> device_folders_;
  FillMeter fill_meter_;
  std::unique_ptr<Disk> disk_;
  std::vector<std::unique_ptr<Disk::Lock>> locks_;
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<Catalogue> catalogue_;  // null unless opened for reading
  bool may_write_ = false;                // whether catalogue_ is writable; set by RemoveJob
  mutable Mutex mu_;
  std::vector<std::weak_ptr<JobDevices>> devices_ EPS_GUARDED_BY(mu_);  // of the backends
  // Those of cuts that were opened.
  mutable std::vector<std::shared_ptr<JobDevices>> read_devices_ EPS_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Catalogue>> catalogues_ EPS_GUARDED_BY(mu_);  // one for each backend
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DURABLE_STORAGE_H_
