#include <utility>

#include "storage/testing/backend_under_test.h"

namespace eps {

absl::StatusOr<std::unique_ptr<StateBackend>> NewBackendUnderTest(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  return NewDramBackend(spec, chunks, std::move(owned), executor, account, std::move(done));
}

}  // namespace eps
