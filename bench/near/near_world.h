#ifndef EPS_BENCH_NEAR_NEAR_WORLD_H_
#define EPS_BENCH_NEAR_NEAR_WORLD_H_

#include <memory>
#include <string>
#include <vector>

#include "base/memory_account.h"
#include "bench/near/near_variant.h"
#include "storage/csd/device.h"
#include "storage/csd/device_disk.h"
#include "storage/cuts/catalogue.h"
#include "storage/disk/disk.h"
#include "storage/records/key_value_store.h"

namespace eps {

// A state in a variant's backend over real devices, each a process that is as slow as the machine
// of the job, and a GPU that sleeps. For one thread.
class NearWorld {
 public:
  // `folder` is for the media. `program` is eps-csd. Exits with 2 if something fails.
  NearWorld(const NearVariant& variant, const NearJob& job, int chunks, const std::string& folder,
            const std::string& program);
  ~NearWorld();

  // Makes a step, and returns its seconds as those of the whole model.
  NearStep Step();
  // Returns the SHA-256 of the state after the steps.
  std::string Digest();
  // The same of a backend in memory after as many steps, with gradients in that codec.
  static std::string DigestOfMemory(const std::string& gradients, int chunks, int steps);

 private:
  // The backend with its gradients.
  struct State;

  const NearVariant variant_;
  const NearJob job_;
  const double seconds_per_second_;  // of the whole model
  MemoryAccount account_;
  std::unique_ptr<Disk> host_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::shared_ptr<DeviceDisk> disk_;
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<Catalogue> catalogue_;
  std::unique_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_BENCH_NEAR_NEAR_WORLD_H_
