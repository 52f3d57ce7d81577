#include "storage/testing/backends_under_test.h"

#include <string>
#include <utility>

#include "storage/backends/dram_backend.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/near/testing/device_rig.h"
#include "storage/cuts/catalogue.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

// Less than the state of the jobs of these tests, and more than a chunk.
constexpr uint64_t kSomeOfTheState = 100'000;

// The disk and catalogue of a durable backend. Lives as long as the process, because the backend
// borrows it.
struct Ground {
  SimulatedDisk disk{SimulatedDisk::Options()};
  MapStore store;
  Catalogue catalogue{&store};
};

// `kMemory`: DurableOptions::memory_bytes.
template <decltype(&NewNvmeBackend) kNew, int kDrives = 0, uint64_t kMemory = 0>
absl::StatusOr<std::unique_ptr<StateBackend>> NewOnSimulatedDisk(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  static auto* const grounds = new std::vector<std::unique_ptr<Ground>>();
  grounds->push_back(std::make_unique<Ground>());
  DurableOptions options;
  options.disk = &grounds->back()->disk;
  options.catalogue = &grounds->back()->catalogue;
  options.folder = "/state";
  for (int drive = 0; drive < kDrives; ++drive) {
    options.drive_folders.push_back("/drive-" + std::to_string(drive) + "/job");
  }
  options.staging_bytes = uint64_t{4} << 20;
  options.memory_bytes = kMemory;
  return kNew(spec, chunks, std::move(owned), ShardId(0), 1, executor, account, options,
              std::move(done));
}

absl::StatusOr<std::unique_ptr<StateBackend>> NewOnDevices(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  static auto* const rigs = new std::vector<std::unique_ptr<DeviceRig>>();
  RigOptions options;
  options.media_bytes = uint64_t{4} << 20;
  options.dram_bytes = uint64_t{4} << 20;
  rigs->push_back(std::make_unique<DeviceRig>(spec, options));
  return rigs->back()->NewBackend(spec, chunks, std::move(owned), executor, account,
                                  std::move(done));
}

}  // namespace

std::vector<BackendUnderTest> BackendsUnderTest() {
  return {{"Dram", &NewDramBackend},
          {"DurableDram", &NewOnSimulatedDisk<&NewDurableDramBackend>},
          {"Nvme", &NewOnSimulatedDisk<&NewNvmeBackend>},
          {"Devices", &NewOnDevices},
          {"DramAndNvme", &NewOnSimulatedDisk<&NewNvmeBackend, 0, kSomeOfTheState>},
          {"Drives", &NewOnSimulatedDisk<&NewNvmeBackend, 3>}};
}

}  // namespace eps
