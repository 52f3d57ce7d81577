#ifndef EPS_STORAGE_BACKENDS_NEAR_TESTING_DEVICE_RIG_H_
#define EPS_STORAGE_BACKENDS_NEAR_TESTING_DEVICE_RIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "storage/backends/durable_backend.h"
#include "storage/csd/device.h"
#include "storage/csd/device_disk.h"
#include "storage/csd/link_bytes.h"
#include "storage/csd/rates/device_rates.h"
#include "storage/cuts/catalogue.h"
#include "storage/state_backend.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/simulated_disk.h"

namespace eps {

// The settings of a DeviceRig. Plain value.
struct RigOptions {
  // Each device in a process of its own, not in this one. The test's BUILD target has
  // //storage/csd/process:eps-csd as data.
  bool processes = false;
  bool opencl = false;  // OpenClDevices in this process
  DeviceRates rates;    // of processes
  int devices = 2;
  uint64_t media_bytes = uint64_t{16} << 20;
  uint64_t dram_bytes = 0;  // 0: the host updates, and the devices are drives
  int sets = 3;             // chunks that a device updates at the same time
  bool hands_buffers_over = false;
  bool encodes_weights = true;
  bool reads_weights_back = false;
  bool holds_stores = false;  // of devices in this process: HeldStores
  // Where reduced gradients of mode sealed wait: in device memory, else on the medium; or, if not
  // on_disk, in memory of the host.
  bool gradients_in_memory = false;
  bool gradients_on_disk = true;
};

// Returns what the links carry in a step of a chunk of `n` elements in mode sealed, whose weights
// come up in bf16 if devices encode them: a row SU of docs/guides/near_storage.md. REQUIRES AdamW
// and whole blocks.
LinkBytes BytesOfStep(const RigOptions& options, uint64_t n, uint64_t footer_bytes);

// New devices, the disk that makes drives of them, and a backend's options over both. For
// one thread.
class DeviceRig {
 public:
  // `spec` is the job of the devices' kernels.
  DeviceRig(const JobSpec& spec, const RigOptions& options);

  // Opens a backend over the devices; at most one at a time.
  absl::StatusOr<std::unique_ptr<StateBackend>> NewBackend(
      const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
      MemoryAccount* account, BackendDoneFn done);
  // The same for the rig that was made last: ShardUnderTest takes a plain function.
  static absl::StatusOr<std::unique_ptr<StateBackend>> NewBackendOfLast(
      const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
      MemoryAccount* account, BackendDoneFn done);

  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  DeviceDisk* disk() const { return disk_.get(); }
  // Flips a bit of the first chunk on the first device, in both slots: one block after the begin of
  // each file. Expects success.
  void FlipBitsOfFirstChunk() const;
  // Returns the bytes of all devices.
  LinkBytes link_bytes() const;

 private:
  std::unique_ptr<Device> OpenDevice(const std::string& name, const JobSpec& spec);

  const RigOptions options_;
  SimulatedDisk host_{SimulatedDisk::Options()};
  ThreadPool pool_{2};
  MemoryAccount account_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::shared_ptr<DeviceDisk> disk_;
  MapStore store_;
  Catalogue catalogue_{&store_};
};

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_NEAR_TESTING_DEVICE_RIG_H_
