#ifndef EPS_SERVER_CORE_TESTING_MEMORY_CUTS_H_
#define EPS_SERVER_CORE_TESTING_MEMORY_CUTS_H_

// Durable state without disks: DRAM backends whose cuts are kept in memory that outlives them.
// storage/ and tests/crash_test.py test the effects of real disks. For tests; thread-compatible.

#include <map>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "storage/state_backend.h"

namespace eps {

// The cuts that the processes of one shard leave. Once a process is cut off, its operations have no
// effect. Must outlive the backends.
class MemoryCuts {
 public:
  // A durable cut of one shard.
  struct Cut {
    CutBorder border;
    CutContent content;               // all records up to the border
    std::map<ChunkId, Bytes> chunks;  // as ReadStateRequest returns it
  };

  // Returns the backend of a new process; it borrows this object.
  std::unique_ptr<StateBackend> Open(const JobSpec& spec, const ChunkMap& chunks,
                                     std::vector<ChunkId> owned, Executor* executor,
                                     MemoryAccount* account, BackendDoneFn done);
  // Kills the current process.
  void CutOff() { ++process_; }

  std::map<CutId, Cut> cuts;
  Term promised;  // 0 if none was promised

 private:
  friend class MemoryCutsBackend;
  uint64_t process_ = 0;  // the number of the current process
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_MEMORY_CUTS_H_
