#ifndef EPS_WORKER_EXEC_STASH_STASH_TIERS_H_
#define EPS_WORKER_EXEC_STASH_STASH_TIERS_H_

// Chooses where stashed activations wait: on the device, in host memory, or in a file. A stash is
// read in the reverse order of writing, so what is stashed first waits longest and gets the slowest
// memory. Pure arithmetic.

#include <cstdint>

#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "worker/relay/stash_codec.h"

namespace eps {

enum class StashTier { kDevice, kHost, kFile };

// Bytes for stashed activations in the faster tiers.
struct StashRooms {
  uint64_t device = 0;
  uint64_t host = 0;
  bool file = false;  // whether the rest may lie in a file
};

// Bytes of the stashed input of a stage, and of a stashed gradient, of one micro-batch.
// Micro-batches of shorter samples take less.
struct StashSizes {
  uint64_t input = 0;
  uint64_t gradient = 0;
};
StashSizes StashSizesOf(const JobSpec& spec, const StashCodec& codec);

// Returns the bytes that a device needs beside a stash, generously: slots for weights, sums of
// gradients, and what a backward pass keeps. `largest_stage` is the size of the largest stage's
// weights in FP32, with second copies.
uint64_t DeviceBytesWithoutStash(const JobSpec& spec, uint64_t largest_stage);

// Thread-compatible.
class StashTiers {
 public:
  explicit StashTiers(const StashRooms& rooms) : rooms_(rooms) {}

  // Begins with nothing stashed, of `bytes` that will be stashed at the same time.
  // ResourceExhausted with the figures and keys if they do not fit.
  absl::Status Begin(uint64_t bytes);
  // Returns the tier of an activation of `bytes`, the next one. Those that exceed the bytes of
  // Begin belong to the fastest tier.
  StashTier Next(uint64_t bytes);

  // The bytes of each tier after Begin.
  uint64_t in_file() const { return in_file_; }
  uint64_t on_host() const { return on_host_; }
  uint64_t on_device() const { return on_device_; }

 private:
  const StashRooms rooms_;
  uint64_t in_file_ = 0;  // of what is stashed first
  uint64_t on_host_ = 0;  // of what follows
  uint64_t on_device_ = 0;
  uint64_t stashed_ = 0;  // since Begin
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_STASH_STASH_TIERS_H_
