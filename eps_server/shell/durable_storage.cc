#include "eps_server/shell/durable_storage.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "storage/nvme_backend.h"
#include "storage/rocksdb_store.h"

namespace eps {
namespace {

// A process that was killed a moment ago may still be on its way out.
constexpr std::chrono::seconds kLockPatience{10};
constexpr std::chrono::milliseconds kLockPause{100};

absl::StatusOr<std::unique_ptr<Disk::Lock>> TakeLock(Disk* disk, const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  for (;;) {
    absl::StatusOr<std::unique_ptr<Disk::Lock>> lock = disk->TakeLock(path);
    const bool held = absl::IsFailedPrecondition(lock.status());
    if (!held || std::chrono::steady_clock::now() > deadline) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DurableStorage>> DurableStorage::Open(
    const StorageOptions& options) {
  if (options.kind != "nvme") {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.kind: expected dram or nvme, found \"", options.kind, "\""));
  }
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "storage.path is empty: storage.kind=nvme needs a folder for this server alone");
  }
  std::unique_ptr<DurableStorage> storage(new DurableStorage(options));
  storage->disk_ = NewRealDisk(DiskOptions());
  EPS_RETURN_IF_ERROR(storage->disk_->CreateFolder(options.path));
  EPS_ASSIGN_OR_RETURN(storage->lock_,
                       TakeLock(storage->disk_.get(), absl::StrCat(options.path, "/LOCK")));
  EPS_ASSIGN_OR_RETURN(storage->store_, OpenRocksDb(absl::StrCat(options.path, "/catalogue")));
  return storage;
}

absl::StatusOr<std::unique_ptr<StateBackend>> DurableStorage::NewBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
    const ShardPlace& place, Executor* executor, MemoryAccount* account, BackendDoneFn done) {
  NvmeOptions options;
  options.disk = disk_.get();
  {
    MutexLock lock(&mu_);
    catalogues_.push_back(std::make_unique<Catalogue>(store_.get()));
    options.catalogue = catalogues_.back().get();
  }
  options.folder = absl::StrFormat("%s/job-%016x", options_.path, spec.id().value());
  options.staging_bytes = options_.staging_bytes;
  options.residual_bytes = place.residual_bytes;
  return NewNvmeBackend(spec, chunks, std::move(owned), place.shard, place.shards, executor,
                        account, options, std::move(done));
}

}  // namespace eps
