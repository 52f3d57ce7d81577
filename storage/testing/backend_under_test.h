#ifndef EPS_STORAGE_TESTING_BACKEND_UNDER_TEST_H_
#define EPS_STORAGE_TESTING_BACKEND_UNDER_TEST_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/state_backend.h"

namespace eps {

// The backend that storage/backends/state_backend_test.cc is linked with: what is said there holds for all.
absl::StatusOr<std::unique_ptr<StateBackend>> NewBackendUnderTest(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done);

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_BACKEND_UNDER_TEST_H_
