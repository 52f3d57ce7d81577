#ifndef EPS_SERVER_SHELL_DURABLE_STORAGE_H_
#define EPS_SERVER_SHELL_DURABLE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "storage/catalogue.h"
#include "storage/disk.h"
#include "storage/state_backend.h"

namespace eps {

struct StorageOptions {
  std::string kind = "dram";  // dram: state in memory, nothing is durable | nvme
  std::string path;           // folder of this server alone
  uint64_t staging_bytes = 0;
};

// What a backend is made for.
struct ShardPlace {
  ShardId shard;
  uint32_t shards = 1;
  uint64_t residual_bytes = 0;  // ShardCore::ResidualBudget
};

// The data directory of a server: its lock, its catalogue, and a folder of extents for each job.
// Thread-safe; outlives the backends.
class DurableStorage {
 public:
  // Creates what is missing. InvalidArgument for another kind than nvme or an empty path (the error
  // names the key); FailedPrecondition if another process has the folder.
  static absl::StatusOr<std::unique_ptr<DurableStorage>> Open(const StorageOptions& options);

  // As NewNvmeBackend.
  absl::StatusOr<std::unique_ptr<StateBackend>> NewBackend(
      const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
      const ShardPlace& place, Executor* executor, MemoryAccount* account, BackendDoneFn done);

 private:
  explicit DurableStorage(StorageOptions options) : options_(std::move(options)) {}

  const StorageOptions options_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<Disk::Lock> lock_;
  std::unique_ptr<KeyValueStore> store_;
  Mutex mu_;
  std::vector<std::unique_ptr<Catalogue>> catalogues_ EPS_GUARDED_BY(mu_);  // one for each backend
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_DURABLE_STORAGE_H_
