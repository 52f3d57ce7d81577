#ifndef EPS_STORAGE_BACKENDS_DRAM_BACKEND_H_
#define EPS_STORAGE_BACKENDS_DRAM_BACKEND_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "storage/state_backend.h"

namespace eps {

// Returns a backend that keeps its state in prefaulted memory and makes nothing durable; AdamW
// takes 12 bytes per parameter. Reserves all memory now. ResourceExhausted names the bytes wanted,
// the bytes in use, the limit, and the key to change. `spec`, `chunks`, `executor` and `account`
// must outlive the backend; `owned` lists this shard's chunks. Operations of one chunk run one
// after the other, those of different chunks in parallel. The destructor waits for operations in
// flight; do not run it on a thread of the executor.
absl::StatusOr<std::unique_ptr<StateBackend>> NewDramBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done);

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_DRAM_BACKEND_H_
