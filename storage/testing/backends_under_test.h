#ifndef EPS_STORAGE_TESTING_BACKENDS_UNDER_TEST_H_
#define EPS_STORAGE_TESTING_BACKENDS_UNDER_TEST_H_

#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "storage/state_backend.h"

namespace eps {

// One kind of backend for the tests that run against every kind.
struct BackendUnderTest {
  const char* name;  // part of the test's name
  absl::StatusOr<std::unique_ptr<StateBackend>> (*make)(const JobSpec& spec, const ChunkMap& chunks,
                                                        std::vector<ChunkId> owned,
                                                        Executor* executor, MemoryAccount* account,
                                                        BackendDoneFn done);
};
inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }

// Every kind of backend. The durable ones lie on a simulated disk that lives as long as the
// process.
std::vector<BackendUnderTest> BackendsUnderTest();

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_BACKENDS_UNDER_TEST_H_
