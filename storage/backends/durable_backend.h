#ifndef EPS_STORAGE_BACKENDS_DURABLE_BACKEND_H_
#define EPS_STORAGE_BACKENDS_DURABLE_BACKEND_H_

// The backends that make cuts: a shard's state in two slots for each chunk on a disk, and in memory
// as well or not (docs/durability.md). Every byte that is read is checked. Both leave the same
// files, so a job may go on with the other one.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/job/chunk_map.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/cut.h"
#include "storage/disk/disk.h"
#include "storage/log/log_room.h"
#include "storage/state_backend.h"

namespace eps {

struct DurableOptions {
  Disk* disk = nullptr;  // borrowed
  // The same files for calls that block, where `disk` needs the caller's thread to complete
  // anything, as in simulations; null: `disk`.
  Disk* blocking_disk_or_null = nullptr;
  Catalogue* catalogue = nullptr;  // borrowed; no other backend uses it at the same time
  std::string folder;              // of this job's extents, apart from those of other jobs
  // Memory for chunks on their way to and from the disk, charged to the account: at least one chunk
  // with all its arrays; four keep a disk busy. What exceeds one buffer per chunk is not taken.
  uint64_t staging_bytes = 0;
  uint64_t residual_bytes = 0;  // room for the residuals of a cut (ShardCore::ResidualBudget)
  LogRoom log;                  // of contributions; by default none
  // What else of the disk could be freed, and how: said where it has no room for this job.
  std::string other_jobs;
};

// A job that the catalogue does not know is new: its two slot files are written in full, then it is
// added. Those of a known one are opened, and hold nothing until Restore. Blocks meanwhile. `owned`
// in any order. All that is passed must outlive the backend, whose destructor completes operations
// that wait with Cancelled, awaits the others, and may not run on the executor's threads.
//
// ResourceExhausted with the figures and the key to change if memory or disk do not suffice.
// FailedPrecondition with both values if what is there belongs to another shard, another number of
// shards or another folder; DataLoss if it is damaged.
//
// A cut whose residuals have no free slot waits, without a thread, until Recycle. After an I/O
// error nothing is begun any more: every operation completes with that error.

// State on the disk. Memory is the staging, however large the model: a chunk is read into a buffer,
// updated there by the code that the DRAM backend uses, and written to the slot that no kept cut
// needs (storage/cuts/slot_table.h). A write whose slot an older cut still needs waits until Recycle.
absl::StatusOr<std::unique_ptr<StateBackend>> NewNvmeBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done);

// State in memory, as NewDramBackend has it; the disk sees cuts only. A cut copies one chunk after
// the other into the staging and writes it from there. What would change a chunk that it has not
// copied yet waits and has the chunk copied next; a cut whose slots an older one still needs waits
// until Recycle, and such changes with it. Reads wait for neither.
absl::StatusOr<std::unique_ptr<StateBackend>> NewDurableDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
    uint32_t shards, Executor* executor, MemoryAccount* account, const DurableOptions& options,
    BackendDoneFn done);

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DURABLE_BACKEND_H_
