#include <utility>

#include "storage/testing/backend_under_test.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/backends/durable_backend.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

// Lives as long as the process: a backend does not own what it lies on.
struct Ground {
  SimulatedDisk disk{SimulatedDisk::Options()};
  MapStore store;
  Catalogue catalogue{&store};
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateBackend>> NewBackendUnderTest(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  static auto* const grounds = new std::vector<std::unique_ptr<Ground>>();
  grounds->push_back(std::make_unique<Ground>());
  DurableOptions options;
  options.disk = &grounds->back()->disk;
  options.catalogue = &grounds->back()->catalogue;
  options.folder = "/state";
  options.staging_bytes = uint64_t{4} << 20;
  return EPS_NEW_BACKEND(spec, chunks, std::move(owned), ShardId(0), 1, executor, account, options,
                         std::move(done));
}

}  // namespace eps
