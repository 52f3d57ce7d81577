#ifndef EPS_STORAGE_BACKENDS_DURABLE_BACKEND_H_
#define EPS_STORAGE_BACKENDS_DURABLE_BACKEND_H_

// The backends that make cuts (docs/durability.md). Both keep two slots per chunk on a disk; the
// DRAM backend also keeps the state in memory. They check every byte that they read. Both write the
// same files, so a job may continue with either.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/job/layout/chunk_map.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/near/device_use.h"
#include "storage/csd/device_disk.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/cut.h"
#include "storage/disk/disk.h"
#include "storage/log/log_room.h"
#include "storage/state_backend.h"

namespace eps {

// The disk, folder, catalogue and memory budgets of a durable backend.
struct DurableOptions {
  Disk* disk = nullptr;  // borrowed
  // The same files for blocking calls, for a `disk` that completes operations on the caller's
  // thread, as simulations do. Null means `disk`.
  Disk* blocking_disk_or_null = nullptr;
  Catalogue* catalogue = nullptr;  // borrowed; no other backend uses it at the same time
  std::string folder;              // for this job's files alone
  // A folder of this job on each drive, which then hold its slots and stored gradients, in the
  // order in which the job was created. If empty, `folder` holds them.
  std::vector<std::string> drive_folders;
  // Memory for chunks on their way to and from the disk, charged to the account: at least one chunk
  // with all its arrays, and its gradient if that is on the disk; four keep a disk busy. More than
  // one buffer per chunk is never reserved.
  uint64_t staging_bytes = 0;
  // For NewNvmeBackend: the most bytes of the state that are kept in memory, as
  // NewDurableDramBackend keeps all (storage/cuts/drives/memory_share.h), with their reduced
  // gradients.
  uint64_t memory_bytes = 0;
  // For NewNvmeBackend and mode sealed: whether reduced gradients wait for their update in a file
  // beside the slots, and not in memory.
  bool gradients_on_disk = true;
  // For NewNvmeBackend: the devices that update the state, each in one folder of `drive_folders`;
  // the host updates what lies in the others. `disk` is this disk, or passes its calls on. Null if
  // the host updates all.
  std::shared_ptr<DeviceDisk> devices_or_null;
  DeviceUse device_use;         // of these devices
  uint64_t residual_bytes = 0;  // room for the residuals of a cut (ResidualBudget)
  LogRoom log;                  // for the contribution log; none by default
  // Appended to the error for a full disk: the space that other jobs take, and how to free it.
  std::string other_jobs;

  // The folders of slots, one per drive.
  std::vector<std::string> slot_folders() const {
    return drive_folders.empty() ? std::vector<std::string>{folder} : drive_folders;
  }
  // All folders of the job.
  std::vector<std::string> job_folders() const {
    std::vector<std::string> folders = drive_folders;
    folders.push_back(folder);
    return folders;
  }
  // Whether the host updates chunks, or devices alone do.
  Updates updates() const {
    if (devices_or_null == nullptr || memory_bytes > 0) return Updates::kHere;
    for (const std::string& folder : drive_folders) {
      if (devices_or_null->DeviceOf(folder) == nullptr) return Updates::kHere;
    }
    return Updates::kElsewhere;
  }
  // The files for calls that block.
  Disk* blocking() const { return blocking_disk_or_null != nullptr ? blocking_disk_or_null : disk; }
  // Returns `status`, extended by `other_jobs` if the disk is full.
  absl::Status NameOtherJobs(const absl::Status& status) const {
    if (!absl::IsResourceExhausted(status) || other_jobs.empty()) return status;
    return absl::ResourceExhaustedError(absl::StrCat(status.message(), other_jobs));
  }
};

// A job that the catalogue does not know is new: the functions write its two slot files in full,
// then add it to the catalogue. For a known job they open the existing files; the backend has no
// state until Restore. They block. `owned` may be in any order. All arguments must outlive the
// backend. Its destructor completes waiting operations with Cancelled and waits for the others; do
// not run it on a thread of the executor.
//
// ResourceExhausted with the figures and the key to change if memory or disk space do not suffice.
// FailedPrecondition with both values if the folder belongs to another shard, another number of
// shards or another folder; DataLoss if it is damaged.
//
// A cut whose residuals have no free slot waits for Recycle, without occupying a thread. After an
// I/O error no operation begins; all complete with that error.

// Keeps the state on the disk, and in mode sealed the reduced gradients, whose file is created here
// if it is missing. Needs only the staging memory, however large the model is: an operation reads a
// chunk into a buffer, updates it there with the code of the DRAM backend, and writes it to a slot
// that no kept cut needs (storage/cuts/slot_table.h). If kept cuts need both slots, the write waits
// for Recycle.
absl::StatusOr<std::unique_ptr<StateBackend>> NewNvmeBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done);

// Keeps the state in memory, as NewDramBackend does; only cuts reach the disk. A cut copies one
// chunk after the other into the staging memory and writes it from there. A write to a chunk that
// the cut has not copied yet waits, and that chunk is copied next. If older cuts still need both
// slots of a chunk, the cut waits for Recycle, and such writes wait with it. Reads wait for
// neither.
absl::StatusOr<std::unique_ptr<StateBackend>> NewDurableDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done);

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DURABLE_BACKEND_H_
