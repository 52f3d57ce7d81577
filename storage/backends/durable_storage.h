#ifndef EPS_STORAGE_BACKENDS_DURABLE_STORAGE_H_
#define EPS_STORAGE_BACKENDS_DURABLE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/cut_reader.h"
#include "storage/disk/disk.h"
#include "storage/cuts/job_folders.h"
#include "storage/log/log_room.h"
#include "storage/state_backend.h"

namespace eps {

struct StorageOptions {
  std::string kind;  // dram: state in memory, cuts of it on disk | nvme: state on disk
  std::string path;  // folder of this server alone
  uint64_t staging_bytes = 0;
  bool reopen = true;  // the job that was served when the server ended
  // Between two cuts, of which contributions are logged; 0: they are not.
  uint64_t log_steps = 0;
};

// What a backend is made for.
struct ShardPlace {
  ShardId shard;
  uint32_t shards = 1;
  uint64_t residual_bytes = 0;  // ShardCore::ResidualBudget
  LogRoom log;                  // ShardCore::LogNeeds
};

// A job that a server served when it ended.
struct ServedSpec {
  JobSpec spec;
  std::vector<std::string> servers;
  ShardId shard;
};

// The data directory of a server: its lock, its catalogue, and a folder of extents for each job.
// Thread-safe; outlives the backends.
class DurableStorage {
 public:
  // Creates what is missing. InvalidArgument for another kind or an empty path (the error names the
  // key); FailedPrecondition if another process has the folder.
  static absl::StatusOr<std::unique_ptr<DurableStorage>> Open(const StorageOptions& options);

  // A folder that is there, to be looked at: nothing in it is changed. NotFound if it holds no
  // catalogue; FailedPrecondition if a server is using it.
  static absl::StatusOr<std::unique_ptr<DurableStorage>> OpenForReading(const std::string& path);

  // What jobs and cuts are here. Only for a folder that was opened for reading, as the next two.
  const Catalogue& catalogue() const { return *catalogue_; }
  // Also those that are left of removed jobs.
  absl::StatusOr<std::vector<JobFolder>> JobFolders() const;
  // As the function of storage/cuts/job_folders.h: the only change that is made in such a folder.
  absl::Status RemoveJob(JobId job);
  // Of the job's extents here; residual_bytes as in ShardPlace. `spec` and `chunks` outlive the
  // reader, as the storage does.
  absl::StatusOr<std::unique_ptr<CutReader>> OpenCut(const JobSpec& spec, const ChunkMap& chunks,
                                                     std::vector<ChunkId> owned,
                                                     uint64_t residual_bytes,
                                                     const CatalogueJob& job,
                                                     const CatalogueCut& cut) const;

  // The job of this directory that Remember was told of last; nullopt: none.
  absl::StatusOr<std::optional<ServedSpec>> Served() const;
  // From now on `job`, which has a backend here, is the one that Served gives.
  absl::Status Remember(JobId job, const std::vector<std::string>& servers);

  // As NewNvmeBackend and NewDurableDramBackend. Jobs of the directory that never got a state, and
  // what is left of removed ones, give way to it. Where the disk has no room, the error says what
  // the other jobs hold, and how they are removed.
  absl::StatusOr<std::unique_ptr<StateBackend>> NewBackend(
      const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
      const ShardPlace& place, Executor* executor, MemoryAccount* account, BackendDoneFn done);

 private:
  explicit DurableStorage(StorageOptions options) : options_(std::move(options)) {}
  // Returns the bytes of the jobs that stay, without `but`.
  absl::StatusOr<uint64_t> RemoveEmptyJobs(JobId but);

  const StorageOptions options_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<Disk::Lock> lock_;
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<Catalogue> catalogue_;  // of a folder that was opened for reading
  bool may_write_ = false;                // that catalogue, since a job was removed
  Mutex mu_;
  std::vector<std::unique_ptr<Catalogue>> catalogues_ EPS_GUARDED_BY(mu_);  // one for each backend
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DURABLE_STORAGE_H_
