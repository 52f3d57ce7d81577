#ifndef EPS_SERVER_CORE_TESTING_MEMORY_CUTS_H_
#define EPS_SERVER_CORE_TESTING_MEMORY_CUTS_H_

// Durable state for stories about the protocol: DRAM backends whose cuts are kept in memory that
// outlives them. What a disk may do to real ones is tested in storage/ and by tests/crash_test.py.
// For tests; thread-compatible.

#include <map>
#include <memory>
#include <vector>

#include "storage/state_backend.h"

namespace eps {

// What one shard's processes leave behind. A process that dies is cut off: what it still does is
// not seen any more.
class MemoryCuts {
 public:
  struct Cut {
    CutBorder border;
    CutContent content;  // records: all up to the border
    std::map<ChunkId, Bytes> chunks;
  };

  // The backend of a new process.
  std::unique_ptr<StateBackend> Open(const JobSpec& spec, const ChunkMap& chunks,
                                     std::vector<ChunkId> owned, Executor* executor,
                                     MemoryAccount* account, BackendDoneFn done);
  // The process of now dies.
  void CutOff() { ++process_; }

  std::map<CutId, Cut> cuts;
  Term promised;

 private:
  friend class MemoryCutsBackend;
  uint64_t process_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_MEMORY_CUTS_H_
