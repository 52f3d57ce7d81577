#ifndef EPS_BENCH_NEAR_NEAR_WORLD_H_
#define EPS_BENCH_NEAR_NEAR_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_account.h"
#include "bench/near/near_variant.h"
#include "planner/units.h"
#include "storage/csd/device.h"
#include "storage/csd/device_disk.h"
#include "storage/csd/link_bytes.h"
#include "storage/csd/process/host_link.h"
#include "storage/csd/rates/device_rates.h"
#include "storage/cuts/catalogue.h"
#include "storage/disk/disk.h"
#include "storage/records/key_value_store.h"

namespace eps {

// A state in a variant's backend over real devices, each a process that is as slow as the machine
// of the job, and a GPU that sleeps. For one thread.
class NearWorld {
 public:
  // `folder` is for the media, or for the state on the disk. `program` is eps-csd. Exits with 2 if
  // something fails.
  NearWorld(const NearVariant& variant, const NearJob& job, int chunks, const std::string& folder,
            const std::string& program);
  ~NearWorld();

  // Makes a step, and returns its seconds as those of the whole model.
  NearStep Step();
  // Reads and writes the bytes of all chunks' states within the only device, as many chunks at a
  // time as there are sets, and changes nothing. Returns the seconds as those of the whole model.
  double MoveStates();
  // Returns the SHA-256 of the state after the steps.
  std::string Digest();
  // The same of a backend in memory after as many steps of that variant.
  static std::string DigestOfMemory(const NearVariant& variant, int chunks, int steps);

 private:
  // The backend with its gradients.
  struct State;
  class Gpu;

  HostRates LinkRates() const;
  void StartDevices(int chunks, const std::string& folder, const std::string& program);
  double Scaled(planner::BytesPerSecond rate) const {
    return job_.paced ? rate.value() / job_.scale : 0;
  }
  // Of a chunk, with its gradient.
  uint64_t SetBytes() const;
  // Returns the seconds on this machine for which the busiest link was used since that time.
  double BusiestSince(const std::vector<LinkBytes>& earlier) const;
  std::vector<LinkBytes> Ledgers() const;

  const NearVariant variant_;
  const NearJob job_;
  const double seconds_per_second_;  // of the whole model
  MemoryAccount account_;
  std::shared_ptr<csd::HostLink> link_;
  std::unique_ptr<Disk> host_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::shared_ptr<DeviceDisk> disk_;
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<Catalogue> catalogue_;
  std::vector<Place> buffers_;  // for MoveStates
  std::unique_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_BENCH_NEAR_NEAR_WORLD_H_
